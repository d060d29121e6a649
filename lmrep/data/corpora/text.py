"""Documents from text files: files of UTF-8, cut into documents whole, by line or at blank lines.

Files are read, decoded and cut in blocks of CHUNK bytes, so a document may be as long as LONGEST and a file as long as
it likes. Where the blocks fall decides nothing.
"""

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain

from lmrep.core.errors import UserError
from lmrep.data.corpora import cleaning, files
from lmrep.data.corpora.base import Config, Corpus, corpus

CHUNK = 2**18  # bytes: what fits the caches

BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
UNITS: dict[str, Callable[[str], list[str]]] = {
    "file": lambda text: [text], "line": lambda text: text.split("\n"), "blank_line": BLANK_LINE.split}


def open_corpus(config: Config) -> Corpus:
    """The corpus of text files that a config names."""
    sources = files.find(config.files, "text_files", "*.txt")
    unit = config.documents
    if unit == "auto":
        unit = "blank_line" if len(sources) == 1 else "file"
    name = files.describe(sources, config.files)
    return corpus("text_files", f"{name}, a document a {unit.replace('_line', ' line')}",
                  lambda tally: chain.from_iterable(_read(each, unit, config.undecodable, tally) for each in sources),
                  lambda: files.fingerprint(sources, unit),
                  f"data.files {config.files!r} holds no text: {len(sources)} files, all of them blank")


def _read(source: files.Source, unit: str, policy: str, tally: Counter[str]) -> Iterator[str]:
    """The documents of one file."""
    tally["files"] += 1
    separate, longest, rest, pieces, blank = UNITS[unit], cleaning.LONGEST, "", 0, 0
    for chunk in _chunks(source, policy, tally):
        rest += chunk  # in place: CPython extends a string that nothing else refers to
        whole = separate(rest) if "\n" in chunk else [rest]
        rest = whole.pop()
        pieces += len(whole)
        for piece in whole:
            if len(text := piece.strip()) > longest:
                yield from cleaning.bounded(text, tally)
            elif text:
                yield text
            else:
                blank += 1
        if len(rest) > longest:
            while len((rest := rest.lstrip()).rstrip()) > longest:
                text, rest = cleaning.cut(rest, tally)
                pieces += 1
                yield text
    last = cleaning.bounded(rest, tally)
    yield from last
    tally["empty_documents"] += blank * (unit == "line")
    tally["empty_files"] += pieces == blank and not last


def _chunks(source: files.Source, policy: str, tally: Counter[str]) -> Iterator[str]:
    """The text of a file in blocks, with one kind of line break."""
    errors = "strict" if policy == "refuse" else "replace"
    waiting, done, last = b"", 0, False
    with files.decompressed(source) as file:
        while not last:
            block = file.read(CHUNK)
            last, data = not block, waiting + block
            try:
                text, used = codecs.utf_8_decode(data, errors, last)
            except UnicodeDecodeError as error:
                bad = data[error.start : error.start + 1].hex()
                raise UserError(
                    f"{source.path}, line {_line(source, done + error.start)}: byte 0x{bad} is not UTF-8 text; convert "
                    "the file (iconv -f ENCODING -t UTF-8), leave it out, or have the run trained with "
                    "--config.data.undecodable=replace") from error
            if "\ufffd" in text:
                tally["replaced_characters"] += text.count("\ufffd") - data.count(b"\xef\xbf\xbd", 0, used)
            if text.endswith("\r") and not last:  # a line feed may follow
                text, used = text[:-1], used - 1
            if done == 0:
                text = cleaning.unmarked(text, tally)
            waiting, done = data[used:], done + used
            yield cleaning.plain(text, tally)


def _line(source: files.Source, offset: int) -> int:
    """The number of the line, from 1, that holds the byte at `offset`."""
    number = 1
    with files.decompressed(source) as file:
        while offset and (block := file.read(min(offset, CHUNK))):
            number, offset = number + block.count(b"\n"), offset - len(block)
    return number
