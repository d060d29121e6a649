"""`~` is expanded where a path enters, whichever flag or field it is given to; globs match files."""

import re

import pytest

from lmrep.cli.arguments import parse
from lmrep.cli.main import COMMANDS, flags_of
from lmrep.config.record import read
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path, as_paths, matches, why_no_match
from lmrep.data import corpora, records, tokenizers
from lmrep.experiment.record import Experiment

PATH_FLAGS = {"config", "workdir", "data_dir", "input", "output", "files", "pairs", "gold", "predictions",
              "null_scores", "list"}


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")


@pytest.mark.parametrize(("text", "expected"), [
    ("~/x", "/home/me/x"), ("~", "/home/me"), ("x/~/y", "x/~/y"), ("./~", "./~"), ("~nobody-of-that-name/x",) * 2,
    ("gs://bucket/~x",) * 2, ("", ""), ("/a[b]/*", "/a[b]/*")])
def test_tilde_alone_is_expanded(text, expected):
    assert as_path(text) == expected == as_paths(text)


def test_each_of_several_paths_is_expanded():
    assert as_paths("~/a.tsv,~/b.tsv, ~/c,d ,{x,y}") == "/home/me/a.tsv,/home/me/b.tsv,/home/me/c,d ,{x,y}"


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_that_are_paths_are_expanded(name):
    flags = flags_of(name)
    for flag in (flag for flag in PATH_FLAGS & flags.keys() if flags[flag].value_type is not bool):
        arguments = parse(name, [f"--{flag}=~/x"], flags)
        value = {"config": arguments.config_file, "workdir": arguments.workdir}.get(flag) or getattr(
            arguments.flags, flag)
        assert value == "/home/me/x", flag
    assert parse("diff", ["~/a", "b"], {}).paths == ["/home/me/a", "b"]


@pytest.mark.parametrize(("record", "field"), [
    (Experiment, "init"), (corpora.Config, "files"), (corpora.Config, "tfds_name"), (records.Config, "train"),
    (records.Config, "validation"), (records.Config, "test"), (records.Config, "tfds_dir"),
    (tokenizers.Config, "vocab_file")])
def test_fields_that_are_paths_are_expanded(record, field):
    assert getattr(read(record, {field: "~/x"}), field) == "/home/me/x"
    for text in ("gs://b/x", ""):
        assert getattr(read(record, {field: text}), field) == text
    with pytest.raises(UserError, match=f"config.{field} is .*NUL"):
        read(record, {field: "a\0b"})


@pytest.mark.parametrize("table", ["frozen", "init_vectors"])
def test_tables_of_paths_are_expanded(table):
    assert getattr(read(Experiment, {table: {"teacher": "~/x", "words": "y"}}), table) == {
        "teacher": "/home/me/x", "words": "y"}


@pytest.mark.parametrize(("pattern", "expected"), [
    ("a [1]/*.txt", ["a [1]/x.txt", "a [1]/y.txt"]), ("a [1]/x.txt", ["a [1]/x.txt"]), ("?.zip", ["b.zip"]),
    ("a [1]/**/*.tsv", ["a [1]/c/z.tsv"]), ("a [[]1]/x.*", ["a [1]/x.txt"]), ("a [1]", ["a [1]"]),
    ("a 1/*.txt", "there is no folder a 1;"), ("b.zip/x.txt", "b.zip is a file, not a folder; if it is an archive"),
    ("a [1]/x.text", r"a \[1\] has c, x.txt, y.txt; check the path"), ("*.text", "has a \\[1\\], b.zip;")])
def test_globs_match_files_in_folders_with_wildcards(tmp_path, monkeypatch, pattern, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("a [1]/x.txt", "a [1]/y.txt", "a [1]/c/z.tsv", "b.zip"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    if isinstance(expected, list):
        assert matches(pattern) == expected
    else:
        assert not matches(pattern) and re.search(expected, why_no_match(pattern))
