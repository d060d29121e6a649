"""Every table of measured figures says by which command it was made: a line "Made by:" beneath it."""

import re
import shlex

import pytest

from lmrep.cli import main
from lmrep.cli.arguments import parse
from tests.docs.documented import ROOT, tables

MADE_BY = "Made by: "
NO_SCRIPT = "which have no script"  # of runs that are described in the text
MEASURED = {table.name: table.below for table in tables() if table.measured}
MADE = [(name, command) for name, below in MEASURED.items()
        for command in re.findall(r"`((?:python|lmrep) [^`]*)`", below)]


def test_tables_of_figures_are_those_of_the_results():
    assert len(MEASURED) > 12 and {name.rpartition("/")[0] for name in MEASURED} == {"docs/results"}


@pytest.mark.parametrize("name", MEASURED)
def test_a_table_names_its_command(name):
    below = MEASURED[name]
    assert below.startswith(MADE_BY), f"{name}: add a line '{MADE_BY}`python experiments/benchmarks/...`' beneath it"
    assert NO_SCRIPT in below or name in dict(MADE)


@pytest.mark.parametrize(("name", "command"), MADE)
def test_the_command_and_its_flags_exist(name, command):
    program, first, *words = shlex.split(command)
    if program == "lmrep":
        parse(first, words, main.flags_of(first))
        return
    source = (ROOT / first).read_text()
    for flag in (word.removeprefix("--").partition("=")[0] for word in words if word.startswith("--")):
        assert re.search(rf"[\"'](--)?{flag}[\"']", source), f"{first} has no flag --{flag}"
