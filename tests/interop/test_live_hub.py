"""A run published on a server that stands for the Hugging Face Hub, fine-tuned from there on data from there, published
again, and read by the transformers library."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lmrep
from lmrep.cli.main import main
from lmrep.core.errors import UserError
from lmrep.interop import conversion
from lmrep.storage import remote_workdir, workdir
from tests import runs
from tests.core.test_hub import rows_in_parquet

TEXTS = ["the cat sees the dog", "a good bird finds the fish"]


def reviews(count, seed):
    return "".join(json.dumps(record) + "\n" for record in runs.labelled_texts(count, seed))


def train(directory, **fields):
    """Fine-tunes me/small, of whatever commit is recorded or the present one."""
    return lmrep.train("tasks/classify.py:init=hf://me/small,mesh=1x1x1", directory, **{
        "data.train": "hf://datasets/me/reviews/train*.jsonl", "data.validation": "hf://datasets/me/reviews@main/dev.jsonl",
        "epochs": 1.0, "batch_size": 16, "length": 32, "log.report": False, "log.tensorboard": False, **fields})


@pytest.mark.slow
def test_published_runs_are_fine_tuned_and_published_again(hub, small_home, tmp_path, capsys, monkeypatch):
    from huggingface_hub import ModelCard, constants

    assert main(["push", f"--workdir={small_home}/run", "--repo=me/small", "--license=apache-2.0",
                 f"--data_dir={small_home}/data"]) == 0
    assert capsys.readouterr().out.startswith(hub.url)
    card = ModelCard(hub.files("me/small")["README.md"].decode())
    assert (card.data.license, card.data.pipeline_tag, card.data.library_name) == (
        "apache-2.0", "fill-mask", "transformers")
    assert {result.metric_type for result in card.data.eval_results} >= {"mlm_loss"}
    assert "BertForMaskedLM.from_pretrained" in card.text and "lmrep convert hf://me/small" in card.text
    assert {"config.json", "model.safetensors"} <= hub.files("me/small").keys()

    data = hub.commit("me/reviews", {"train-0.jsonl": reviews(48, 0), "dev.jsonl": reviews(20, 1)}, "datasets")
    model = hub.repositories["models", "me/small"]["refs"]["main"]
    train(tmp_path / "run")
    starts = (tmp_path / "run/provenance.jsonl").read_text()
    config = workdir.read_config(tmp_path / "run")["config"]
    assert config["init"] == f"hf://me/small@{model}" and config["init"] in starts
    assert config["data"]["train"] == f"hf://datasets/me/reviews@{data}/train*.jsonl"
    assert config["data"]["validation"] == f"hf://datasets/me/reviews@{data}/dev.jsonl"

    hub.commit("me/reviews", {"train-0.jsonl": reviews(48, 2)}, "datasets")  # a run that is resumed keeps its commits
    hub.commit("me/small", {"model.safetensors": b"damaged"})
    train(tmp_path / "run", epochs=2.0, **{"data.validation": "hf://datasets/me/reviews/dev.jsonl"})
    assert workdir.read_config(tmp_path / "run")["config"]["init"] == f"hf://me/small@{model}"

    address = lmrep.push(tmp_path / "run", "me/reviews-small", language="en", private=True)
    assert address.startswith(hub.url) and hub.repositories["models", "me/reviews-small"]["private"]
    card = ModelCard(hub.files("me/reviews-small")["README.md"].decode())
    accuracy = next(result for result in card.data.eval_results if result.metric_type == "accuracy")
    assert (accuracy.dataset_type, accuracy.dataset_revision) == ("me/reviews", data)
    assert card.data.datasets == ["me/reviews"] and card.data.base_model == "me/small" and card.data.language == "en"
    assert "95% interval" in card.text and "lmrep" in card.text and card.text.count("device-hours") == 1

    directory = remote_workdir.local_copy("hf://me/reviews-small")
    conversion.to_workdir(directory, tmp_path / "back")
    expected = [one["probabilities"] for one in lmrep.load(tmp_path / "run").predict(TEXTS)]
    for one, other in zip(lmrep.load(tmp_path / "back").predict(TEXTS), expected, strict=True):
        assert one["probabilities"] == pytest.approx(other, abs=1e-5)
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    with torch.no_grad():
        logits = network(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    for row, probabilities in zip(torch.softmax(logits, -1).numpy(), expected, strict=True):
        np.testing.assert_allclose(row, [probabilities[network.config.id2label[i]] for i in range(2)], atol=1e-4)

    hub.stop()
    shutil.rmtree(Path(constants.HF_HUB_CACHE, "models--me--small"))
    # Neither the Hub nor the checkpoint that it started from is needed.
    assert main(["train", f"--workdir={tmp_path}/run", "--config.epochs=3"]) == 0


def test_dry_run_uploads_nothing(hub, small_home, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = Path(lmrep.push(small_home / "run", "me/small", dry_run=True, data_dir=small_home / "data"))
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and (folder / "model.safetensors").is_file()
    files = (small_home / "run/config.json").read_text()
    assert str(small_home) in files and str(small_home) not in card and "hf://me/small" in card
    assert not any("create" in request for request in hub.requests)


def test_push_refuses(hub, small_home, tmp_path):
    with pytest.raises(UserError, match="--repo is 'small'; expected OWNER/NAME"):
        lmrep.push(small_home / "run", "small")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="is a published directory already"):
        lmrep.push(tmp_path, "me/small")


@pytest.mark.slow
def test_a_task_on_parquet(hub, small_home, tmp_path):
    def rows(count, seed):
        examples = runs.labelled_texts(count, seed)
        return rows_in_parquet([example["text"] for example in examples],
                               [runs.LABELS.index(example["label"]) for example in examples])

    hub.commit("me/reviews", {"data/train-00000-of-00002.parquet": rows(32, 0), "README.md": "",
                              "data/train-00001-of-00002.parquet": rows(16, 1),
                              "data/validation-00000-of-00001.parquet": rows(20, 2)}, "datasets")
    address = "hf://datasets/me/reviews/data/{}-*.parquet"
    data = {f"data.{split}": address.format(split) for split in ("train", "validation")}
    lmrep.train(f"tasks/classify.py:init={small_home}/run,mesh=1x1x1", tmp_path / "run", **data, **{
        "data.columns.text": "sentence", "epochs": 1.0, "batch_size": 16, "length": 32, "log.tensorboard": False})
    assert lmrep.load(tmp_path / "run").predict(TEXTS)[0]["probabilities"].keys() == {*runs.LABELS}
    assert main(["evaluate", f"--workdir={tmp_path}/run", f"--files={address.format('validation')}"]) == 0
