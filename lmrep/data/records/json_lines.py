"""Reads JSON Lines (an object per line), and a JSON array of objects, which may be the field `data` of an object."""

import re
from collections.abc import Iterator
from typing import Any

from lmrep.core import json_text
from lmrep.core.errors import UserError
from lmrep.data.records import files, values
from lmrep.data.records.base import Job, ReaderDef, Record

# The beginning of an object with a list under "data", perhaps after fields with scalar values.
DATA = re.compile(r'\s*\{\s*("[^"]*"\s*:\s*("[^"]*"|[-\w.]+)\s*,\s*)*"data"\s*:\s*\[')


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields the examples of a file. Raises UserError if it is an array that is not valid JSON."""
    beginning = files.beginning(job.path, job.config)
    if beginning.lstrip().startswith("["):
        array = parse(files.text(job.path, job.config), str(job.path))
        if isinstance(array, UserError):
            raise array
        for number, value in enumerate(array):
            yield values.from_object(value, job, f"{job.path}, item {number}")
        return
    if DATA.match(beginning):
        value = parse(files.text(job.path, job.config), str(job.path))
        if isinstance(value, dict) and all(isinstance(item, dict) for item in value["data"]):
            for number, item in enumerate(value["data"]):
                yield values.from_object(item, job, f"{job.path}, data[{number}]")
            return
        if isinstance(value, UserError) and isinstance(parse(next(files.lines(job.path, job.config)), ""),
                                                           UserError):
            raise value  # otherwise the file has an object per line, with a field `data`
    for where, line in files.filled_lines(job.path, job.config):
        value = parse(line, where)
        yield value if isinstance(value, UserError) else values.from_object(value, job, where)


def parse(text: str, where: str) -> Any:
    """Parses a JSON text: returns its value, or a UserError if it is invalid. Leaves halves of surrogate pairs in the
    value, which `values.check` refuses or `values.without_surrogates` replaces."""
    try:
        return json_text.loads(text, surrogates=True)
    except json_text.InvalidJSON as error:
        return UserError(f"{where} is not JSON: {error}; expected an object a line, or one array of objects")


def detects(beginning: str) -> bool:
    """Returns whether a file begins with an object, or an array of objects."""
    return re.match(r'\s*(\[\s*)?\{\s*["}]', beginning) is not None


DEFINITION = ReaderDef(read, (".jsonl", ".ndjson", ".json"), detects)
