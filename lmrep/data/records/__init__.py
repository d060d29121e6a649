"""Labelled examples: files of many formats read as records."""

from lmrep.data.records.base import FIELDS, Config, ReaderDef, Record

__all__ = ["FIELDS", "Config", "ReaderDef", "Record"]
