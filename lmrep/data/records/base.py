"""Labelled examples as they are read from files, and the table of readers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.config.record import setting


class Record(NamedTuple):
    """A labelled example as a reader gives it.

    Attributes:
      fields: name -> value; the names are those of `FIELDS`. A field that the file lacks is absent.
      id: as in the file, or else its number there, from 0.
      where: file and line (or file and number), for messages: "dev.tsv, line 12".
    """

    fields: dict[str, Any]
    id: str
    where: str


# The fields of records. A task names those that it needs.
FIELDS: Mapping[str, str] = {
    "text": "str: the text, the first text of a pair, or the beginning that choices continue",
    "text2": "str: the second text of a pair",
    "label": "str: a class, the number of the right choice from 0, or a number for regression",
    "words": "list[str]: the words of a sentence",
    "tags": "list[str]: the tag of each word",
    "question": "str",
    "context": "str: the passage that answers are spans of",
    "answers": "list[(str, int)]: the text of each answer and its first character in the context; [] for none",
    "choices": "list[str]",
}


@dataclass(frozen=True)
class Config:
    """Labelled data: one or more files of each split, or a TFDS data set."""

    train: str = setting("", "the training files: a path or a glob; or a split of a TFDS data set")
    validation: str = setting("", "the validation files; empty: none")
    test: str = setting("", "the test files, which may lack labels; empty: none")
    format: str = setting("auto", "a reader of `READERS`; auto: by the files' names and beginnings")
    columns: dict[str, str] = setting({}, "field -> its name or its number (from 0) in the files, where that differs: "
                                      "{'text': 'sentence', 'label': '3'}")
    header: str = setting("auto", "whether the first line of TSV and CSV files names the columns", choices=(
        "auto", "yes", "no"))
    phrases: bool = setting(False, "phrase trees: train on every phrase, not on the full sentences alone")
    tfds: str = setting("", "a TFDS data set, such as glue/sst2; train, validation and test are its splits")
    tfds_dir: str = setting("", "where TFDS keeps prepared data sets; empty: its default")


class ReaderDef(NamedTuple):
    """A row of `READERS`: a file format of labelled examples.

    Attributes:
      read: (path, config) -> the records of a file, in order. Raises UserError with file and line.
      suffixes: of file names that have this format, without ".gz": (".tsv",).
      detects: the beginning of a file (up to 64 KiB of text) -> whether it has this format; for suffixes that several
        formats have.
    """

    read: Callable[[Path, Config], Iterator[Record]]
    suffixes: tuple[str, ...] = ()
    detects: Callable[[str], bool] | None = None
