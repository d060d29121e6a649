"""Aligned files as labelled examples."""

import gzip

import pytest

from lmrep.core.errors import UserError
from lmrep.data import records
from lmrep.data.records import Config

COLUMNS = {"text": "de", "target": "en"}


def write(folder, name, *lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
    return str(folder / name)


def read(path, split="train", columns=COLUMNS, **fields):
    config = Config(**{split: path}, format="parallel", columns=columns, **fields)
    return records.read(config, split, ("text", "target"))


def test_line_i_of_one_file_belongs_to_line_i_of_the_other(tmp_path):
    path = write(tmp_path, "train.de", "Ein Hund.", "", "Zwei  Katzen .")
    write(tmp_path, "train.en", "A dog.", "", "Two cats.")
    found = read(path)
    assert [record.fields for record in found] == [
        {"text": "Ein Hund.", "target": "A dog."}, {"text": "Zwei  Katzen .", "target": "Two cats."}]
    assert found[1].where == f"{path}, line 3"


def test_compressed_files_and_the_other_direction(tmp_path):
    for name, line in (("train.de.gz", "Ein Hund."), ("train.en.gz", "A dog.")):
        (tmp_path / name).write_bytes(gzip.compress(f"{line}\n".encode()))
    found = read(str(tmp_path / "train.en.gz"), columns={"text": "en", "target": "de"})
    assert found[0].fields == {"text": "A dog.", "target": "Ein Hund."}


def test_a_test_file_may_lack_its_translation(tmp_path):
    assert read(write(tmp_path, "test.de", "Ein Hund."), "test")[0].fields == {"text": "Ein Hund."}


@pytest.mark.parametrize("change, message", [
    ({"columns": {}}, "does not say which suffix the file of each field has"),
    ({"columns": {"text": "fr", "target": "en"}}, "whose name ends with .fr"),
    ({"columns": {"text": "de", "target": "cs"}}, r"cannot read .*train\.cs: No such file"),
    ({}, r"train\.en has 1 line, and .*train\.de 2"),
])
def test_files_that_do_not_fit_are_refused(tmp_path, change, message):
    path = write(tmp_path, "train.de", "Ein Hund.", "Zwei Katzen.")
    write(tmp_path, "train.en", "A dog.")
    with pytest.raises(UserError, match=message):
        read(path, **change)


def test_a_line_without_its_translation_is_refused_or_left_out(tmp_path):
    path = write(tmp_path, "train.de", "Ein Hund.", "Zwei Katzen.")
    write(tmp_path, "train.en", "A dog.", "")
    with pytest.raises(UserError, match=r"line 2: the same line of .*train\.en is empty"):
        read(path)
    assert len(read(path, damaged_examples=1)) == 1
