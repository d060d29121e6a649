"""`~` is expanded where a path enters, whichever flag or field it is given to."""

import pytest

from lmrep.cli.arguments import parse
from lmrep.cli.main import COMMANDS, flags_of
from lmrep.config.record import read
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path, as_paths
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
    for flag in PATH_FLAGS & flags.keys():
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
