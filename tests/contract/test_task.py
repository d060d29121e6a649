"""A task that lmrep does not know is one file and one entry of `TASKS`: with them, every command works."""

import json
import random

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.models import MODELS
from lmrep.storage.checkpoints import Checkpoints
from lmrep.tasks import TASKS
from tests import small
from tests.contract import convolution, topics
from tests.tasks import tiny

EXPERIMENT = """
from tests.tasks import tiny

def get_config(argument=""):
    return tiny.config("topics", {train!r}, {dev!r}, steps={steps}, log__report=True)
"""
TOPICS = ("cat", "dog", "bird")
STEPS = 60
pytestmark = pytest.mark.slow


def examples(count, seed):
    """Texts whose topics are the animals of `TOPICS` that they name; one at least."""
    draw = random.Random(seed)
    texts = [" ".join(draw.sample(tiny.WORDS[:4], 2)) for _ in range(count)]
    return [{"text": text, "tags": [topic for topic in TOPICS if topic in text]} for text in texts]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the data, a config file, and a run that was resumed and made longer."""
    home = tmp_path_factory.mktemp("task")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "topics", topics.DEFINITION)
        paths = {split: str(tiny.write(home / f"{split}.jsonl", examples(count, seed)))
                 for seed, (split, count) in enumerate({"train": 96, "dev": 30}.items())}
        (home / "topics.py").write_text(EXPERIMENT.format(steps=STEPS // 2, **paths))
        answer = small.command("train", f"--config={home}/topics.py", f"--workdir={home}/run")
        assert answer.code == 0 and "Micro-averaged F1" in answer.out, answer
        answer = small.command("train", f"--workdir={home}/run", f"--config.steps={STEPS}")
        assert answer.code == 0 and "The best checkpoint is that of step" in answer.out, answer
        yield home


def command(*words, stdin=""):
    """The output of a command that succeeds."""
    answer = small.command(*words, stdin=stdin)
    assert answer.code == 0, answer
    return answer.out


def test_it_learns_and_keeps_the_best_by_its_own_metric(home):
    lines = small.lines(home / "run", "validation")
    assert [line["step"] for line in small.lines(home / "run", "train")] == list(range(1, STEPS + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.3 and {"micro_f1", "exact"} <= lines[-1].keys()
    best = max(lines[1:], key=lambda line: line["micro_f1"])
    assert best["micro_f1"] > 0.8
    run = lmrep.load(home / "run")
    [kept] = [line for line in lines if line["step"] == run.step]
    assert kept["micro_f1"] == best["micro_f1"]
    assert run.step in Checkpoints(home / "run/checkpoints").steps()


def test_it_predicts(home):
    run = lmrep.load(home / "run")
    [first, second] = run.predict(["cat dog stone tree", {"text": "bird fish"}])
    assert first["topics"] == [topic for topic, p in first["probabilities"].items() if p > 0.5]
    [low] = run.predict(["cat dog stone tree"], threshold=0.0)
    assert low["topics"] == sorted(TOPICS)
    line = json.loads(command("predict", f"--workdir={home}/run", "--jsonl", "--threshold=0",
                              stdin='{"text": "bird fish"}\n'))
    assert line["topics"] == sorted(TOPICS)
    assert line["probabilities"] == pytest.approx(second["probabilities"], abs=1e-5)
    assert command("predict", f"--workdir={home}/run", "bird fish").endswith("\tbird fish\n")
    answer = small.command("predict", f"--workdir={home}/run", "--jsonl", stdin='{"question": "bird fish"}\n')
    assert answer.code == 2 and "has no 'text'" in answer.err
    for extra in (("a", "b", "c"), ["a", "b", "c"]):
        with pytest.raises(UserError, match="has 3 texts; expected at most 1: text"):
            run.predict([extra])


def test_json_lines_that_are_read_as_texts_are_reported(home):
    file = tiny.write(home / "texts.jsonl", [{"text": "bird fish"}])
    answer = small.command("predict", f"--workdir={home}/run", f"--input={file}")
    assert answer.code == 0 and "give --jsonl for JSON Lines" in answer.err
    answer = small.command("predict", f"--workdir={home}/run", f"--input={file}", "--jsonl")
    assert answer.code == 0 and "--jsonl" not in answer.err
    answer = small.command("predict", f"--workdir={home}/run", "--k=3", "bird")
    assert answer.code == 2 and "--k is no option of a model that" in answer.err


def test_it_is_evaluated(home):
    metrics = lmrep.evaluate(home / "run")
    [line] = [line for line in small.lines(home / "run", "validation") if line["step"] == lmrep.load(home / "run").step]
    assert metrics == pytest.approx({name: line[name] for name in metrics}, rel=1e-4)
    [shown] = [line for line in command("evaluate", f"--workdir={home}/run").splitlines() if "micro_f1" in line]
    low, high = json.loads((home / "run/eval.json").read_text())["intervals"]["micro_f1"]
    assert low <= metrics["micro_f1"] <= high and shown.endswith(f"95 % interval {low:.2%} to {high:.2%}")
    refused = small.command("evaluate", f"--workdir={home}/run", "--split=validatoin")
    assert refused.code == 2 and "did you mean 'validation'" in refused.err
    predicted = [json.loads(line) for line in (home / "run/predictions/validation.jsonl").open()]
    assert topics.micro_f1([line["tags"] for line in predicted],
                           [line["prediction"]["topics"] for line in predicted]) == metrics["micro_f1"]
    lines = (home / "run/predictions/validation-topics.txt").read_text().splitlines()
    assert lines == [" ".join(line["prediction"]["topics"]) for line in predicted]
    unlabelled = tiny.write(home / "new.jsonl", [{"text": "cat dog"}])
    command("evaluate", f"--workdir={home}/run", f"--files={unlabelled}")
    assert json.loads((home / "run/predictions/new.jsonl").read_text())["prediction"]["probabilities"]


def test_it_is_inspected(home):
    shown = command("inspect", f"--workdir={home}/run", "--examples=2")
    assert "Task topics" in shown and "tags: 3 values" in shown and "best by micro_f1" in shown


def test_it_is_reported(home):
    page = (home / "run/report.html").read_text()  # written at the end of training
    assert "Micro-averaged F1" in page and "topics" in page
    command("report", str(home / "run"), f"--output={home}/page.html")
    assert "Micro-averaged F1" in (home / "page.html").read_text()


def test_it_is_initialized_from_another_run(home):
    """With its head."""
    command("train", f"--config={home}/topics.py", f"--workdir={home}/second", f"--config.init={home}/run",
            "--config.steps=1")
    [loss, _] = small.losses(home / "second", "validation")
    assert loss == pytest.approx(lmrep.evaluate(home / "run")["loss"], rel=1e-4)


def test_the_command_line_knows_it(home):
    fields = command("fields", f"--config={home}/topics.py")
    for field in ("objective.topics", "objective.dropout", "data.train", "epochs", "format.long"):
        assert f"--config.{field}=" in fields
    assert "with objective topics" in command("fields", "objective.topics")
    checked = command("doctor", f"--config={home}/topics.py", f"--workdir={home}/new", f"--files={home}/dev.jsonl")
    assert "train 96, validation 30" in checked and "dev.jsonl: 30 examples" in checked
    answer = small.command("train", f"--config={home}/topics.py", f"--workdir={home}/new",
                           "--config.checkpoint.best=micro")
    assert answer.code == 2 and "did you mean 'micro_f1'" in answer.err and not (home / "new").exists()
    tiny.write(home / "other.jsonl", [*examples(3, 5), {"text": "cat dog", "tags": ["cat", "weather"]}])
    answer = small.command("train", f"--config={home}/topics.py", f"--workdir={home}/new",
                           f"--config.data.validation={home}/other.jsonl")
    assert answer.code == 2 and "other.jsonl, line 4: the training data has no topic 'weather'" in answer.err


def test_a_network_that_lmrep_does_not_know_learns_it_too(home, monkeypatch):
    monkeypatch.setitem(MODELS, "convolution", convolution.DEFINITION)
    c = tiny.config("topics", home / "train.jsonl", home / "dev.jsonl", "model=convolution,mesh=1x1x1", steps=20)
    lmrep.train(c, home / "convolution")
    before, *_, last = small.losses(home / "convolution", "validation")
    assert last < before
