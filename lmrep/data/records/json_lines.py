"""Reads JSON Lines (an object per line), a JSON array of objects, which may be the field `data` of an object, and the
JSON of SQuAD 1.1 and 2.0: a file of articles, paragraphs and questions (Rajpurkar et al., 2016, 2018)."""

import re
from collections.abc import Iterator
from typing import Any

from lmrep.core import json_text
from lmrep.core.errors import UserError
from lmrep.data.records import files, values
from lmrep.data.records.base import Job, ReaderDef, Record

# The beginning of an object with a list under "data", perhaps after fields with scalar values.
DATA = re.compile(r'\s*\{\s*("[^"]*"\s*:\s*("[^"]*"|[-\w.]+)\s*,\s*)*"data"\s*:\s*\[')
SQUAD_FIELDS = ("question", "context", "answers")


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


# SQuAD


def read_squad(job: Job) -> Iterator[Record | UserError]:
    """Yields a record for each question; `answers` is [] if `is_impossible`. Yields a UserError for a repeated id,
    because predictions are written by id. Raises UserError if the file has another structure."""
    seen: dict[str, str] = {}
    value = parse(files.text(job.path, job.config), str(job.path))
    if isinstance(value, UserError):
        raise value
    for article_path, article in _items(value, "data", str(job.path)):
        for paragraph_path, paragraph in _items(article, "paragraphs", article_path):
            context = _get(paragraph, "context", str, paragraph_path)
            for path, question in _items(paragraph, "qas", paragraph_path):
                record = _record(job, context, question, path)
                if isinstance(record, Record) and record.id and seen.setdefault(record.id, path) != path:
                    record = UserError(f"{path} has the id {values.short(record.id)}, which {seen[record.id]} has too; "
                                       f"{values.CORRECT}")
                yield record


def _record(job: Job, context: str, question: Any, where: str) -> Record | UserError:
    try:
        text = _get(question, "question", str, where).strip()
    except UserError as error:
        return error
    fields = {key: question[key] for key in ("id", "answers") if key in question} | {"question": text,
                                                                                    "context": context}
    where = f"{job.path}, question {str(fields['id'])[:80]}" if isinstance(fields.get("id"), str | int) else where
    if question.get("is_impossible") is True:
        if fields.get("answers"):
            return UserError(f"{where} is_impossible and has answers; expected one or the other")
        fields["answers"] = []
    return values.from_object(fields, job._replace(columns={name: name for name in (*SQUAD_FIELDS, "id")}), where)


def _items(value: Any, key: str, path: str) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(_get(value, key, list, path)):
        yield f"{path}{', ' if key == 'data' else '.'}{key}[{number}]", item


def _get(value: Any, key: str, type_: type, path: str) -> Any:
    """Returns `value[key]`. Raises UserError if it is missing or has another type."""
    if not isinstance(value, dict):
        raise UserError(f"{path} is {json_text.type_name(value)}; expected an object with {key!r}, as in SQuAD")
    if not isinstance(value.get(key), type_):
        problem = f"has {json_text.type_name(value[key])} in {key!r}" if key in value else \
            f"has no {key!r}, only {values.listed(value) or 'nothing'}"
        raise UserError(f"{path} {problem}; expected {json_text.type_name(type_())} there, as in SQuAD")
    return value[key]


SQUAD = ReaderDef(read_squad, (".json",), lambda beginning: bool(
    re.match(r'\s*\{\s*"', beginning) and '"paragraphs"' in beginning))
