"""`lmrep completion`: scripts that complete commands, flags, config files and config fields."""

import re
import shutil
import subprocess

import pytest

from lmrep.cli.main import COMMANDS
from tests import small

DRIVER = """
COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_lmrep
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts():
    return {shell: small.command("completion", shell).out for shell in ("bash", "zsh", "fish")}


def completed(script, line, directory):
    """What bash offers at the end of a line."""
    result = subprocess.run(["bash", "-c", script + DRIVER, "bash", line], capture_output=True, text=True, timeout=20,
                            cwd=directory)
    assert not result.stderr, result.stderr
    return result.stdout.split()


def test_bash_completes_commands_flags_files_and_fields(scripts, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "quickstart.py").touch()
    (tmp_path / "experiments" / "notes.txt").touch()
    assert completed(scripts["bash"], "lmrep ", tmp_path) == ["help", *COMMANDS]
    assert completed(scripts["bash"], "lmrep ev", tmp_path) == ["evaluate"]
    assert completed(scripts["bash"], "lmrep help ev", tmp_path) == ["evaluate"]
    assert "evaluate" not in completed(scripts["bash"], "lmrep help train ", tmp_path)
    assert completed(scripts["bash"], "lmrep train --pro", tmp_path) == ["--profile="]
    assert completed(scripts["bash"], "lmrep predict --top_", tmp_path) == ["--top_k=", "--top_p="]
    assert completed(scripts["bash"], "lmrep train --config=exp", tmp_path) == ["experiments/"]
    assert completed(scripts["bash"], "lmrep train --config=experiments/", tmp_path) == ["experiments/quickstart.py"]
    assert completed(scripts["bash"], "lmrep train --config.optimizer.learn", tmp_path) == [
        "--config.optimizer.learning_rate="]
    assert completed(scripts["bash"], "lmrep predict --config.opt", tmp_path) == []
    assert "--workdir=" not in completed(scripts["bash"], "lmrep convert --", tmp_path)


ZSH = """
compdef() { : }
_describe() { print -l -- ${(P)2} }
_files() { print files }
words=(${=1} '') CURRENT=$#words
_lmrep
"""


@pytest.mark.parametrize("shell, command", [
    ("zsh", lambda script, line: ["zsh", "-f", "-c", ZSH.replace("words", script + "\nwords", 1), "zsh", line]),
    ("fish", lambda script, line: ["fish", "-N", "-c", script + f"\ncomplete -C {line!r}"])])
def test_other_shells_complete_commands_first_and_after_help(scripts, shell, command, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")

    def offered(line):
        result = subprocess.run(command(scripts[shell], line), capture_output=True, text=True, timeout=20, cwd=tmp_path)
        assert not result.stderr, result.stderr
        return {re.split(r"[:\t]", one)[0] for one in result.stdout.splitlines()}

    assert offered("lmrep ") == {"help", *COMMANDS} and offered("lmrep help ") - {"help"} == COMMANDS.keys()
    assert not {"train", "evaluate"} & offered("lmrep help train ")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command_and_field(scripts, shell):
    for name, command in COMMANDS.items():
        assert name in scripts[shell] and command.summary in scripts[shell]
    assert "config.optimizer.learning_rate" in scripts[shell] and "top_p" in scripts[shell]


def test_unsupported_shell_is_refused():
    assert small.command("completion", "tcsh").err == (
        "lmrep: error: lmrep completion takes the name of a shell: bash, zsh, fish\n")
