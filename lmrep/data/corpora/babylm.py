"""Reads the six text files of the BabyLM challenge, and cleans the lines of each as its kind of text needs.

The rules are those of LTG-BERT's scripts for the challenge (Samuel, 2023), by a few patterns: without the repair of
wrongly decoded characters (ftfy) and Moses' normalization of punctuation. Spoken lines are capitalized and put in
quotation marks, and repeated ones are removed; the lines of a paragraph of Gutenberg's are joined; Wikipedia loses
references such as [1], HTML entities and one-line articles about places.

The files have few marks of where a document ends, `= = = NAME = = =`, and the longest have none. A document ends there,
and after the first line with which it has PIECE characters, so that some of them can be held out.
"""

import html
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePath

from lmrep.core.errors import UserError
from lmrep.data.corpora import cleaning, files, text
from lmrep.data.corpora.base import Config, Corpus, CorpusDef, Reader

PIECE = 10_000  # characters of a document at least, where nothing marks its end
RULES = "babylm-1"  # changes with the text that they make of the same files
HEADING = re.compile(r"= = = .* = = =")
REFERENCE = re.compile(r"\[\d+\]")
STUB = re.compile(r"is a (commune\. It is|commune found|city in|village in|municipality in|town in)")
BEFORE_MARK = re.compile(r" +(?=[.,;:?!…’)\]}])|(?<=[(\[{]) +")
CONTRACTION = re.compile(r" (?=(?:n't|'(?:ll|re|ve|m|s|d))[ ,.])", re.IGNORECASE)
AFTER_MARK = re.compile(r"(?<=[,;?!…)\]}])(?=[^\W\d_])|(?<=\.)(?=[A-Z][a-z])")
Lines = Iterable[str]  # without white space at the ends; "" is a blank line


def spoken(lines: Lines, tidy: bool = False) -> Iterator[str]:
    """Quotes utterances, and removes those that repeat the one before. With `tidy`, sets the spaces around punctuation
    and capitalizes; otherwise, removes the dash that begins a subtitle."""
    before = None
    for line in lines:
        line = " ".join(line.split())
        if tidy and line in (".", "!", "?"):
            continue
        if tidy:
            line = AFTER_MARK.sub(" ", CONTRACTION.sub("", BEFORE_MARK.sub("", line)))
            line = line[:1].upper() + line[1:]
        else:
            line = line.removeprefix("-").lstrip()
        quoted = line and f'"{line}"'
        if quoted != before or not line:
            yield quoted
        before = quoted


def subtitles(lines: Lines) -> Iterator[str]:
    """Quotes what is said in subtitles: not names of speakers (ending in a colon), sounds in brackets, and lines that
    have quotation marks."""
    for line in spoken(lines):
        said = line[1:-1]
        bare = said.endswith(":") or '"' in (said[:1], said[-1:]) or said[:1] + said[-1:] in ("()", "[]", "{}")
        yield said if bare else line


def paragraphs(lines: Lines) -> Iterator[str]:
    """Joins the lines between blank lines."""
    for blank, group in itertools.groupby(lines, key=lambda line: not line):
        yield "" if blank else " ".join(" ".join(group).split())


def encyclopedia(lines: Lines) -> Iterator[str]:
    """Removes references, entities and short articles about places."""
    for line in lines:
        line = " ".join(html.unescape(html.unescape(REFERENCE.sub("", line))).split())
        if not (STUB.search(line) and len(line) < 128):
            yield line


# {name of a file: what it makes of the lines of a document}
CLEANERS: dict[str, Callable[[Lines], Iterator[str]]] = {
    "bnc_spoken": partial(spoken, tidy=True), "childes": partial(spoken, tidy=True), "gutenberg": paragraphs,
    "open_subtitles": subtitles, "simple_wiki": encyclopedia, "switchboard": spoken}


def open_corpus(config: Config) -> Corpus:
    """Opens the files that `data.files` names: a glob, or the folder of the files *.train.

    Raises:
      UserError: a name is not one of the challenge's, or one of the six *.train is missing.
    """
    pattern = os.path.join(config.files, "*.train*") if os.path.isdir(config.files) else config.files
    sources = files.find(pattern, "babylm", "*.train")
    names = [PurePath(source.path).name.partition(".") for source in sources]
    expected = f"expected {', '.join(f'{name}.train' for name in CLEANERS)}"
    if other := [first + dot + rest for first, dot, rest in names if first not in CLEANERS]:
        raise UserError(f"data.files {config.files!r} has {', '.join(other)}; {expected}, or the same names with .dev "
                        "or .test")
    trained = [first for first, _, rest in names if rest.startswith("train")]
    if missing := [f"{name}.train" for name in CLEANERS if name not in trained] if trained else []:
        raise UserError(f"data.files {config.files!r} lacks {', '.join(missing)}; {expected}. The data of a track is "
                        "one folder of the challenge's download: give it as --config.data.files=FOLDER")
    return Corpus("babylm", f"{files.describe(sources, config.files)} of the BabyLM challenge",
                  tuple(Reader(source.path, partial(_read, source, CLEANERS[name], config.undecodable))
                        for source, (name, _, _) in zip(sources, names, strict=True)),
                  lambda: files.fingerprint(sources, RULES),
                  f"data.files {config.files!r} holds no text: {len(sources)} files, all of them blank")


def _read(
    source: files.CorpusFile, clean: Callable[[Lines], Iterator[str]], policy: str, tally: Counter[str]
) -> Iterator[str]:
    tally["files"] += 1
    empty, piece, size = True, [], 0
    for line in itertools.chain(_cleaned(source, clean, policy, tally), [None]):
        if line:
            piece.append(line)
            size += len(line)
        if piece and (line is None or size >= PIECE):
            for document in cleaning.split_long("\n".join(piece), tally):
                yield document
                empty = False
            piece, size = [], 0
    tally["empty_files"] += empty


def _cleaned(
    source: files.CorpusFile, clean: Callable[[Lines], Iterator[str]], policy: str, tally: Counter[str]
) -> Iterator[str | None]:
    """Yields the cleaned lines of a file, and None where a document ends."""
    for heading, lines in itertools.groupby(_lines(source, policy, tally), key=lambda line: bool(
            HEADING.fullmatch(line))):
        if heading:
            yield None
        else:
            yield from clean(lines)


def _lines(source: files.CorpusFile, policy: str, tally: Counter[str]) -> Iterator[str]:
    rest = ""
    for chunk in text.chunks(source, policy, tally):
        *complete, rest = (rest + chunk).split("\n")
        yield from (line.strip() for line in complete)
    yield rest.strip()


DEFINITION = CorpusDef(open_corpus, lambda config: f"the files of the BabyLM challenge {config.files}", "*.train",
                       sentences="line")
