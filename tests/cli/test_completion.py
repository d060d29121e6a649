"""`lmrep completion`: scripts that complete commands, flags, config files and config fields."""

import shutil
import subprocess

import pytest

from lmrep.cli.main import COMMANDS
from tests import small

# As bash calls it, with `=` as a word.
DRIVER = """
COMP_LINE="$1" COMP_POINT=${#1}
read -ra COMP_WORDS <<< "${1//=/ = }"
[[ $1 == *[[:space:]] ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_lmrep lmrep "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts():
    return {shell: small.command("completion", shell).out for shell in ("bash", "zsh", "fish")}


def completed(script, line, directory):
    """What bash offers at the end of a line."""
    result = subprocess.run(["bash", "-s", line], input=script + DRIVER, capture_output=True, text=True, timeout=20,
                            cwd=directory)
    assert not result.stderr, result.stderr
    return result.stdout.split()


def test_bash_completes_commands_flags_files_and_fields(scripts, tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "quickstart.py").touch()
    (tmp_path / "experiments" / "notes.txt").touch()
    for line, expected in (
            ("lmrep ev", ["evaluate"]), ("lmrep help ev", ["evaluate"]), ("lmrep train --pro", ["--profile"]),
            ("lmrep predict --top_", ["--top_k", "--top_p"]), ("lmrep train --config=exp", ["experiments"]),
            ("lmrep train --config=experiments/q", ["experiments/quickstart.py"]),
            ("lmrep train --config experiments/q", ["experiments/quickstart.py"]),
            ("lmrep train --config.optimizer.learn", ["--config.optimizer.learning_rate"]),
            ("lmrep train --config.steps=3 --pro", ["--profile"]), ("lmrep predict --config.opt", [])):
        assert completed(scripts["bash"], line, tmp_path) == expected, line
    assert set(completed(scripts["bash"], "lmrep ", tmp_path)) == {"help", *COMMANDS}
    assert "--workdir" not in completed(scripts["bash"], "lmrep convert --", tmp_path)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_the_script(scripts, shell):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    result = subprocess.run([shell, "-n"], input=scripts[shell], capture_output=True, text=True, timeout=20)
    assert not result.returncode and not result.stderr, result.stderr


def test_other_shells_take_values_after_an_equals_sign(scripts):
    assert " -rF " in scripts["fish"] and '-xka "(__fish' not in scripts["fish"]
    assert '"--workdir=[' in scripts["zsh"] and '"--config.steps=[' in scripts["zsh"] and '"--list[' in scripts["zsh"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command_and_field(scripts, shell):
    for name, command in COMMANDS.items():
        assert name in scripts[shell] and command.summary in scripts[shell]
    assert "config.optimizer.learning_rate" in scripts[shell] and "top_p" in scripts[shell]


def test_unsupported_shell_is_refused():
    assert small.command("completion", "csh").err == (
        "lmrep: error: lmrep completion takes the name of a shell: bash, zsh, tcsh, fish, powershell\n")
