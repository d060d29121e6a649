"""Tasks that read frozen encoders, word vectors and characters: scores, the cache, runs and their reports."""

import json
import random

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.experiment.fine_tuning import compose_task
from lmrep.inference import feature_cache
from lmrep.interop import conversion
from lmrep.storage.checkpoints import Checkpoints
from tests import small, started
from tests.tasks import tiny

pytestmark = pytest.mark.slow

WORDS = small.NOUNS
TAGGER = "mesh=1x1x1,network=bilstm_crf"


def sentences(count, seed):
    """A word's tag says whether there has been a cat in the sentence: no function of the word."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(7, 9))]
        seen = np.cumsum([word == "cat" for word in words]) > 0
        found.append({"words": words, "tags": ["YES" if each else "NO" for each in seen]})
    return found


def questions(count, seed):
    """The answer is the word after that of the question."""
    draw, found = random.Random(seed), []
    for _ in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.choice((16, 20)))]  # windows of 20 tokens with the question
        at = draw.randrange(len(words) - 1)
        found.append({"question": words[at], "context": " ".join(words), "answers": [
            {"text": words[at + 1], "answer_start": len(" ".join([*words[: at + 1], ""]))}]})
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A pretrained encoder, word vectors that lack one word, and examples."""
    home = tmp_path_factory.mktemp("features")
    config = small.config(small.corpus(home / "texts", documents=20))
    config.steps = 4
    lmrep.train(config, home / "bert")
    draw = np.random.default_rng(0)
    vectors = np.eye(6, 8) + 0.1 * draw.normal(size=(6, 8))
    lines = (" ".join([word, *(f"{x:.4f}" for x in row)]) for word, row in zip(WORDS[:-1], vectors, strict=False))
    (home / "glove.txt").write_text("".join(f"{line}\n" for line in lines))
    for name, count, seed in (("train", 40, 0), ("dev", 21, 1)):
        own = sentences(count, seed)
        tiny.write(home / f"{name}.jsonl", own)
        tiny.write(home / f"{name}-choices.jsonl", [
            {"text": each["words"][0], "choices": each["words"][1:4], "label": str(i % 3)}
            for i, each in enumerate(own)])
        tiny.write(home / f"{name}-questions.jsonl", questions(count, seed))
    return home


def config(home, task="tagging", argument=TAGGER, files="", **fields):
    c = compose_task(f"{argument},features={home}/bert", task)
    c = started.from_features(c, c.frozen["features"])
    c.data.train, c.data.validation = str(home / f"train{files}.jsonl"), str(home / f"dev{files}.jsonl")
    c.batch_size, c.epochs, c.checkpoint.keep = 8, 2.0, 4
    c.log.update({"every": 1, "tensorboard": False, "report": False})
    c.objective.bilstm.update({"width": 8, "layers": 1})
    c.checkpoint.every = c.evaluation.every = 3
    c.update_from_flattened_dict(fields)
    return c


ELMO = {"objective.features.placement": "both", "objective.features.l2": 0.01, "objective.pieces": "mean",
        "objective.characters.filters": 4}


@pytest.fixture(scope="module")
def trained(home):
    """A run with mixes at both places, characters, LSTM layers and a CRF, on one device."""
    outcome = lmrep.train(config(home, **ELMO), home / "run", data_dir=home / "data")
    return home / "run", outcome


def predictions(workdir):
    return [json.loads(line)["prediction"] for line in (workdir / "predictions/validation.jsonl").open()]


def test_the_encoder_is_not_trained_and_in_no_checkpoint(home, trained):
    workdir, outcome = trained
    run, encoder = lmrep.load(workdir), lmrep.load(home / "bert")
    frozen = flatten(run.params["frozen"]["features"]["encoder"])
    for path, value in flatten(encoder.params["encoder"]).items():
        np.testing.assert_array_equal(frozen[path], value)
    saved = flatten(Checkpoints(workdir / "checkpoints").read(run.step)[0]["params"])
    assert saved and all(path.startswith("objective/tagging/") for path in saved)
    assert outcome.after["loss"] < outcome.before["loss"]  # of the same examples


def test_the_learned_mixes_are_recorded_and_reported(trained):
    workdir, _ = trained
    mixes = json.loads((workdir / "results.json").read_text())["mixes"]
    assert [mix["place"] for mix in mixes] == ["input", "output"]
    for mix in mixes:
        assert mix["layers"] == [0, 1, 2] and sum(mix["weights"]) == pytest.approx(1)
        assert mix["gamma"] != 1 and len(set(mix["weights"])) == 3
    answer = small.command("report", workdir, f"--output={workdir}/page.html")
    page = (workdir / "page.html").read_text()
    assert answer.code == 0 and "Learned mix of frozen layers" in page and f"{mixes[0]['weights'][1]:.3f}" in page


def test_commands_take_such_a_run(home, trained):
    workdir, outcome = trained
    answer = small.command("evaluate", f"--workdir={workdir}")
    with pytest.raises(UserError, match="has no network of its own"):
        lmrep.load(workdir).encode(["cat mouse"])
    assert answer.code == 0 and f"token_accuracy     {outcome.after['token_accuracy']:.2%}" in answer.out, answer.out
    answer = small.command("predict", f"--workdir={workdir}", "cat mouse dog")
    assert [line.split()[0] for line in answer.out.splitlines() if line] == ["cat", "mouse", "dog"], answer.err
    with pytest.raises(UserError, match="reads frozen parts, which no published class does"):
        conversion.to_published(workdir, home / "published")


