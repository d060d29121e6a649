"""Records, their fields and config, and entries of READERS."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import setting
from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path, as_paths


class Record(NamedTuple):
    """A labelled example."""

    fields: dict[str, Any]  # name in `FIELDS` -> value; fields that the file lacks are absent
    id: str  # the id in the file, or else the example's number in its split, from 0
    where: str  # file and line (or file and number), for messages: "dev.tsv, line 12"
    lines: tuple[int, ...] = ()  # the line of each word of a column file
    source: str = ""  # the name of its data set, in a mixture of several
    # the int32 ids of `text` and `target`, with end tokens, if these were made from tokens
    tokens: tuple[np.ndarray, ...] = ()

    def where_word(self, i: int) -> str:
        """Names the file and line of word i, for messages."""
        return f"{self.where.rpartition(', line ')[0]}, line {self.lines[i]}" if self.lines else self.where


# The fields of records. A task declares those that it needs.
FIELDS: Mapping[str, str] = {
    "text": "str: the text, the first text of a pair, or the beginning that choices continue",
    "text2": "str: the second text of a pair",
    "label": "str: a class, the number of the right choice from 0, or a number for regression",
    "labels": "list[str] or str: any number of classes; a text of a file is split at `data.label_separator`",
    "span": "list[int]: a word of the text: its first character, from 0, and the one after its last",
    "span2": "list[int]: a word of the second text, as `span`",
    "lemma": "str: the dictionary form of the word",
    "pos": "str: the part of speech of the word",
    "senses": "list[str]: the correct senses of the word, names without white space; any one is right",
    "words": "list[str]: the words of a sentence",
    "tags": "list[str]: the tag of each word",
    "question": "str",
    "context": "str: the passage that answers are spans of",
    "answers": "list[(str, int)]: the text of each answer and its first character in the context; [] for none",
    "choices": "list[str]",
    "target": "str: the text to generate: a translation, a summary, or a class in words",
}
TARGETS = ("label", "labels", "senses", "tags", "answers", "target")  # fields that a test file may lack
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Config:
    """Labelled data: one or more files of each split, or a TFDS data set."""

    train: str = setting("", "the training files: a path, a glob, or several of them separated by commas, local or "
                         "remote, compressed or not; or a split of a TFDS data set", path=as_paths)
    validation: str = setting("", "the validation files; empty: none", path=as_paths)
    test: str = setting("", "the test files, which may lack labels; empty: none", path=as_paths)
    held_out: int = setting(0, "without validation files: number of training examples, drawn at random, that are "
                            "validation data and not trained on, at most a fifth of them", at_least=0)
    format: str = setting("auto", "a reader of `READERS`; auto: detected by the files' names and beginnings")
    columns: dict[str, str] = setting({}, "field -> name or number (from 0) of its column, if that is not the field's "
                                      "name: {'text': 'sentence', 'label': '3'}; dots separate nested names of JSON; "
                                      "commas separate the columns of several choices, of labels that are 0 or 1, or "
                                      "of the ends of a word; 'id' is a field too")
    test_columns: dict[str, str] = setting({}, "all columns of the test files, if they differ from `columns`")
    header: str = setting("auto", "whether the first line of TSV and CSV files names the columns; auto: if it has all "
                          "names in `columns`, or, for columns by number, if one of them has its field's name",
                          choices=("auto", "yes", "no"))
    comment: str = setting("", "column files: skip lines that begin with this, such as '# '; empty: lines with # above "
                           "a sentence that do not have a word and a tag")
    separator: str = setting("auto", "the separator of cells in CSV and TSV files; auto: tabs in TSV, and in CSV the "
                             "one of , ; | and tab that gives the first lines the same number of cells",
                             choices=("auto", ",", ";", "|", "tab"))
    label_separator: str = setting(",", "the separator of several labels in one cell")
    label_until: str = setting("", "cut labels before this text: ':' makes LOC of LOC:city")
    label_map: dict[str, str] = setting({}, "label or tag in the files -> label or tag to use ({'0': 'O', '1': "
                                        "'B-PER'}); '' leaves out examples with this label; others stay unchanged")
    classes: tuple[str, ...] = setting((), "folders: the subfolders to read; empty: all that hold .txt files")
    phrases: bool = setting(False, "phrase trees: train on every phrase, not only on full sentences")
    encoding: str = setting("utf-8", "the encoding of the files, such as latin-1 or utf-16")
    undecodable: str = setting("refuse", "bytes that are not of the encoding, and lone surrogates in JSON: refused "
                               "with file and line, or replaced by U+FFFD and counted", choices=("refuse", "replace"))
    damaged_examples: int = setting(0, "number of unreadable examples of a split that are left out, with a warning, "
                                    "before one is an error", at_least=0)
    tfds: str = setting("", "a TFDS data set, such as glue/sst2; train, validation and test are its splits")
    tfds_dir: str = setting("", "the directory of prepared TFDS data sets; empty: the default of TFDS", path=as_path)


class Job(NamedTuple):
    """The arguments of a reader."""

    path: Path  # the file, the folder of a reader of folders, or the split of a TFDS data set
    split: str  # one of `SPLITS`
    columns: Mapping[str, str]  # field -> name or number in the file, for the fields of the config and the task
    config: Config  # the settings

    def optional(self, field: str) -> bool:
        """Returns whether an example may lack a field of `columns`."""
        return field == "id" or (self.split == "test" and field in TARGETS)


@row
class ReaderDef(NamedTuple):
    """An entry of `READERS`: a file format of labelled examples."""

    # Job -> the examples of the file in order. An id of "" becomes a number. For an example that cannot be read, yields
    # a UserError with file and line; raises it for an unreadable file.
    read: Callable[[Job], Iterator[Record | UserError]]
    # Suffixes of decompressed files that may have this format: (".tsv",). Of several readers with the same suffix, the
    # first that detects the file reads it, or else the last.
    suffixes: tuple[str, ...] = ()
    # the beginning of a file (up to 64 KiB of text) -> whether it has this format
    detects: Callable[[str], bool] | None = None
    columns: Mapping[str, str] = {}  # field -> number or name, by default
