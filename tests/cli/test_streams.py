"""Closed and full standard streams, and readers that have left: no traceback, and the exit code of what happened."""

import subprocess
import sys

import pytest

from lmrep.cli.arguments import Flag, at_least, parse
from lmrep.cli.main import main
from lmrep.core.errors import UserError


@pytest.mark.parametrize(("redirection", "code", "message"), [
    (">&-", 0, ""), ("2>&-", 0, ""), ("<&-", 0, ""), (">&- 2>&- <&-", 0, ""),
    (">/dev/full", 3, "standard output cannot be written: No space left"), ("2>/dev/full", 0, ""),
    (">/dev/full 2>/dev/full", 3, ""), ("| head -c 1", 0, ""), ("2>&1 | head -c 1", 0, ""),
])
@pytest.mark.parametrize("words", ["--help", "pages"])
def test_streams(words, redirection, code, message):
    result = subprocess.run(["bash", "-c", f"set -o pipefail; '{sys.executable}' -m lmrep {words} {redirection}"],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == code and message in result.stderr and result.stderr.count("\n") == bool(message)


@pytest.mark.parametrize("words", ["nope", "pages --nope"])
def test_errors_have_their_code_where_they_cannot_be_printed(words):
    for redirection in ("2>&-", "2>/dev/full"):
        command = f"'{sys.executable}' -m lmrep {words} {redirection}"
        assert subprocess.run(["bash", "-c", command], timeout=60).returncode == 2


@pytest.mark.parametrize("words", [["a\0b"], ["pages", "\ud800"], ["report", "a\0b"], ["report", "--workdir=\ud800"]])
def test_arguments_that_are_not_text_are_refused(words, capsys):
    assert main(words) == 2 and capsys.readouterr().err.startswith("lmrep: error: the argument ")


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 7 GiB"), RuntimeError("RESOURCE_EXHAUSTED: Out")])
def test_exhausted_memory_is_one_message(error, monkeypatch, capsys):
    def fail(arguments):
        raise error

    monkeypatch.setattr("lmrep.cli.pages.run", fail)
    assert main(["pages"]) == 3
    assert capsys.readouterr().err.startswith("lmrep: error: the memory is exhausted: ")


@pytest.mark.parametrize("text", ["1_0", " 1", "\u0661", "9" * 30, "1e3", str(10**12), "101", "x" * 50_000])
def test_counts_are_whole_numbers_within_bounds(text):
    for flag in (Flag(0, "of a count", bounds=at_least(0, 100)), Flag(0, "of a count")):
        if not (text == "101" and flag.bounds.at_most is None):
            with pytest.raises(UserError, match=r"--count is .*; expected") as error:
                parse("train", [f"--count={text}"], {"count": flag})
            assert len(str(error.value)) < 300
