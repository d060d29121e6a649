"""Reads multiple choice: SWAG's CSV, CODAH's TSV, and JSON with lists of choices."""

import re
from collections.abc import Iterator

from lmrep.core.errors import UserError
from lmrep.data.records import delimited, files, json_lines
from lmrep.data.records.base import Job, ReaderDef, Record

CODAH = {"text": "1", "choices": "2,3,4,5", "label": "6"}


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields the examples of a file in one of these forms, detected by its beginning:

    - SWAG, with columns sent1, sent2, ending0, ending1 ... and label: the text is sent1, and each choice is sent2 and
      an ending, as in BERT. Without sent2, the text is startphrase.
    - CODAH, without header: category, text, four endings and label.
    - JSON Lines or an array, with `choices` as a list.

    `columns` may give other names.
    """
    beginning = files.beginning(job.path, job.config)
    if json_lines.detects(beginning):
        yield from json_lines.read(job)
    elif _is_swag(beginning):
        yield from _swag(job)
    else:
        yield from delimited.read(_with_defaults(job, CODAH), delimited.tsv_lines)


def _swag(job: Job) -> Iterator[Record | UserError]:
    lines = delimited.tsv_lines if files.suffix(job.path) == ".tsv" else delimited.csv_lines
    _, names = next(lines(job), (1, []))
    if isinstance(names, UserError):
        raise names
    endings = sorted((name for name in names if re.fullmatch(r"ending[0-9]+", name)), key=lambda name: int(name[6:]))
    pair = {"sent1", "sent2"} <= set(names) and job.columns.get("text", "text") == "text"
    defaults = {"text": "sent1" if pair else "startphrase", "choices": ",".join(endings), "label": "label"}
    if pair:
        defaults["text2"] = "sent2"
    for record in delimited.read(_with_defaults(job, defaults), lines):
        if pair and not isinstance(record, UserError):
            start = record.fields.pop("text2")
            record.fields["choices"] = [f"{start} {ending}".strip() if ending else "" for ending in
                                        record.fields["choices"]]
        yield record


def _with_defaults(job: Job, defaults: dict[str, str]) -> Job:
    """Returns `job` with default columns for the fields whose columns the config does not rename."""
    named = {field: name for field, name in job.columns.items() if name != field}
    return job._replace(columns={**job.columns, **defaults, **named})


def _is_swag(beginning: str) -> bool:
    return {"ending0", "ending1"} <= set(re.split(r"[,\t\r]", beginning.partition("\n")[0]))


def detects(beginning: str) -> bool:
    """Returns whether a file is in the form of SWAG or CODAH."""
    lines = beginning.split("\n")[:-1][:20]
    return _is_swag(beginning) or (bool(lines) and all(
        re.fullmatch(r"[a-z]{1,2}(\t[^\t]+){5}\t[0-3]\r?", line) for line in lines))


DEFINITION = ReaderDef(read, (".csv", ".tsv"), detects)
