"""What cannot be written: refused before anything is computed where that is known; otherwise the result is printed
first."""

import os
import shutil

import pytest

from tests import small


@pytest.fixture
def run(small_home, tmp_path):
    return shutil.copytree(small_home / "run", tmp_path / "run")


@pytest.mark.slow
def test_figures_are_printed_where_they_cannot_be_written(small_home, run):
    (run / "eval.json").mkdir()
    result = small.command("evaluate", f"--workdir={run}", f"--data_dir={small_home}/data")
    assert result.code == 3 and "mlm_loss" in result.out and "eval.json cannot be written" in result.err, result
    assert "Traceback" not in result.err


@pytest.mark.parametrize("words", [
    ["report", "{run}", "--output={output}"],
    ["probe", "--workdir={run}", "--config=tasks/tag.py", "--config.data.train=x.conll", "--output={output}"],
    ["plan", "--config=quickstart.py", "--topology=cpu:1", "--output={output}"],
    ["embed", "--workdir={run}", "--input={run}/config.json", "--output={output}"],
])
@pytest.mark.parametrize(("output", "message"), [
    ("{run}/none/x.safetensors", "there is no directory"), ("{run}/x.safetensors", "a directory"),
    ("{run}/pipe.safetensors", "not a regular file"),
    ("{run}/config.json/x.safetensors", "no directory")])
def test_outputs_are_checked_before_anything_is_read(run, words, output, message, monkeypatch):
    def fail(*arguments, **options):
        raise AssertionError("this is too late")

    for target in ("lmrep.analysis.report.read", "lmrep.analysis.probes.probe", "lmrep.planning.plan.plan",
                   "lmrep.api.load"):
        monkeypatch.setattr(target, fail)
    output = output.format(run=run)
    (run / "x.safetensors").mkdir()
    os.mkfifo(run / "pipe.safetensors")
    result = small.command(*(word.format(run=run, output=output) for word in words))
    assert result.code == 2 and message in result.err and output in result.err, result


