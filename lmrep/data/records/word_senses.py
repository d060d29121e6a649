"""Reads word senses: XML of sentences with words to disambiguate, and a file of their keys (Raganato et al., 2017)."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, short
from lmrep.data.records.word_in_context import nth_word

MAX_DEPTH = 16  # of elements; the format has four levels
MAX_VALUE = 10_000  # characters of an attribute, or of a word
EXPECTED = "expected sentence elements of wf and instance, as in semcor.data.xml"


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields a record for each instance of NAME.data.xml. Its keys in NAME.gold.key.txt become `senses`.

    Raises:
      UserError: the XML is not well-formed, declares a document type (entities and external files are never read), has
        another structure or no instance; or the file of keys is missing for training or validation data, or has keys of
        an unknown instance.
    """
    parsed = _Parser(job.path)
    parsed.parse(files.text(job.path, job.config))
    path = files.beside(job, "data.xml", "gold.key.txt", "senses")
    keys = {} if path is None else _keys(path, job, parsed.records)
    for name, record in parsed.records.items():
        if path is None:
            yield record
        elif name not in keys:
            yield UserError(f"{record.where}: the instance {short(name)} has no line in {path}; {CORRECT}")
        else:
            yield record._replace(fields={**record.fields, "senses": keys[name]})


def _keys(path: Path, job: Job, instances: Mapping[str, Record]) -> dict[str, list[str]]:
    """Reads {id: keys} from lines of an instance's id and its keys, separated by spaces."""
    senses: dict[str, list[str]] = {}
    for where, line in files.filled_lines(path, job.config):
        name, *keys = line.split()
        if not keys:
            raise UserError(f"{where} has nothing after {short(name)}; expected the id of an instance and its keys")
        if name not in instances:
            raise UserError(f"{where} has keys of {short(name)}, and {job.path} has no such instance; expected the "
                            "file of its keys")
        if name in senses:
            raise UserError(f"{where} has keys of {short(name)} again; expected one line for each instance")
        senses[name] = [*dict.fromkeys(keys)]
    return senses


class _Parser:
    """An XML parser for the instances of a file.

    Attributes:
      records: id -> record, in the order of the file.
    """

    def __init__(self, path: Path):
        self.records: dict[str, Record] = {}
        self._path, self._depth = path, 0
        self._words: list[str] | None = None  # the words of the sentence; None outside of sentences
        self._instances: list[tuple[str, int, dict[str, str], str]] = []  # id, number of the word, fields, where
        self._text: list[str] | None = None  # the parts of the word's text; None outside of words
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters

    def parse(self, text: str) -> None:
        """Reads the file's text into `records`. Raises UserError."""
        try:
            self._parser.Parse(text.encode(), True)
        except expat.ExpatError as error:
            raise UserError(f"{self._path}, line {error.lineno} is not well-formed XML: "
                            f"{expat.ErrorString(error.code)}; {EXPECTED}") from None
        if not self.records:
            raise UserError(f"{self._path} has no instance of a word to disambiguate; {EXPECTED}")

    @property
    def _where(self) -> str:
        return f"{self._path}, line {self._parser.CurrentLineNumber}"

    def _doctype(self, *_: Any) -> None:
        raise UserError(f"{self._where} declares a document type, whose entities could name other files and grow "
                        "without limit; remove the declaration")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UserError(f"{self._where} has more than {MAX_DEPTH} levels of elements; {EXPECTED}")
        for key, value in attributes.items():
            if len(value) > MAX_VALUE:
                raise UserError(f"{self._where}: {short(key)} of {short(name)} has {len(value):,} characters; expected "
                                f"at most {MAX_VALUE:,}")
        if name == "sentence":
            if self._words is not None:
                raise UserError(f"{self._where} has a sentence inside another one; {EXPECTED}")
            self._words, self._instances = [], []
        elif name in ("wf", "instance"):
            if self._words is None or self._text is not None:
                raise UserError(f"{self._where} has the element {name} "
                                f"{'outside of a sentence' if self._words is None else 'inside a word'}; {EXPECTED}")
            self._text = []
            if name == "instance":
                if missing := [key for key in ("id", "lemma") if not attributes.get(key, "").strip()]:
                    raise UserError(f"{self._where} has an instance without {missing[0]!r}; {EXPECTED}")
                fields = {key: attributes[key] for key in ("lemma", "pos") if key in attributes}
                self._instances.append((attributes["id"], len(self._words), fields, self._where))

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if name in ("wf", "instance"):
            word, self._text = " ".join("".join(self._text).split()), None
            if len(word) > MAX_VALUE:
                raise UserError(f"{self._where} has a word of {len(word):,} characters; expected at most {MAX_VALUE:,}")
            if not word and name == "instance":
                raise UserError(f"{self._where} has an instance without text; {EXPECTED}")
            if word:
                self._words.append(word)
        elif name == "sentence":
            self._finish(self._words)
            self._words = None

    def _finish(self, words: Sequence[str]) -> None:
        """Adds the instances of a sentence to `records`."""
        text, starts = " ".join(words), [*itertools.accumulate((len(word) + 1 for word in words), initial=0)]
        for name, number, fields, where in self._instances:
            if name in self.records:
                raise UserError(f"{where} has the instance {short(name)} again ({self.records[name].where}); expected "
                                "distinct ids, as predictions are written by id")
            span = [starts[number], starts[number] + len(words[number])]
            self.records[name] = Record({"text": text, "span": span, **fields}, name, where)


def parse(cells: Sequence[str]) -> dict[str, Any]:
    """Parses the fields of a word from cells: lemma, part of speech, number of the word, and text. Raises ValueError,
    whose message continues "FILE, line 1 "."""
    if len(cells) != 4 or not cells[2].strip().isdecimal() or len(cells[2]) > 6:
        raise ValueError(f"has {counted(len(cells), 'column')} between tabs; expected a lemma, its part of speech, the "
                         "number of the word (between spaces, from 0), and a text")
    lemma, pos, number, text = map(str.strip, cells)
    return {"lemma": lemma, "pos": pos, "text": text, "span": nth_word(text, int(number))}


DEFINITION = ReaderDef(read, (".xml",))
