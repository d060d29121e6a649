"""A run with a memory: it is resumed, evaluated with other memories, and continues texts."""

import json
import shutil

import pytest

from tests import small

pytestmark = pytest.mark.slow
PAGE = "--config=experiments/transformer_xl.py:size=tiny,data=files"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("xl")
    texts = small.corpus(home / "texts", documents=80)
    fields = {"data.files": f"{texts}/*.txt", "data.validation": 0.2, "data.test": 0.2, "steps": 12, "length": 16,
              "batch_size": 8, "model.width": 32, "model.mlp": 64, "model.memory": 24, "model.cutoffs": "(10,20)",
              "model.div": 2, "checkpoint.every": 4, "evaluation.every": 4, "log.every": 1, "log.tensorboard": "false",
              "log.report": "false"}
    result = small.command("train", PAGE, *(f"--config.{name}={value}" for name, value in fields.items()),
                           f"--workdir={home / 'run'}")
    assert result.code == 0, result.err
    assert "It continues texts:" in result.out
    return home / "run"


def test_a_resumed_run_continues_with_its_memory(run, tmp_path):
    workdir = shutil.copytree(run, tmp_path / "resumed")
    for later in (8, 12):
        shutil.rmtree(workdir / f"checkpoints/{later}")
    assert small.command("train", f"--workdir={workdir}").code == 0
    assert (workdir / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def evaluated(run, *flags):
    result = small.command("evaluate", f"--workdir={run}", *flags)
    assert result.code == 0, result.err
    return json.loads((run / "eval.json").read_text())


def test_it_is_evaluated_with_other_memories(run):
    flags = ("--batch_size=1", "--length=8")
    found = [evaluated(run, *flags, *more) for more in (
        ["--memory=0"], [], ["--memory=48"], ["--memory=48", "--clamp=20", "--same_length"])]
    assert len({each["metrics"]["lm_loss"] for each in found}) == 4
    assert found[-1]["memory"] == 48 and found[-1]["clamp"] == 20 and found[-1]["same_length"]
    refused = small.command("evaluate", f"--workdir={run}", "--memory=0", "--same_length")
    assert refused.code == 2 and "model.memory" in refused.err


def test_texts_are_continued_beyond_the_memory(run):
    result = small.command("predict", f"--workdir={run}", "--tokens=60", "--temperature=0", "The old dog")
    again = small.command("predict", f"--workdir={run}", "--tokens=60", "--temperature=0", "The old dog")
    assert result.code == 0 and result.out.startswith("The old dog |") and result.out == again.out
