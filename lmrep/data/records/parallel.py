"""Reads aligned files: line i of one is the translation of line i of the other (WMT, IWSLT, Multi30k)."""

from collections.abc import Iterator
from pathlib import Path

from lmrep.core import hub, input_files, remote
from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, short


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields a record for each line. `columns` has the suffix of each field's file: with {"text": "de", "target":
    "en"}, train.en is beside train.de, the file of `text`. Lines that are empty in all files are left out. Raises
    UserError if a suffix is not given, a file is missing, or files have different numbers of lines."""
    suffix = job.columns.get("text", "text")
    if suffix == "text":
        raise UserError(f"{job.path} is to be read with format=parallel, and config.data.columns does not say which "
                        "suffix the file of each field has; set it, such as {'text': 'de', 'target': 'en'}")
    paths = {field: _beside(job, field, suffix) for field in job.columns if field != "id"}
    if job.split == "test":
        paths = {field: path for field, path in paths.items()
                 if not job.optional(field) or remote.as_url(path) or path.exists()}
    lines = {field: list(files.lines(path, job.config)) for field, path in paths.items()}
    for field, texts in lines.items():
        if len(texts) != len(lines["text"]):
            raise UserError(f"{paths[field]} has {counted(len(texts), 'line')}, and {job.path} {len(lines['text']):,}; "
                            "expected as many: line i of one is the translation of line i of the other")
    for number in range(len(lines["text"])):
        fields = {field: texts[number].strip() for field, texts in lines.items()}
        where = f"{job.path}, line {number + 1}"
        if all(fields.values()):
            yield Record(fields, "", where)
        elif any(fields.values()):
            empty = next(paths[field] for field, value in fields.items() if not value)
            yield UserError(f"{where}: the same line of {empty} is empty; {CORRECT}")


def _beside(job: Job, field: str, suffix: str) -> Path:
    """Returns the path of a field's file, given the suffix of the file of `text`. Raises UserError if the name of
    `job.path` lacks that suffix."""
    name, end = job.path.name, job.path.suffix
    packed = end if end.lower() in input_files.COMPRESSED else ""
    stem = name.removesuffix(packed)
    if not stem.endswith(f".{suffix}"):
        raise UserError(f"{job.path} is the file of 'text', whose suffix is {short(suffix)} by config.data.columns; "
                        f"give a file whose name ends with .{suffix}")
    return hub.with_file(job.path.with_name(f"{stem.removesuffix(suffix)}{job.columns[field]}{packed}"))


DEFINITION = ReaderDef(read)
