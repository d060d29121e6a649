"""Fine-tuning on several devices and in several processes gives what one device gives."""

import json
import random

import jax
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.distributed import process_group
from lmrep.inference import encode, evaluate_task
from lmrep.storage.checkpoints import Checkpoints
from tests import forked, runs, small
from tests.tasks import tiny


def examples(count, seed):
    """Texts of several lengths, good where they begin with one of four words."""
    draw = random.Random(seed)
    texts = [tiny.sentence(draw, draw.randint(1, 9)) for _ in range(count)]
    return [{"text": text, "label": "good" if text.split()[0] in tiny.WORDS[:4] else "bad"} for text in texts]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with training and validation examples, whose numbers the batch size does not divide."""
    home = tmp_path_factory.mktemp("devices")
    tiny.write(home / "train.jsonl", examples(60, 0))
    tiny.write(home / "dev.jsonl", examples(21, 1))
    return home


def config(home, mesh="1x1x1", **fields):
    """Batches of 5 sequences of 8 tokens, or 2 of 16. Microbatches draw other dropout masks than full batches."""
    return tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", f"mesh={mesh}", batch_size=8,
                       epochs=1.5, optimizer__learning_rate=3e-3, evaluation__every=4, format__batch_tokens=40,
                       objective__dropout=0.0, **fields)


def one_of_two(home):
    """A process of a run on a mesh of two devices, in microbatches; it writes what the run returns. Then a run whose
    processes have read other examples is refused."""
    process_group.start()
    assert jax.device_count() == 2 and jax.local_device_count() == 1
    outcome = lmrep.train(config(home, "2x1x1", microbatches=2), home / "two")
    (home / f"outcome-{jax.process_index()}.json").write_text(json.dumps(outcome._asdict()))
    other = config(home, "2x1x1")
    if jax.process_index() == 1:
        other.data.train = other.data.validation
    with pytest.raises(UserError, match=r"(?s)process 1 differs from process 0:.* data\.train: "):
        lmrep.train(other, home / "refused")
    assert not (home / "refused").exists()


@pytest.mark.slow
def test_two_processes_fine_tune_in_microbatches_as_one_does(home):
    """Metrics, checkpoints and predictions are equal; float32 rounding aside."""
    outcome = lmrep.train(config(home), home / "one")
    pair = [forked.Child(one_of_two, home, environment=environment) for environment in forked.addresses(2)]
    for answer in map(small.finish, pair):
        assert answer.code == 0, answer
    both = home / "two", home / "one"
    for split in ("train", "validation"):
        lines, reference = (small.lines(workdir, split) for workdir in both)
        assert [line["step"] for line in lines] == [line["step"] for line in reference]
        for line, other in zip(lines, reference, strict=True):
            del line["split"], other["split"]
            assert line == pytest.approx(other, rel=1e-5, abs=1e-6)
    best = [Checkpoints(workdir / "checkpoints").steps() for workdir in both]
    assert best[0] == best[1]
    found, reference = ([json.loads(line) for line in (workdir / "predictions/validation.jsonl").open()]
                        for workdir in both)
    assert [line["id"] for line in found] == [str(i) for i in range(21)]
    for line, other in zip(found, reference, strict=True):
        assert line["prediction"]["label"] == other["prediction"]["label"]
        assert line["prediction"]["probabilities"] == pytest.approx(other["prediction"]["probabilities"], abs=1e-5)
    for index in range(2):
        found = json.loads((home / f"outcome-{index}.json").read_text())
        assert found["best_step"] == outcome.best_step
        assert found["after"] == pytest.approx(outcome.after, rel=1e-5)


def test_predictions_on_all_devices_are_those_of_one(monkeypatch):
    """Eight devices compute batches of more tokens than fit one batch of the first."""
    run = lmrep.load(runs.folder("classification") / "run")
    texts = [record["text"] for record in examples(21, 1)]
    devices = []
    predictor = evaluate_task._predictor
    monkeypatch.setattr(evaluate_task, "_predictor", lambda run, count: devices.append(count) or predictor(run, count))
    expected = run.predict(texts)
    monkeypatch.setitem(encode.BATCH, "cpu", 16)
    found = run.predict(texts)
    assert devices == [1, 8]
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
