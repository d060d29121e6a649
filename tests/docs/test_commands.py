"""Every command of README, docs and launch is valid, and those that need nothing else run, at a tiny size."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from lmrep.cli import main
from lmrep.cli.arguments import parse
from lmrep.experiment import fields
from tests import runs, small
from tests.docs import world
from tests.docs.documented import PAGES, ROOT, blocks, commands, tables

# Why a command is not run. Its flags are checked if it is one of lmrep's, the file of a script is.
REASONS = {
    r"^pip install": "installs packages",
    r"gs://|s3://": "needs a bucket",
    r"hf://|lmrep push": "needs the Hugging Face Hub; tests/interop/test_live_hub.py runs them",
    r"^JAX_COORDINATOR_ADDRESS": "needs several hosts",
    r"--topology=v": "needs libtpu, and minutes",
    r"--beam_runner": "needs Apache Beam; tests/data/test_beam.py runs it",
    r"^python experiments/(benchmarks|ablations)": "takes minutes to hours; test_results.py runs most at a tiny size",
    r"runs/(xl|elmo)": "needs a run of another network, which tests of cli and interop train",
    r"runs/(stable|decay)": "needs a checkpoint of step 600; tests/experiment/test_branching.py runs them",
    r"runs/mnli": "needs a run on MNLI, whose test files have the form of RTE's",
    r"^ruff check": "needs the checkout, and runs in CI",
    r"^pytest|^python -m tests.planted": "runs the tests",
    r"^(sbatch|docker|launch/|TPU=|GPUS=|IMAGE=)": "needs a cluster",
}
COMMANDS = [(block, command) for block, command in commands()]
FIRST = {command: block.page for block, command in reversed(COMMANDS)}  # the first page that has a command


def reason(command: str) -> str:
    """Why a command is not run; "" if it is."""
    return next((why for pattern, why in REASONS.items() if re.search(pattern, command)), "")


@pytest.mark.parametrize("pattern", REASONS)
def test_reasons_name_commands_that_exist(pattern):
    text = " ".join(page.read_text() for page in (*PAGES, ROOT / "CONTRIBUTING.md"))
    assert re.search(pattern.replace("^", r"(?:^|\W)"), text, re.MULTILINE)


def test_every_command_is_run_or_has_a_reason():
    known = {command for _, command in COMMANDS if reason(command) or command.startswith("lmrep ")}
    assert {command for _, command in COMMANDS} == known and len(known) > 60


@pytest.mark.parametrize("command", dict.fromkeys(command for _, command in COMMANDS if "lmrep " in command))
def test_flags_of_a_command_are_known(command):
    words = shlex.split(command[command.index("lmrep "):])
    assert words[1] in main.COMMANDS
    parse(words[1], words[2:], main.flags_of(words[1]))


@pytest.mark.parametrize("script", dict.fromkeys(
    word for _, command in COMMANDS for word in command.split() if word.startswith("experiments/") and "=" not in word))
def test_scripts_exist(script):
    assert (ROOT / script).is_file()


USED = [(table.name, row[-1]) for table in tables() if table.page.startswith(("docs/use/", "docs/coming_from/"))
        for row in table.rows]  # what the last cells of tables tell to use


def test_tables_name_fields_commands_and_config_files_that_exist():
    known = {field.path for field in fields.list_fields(None)}
    groups = "|".join({path.partition(".")[0] for path in known if "." in path})
    known |= {path.rpartition(".")[0] for path in known}  # objective.words, a group of fields
    files = {path.name for path in (ROOT / "experiments").rglob("*.py")}
    wrong = []
    for name, cell in USED:
        for code in re.findall(r"`([^`]+)`", re.sub(r"`\w+\.(json|jsonl|html)`", "", cell)):
            wrong += [(name, path) for path in re.findall(rf"(?<![\w./'-])(?:{groups})(?:\.[a-z_]+)+(?![\w.*])", code)
                      if path not in known and not path.startswith("data.columns.")]
            wrong += [(name, file) for file in re.findall(r"[a-z_0-9]+\.py\b", code) if file not in files]
            if words := re.match(r"lmrep ([a-z]+)", code):
                flags = {flag.spelling(key).partition("=")[0] for key, flag in main.flags_of(words[1]).items()}
                wrong += [(name, code) for flag in re.findall(r" (--[a-z_]+)", code)
                          if not {flag, flag.replace("--", "--[no]")} & flags]
    assert not wrong and len(USED) > 300


@pytest.fixture(scope="module")
def home():
    """The shared folder of `world`, made once for all workers."""
    return runs.shared("world", world.build)


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block, command in COMMANDS if not reason(command)}))
def test_commands_of_a_page_run_in_their_order(page, home, tmp_path, monkeypatch):
    """A run that an earlier page trains is that of the world; what it counted is not counted again."""
    copy = Path(shutil.copytree(home, tmp_path / "world", symlinks=True))
    world.use(copy, monkeypatch)
    for block, command in COMMANDS:
        trained = FIRST[command] != page and command.startswith(
            ("lmrep train", "lmrep probe", "lmrep flops"))
        if block.page == page and not reason(command) and not trained:
            words = world.tiny(shlex.split(command)[1:])
            if words[0] == "train" and "--config=" in command:
                target = next(word for word in words if word.startswith("--workdir=")).removeprefix("--workdir=")
                shutil.rmtree(copy / target, ignore_errors=True)
            answer = small.command(*words)
            assert answer.code == 0, (block.name, command, words, answer.err[-2000:])


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in blocks("python")}))
def test_python_blocks_of_a_page_run(page, home, tmp_path, monkeypatch):
    copy = Path(shutil.copytree(home, tmp_path / "world", symlinks=True))
    world.use(copy, monkeypatch)
    text = "\n".join(block.text for block in blocks("python") if block.page == page and "get_config" not in block.text)
    small.experiment_file(copy, copy / "texts")
    text = text.replace('"bert.py:size=tiny"', '"small.py"').replace("steps=200", "steps=4")
    exec(compile(text, page, "exec"), {"__name__": "documented"})
