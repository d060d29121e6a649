"""Runs that answer questions: the threshold of a checkpoint, conversion, and predictions."""

import json
import logging
import shutil

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.experiment.config import default_config
from lmrep.interop import conversion
from lmrep.metrics.tasks import TASK_METRICS
from tests import small
from tests.tasks.questions import CITIES, NAMES

pytestmark = pytest.mark.slow


def squad_file(path, n, seed):
    """Writes n questions in SQuAD's format, a third of them without an answer."""
    draw, paragraphs = np.random.default_rng(seed), []
    for i in range(n):
        people = draw.choice(NAMES, 3, replace=False)
        cities = draw.choice(CITIES, 2, replace=False)
        context = f"{people[0]} lives in {cities[0]}. {people[1]} lives in {cities[1]}."
        which = i % 3
        answers = [] if which == 2 else [{"text": cities[which], "answer_start": context.index(f"{cities[which]}.")}]
        paragraphs.append({"context": context, "qas": [{
            "id": f"q{i}", "question": f"Where does {people[which]} live?", "answers": answers,
            "is_impossible": which == 2}]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]}))
    return str(path)


def run_config(home, **changes):
    c = default_config("bert_tiny", "span_extraction", "examples", "bert", "1x1x1")
    c.data.update({"train": squad_file(home / "train.json", 96, 0), "validation": squad_file(home / "dev.json", 30, 1)})
    c.model.update({"vocab": 0, "width": 32, "layers": 1, "heads": 4, "mlp": 64, "max_length": 48, "dropout": 0.0,
                    "attention_dropout": 0.0})
    c.tokenizer.update({"name": "words", "vocab_size": 64})
    c.steps, c.batch_size, c.length = 12, 16, 48
    c.objective.unanswerable = True
    c.format.long = "windows"
    c.optimizer.learning_rate = 1e-2
    c.checkpoint.update({"every": 6, "keep": 4})
    c.evaluation.every = 6
    c.log.update({"every": 6, "tensorboard": False, "report": False})
    c.update_from_flattened_dict(changes)
    return c


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("squad")
    lmrep.train(run_config(home), home / "run")
    return home


def test_a_run_predicts_with_the_threshold_of_its_checkpoint(home):
    validations = {line["step"]: line for line in small.lines(home / "run", "validation")}
    assert validations.keys() == {0, 6, 12}
    for step in (6, 12):
        run = lmrep.load(home / "run", step)
        assert run.experiment.objective["threshold"] == validations[step]["threshold"]
    best = lmrep.load(home / "run")
    metrics = validations[best.step]
    assert metrics["answer_f1"] >= metrics["always_empty_f1"] - 1e-9
    lines = [json.loads(line) for line in (home / "run/predictions/validation.jsonl").read_text().splitlines()]
    assert len(lines) == 30
    threshold = metrics["threshold"]
    for line in lines:
        each = line["prediction"]
        assert (each["answer"] == "") == (each["null_score"] - each["score"] > threshold)
    gold = [[text for text, _ in line["answers"]] for line in lines]
    predicted = [line["prediction"]["answer"] for line in lines]
    assert TASK_METRICS["answer_f1"].function(gold, predicted) == pytest.approx(metrics["answer_f1"], abs=1e-6)


@pytest.mark.parametrize("threshold", [-1e6, 1e6])
def test_predictions_follow_the_threshold_that_validation_found(home, tmp_path, threshold):
    shutil.copytree(home / "run", tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line | {"threshold": threshold} if "threshold" in line else line) + "\n"
                               for line in lines))
    found = lmrep.load(tmp_path / "run").predict([("Where does Ada live?", "Ada lives in Bern.")])
    assert bool(found[0]["answer"]) == (threshold > 0)


def test_a_converted_run_keeps_its_threshold(home, tmp_path):
    c = run_config(tmp_path, **{"tokenizer.name": "wordpiece", "tokenizer.vocab_size": 128, "steps": 2,
                                "objective.threshold": -1.25})
    lmrep.train(c, tmp_path / "run")
    for words in (("run", "published", "--to=huggingface"), ("published", "again")):
        assert small.command("convert", *(tmp_path / word for word in words[:2]), *words[2:]).code == 0
    run, again = lmrep.load(tmp_path / "run"), lmrep.load(tmp_path / "again")
    assert again.experiment.objective == run.experiment.objective and run.experiment.objective["threshold"] == -1.25
    example = ("Where does Ada live?", "Ada lives in Bern.")
    assert again.predict([example])[0]["score"] == pytest.approx(run.predict([example])[0]["score"], abs=1e-5)


def test_a_run_answers_questions_in_any_form(home):
    run = lmrep.load(home / "run")
    context = "Ada lives in Bern. Kurt lives in Oslo."
    found = run.predict([("Where does Ada live?", context), {"question": "Where does Ada live?", "context": context},
                         f"Where does Ada live?\t{context}"])
    assert found[0] == found[1] == found[2] and context[found[0]["start"]:found[0]["end"]]
    printed = run.capabilities[0].to_text(("Where?", context), found[0], run.tokenizer)
    assert printed.endswith(f"\tWhere?\t{context}") and "%" in printed
    with pytest.raises(UserError, match="has no 'context'"):
        run.predict(["Where does Ada live?"])


def test_a_stopped_and_resumed_run_has_the_same_thresholds(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/12")
    lmrep.train(run_config(home), tmp_path / "run")
    assert small.lines(tmp_path / "run", "validation") == small.lines(home / "run", "validation")
    assert lmrep.load(tmp_path / "run", 12).experiment == lmrep.load(home / "run", 12).experiment


def test_without_validation_the_threshold_is_0(home, tmp_path, caplog):
    c = run_config(tmp_path, **{"data.validation": "", "checkpoint.best": "loss", "steps": 2})
    lmrep.train(c, tmp_path / "run")
    with caplog.at_level(logging.INFO):
        run = lmrep.load(tmp_path / "run")
    assert run.experiment.objective["threshold"] == 0 and "has no validation" in caplog.text


def test_a_run_with_conditioned_ends_answers_and_has_a_threshold(home, tmp_path):
    """Of a network whose published classes have no such head."""
    outcome = lmrep.train(run_config(home, **{"objective.end": "conditioned", "objective.beams": 3}), tmp_path / "run")
    assert {"answer_f1", "threshold", "loss"} <= outcome.after.keys()
    context = "Ada lives in Bern. Kurt lives in Oslo."
    run = lmrep.load(tmp_path / "run")
    (found,) = run.predict([("Where does Kurt live?", context)])
    assert context[found["start"] : found["end"]] and found["answer"] in ("", context[found["start"] : found["end"]])
    assert 0 < found["probability"] <= 1 and {"score", "null_score"} <= found.keys()
    with pytest.raises(UserError, match="no class for conditioned_ends"):
        conversion.to_published(tmp_path / "run", tmp_path / "published")