def test_cached_features_give_the_scores_of_live_ones(home, trained, caplog):
    """And the same training, step by step; the next run reads them from the file."""
    caplog.set_level("INFO", "lmrep")
    lmrep.train(config(home, cache_features=True, **ELMO), home / "cached", data_dir=home / "cache")
    for one, other in zip(small.lines(home / "cached"), small.lines(trained[0]), strict=True):
        del one["split"], other["split"]
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    for one, other in zip(predictions(home / "cached"), predictions(trained[0]), strict=True):
        assert one["tags"] == other["tags"] and one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)
    assert "writing the features of" in caplog.text and "3 x 32 float32 each" in caplog.text
    caplog.clear()
    run = lmrep.load(home / "cached")  # computes features of new texts
    found = run.predict([json.loads(line) for line in (home / "dev.jsonl").open()])
    for one, other in zip(found, predictions(home / "cached"), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_cached_features_of_choices_give_the_predictions_of_live_ones(home, caplog):
    caplog.set_level("INFO", "lmrep")
    c = config(home, "multiple_choice", "mesh=1x1x1,network=bilstm", "-choices", cache_features=True, epochs=1.0,
               **{"objective.pooling": "attention"})
    lmrep.train(c, home / "choices", data_dir=home / "cache-choices")
    assert "features are read from" in caplog.text
    found = lmrep.load(home / "choices").predict([json.loads(line) for line in (home / "dev-choices.jsonl").open()])
    for one, other in zip(found, predictions(home / "choices"), strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_cached_features_of_windows_give_the_predictions_of_live_ones(home):
    c = config(home, "span_extraction", "mesh=1x1x1,network=bilstm", "-questions", cache_features=True, length=20,
               epochs=1.0, **{"objective.features.placement": "both", "format.long": "windows", "format.stride": 4})
    lmrep.train(c, home / "questions", data_dir=home / "cache-questions")
    mixes = json.loads((home / "questions/results.json").read_text())["mixes"]
    assert [mix["place"] for mix in mixes] == ["input", "output"]
    assert all(mix["gamma"] != 1 for mix in mixes)
    own = [json.loads(line) for line in (home / "dev-questions.jsonl").open()]
    found = lmrep.load(home / "questions").predict([(each["question"], each["context"]) for each in own])
    for one, other in zip(found, predictions(home / "questions"), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_an_interrupted_and_resumed_run_ends_as_an_uninterrupted_one(home, trained):
    workdir, _ = trained
    lmrep.train(config(home, **ELMO), resumed := small.interrupted(workdir, home / "resumed"), data_dir=home / "data")
    assert small.lines(resumed) == small.lines(workdir)
    expected = flatten(lmrep.load(workdir).params)
    for path, value in flatten(lmrep.load(resumed).params).items():
        np.testing.assert_array_equal(value, expected[path], err_msg=path)
    assert predictions(resumed) == predictions(workdir)


def test_word_vectors_may_be_trained(home):
    fields = {"objective.words.trained": True, "steps": 2}
    lmrep.train(config(home, argument=f"{TAGGER},vectors={home}/glove.txt", **fields), home / "tuned")
    run = lmrep.load(home / "tuned", 2)
    own = run.params["objective"]["tagging"]["network"]["words"]
    file = run.frozen["words"].values["vectors"]
    assert own["vectors"].shape == (5, 8) and "words" not in run.params["frozen"]
    assert 0 < np.abs(own["vectors"] - file).max() < 0.1 and np.abs(own["unknown"]).max() > 0


@pytest.mark.parametrize(("fields", "message"), [
    ({"objective.features.layers": ""}, r"config\.frozen has 'features'"),
    ({"frozen": {}}, r"'features', which config\.frozen lacks"),
    ({"frozen": {"features": "glove.txt"}}, r"config\.frozen\.features"),
    ({"tokenizer.vocab_file": ""}, r"--config\.tokenizer\.vocab_file"),
    ({"cache_features": True, "frozen": {}, "objective.features.layers": ""}, "cache_features is True"),
])
def test_what_does_not_fit_is_refused_before_anything_is_written(home, fields, message):
    c = config(home)
    frozen = fields.pop("frozen", None)
    if frozen is not None:
        c.frozen = {name: str(home / path) for name, path in frozen.items()}
    c.update_from_flattened_dict(fields)
    with pytest.raises(UserError, match=message):
        lmrep.train(c, home / "refused")
    assert not (home / "refused").exists()


def test_a_full_disk_is_reported_before_anything_is_computed(home, monkeypatch):
    from lmrep.core.errors import RunFault

    monkeypatch.setattr("lmrep.storage.trial.try_checkpoint", lambda directory: None)
    monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(RunFault, match=r"the features take .* has 10 B left"):
        lmrep.train(config(home, cache_features=True), home / "full", data_dir=home / "none")
