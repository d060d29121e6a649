"""Labelled examples: files of many formats read as records."""

from lmrep.data.records import delimited, json_lines
from lmrep.data.records.base import FIELDS, SPLITS, TARGETS, Config, Job, ReaderDef, Record
from lmrep.data.records.reading import READERS, detect, fingerprint, read

__all__ = ["FIELDS", "READERS", "SPLITS", "TARGETS", "Config", "Job", "ReaderDef", "Record", "detect", "fingerprint",
           "read"]

READERS.update({"tsv": delimited.TSV, "csv": delimited.CSV, "jsonl": json_lines.DEFINITION})
