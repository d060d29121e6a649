"""The tutorials of docs/learn: every block runs in its order, at a tiny size."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmrep.config import loading
from tests import runs, small
from tests.docs import world
from tests.docs.documented import ROOT, TUTORIALS, lines

record = loading.load_module(ROOT / "docs/record.py")
ROWS = 24  # of the labelled files that a tutorial makes, and files of text


def run(command: str, home: Path, monkeypatch) -> None:
    """Runs a line of a shell block: in this process, unless the page changes the package or it is another program."""
    words = shlex.split(re.sub(r"^(\w+=\S+ )+", "", command))  # there are eight devices already
    if "lmrep" in words:
        at = words.index("lmrep") + 1
        words = words[:at] + world.tiny(words[at:])
    alone = (home / "lmrep").exists()
    if words[0] == "lmrep" and not alone:
        answer = small.command(*words[1:])
        assert answer.code == 0, (command, words, answer.out[-2000:], answer.err[-2000:])
    elif words[0] == "python" and not alone:
        monkeypatch.setattr(sys, "argv", words[1:])
        runpy.run_path(words[1], run_name="__main__")
    else:
        program = {"lmrep": [sys.executable, "-m", "lmrep"], "python": [sys.executable]}.get(words[0], words[:1])
        result = subprocess.run([*program, *words[1:]], text=True, capture_output=True,
                                env=os.environ | ({"PYTHONPATH": str(home)} if alone else {}))
        assert result.returncode == 0, (command, result.stdout[-2000:], result.stderr[-2000:])


def cut(home: Path) -> None:
    """Makes what a tutorial has written as small as the runs."""
    for path in home.glob("*.tsv"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[: ROWS + 1]))
    for path in sorted((home / "texts").glob("*"))[ROWS:]:
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_blocks_of_a_tutorial_run_in_their_order(page, tmp_path, monkeypatch):
    world.use(tmp_path, monkeypatch)
    text = page.read_text()
    shutil.copytree(runs.folder("masked") / "texts", tmp_path / "texts")
    record.prepare(text, tmp_path)
    for block in record.blocks(text):
        if block.title:
            record.write(block, tmp_path)
            continue
        for command in lines(block.text):
            run(command, tmp_path, monkeypatch)
            cut(tmp_path)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_is_recorded(page):
    """Every output that a page shows is there, and every picture."""
    text = page.read_text()
    assert all(block.output is None or block.output.strip() for block in record.blocks(text))
    assert re.search(r"<!-- recorded -->\n\nRecorded on \d", text)
    for name in re.findall(r"\]\((images/[^)]+)\)", text):
        assert (page.parent / name).stat().st_size < 100_000


def test_a_change_of_a_file_needs_its_lines(tmp_path):
    (tmp_path / "file.py").write_text("a\nb\nc\n")
    change = record.Block("diff", "file.py", " a\n-b\n+d\n...\n c\n+e\n", None, None, (0, 0))
    record.write(change, tmp_path)
    assert (tmp_path / "file.py").read_text() == "a\nd\nc\ne\n"
    with pytest.raises(ValueError, match=r"file\.py has 0 times"):
        record.write(change, tmp_path)


def test_an_output_is_shortened():
    assert record.shown("a 1\nb\nc\na 2\nb\n", "^a") == "a 1\n...\na 2\n...\n"
    assert record.shown("\na 1\nb\n\n", None) == "a 1\nb\n"
