"""The corpus interface: config, stream of documents, and entries of CORPORA."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmrep.config.record import choose, setting
from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path

SAMPLE, SAMPLED_FILES = 2**20, 16  # characters and files of `Corpus.beginnings`

CORPORA: dict[str, "CorpusDef"] = {}  # filled by the package


@dataclass(frozen=True)
class Config:
    """A corpus and its splits."""

    corpus: str = setting("python_docs", "the source of documents", choices=CORPORA)
    files: str = setting("", "text_files, jsonl, parquet: a glob of files, local or remote (gs://bucket/**/*.txt); ** "
                         "matches any folders; babylm: also the folder of *.train; .gz, .bz2, .xz, .zst and archives "
                         "of one file are read too",
                         path=as_path)
    documents: str = setting("auto", "text_files: the unit that is one document; auto: the text between blank lines of "
                             "a single file, or else each file", choices=("auto", "file", "blank_line", "line"))
    text_field: str = setting("text", "jsonl, parquet: the field or column with the text; dots separate nested names, "
                              "as in article.body")
    sentences: str = setting("auto", "one sentence per line (line), or sentences detected by punctuation (split); "
                             "auto: line if lines hold one sentence, and most line breaks within paragraphs follow "
                             "the end of a sentence, or lines are not filled to one width (tfds, python_docs: split)",
                             choices=("auto", "line", "split"))
    undecodable: str = setting("refuse", "bytes that are not UTF-8: refused with file and line, or replaced by U+FFFD "
                               "and counted", choices=("refuse", "replace"))
    damaged_lines: int = setting(0, "jsonl: number of lines that are not JSON or lack the text that are skipped and "
                                 "counted before one is an error", at_least=0)
    tfds_name: str = setting("", "tfds: a TFDS name or a directory, such as imdb_reviews/plain_text:1.0.0",
                             path=as_path)
    tfds_split: str = setting("train", "tfds: the split whose examples are the documents")
    text_feature: str = setting("text", "tfds: the feature that holds the text")
    damaged_records: int = setting(0, "number of unreadable records of a token store in each split that are read as "
                                   "unknown words before one is an error", at_least=0)
    max_epochs: float = setting(0.0, "a run that would read the training split more often is refused; 0: none is",
                                at_least=0)
    validation: float = setting(0.02, "fraction of the documents held out for validation", at_least=0, below=1)
    test: float = setting(0.02, "fraction of the documents held out for testing", at_least=0, below=1)


class Reader(NamedTuple):
    """Consecutive documents of a corpus that can be read without the others, such as one file."""

    path: str  # the file or directory that is read; "" for documents that come with Python
    # tally -> texts. It can be pickled, and called on any machine that has `path`.
    read: Callable[[Counter[str]], Iterable[str]]


@dataclass(frozen=True)
class Corpus:
    """A stream of documents."""

    name: str  # the name in CORPORA
    description: str  # its content and origin, for messages
    readers: tuple[Reader, ...]  # the documents, in order
    fingerprint: Callable[[], str]  # () -> a hash that changes if any document does
    empty_message: str  # the message of the error if there are no documents

    def documents(self, tally: Counter[str] | None = None) -> Iterator[str]:
        """Yields the texts in a fixed order, without blank ones; line breaks are line feeds.

        `tally` is updated with the counters of the package's docstring, which are complete at the end of the stream.
        Raises UserError if there are no documents, or one cannot be read.
        """
        tally, count = Counter() if tally is None else tally, 0
        texts = itertools.chain.from_iterable(reader.read(tally) for reader in self.readers)
        for count, text in enumerate(texts, 1):  # noqa: B007 - the last number is the count
            yield text
        if not count:
            raise UserError(self.empty_message)
        tally["documents"] += count
        tally += Counter()  # removes zero counts

    def beginnings(self) -> Iterator[str]:
        """Yields texts from the beginnings of some files at equal distances, about SAMPLE characters in all. Raises
        UserError if one of them cannot be read."""
        readers = self.readers[:: -(-len(self.readers) // SAMPLED_FILES) or 1]
        for reader in readers:
            remaining = SAMPLE // len(readers)
            for text in reader.read(Counter()):
                yield text[:remaining]
                remaining -= len(text)
                if remaining <= 0:
                    break


@row
class CorpusDef(NamedTuple):
    """An entry of CORPORA."""

    open: Callable[[Config], Corpus]  # Config -> Corpus. Raises UserError if there is no such corpus.
    describe: Callable[[Config], str]  # Config -> a noun phrase for messages, without opening the corpus
    example: str = ""  # a glob such as "*.txt" if the corpus reads `Config.files`; otherwise ""
    has_units: bool = False  # whether `Config.documents` determines the documents
    sentences: str = "auto"  # the value that `Config.sentences=auto` has; auto: detected in the text
    # Raises UserError if opening the corpus would download or prepare it first.
    check_present: Callable[[Config], None] = lambda config: None
    # (config, runner, options of Apache Beam) -> None. Downloads and prepares the corpus; a Beam pipeline uses the
    # runner and options.
    prepare_files: Callable[[Config, Any, Any], None] = lambda config, runner, options: None


def check_present(config: Config) -> None:
    """Raises UserError if opening the corpus of a config would download or prepare it first."""
    choose(CORPORA, config.corpus, "data.corpus").check_present(config)


def check_files(config: Config, path: str) -> None:
    """Raises UserError if a corpus of files cannot be opened; `path` is that of the config, for the message."""
    if config.files:
        try:
            open_corpus(config)
        except UserError as error:
            raise UserError(f"{error}, or give others as --{path}.files=FILES") from None


def open_corpus(config: Config) -> Corpus:
    """Opens the corpus of a config. Raises UserError if it does not exist, or if `files` is set for a corpus without
    files."""
    definition = choose(CORPORA, config.corpus, "data.corpus")
    if config.files and not definition.example:
        with_files = ", ".join(name for name, other in CORPORA.items() if other.example)
        raise UserError(f"data.files is {config.files!r}, and data.corpus is {config.corpus}, which reads no files; "
                        f"set data.corpus to one of {with_files} (or data=files after the experiment's name), or leave "
                        "data.files empty")
    return definition.open(config)
