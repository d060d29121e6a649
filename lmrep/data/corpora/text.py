"""Reads documents from UTF-8 text files: a document is a file, a line, or the text between blank lines.

Files of any size are read, decoded and split in blocks of CHUNK bytes, whose boundaries have no effect.
"""

import codecs
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from lmrep.core.errors import ConfigError
from lmrep.data.corpora import cleaning, files
from lmrep.data.corpora.base import Config, Corpus, CorpusDef, Reader
from lmrep.data.sentences import BLANK_LINE

CHUNK = 2**18  # bytes: fits into the processor's caches

UNIT_NAMES = {"file": "one document per file", "blank_line": "documents between blank lines",
              "line": "one document per line"}
UNITS: dict[str, Callable[[str], list[str]]] = {
    "file": lambda text: [text], "line": lambda text: text.split("\n"), "blank_line": BLANK_LINE.split}


def open_corpus(config: Config) -> Corpus:
    """Opens a corpus of text files. Raises UserError if `files` matches none."""
    sources = files.find(config.files, "text_files", "*.txt")
    unit = config.documents
    if unit == "auto":
        unit = "blank_line" if len(sources) == 1 else "file"
    name = files.describe(sources, config.files)
    return Corpus("text_files", f"{name}, {UNIT_NAMES[unit]}",
                  tuple(Reader(source.path, partial(_read, source, unit, config.undecodable)) for source in sources),
                  lambda: files.fingerprint(sources, unit),
                  f"data.files {config.files!r} holds no text: {len(sources)} files, all of them blank")


def _read(source: files.CorpusFile, unit: str, policy: str, tally: Counter[str]) -> Iterator[str]:
    tally["files"] += 1
    split, limit, rest, count, blank = UNITS[unit], cleaning.MAX_CHARACTERS, "", 0, 0
    for chunk in chunks(source, policy, tally):
        rest += chunk  # in place: CPython extends a string that nothing else refers to
        complete = split(rest) if "\n" in chunk else [rest]
        rest = complete.pop()
        count += len(complete)
        for document in complete:
            if len(text := document.strip()) > limit:
                yield from cleaning.split_long(text, tally)
            elif text:
                yield text
            else:
                blank += 1
        if len(rest) > limit:
            while len((rest := rest.lstrip()).rstrip()) > limit:
                text, rest = cleaning.split_at_limit(rest, tally)
                count += 1
                yield text
    last = cleaning.split_long(rest, tally)
    yield from last
    tally["empty_documents"] += blank * (unit == "line")
    tally["empty_files"] += count == blank and not last


def chunks(source: files.CorpusFile, policy: str, tally: Counter[str]) -> Iterator[str]:
    """Yields the text of a file in blocks, with `\\n` for every line break."""
    errors = "strict" if policy == "refuse" else "replace"
    undecoded, done, line, last = b"", 0, 1, False  # `done` bytes are decoded, up to `line`
    with files.opened(source) as file:
        while not last:
            block = file.read(CHUNK)
            last, data = not block, undecoded + block
            try:
                text, used = codecs.utf_8_decode(data, errors, last)
            except UnicodeDecodeError as error:
                bad, line = data[error.start : error.start + 1].hex(), line + data.count(b"\n", 0, error.start)
                raise ConfigError(
                    f"{source.path}, line {line}: byte 0x{bad} is not UTF-8 text",
                    "convert the file (iconv -f ENCODING -t UTF-8), leave it out, or set "
                    "--config.data.undecodable=replace") from error
            if "\ufffd" in text:
                tally["replaced_characters"] += text.count("\ufffd") - data.count(b"\xef\xbf\xbd", 0, used)
            if text.endswith("\r") and not last:  # a line feed may follow
                text, used = text[:-1], used - 1
            if done == 0:
                text = cleaning.remove_byte_order_mark(text, tally)
            undecoded, done, line = data[used:], done + used, line + data.count(b"\n", 0, used)
            yield cleaning.normalize_characters(text, tally)


DEFINITION = CorpusDef(open_corpus, lambda config: f"the text files {config.files}", "*.txt", has_units=True)
