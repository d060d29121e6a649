"""`lmrep.save`: a workdir of parameters that another training loop has trained."""

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten, unflatten
from tests import given, small

TEXTS = ["The red cat sees the old dog.", "Old."]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return lmrep.load(given.workdir(tmp_path_factory.mktemp("save")))


@pytest.fixture(scope="module")
def values(run):
    return {path: np.asarray(value) + 1e-3 for path, value in flatten(run.params).items()}


def test_saved_parameters_are_loaded_as_a_run(run, values, tmp_path):
    updated = jax.tree.map(lambda x: x + 1e-3, run.params)
    assert lmrep.save(updated, run.experiment, run.tokenizer, tmp_path / "saved", step=7) == tmp_path / "saved"
    saved = lmrep.load(tmp_path / "saved")
    assert saved.step == 7 and not saved.converted
    for path, value in flatten(saved.params).items():
        np.testing.assert_allclose(value, values[path], rtol=1e-6, err_msg=path)
    assert not np.allclose(saved.embed(TEXTS), run.embed(TEXTS))
    with pytest.raises(UserError, match="exists already; give a new or an empty directory"):
        lmrep.save(updated, run.experiment, run.tokenizer, tmp_path / "saved")


def test_a_network_without_its_heads_is_saved(run, values, tmp_path):
    """The config is a mapping, the tokenizer a directory, the parameters are by path and of bfloat16."""
    config = small.config(tmp_path)
    config.model.update({"layers": 3, "max_length": 48})
    encoder = {path: jax.numpy.bfloat16(value) for path, value in values.items() if path.startswith("encoder/")}
    lmrep.save(encoder, config, run.directory / "tokenizer", tmp_path / "saved")
    saved = lmrep.load(tmp_path / "saved")
    assert flatten(saved.params).keys() == encoder.keys()
    with pytest.raises(UserError, match=r"has no masked-LM head|has no "):
        saved.fill_masks(["The [MASK]."])


@pytest.fixture(scope="module")
def saved(run, values, tmp_path_factory):
    """A directory of saved parameters, which no test changes but for the files of evaluations and reports."""
    return lmrep.save(values, run.experiment, run.tokenizer, tmp_path_factory.mktemp("saved") / "run")


def test_saved_parameters_are_evaluated_inspected_and_reported(saved, tmp_path):
    assert lmrep.evaluate(saved, data_dir=tmp_path)["mlm_loss"] > 0
    assert "packed examples of 32 tokens" in lmrep.inspect(saved, examples=1, data_dir=tmp_path)
    page = lmrep.report(saved, data_dir=tmp_path).read_text()
    assert "Its parameters are those of another training loop." in page and "not been trained" not in page
    assert "lmrep convert" not in page


@pytest.mark.slow
@pytest.mark.parametrize(("page", "fields"), [
    ("tasks/classify.py:", {"epochs": 1.0}),
    ("bert.py:size=tiny,", {"steps": 10, "data.corpus": "text_files", "stages.1.length": 48})])
def test_runs_start_from_saved_parameters(saved, run, tmp_path, page, fields):
    if "tasks" in page:
        fields = fields | {"data": {"train": [{"text": text, "label": text[:3]} for text in TEXTS * 8]}}
    else:
        fields = fields | {"data.files": run.experiment.data.files}
    lmrep.train(f"{page}init={saved},mesh=1x1x1", tmp_path / "new", data_dir=tmp_path / "data",
                **{"batch_size": 16, "length": 32, "log.tensorboard": False, "log.report": False}, **fields)
    started = lmrep.load(tmp_path / "new")
    assert started.experiment.model["layers"] == 3 and started.tokenizer.fingerprint == run.tokenizer.fingerprint


TOKEN, BIAS = "encoder/embedding/token", "objective/masked/bias"


@pytest.mark.parametrize(("change", "messages"), [
    ({TOKEN: None}, [f"{TOKEN} is missing; expected {{shape}}"]),
    ({TOKEN: np.zeros((3, 32), np.float32), BIAS: "integers"},
     [f"{TOKEN} is (3, 32); expected {{shape}}", f"{BIAS} is of int64; expected floating-point numbers"]),
    ({"encoder/embedding/tokens": np.zeros(3)}, [f"encoder/embedding/tokens is unknown; did you mean '{TOKEN}'"]),
])
def test_other_parameters_are_refused_by_name(run, values, tmp_path, change, messages):
    change = {path: values[path].astype(int) if isinstance(value, str) else value for path, value in change.items()}
    params = unflatten({path: value for path, value in {**values, **change}.items() if value is not None})
    with pytest.raises(UserError) as refused:
        lmrep.save(params, run.experiment, run.tokenizer, tmp_path / "saved")
    assert all(message.format(shape=values[TOKEN].shape) in str(refused.value) for message in messages), refused.value
    assert not (tmp_path / "saved").exists()


def test_every_kind_of_difference_is_shown(run, values, tmp_path):
    encoder = [path for path in values if path.startswith("encoder/")]
    params = {path: value for path, value in values.items() if path not in encoder[:9]}
    params |= {f"encoder/other{i}": np.zeros(3) for i in range(7)} | {encoder[-1]: np.zeros(7)}
    with pytest.raises(UserError) as refused:
        lmrep.save(params, run.experiment, run.tokenizer, tmp_path / "saved")
    message = str(refused.value)
    assert message.count("is missing;") == 5 == message.count("is unknown") and f"{encoder[-1]} is (7,)" in message
    assert "and 4 more that are missing" in message and "and 2 more that are unknown" in message
