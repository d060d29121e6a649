"""Reads labelled examples from files of many formats as records.

`read(config, split)` returns the records of a split. READERS lists the formats; a new one is a module and an entry of
the table. A reader yields examples in the order of the file; `read` checks them, maps their labels and numbers them.
"""

from lmrep.core.components import component_table
from lmrep.data.records import (
    choices,
    delimited,
    json_lines,
    parallel,
    parquet,
    texts,
    tfds,
    token_columns,
    trees,
    word_in_context,
    word_senses,
)
from lmrep.data.records.base import FIELDS, SPLITS, TARGETS, Config, Job, ReaderDef, Record
from lmrep.data.records.detection import READERS, detect
from lmrep.data.records.reading import check_files, columns_of, files_of, fingerprint, other_files, read, spread
from lmrep.data.records.values import TEXTS

__all__ = ["FIELDS", "READERS", "SPLITS", "TARGETS", "TEXTS", "Config", "Job", "ReaderDef", "Record", "check_files",
           "columns_of", "detect", "files_of", "fingerprint", "other_files", "read", "spread"]

READERS.update(component_table(ReaderDef, {  # in the order in which formats are detected
    "choices": choices.DEFINITION, "word_in_context": word_in_context.DEFINITION,
    "conllu": token_columns.CONLLU_DEFINITION, "columns": token_columns.COLUMNS,
    "squad": json_lines.SQUAD, "jsonl": json_lines.DEFINITION, "trees": trees.DEFINITION, "tsv": delimited.TSV,
    "csv": delimited.CSV, "label_text": texts.LABEL_TEXT, "folders": texts.FOLDERS,
    "documents": texts.DOCUMENTS, "word_senses": word_senses.DEFINITION, "parallel": parallel.DEFINITION,
    "parquet": parquet.DEFINITION, "tfds": tfds.DEFINITION}))
