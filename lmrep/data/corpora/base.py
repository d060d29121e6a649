"""What every corpus is: its config and its stream of documents."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lmrep.config.record import setting
from lmrep.core.errors import UserError

KINDS = ("python_docs", "text_files", "jsonl", "parquet", "tfds")


@dataclass(frozen=True)
class Config:
    """A corpus and its splits."""

    corpus: str = setting("python_docs", "where documents come from", choices=KINDS)
    files: str = setting("", "text_files, jsonl, parquet: a glob of files, on this machine or remote (gs://bucket/**/*"
                         ".txt); ** stands for any folders; .gz and .zst are decompressed")
    documents: str = setting("auto", "text_files: what one document is; auto: a single file splits at blank lines, "
                             "several files are a document each", choices=("auto", "file", "blank_line", "line"))
    text_field: str = setting("text", "jsonl, parquet: the field or column that holds the text; a dot leads into a "
                              "nested one, as in article.body")
    undecodable: str = setting("refuse", "bytes that are not UTF-8: refused with their file and line, or each replaced "
                               "by U+FFFD and counted", choices=("refuse", "replace"))
    damaged_lines: int = setting(0, "jsonl: how many lines without JSON or without the text are skipped and counted "
                                 "before one is refused", at_least=0)
    tfds_name: str = setting("", "tfds: a TFDS name or a directory, such as imdb_reviews/plain_text:1.0.0")
    tfds_split: str = setting("train", "tfds: the split whose examples are the documents")
    text_feature: str = setting("text", "tfds: the feature that holds the text")
    damaged_records: int = setting(0, "records of a token store that cannot be read any more: how many of a split are "
                                   "read as unknown words before a run stops", at_least=0)
    validation: float = setting(0.02, "share of the documents held out for validation", at_least=0, below=1)
    test: float = setting(0.02, "share of the documents held out for the test", at_least=0, below=1)


@dataclass(frozen=True)
class Corpus:
    """A stream of documents.

    Attributes:
      name: which kind of corpus it is.
      description: what it is and where it lies, for people.
      documents: each call streams the texts anew, in a fixed order, none of them blank; line breaks are `\\n`. What is
        met is counted in the tally that may be given, under the names of the package's docstring; the counts are whole
        when the stream has been read to its end.
      fingerprint: names the content; it changes when any document does.
    """

    name: str
    description: str
    documents: Callable[[Counter[str] | None], Iterator[str]]
    fingerprint: Callable[[], str]


def corpus(name: str, description: str, read: Callable[[Counter[str]], Iterable[str]], fingerprint: Callable[[], str],
           nothing: str) -> Corpus:
    """A Corpus of what `read(tally)` streams. Its documents are counted; `nothing` is said where there are none."""
    def documents(tally: Counter[str] | None = None) -> Iterator[str]:
        tally = Counter() if tally is None else tally
        count = 0
        for count, text in enumerate(read(tally), 1):  # noqa: B007 - the last number is the count
            yield text
        if not count:
            raise UserError(nothing)
        tally["documents"] += count
        tally += Counter()  # drops what was looked for and never met

    return Corpus(name, description, documents, fingerprint)
