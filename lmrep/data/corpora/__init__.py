"""Corpora: where the documents come from, and which of them train, validate and test.

A corpus is a stream of documents, each one text. Every document belongs to one split, and its text alone decides
which (`splits.py`). Documents come from files (`files.py` finds and opens them, `text.py` and `records.py` read them),
from Python's own documentation, or from TFDS (`tfds.py`).

What is not plain text is met by one rule each, and counted in the tally that `Corpus.documents` is given:

    what is met                         what is done                                   counted as
    every file                                                                         files
    a document                          streamed, without white space at its ends      documents
    a file without any text             skipped                                        empty_files
    a blank line (documents=line),      skipped                                        empty_documents
      field, example or null
    a blank line of JSONL               skipped                                        blank_lines
    a byte order mark that begins       removed                                        byte_order_marks
      a file or a field
    CRLF, or CR alone                   a line break                                   carriage_returns
    NUL                                 removed                                        nul_characters
    bytes that are not UTF-8, half      refused with file and line; or U+FFFD where    replaced_characters
      of a surrogate pair in JSON         undecodable=replace
    a line of JSONL without the text    refused with file and line; or skipped, up to  damaged_lines
                                          damaged_lines of them in the corpus
    a document longer than LONGEST      cut there, at a line break or space where      cut_documents
                                          the half before has one
"""

from collections.abc import Callable

from lmrep.data.corpora import python_docs, records, text, tfds
from lmrep.data.corpora.base import Config, Corpus, corpus
from lmrep.data.corpora.cleaning import LONGEST
from lmrep.data.corpora.splits import SPLITS, assign, imbalanced, place

__all__ = ["CORPORA", "LONGEST", "SPLITS", "Config", "Corpus", "assign", "imbalanced", "open_corpus", "place"]

def _python_docs(config: Config) -> Corpus:
    folder = python_docs.root()
    return corpus("python_docs", "the documentation that comes with Python",
                  lambda tally: python_docs.documents(folder)[0], lambda: python_docs.fingerprint(folder),
                  f"no documentation found under {folder}, where this Python should keep its standard library; use "
                  "--config.data.corpus=text_files with your own files")


CORPORA: dict[str, Callable[[Config], Corpus]] = {
    "python_docs": _python_docs, "text_files": text.open_corpus, "jsonl": records.jsonl, "parquet": records.parquet,
    "tfds": tfds.open_corpus}


def open_corpus(config: Config) -> Corpus:
    """The corpus that a config names. Raises UserError where there is none."""
    return CORPORA[config.corpus](config)
