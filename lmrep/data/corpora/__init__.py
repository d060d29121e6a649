"""Corpora: streams of documents, and their splits for training, validation and testing.

A document is one text. Its text alone determines its split (`splits.py`). CORPORA lists the corpora; a new corpus is a
module and an entry of the table. `files.py` finds and opens files.

Unusual input is handled by these rules and counted in the tally that is passed to `Corpus.documents`:

    input                               handling                                       counter
    every file                                                                         files
    a document                          yielded, without white space at its ends       documents
    a file without text                 skipped                                        empty_files
    a blank line (documents=line),      skipped                                        empty_documents
      field, example or null
    a blank line of JSONL               skipped                                        blank_lines
    a byte order mark at the start      removed                                        byte_order_marks
      of a file or a field
    CRLF, or CR alone                   replaced by a line feed                        carriage_returns
    NUL                                 removed                                        nul_characters
    bytes that are not UTF-8, unpaired  UserError with file and line; or U+FFFD if     replaced_characters
      surrogates in JSON                  undecodable=replace
    a line of JSONL without the text    UserError with file and line; or skipped, up   damaged_lines
                                          to damaged_lines of them in the corpus
    a document of more than             split, at a line break or space if there is    cut_documents
      MAX_CHARACTERS                      one in its second half
    compressed files, archives of one   decompressed (`core/input_files.py`)
      file
    pointers of Git LFS and git-annex,  UserError
      HTML pages, UTF-16, other archives
"""

from lmrep.data.corpora import babylm, python_docs, records, splits, text, tfds
from lmrep.data.corpora.base import CORPORA, Config, Corpus, CorpusDef, Reader, check_files, check_present, open_corpus
from lmrep.data.corpora.cleaning import MAX_CHARACTERS
from lmrep.data.corpora.splits import SPLITS, assign, hash_position, imbalanced

__all__ = ["CORPORA", "MAX_CHARACTERS", "SPLITS", "Config", "Corpus", "CorpusDef", "Reader", "assign", "check_files",
           "check_present", "hash_position", "imbalanced", "open_corpus", "splits"]

CORPORA.update({
    "python_docs": python_docs.DEFINITION, "text_files": text.DEFINITION, "jsonl": records.JSONL,
    "parquet": records.PARQUET, "tfds": tfds.DEFINITION, "babylm": babylm.DEFINITION})
