"""A network, an objective, a tokenizer, a format, an optimizer and a schedule that lmrep does not know are each a row:
with them, every command works."""

import dataclasses
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

import lmrep
from lmrep.core.errors import UserError
from lmrep.data.formats import FORMATS, FormatDef
from lmrep.data.tokenizers import TOKENIZERS
from lmrep.models import MODELS
from lmrep.objectives import OBJECTIVES
from lmrep.optimizers import OPTIMIZERS, SCHEDULES, recipe
from tests import small
from tests.contract import characters, convolution, endings, muon, skip

EXPERIMENT = """
from pathlib import Path
from tests.contract import test_plugins

def get_config(argument=""):
    for table, name, row in test_plugins.ROWS:  # the runs of a sweep are processes of their own
        table[name] = row
    return test_plugins.config(Path({texts!r}))
"""
ROWS = [(MODELS, "convolution", convolution.DEFINITION), (OBJECTIVES, "skip", skip.DEFINITION),
        (FORMATS, "endings", endings.DEFINITION), (TOKENIZERS, "characters", characters.DEFINITION),
        (OPTIMIZERS, "muon", muon.DEFINITION), (SCHEDULES, "stable", muon.STABLE)]


def config(texts):
    """A small experiment of components that lmrep does not know."""
    c = small.config(texts)
    c.unlock()
    c.model = {"name": "convolution", **dataclasses.asdict(convolution.Config())}
    c.objective = {"name": "skip", **dataclasses.asdict(skip.Config())}
    c.format = {"name": "endings", **dataclasses.asdict(endings.Endings())}
    c.tokenizer.update({"name": "characters", "lowercase": False})
    c.optimizer = dataclasses.asdict(recipe("muon"))
    c.lock()
    c.steps, c.log.report, c.checkpoint.best, c.samples = 4, True, "top3", ("The old",)
    c.optimizer.decay_skip, c.optimizer.learning_rate = (), 0.1
    return c


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus, a config file, and a run of four steps, extended to eight."""
    home = tmp_path_factory.mktemp("plugins")
    with pytest.MonkeyPatch.context() as patch:
        for table, name, row in ROWS:
            patch.setitem(table, name, row)
        small.corpus(home / "texts")
        (home / "plugins.py").write_text(EXPERIMENT.format(texts=str(home / "texts")))
        for steps in (4, 8):
            c = config(home / "texts")
            c.steps = steps
            outcome = lmrep.train(c, home / "run", data_dir=home / "data")
        assert outcome.steps == 8
        yield home


def command(*words):
    """The output of a command that succeeds."""
    answer = small.command(*words)
    assert answer.code == 0, answer
    return answer.out


def test_it_learns_and_keeps_the_best_by_its_own_metric(home):
    before, *_, last = small.losses(home / "run", "validation")
    assert last < before - 0.1
    assert {"skip_loss", "top3", "loss"} <= small.lines(home / "run", "validation")[-1].keys()
    assert [line["step"] for line in small.lines(home / "run", "train")] == list(range(1, 9))


def test_the_network_s_loss_is_added_in_training_and_measured(home):
    for line in small.lines(home / "run", "train"):
        weighted = line["skip_loss"] + convolution.Config().penalty * line["network_activation"]
        assert line["loss"] == pytest.approx(weighted, rel=1e-5) and line["network_activation"] > 0
    assert not any("network_activation" in line for line in small.lines(home / "run", "validation"))
    assert "network_activation" in (home / "run/report.html").read_text()


def test_validation_reads_the_shared_carry_of_the_run(home):
    lines = small.lines(home / "run", "validation")
    assert [line["batches"] for line in lines] == [line["step"] for line in lines] != []


def test_evaluate(home):
    metrics = lmrep.evaluate(home / "run", split="test", data_dir=home / "data")
    assert metrics["loss"] == pytest.approx(metrics["skip_loss"]) and 0 < metrics["top3"] < 1
    assert metrics["batches"] == 8  # the shared carry of the checkpoint
    assert "top3" in command("evaluate", f"--workdir={home}/run", f"--data_dir={home}/data")


def test_predict(home):
    run = lmrep.load(home / "run")
    [suggested] = run.predict(["The red"], k=4)
    assert len(suggested) == 4 and set(suggested) <= set(run.tokenizer.tokens)
    line = json.loads(small.command("predict", f"--workdir={home}/run", "--jsonl", "--k=2",
                                    stdin='{"text": "The red"}\n').out)
    assert line == {"text": "The red", "suggestions": suggested[:2]}


def test_vectors(home):
    (home / "lines.txt").write_text("The red cat\nold\n")
    command("embed", f"--workdir={home}/run", f"--input={home}/lines.txt", f"--output={home}/out.safetensors",
            "--layers=all")
    vectors = load_file(home / "out.safetensors")
    [encoded, _] = lmrep.load(home / "run").encode(["The red cat", "old"], layers="all")
    np.testing.assert_allclose(vectors["0"], encoded.hidden, rtol=1e-5, atol=1e-6)
    assert vectors["0"].shape == (3, len("The red cat") + 2, 32)


def test_inspect(home):
    shown = command("inspect", f"--workdir={home}/run", f"--data_dir={home}/data", "--examples=2")
    assert "[CLS]" in shown and "endings" in shown


def test_report_and_samples(home):
    page = (home / "run/report.html").read_text()  # written at the end of training
    assert "convolution" in page and "top3" in page
    command("report", str(home / "run"), f"--data_dir={home}/data", f"--output={home}/page.html")


@pytest.mark.slow
def test_sweep_and_plan(home):
    command("sweep", f"--config={home}/plugins.py", f"--workdir={home}/sweep", f"--data_dir={home}/data",
            "--grid=optimizer.newton_steps=2", "--config.steps=2")
    assert len(list((home / "sweep").rglob("metrics.jsonl"))) == 1
    assert "optimizer state" in command("plan", f"--config={home}/plugins.py", "--topology=cpu:1")


def test_the_command_line_knows_them(home):
    fields = command("fields", f"--config={home}/plugins.py")
    for field in ("model.channels", "objective.distance", "format.tokens", "optimizer.newton_steps",
                  "optimizer.schedule.decay_fraction"):
        assert field in fields
    command("doctor", f"--config={home}/plugins.py", f"--workdir={home}/new", f"--data_dir={home}/data")
    answer = small.command("train", f"--config={home}/plugins.py", f"--workdir={home}/new",
                           "--config.checkpoint.best=top4")
    assert answer.code == 2 and "did you mean 'top3'" in answer.err and not (home / "new").exists()


@pytest.mark.parametrize(("fields", "problem"), [
    ({"config": None}, "FormatDef missing 3 required positional arguments: 'version', 'layout', and 'plan'; expected "
                       "config, version, layout, plan, and optionally fields, advance, packed"),
    ({**endings.DEFINITION._asdict(), "pack": True}, "FormatDef got an unexpected keyword argument 'pack'")])
def test_a_row_of_other_fields_is_refused_by_its_file_and_line(fields, problem):
    with pytest.raises(UserError) as refused:
        FormatDef(**fields)
    assert re.match(f"{re.escape(__file__)}, line [0-9]+: ", str(refused.value)) and problem in str(refused.value)
