"""Commands on workdirs that are not those of a run: one message and exit code 2, never a traceback."""

import json

import pytest

from tests import small

COMMANDS = {"train": ["--workdir={}"], "predict": ["--workdir={}", "a [MASK]"], "evaluate": ["--workdir={}"],
            "inspect": ["--workdir={}"], "report": ["{}"], "average": ["{}", "{}/new"], "diff": ["{}", "{}"],
            "convert": ["{}", "{}/new", "--to=huggingface"]}


def refusal(command, workdir):
    answer = small.command(command, *(word.format(workdir) for word in COMMANDS[command]))
    assert answer.code == 2 and answer.err.count("lmrep: error: ") == 1 and "Traceback" not in answer.err, answer
    return answer.err


@pytest.mark.parametrize("command", COMMANDS)
def test_invalid_file_name_is_refused(tmp_path, command):
    refusal(command, tmp_path / ("x" * 300))


@pytest.mark.parametrize("command", COMMANDS)
def test_directory_in_place_of_the_config_is_refused(tmp_path, command):
    (tmp_path / "config.json").mkdir()
    refusal(command, tmp_path)


@pytest.mark.parametrize("command", ["train", "predict", "evaluate", "report", "convert"])
def test_record_in_place_of_a_name_is_refused(tmp_path, command):
    record = {"config": {"model": {"name": {"deep": [1]}}}, "data": {"tokenizer": ""}}
    (tmp_path / "config.json").write_text(json.dumps(record))
    assert "config.model.name is {'deep': [1]}; expected one of" in refusal(command, tmp_path)


def test_missing_directory_of_diff_is_named(tmp_path):
    assert f"there is no directory {tmp_path}/nothing; give a workdir" in refusal("diff", tmp_path / "nothing")
