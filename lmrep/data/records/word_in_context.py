"""Reads WiC: a word in two contexts, and whether it has the same meaning in both (Pilehvar and Camacho-Collados, 2019).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, short

LABELS = ("T", "F")
LINE = "a word, its part of speech, its places as 2-5 (numbers of words between spaces, from 0), and two contexts"


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields a record for each line of train.data.txt, whose label, T or F, is in the same line of train.gold.txt.
    Raises UserError if training or validation data lack the file of labels, or it has another number of lines."""
    lines = _lines(job.path, job)
    gold = files.beside(job, "data.txt", "gold.txt", "label")
    labels = [] if gold is None else _lines(gold, job)
    if gold is not None and len(labels) != len(lines):
        raise UserError(f"{gold} has {counted(len(labels), 'line')}, and {job.path} {len(lines):,}; expected as many: "
                        "line i of one is the label of line i of the other")
    for i, line in enumerate(lines):
        where = f"{job.path}, line {i + 1}"
        try:
            fields = parse(line.split("\t"))
        except ValueError as error:
            yield UserError(f"{where} {error}; {CORRECT}")
            continue
        if gold is not None:
            fields["label"] = labels[i].strip()
            if fields["label"] not in LABELS:
                yield UserError(f"{gold}, line {i + 1} is {short(labels[i])}; expected T or F")
                continue
        yield Record(fields, "", where)


def _lines(path: Any, job: Job) -> list[str]:
    """Reads the lines of a file without blank ones at its end."""
    lines = list(files.lines(path, job.config))
    while lines and not lines[-1].strip():
        del lines[-1]
    return lines


def parse(cells: Sequence[str]) -> dict[str, Any]:
    """Parses the fields of a line from its cells. Raises ValueError, whose message continues "FILE, line 1 "."""
    if len(cells) != 5:
        raise ValueError(f"has {counted(len(cells), 'column')} between tabs; expected {LINE}")
    lemma, pos, numbers, *texts = map(str.strip, cells)
    if not re.fullmatch("[0-9]{1,6}-[0-9]{1,6}", numbers):
        raise ValueError(f"has {short(numbers)} in its third column; expected {LINE}")
    spans = [nth_word(text, int(number)) for text, number in zip(texts, numbers.split("-"), strict=True)]
    return {"text": texts[0], "text2": texts[1], "span": spans[0], "span2": spans[1], "lemma": lemma, "pos": pos}


def nth_word(text: str, number: int) -> list[int]:
    """Returns the span [first character, end) of word `number`, from 0, between white space, without punctuation around
    it. Raises ValueError if the text has fewer words; the message continues "FILE, line 1 "."""
    words = [*re.finditer(r"\S+", text)]
    if number >= len(words):
        raise ValueError(f"names word {number}, and {short(text)} has {counted(len(words), 'word')}, numbered from 0")
    start, end = words[number].span()
    inner = re.compile(r"\w(\S*\w)?").search(text, start, end)
    return list(inner.span() if inner else (start, end))


def detects(beginning: str) -> bool:
    """Returns whether the first line has five columns, with two numbers in the third."""
    return re.match("[^\t\n]+\t[^\t\n]+\t[0-9]+-[0-9]+\t[^\t\n]+\t[^\t\n]+\r?(\n|$)", beginning) is not None


DEFINITION = ReaderDef(read, detects=detects)
