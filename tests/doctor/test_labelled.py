"""`lmrep doctor` on tasks."""

import types

import pytest

from lmrep import doctor
from lmrep.experiment.fine_tuning import compose_known
from tests.doctor import examined, failed


def test_tfds_data_set_that_is_not_prepared_fails_without_a_download(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets")
    monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
    builder = types.SimpleNamespace(info=types.SimpleNamespace(splits={}), download_and_prepare=None)
    monkeypatch.setattr(tfds, "builder", lambda *_, **__: builder)
    found = examined(compose_known("data=tfds,size=tiny", "rte"), tmp_path / "run")
    assert failed(found).keys() == {"examples"} and not (tmp_path / "tfds").exists()
    message = found["examples"].text
    assert "'glue/rte' is not prepared in" in message and "tfds build NAME --file_format=array_record" in message


def test_steps_and_labels_come_from_the_training_data(tmp_path):
    path = tmp_path / "train.tsv"
    lines = ["sentence1\tsentence2\tlabel", *["A cat sat.\tIt sat.\tentailment"] * 40, "A\tB\tnot_entailment"]
    path.write_text("\n".join(lines) + "\n")
    config = compose_known("data=.,size=tiny", "rte")
    config.data.update({"train": str(path), "validation": str(path), "test": ""})
    config.epochs = 2.5
    found = examined(config, tmp_path / "run")
    assert not failed(found) and "2.5 epochs" in found["config"].text
    assert found["examples"].mark == doctor.OK and "train 41, validation 41" in found["examples"].text
    assert found["examples"].text.endswith("5 steps")  # an epoch is two batches of up to 32
