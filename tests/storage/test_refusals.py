"""What workdirs, their configs and `lmrep average` refuse: a change, and the fields, files and flags that the message
names. Damaged checkpoints are in `test_checkpoints.py`, locks in `test_workdir.py`, leases in `test_lease.py`."""

import json
from pathlib import Path

import pytest

from lmrep.core.errors import UserError
from lmrep.storage import trial, workdir
from tests import small

COMMANDS = {"train": ["--workdir={}"], "predict": ["--workdir={}", "a [MASK]"], "evaluate": ["--workdir={}"],
            "inspect": ["--workdir={}"], "report": ["{}"], "average": ["{}", "{}/new"], "diff": ["{}", "{}"],
            "convert": ["{}", "{}/new", "--to=huggingface"]}


def refusal(*words) -> str:
    """The only message of a command that exits with code 2."""
    answer = small.command(*words)
    assert answer.code == 2 and answer.err.count("lmrep: error: ") == 1 and "Traceback" not in answer.err, answer
    return answer.err


def refusal_of(command: str, path) -> str:
    return refusal(command, *(word.format(path) for word in COMMANDS[command]))


@pytest.mark.parametrize("command", COMMANDS)
def test_workdirs_that_are_not_those_of_a_run(tmp_path, command):
    refusal_of(command, tmp_path / ("x" * 300))
    (tmp_path / "config.json").mkdir()
    refusal_of(command, tmp_path)


@pytest.mark.parametrize("command", ["train", "predict", "evaluate", "report", "convert"])
def test_record_in_place_of_a_name(tmp_path, command):
    record = {"config": {"model": {"name": {"deep": [1]}}}, "data": {"tokenizer": ""}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert "config.model.name is {'deep': [1]}" in refusal_of(command, tmp_path)


@pytest.mark.parametrize(("words", "named"), [
    (("diff", "{tmp}/nothing", "{tmp}/nothing"), ["{tmp}/nothing"]),
    (("report", "{tmp}/loop"), ["{tmp}/loop"]),
    (("convert", "{tmp}", "{tmp}/loop/x"), ["{tmp}"]),
    (("average", "{tmp}", "{tmp}/loop"), ["{tmp}"]),
    (("average", "{run}", "{tmp}/new", "--steps=4,5"), ["{run}", "checkpoint 5", "4, 8, 12"]),
    (("average", "{run}", "{tmp}/new", "--steps=4"), ["{run}", "--steps", "checkpoint.keep"]),
    (("average", "{run}", "{tmp}/new", "--last=1"), ["--last is 1"]),
    (("average", "{run}", "{tmp}/new", "--steps=4,b"), ["--steps", "'b'"]),
    (("average", "{run}", "{tmp}/new", "more"), ["average"]),
    (("average", "{run}", "{run}"), ["{run}"]),
    (("train", "--config={home}/small.py", "--workdir={mean}", "--data_dir={home}/data"), ["{mean}"]),
])
def test_commands(small_home, tmp_path, words, named):
    paths = {"tmp": tmp_path, "home": small_home, "run": small_home / "run", "mean": tmp_path / "mean"}
    (tmp_path / "loop").symlink_to("loop")
    if "{mean}" in named:
        assert small.command("average", small_home / "run", tmp_path / "mean").code == 0
    before = small.contents(small_home)
    message = refusal(*(word.format(**paths) for word in words))
    for name in named:
        assert name.format(**paths) in message
    assert small.contents(small_home) == before and not (tmp_path / "new").exists()


@pytest.mark.parametrize(("make", "named"), [
    (lambda path: None, "config.json"), (Path.mkdir, "config.json"),
    (lambda path: path.write_text("{"), "config.json"), (lambda path: path.write_text("[" * 100_000), "config.json"),
    (lambda path: path.write_bytes(b"\xff"), "config.json"),
    (lambda path: path.write_text('{"config": 3, "data": {}}'), "config is 3"),
    (lambda path: path.write_text('{"config": {}, "data": {}}'), "data.tokenizer"),
    (lambda path: path.write_text('{"model_type": "bert"}'), "lmrep convert"),
    (lambda path: path.write_text('{"architectures": ["BertModel"]}'), "lmrep convert"),
], ids=["missing", "directory", "not JSON", "deep", "not UTF-8", "config", "tokenizer", "published", "architecture"])
def test_configs_of_runs(tmp_path, make, named):
    make(tmp_path / "config.json")
    with pytest.raises(UserError) as refused:
        workdir.read_config(tmp_path)
    assert named in str(refused.value) and str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("name", ["a\\b", "x\\", "gs:/run", "\udcff", "loop/run", "file/run", "full"])
def test_workdirs_that_cannot_hold_checkpoints(tmp_path, name):
    """Their paths mean another one to TensorStore, or cannot be made; what is there stays."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/checkpoints").write_text("mine")
    with pytest.raises(UserError) as refused:
        trial.try_checkpoint(tmp_path / name)
    assert (ascii(name)[1:-1] if name == "\udcff" else name) in str(refused.value)
    assert (tmp_path / "full/checkpoints").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"loop", "file", "full"}
