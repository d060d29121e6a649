"""Reads SQuAD 1.1 and 2.0: one JSON file of articles, paragraphs and questions (Rajpurkar et al., 2016, 2018)."""

import re
from collections.abc import Iterator
from typing import Any

from lmrep.core.errors import UserError
from lmrep.core.json_text import type_name
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.json_lines import parse
from lmrep.data.records.values import CORRECT, from_object, listed, short

FIELDS_READ = ("question", "context", "answers")


def read(job: Job) -> Iterator[Record | UserError]:
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
                    record = UserError(f"{path} has the id {short(record.id)}, which {seen[record.id]} has too; "
                                       f"{CORRECT}")
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
    return from_object(fields, job._replace(columns={name: name for name in (*FIELDS_READ, "id")}), where)


def _items(value: Any, key: str, path: str) -> Iterator[tuple[str, Any]]:
    for number, item in enumerate(_get(value, key, list, path)):
        yield f"{path}{', ' if key == 'data' else '.'}{key}[{number}]", item


def _get(value: Any, key: str, type_: type, path: str) -> Any:
    """Returns `value[key]`. Raises UserError if it is missing or has another type."""
    if not isinstance(value, dict):
        raise UserError(f"{path} is {type_name(value)}; expected an object with {key!r}, as in SQuAD")
    if not isinstance(value.get(key), type_):
        problem = f"has {type_name(value[key])} in {key!r}" if key in value else \
            f"has no {key!r}, only {listed(value) or 'nothing'}"
        raise UserError(f"{path} {problem}; expected {type_name(type_())} there, as in SQuAD")
    return value[key]


def detects(beginning: str) -> bool:
    """Returns whether a file begins with an object and has paragraphs."""
    return re.match(r'\s*\{\s*"', beginning) is not None and '"paragraphs"' in beginning


DEFINITION = ReaderDef(read, (".json",), detects)
