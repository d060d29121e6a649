"""Every table of measured figures names the command that makes it, which prints the same columns at a tiny size."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmrep.cli import main
from lmrep.cli.arguments import parse
from tests import runs, small
from tests.docs import benchmark_files, world
from tests.docs.documented import ROOT, blocks, tables

MEASURED = {table.name: table for table in tables() if table.measured}
COMMANDS = {name: re.findall(r"`((?:python|lmrep) [^`]*)`", table.below) for name, table in MEASURED.items()}
MADE = {name: commands[0] for name, commands in COMMANDS.items() if commands}


def test_tables_of_figures_are_those_of_the_results():
    assert len(MEASURED) > 12 and {name.rpartition("/")[0] for name in MEASURED} == {"docs/results"}


@pytest.mark.parametrize("name", MEASURED)
def test_a_table_names_its_command(name):
    assert MEASURED[name].below.startswith("Made by: `"), f"{name}: add a line 'Made by: `COMMAND`' beneath it"
    assert len(COMMANDS[name]) == 1, f"{name}: one command makes the whole table"


@pytest.mark.parametrize(("name", "command"), MADE.items())
def test_the_command_and_its_flags_exist(name, command):
    program, first, *words = shlex.split(command)
    if program == "lmrep":
        parse(first, words, main.flags_of(first))
        return
    source = (ROOT / first).read_text()
    for flag in (word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")):
        assert re.search(rf"[\"'](--)?{flag}[\"']", source), f"{first} has no flag --{flag}"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A copy of the small files and runs, as the working directory."""
    made = runs.shared("benchmarks", benchmark_files.build)
    copy = Path(shutil.copytree(made, tmp_path / "world", symlinks=True))
    world.use(copy, monkeypatch)
    return copy


def run(home: Path, words: list[str]) -> str:
    """Runs a script at a tiny size on one device, and returns what it prints."""
    source = (ROOT / words[0]).read_text()
    for package, name in (("torch", "torch"), ("transformers", "transformers"), ("apache_beam", "beam")):
        if re.search(rf"\b{name}\b", source.partition("\nimport ")[0]):
            pytest.importorskip(package)
    for word in words:
        if word.startswith("--workdir="):
            shutil.rmtree(home / word.removeprefix("--workdir="), ignore_errors=True)
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive",  # threads of PyTorch that wait leave the cores to others
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1"}
    result = subprocess.run([sys.executable, *words, "--tiny"], cwd=home, env=environment, text=True,
                            capture_output=True, timeout=900)
    logs = "".join(path.read_text()[-2000:] for path in home.rglob("*.log")) if result.returncode else ""
    assert result.returncode == 0, (words, result.stdout[-2000:], result.stderr[-2000:], logs)
    return result.stdout


def cells(line: str) -> list[str]:
    """The cells of a printed row: between bars, or two spaces apart."""
    return [cell.strip() for cell in (line.strip("|").split("|") if "|" in line else re.split(r" {2,}", line))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command"), MADE.items())
def test_the_command_prints_the_columns_of_the_table(name, command, home):
    program, *words = shlex.split(command)
    if program == "lmrep":  # a topology that needs no libtpu has the same columns
        words = [re.sub("^--topology=.*", "--topology=cpu:2,cpu:4", word) for word in words]
        result = small.command(*world.tiny(words))
        assert result.code == 0, result.err[-2000:]
        printed = result.out
    else:
        printed = run(home, words)
    rows = [cells(line) for line in printed.splitlines()]
    head = MEASURED[name].head
    assert head in rows, (head, printed)
    following = [row for row in rows[rows.index(head) + 1 :] if len(row) == len(head) and "---" not in row]
    assert following and re.search(r"\d", " ".join(following[0]))


@pytest.mark.slow
@pytest.mark.parametrize("command", [
    "experiments/benchmarks/embed.py --text=wiki.txt --vocab=vocab.txt",
    "experiments/benchmarks/loader.py --files=texts/*.txt --vocab=vocab.txt --data_dir=stores",
    "experiments/benchmarks/recurrence.py"])
def test_a_benchmark_without_a_table_runs(command, home):
    assert re.search(r"\d", run(home, shlex.split(command)))


@pytest.mark.slow
def test_the_features_of_an_encoder_are_measured(home):
    (command,) = (block.text for block in blocks("sh") if "benchmarks/features.py" in block.text)
    shutil.copytree(home / "runs/mine", home / "runs/elmo")
    assert "| layer 2 (last) |" in run(home, shlex.split(command)[1:])


@pytest.mark.slow
def test_the_quick_start_prints_what_readme_shows(home):
    shutil.rmtree(home / "runs/quickstart")
    (shown,) = (block.text for block in blocks("text") if block.page == "README.md")
    words = shlex.split("train --config=experiments/quickstart.py --workdir=runs/quickstart")
    result = small.command(*world.tiny(words))
    printed = result.err + result.out

    def forms(text):
        return {re.sub(r"[\d.,]+", "#", re.sub(r"\s+", " ", line.strip())) for line in text.splitlines()}

    assert forms(shown.partition("It fills in")[0]) <= forms(printed), printed
