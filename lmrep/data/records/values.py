"""Converts values of files to the fields of a record, and checks them."""

import itertools
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.json_text import type_name
from lmrep.core.text_files import parse_number
from lmrep.data.corpora.cleaning import SURROGATE
from lmrep.data.records.base import FIELDS, TARGETS, Job, Record

CORRECT = "correct it, or leave such examples out with --config.data.damaged_examples, up to that number"
SPANS = {"span": "text", "span2": "text2"}  # field of a word's span -> field of its text
SEVERAL = ("choices", "labels", *SPANS)  # fields that may have several columns
TEXTS = ("text", "text2", "question", "context", "target")


def from_object(value: Any, job: Job, where: str) -> Record | UserError:
    """Makes a record of a JSON object, or returns a UserError.

    `job.columns` maps fields to dotted paths in the object. A path goes through the items of a list:
    `question.choices.text` is the list of the choices' texts. For choices in separate fields, it is several paths,
    separated by commas. Other fields of `FIELDS` are read if the object has them under these names with the right type.
    """
    if not isinstance(value, Mapping):
        return UserError(f"{where} is {type_name(value)}; expected an object with named fields")
    fields = {}
    for field, path in job.columns.items():
        content = follow(value, path)
        if content is None and field in SEVERAL and "," in path:
            names = path.split(",")
            content = [follow(value, name) for name in names]
            content = None if None in content else from_columns(field, names, content)
        if content is None:
            if job.optional(field):
                continue
            return UserError(f"{where} has no {short(path)}: it is null; {CORRECT}") if path in value else \
                missing_column(where, field, path, value, "fields")
        try:
            fields[field] = convert(field, content)
        except ValueError as error:
            return UserError(f"{where}: {short(path)} is {short(content)}; expected {error} for the field {field!r}")
    used = {*job.columns, *job.columns.values()}
    for field in (*FIELDS, "id"):
        if field not in used and value.get(field) is not None:
            try:
                fields[field] = convert(field, value[field])
            except ValueError:
                continue  # another value under the name of a field
    if not fields.keys() - {*TARGETS, "id"}:
        return UserError(f"{where} has the fields {listed(value, repr) or 'none'}, none of which is a field "
                         "with text; set config.data.columns, such as {'text': 'sentence'}")
    return Record(fields, fields.pop("id", ""), where)


def missing_column(
    where: str, field: str, name: str, names: Any, what: str = "columns", advice: str = ""
) -> UserError:
    """Makes the error for a field whose column is missing. `names` are the file's columns; `advice` begins with ";"."""
    needed = "" if field == name else f" for the field {field!r}"
    example = field if field in names else next((other for other in names if other not in FIELDS), "name")
    example = example if len(example) <= 80 else "name"
    short_names = [*itertools.islice((other for other in names if len(other) <= 80), 200)]
    return UserError(f"{where} has no {short(name)}{needed}; it has the {what} {listed(names) or 'none'}: set "
                     f"config.data.columns, such as {{{field!r}: {example!r}}}{advice}{suggestion(name, short_names)}")


def follow(value: Any, path: str) -> Any:
    """Returns the value at a dotted path; None if it does not exist."""
    if isinstance(value, Mapping) and path in value:  # a name with dots in it
        return value[path]
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) and key in item for item in value):
            value = [item[key] for item in value]
        else:
            return None
    return value


def convert(field: str, value: Any) -> Any:
    """Converts a value of JSON to the value of a field. Raises ValueError, whose message is the expected value."""
    return _CONVERT[field](value)


def from_columns(field: str, names: Sequence[str], content: list[Any]) -> Any:
    """Combines the content of several columns into an argument of `convert`."""
    return dict(zip(names, content, strict=True)) if field == "labels" else content


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ValueError("a string, a number or a Boolean")
    return str(value).strip()


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("a list of strings")
    return value


def _labels(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
        raise ValueError("a list of strings or numbers")
    return [_label(item) for item in value]


def _label_set(value: Any) -> str | list[str]:
    """Converts labels to a list, also from {label: 0 or 1}; a text, which `split_labels` splits, stays unchanged."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        numbers = {label: parse_number(_label(flag)) for label, flag in value.items()}
        if not {*numbers.values()} <= {0, 1}:
            raise ValueError("0 or 1 in the column of each label")
        return [label for label, flag in numbers.items() if flag]
    return _labels(value)


def split_labels(record: Record, separator: str) -> Record:
    """Makes `labels` of a record a list without duplicates; splits a text at `separator`."""
    labels = record.fields.get("labels")
    if labels is None:
        return record
    if isinstance(labels, str):
        labels = [label for label in map(str.strip, labels.split(separator)) if label] if separator else [labels]
    return record._replace(fields={**record.fields, "labels": [*dict.fromkeys(labels)]})


def _span(value: Any) -> list[int]:
    """Parses a list of two numbers, or a text such as 3-7."""
    text = "-".join(map(str, value)) if isinstance(value, list) else value
    ends = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", text) if isinstance(text, str) else None
    if not ends:
        raise ValueError("the first character of a word, from 0, and the one after its last")
    return [int(end) for end in ends.groups()]


def _answers(value: Any) -> list[tuple[str, int]]:
    """Parses answers as a list of objects or pairs, or as an object of two lists (`text`, `answer_start`)."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        starts = value.get("answer_start")
        value = list(zip(value["text"], starts, strict=True)) \
            if isinstance(starts, list) and len(starts) == len(value["text"]) else None
    elif isinstance(value, list):
        value = [(item.get("text"), item.get("answer_start")) if isinstance(item, Mapping) else item for item in value]
    if not isinstance(value, list) or not all(
            isinstance(item, list | tuple) and len(item) == 2 and isinstance(item[0], str) and type(item[1]) is int
            for item in value):
        raise ValueError("a list of answers with `text` and `answer_start`")
    return [(text, start) for text, start in value]


_CONVERT: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys((*TEXTS, "lemma", "pos"), _string), **dict.fromkeys(SPANS, _span), "target": _label,
    "label": _label, "words": _strings, "tags": _labels,
    "labels": _label_set, "senses": lambda value: _strings(value.split() if isinstance(value, str) else value),
    "choices": _strings, "answers": _answers, "id": _label}


def check(record: Record, split: str) -> UserError | None:
    """Returns a UserError for an invalid record, else None. Removes an empty label of a test file, as if absent."""
    fields, where = record.fields, record.where
    if (name := _with_surrogate(record)) is not None:
        return UserError(f"{where}: the {name} has half of a surrogate pair, which is not a character; correct it, or "
                         "set --config.data.undecodable=replace")
    if fields.get("label") == "":
        if split != "test":
            return UserError(f"{where}: the label is empty; {CORRECT}")
        del fields["label"]
    for field in TEXTS:
        if field in fields and not any(map(_visible, fields[field])):
            return UserError(f"{where}: the {field} is empty; {CORRECT}")
    for field in ("words", "tags", "choices", "labels", "senses"):
        values = fields.get(field)
        if values is None or (field == "labels" and not values):
            continue
        if not values or not all(value and not value.isspace() for value in values):
            reason = f"one of the {field} is empty: {short(values)}" if values else f"the {field} are empty"
            return UserError(f"{where}: {reason}; {CORRECT}")
    if "words" in fields and "tags" in fields and len(fields["words"]) != len(fields["tags"]):
        return UserError(f"{where} has {len(fields['words'])} words and {len(fields['tags'])} tags; expected a tag for "
                         "each word")
    for name, field in SPANS.items():
        if name in fields and field in fields:
            (start, end), text = fields[name], fields[field]
            if not (start < end <= len(text) and any(map(_visible, text[start:end]))):
                return UserError(f"{where}: {name} is {start}-{end}, where {short(text[start:end])} is found in a "
                                 f"{field} of {len(text):,} characters; expected the first character of a word, from "
                                 "0, and the one after its last")
    for answer, start in fields.get("answers", ()) if "context" in fields else ():
        text = fields["context"][start:start + len(answer)] if start >= 0 else ""
        if not answer:
            return UserError(f"{where}: an answer is empty; an unanswerable question has no answers")
        if text != answer:
            return UserError(f"{where}: the answer {short(answer)} is not at character {start} of the context, where "
                             f"{short(text)} is found; expected offsets in characters, from 0")
    return None


def _with_surrogate(record: Record) -> str | None:
    """Returns the name of the first field, or "id", with a lone surrogate; None if there is none."""
    for name, value in (*record.fields.items(), ("id", record.id)):
        for part in [value] if isinstance(value, str) else () if name in SPANS else value:
            try:
                (part if isinstance(part, str) else part[0]).encode()  # faster than a search
            except UnicodeEncodeError:
                return name
    return None


def without_surrogates(record: Record) -> Record:
    """Replaces lone surrogates by U+FFFD; returns the same object if the record has none."""
    if _with_surrogate(record) is None:
        return record

    def replaced(value: Any) -> Any:
        if isinstance(value, str):
            return SURROGATE.sub("\ufffd", value)
        return type(value)(map(replaced, value)) if isinstance(value, list | tuple) else value

    return record._replace(fields={name: replaced(value) for name, value in record.fields.items()},
                           id=replaced(record.id))


def _visible(character: str) -> bool:
    """Returns whether a character is neither white space nor a control or format character, such as U+200B."""
    return character.isalnum() or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp", "Zs")


def check_choice(record: Record) -> UserError | None:
    """Returns a UserError if the label of a record with choices is not the number of a choice, or None."""
    if "choices" not in record.fields:
        return None
    label, count = record.fields["label"], len(record.fields["choices"])
    if re.fullmatch(r"[0-9]{1,9}", label) and int(label) < count:
        return None
    return UserError(f"{record.where}: the label is {short(label)}; expected the number of one of {count} choices, 0 "
                     f"to {count - 1} (set config.data.label_map if they are named otherwise)")


def listed(names: Collection[Any], show: Callable[[Any], str] = str) -> str:
    """Lists the names of a file's columns for messages: the first 20, shortened."""
    shown = [text if len(text := show(name)) <= 80 else f"{text[:77]}..." for name in itertools.islice(names, 20)]
    return ", ".join(shown) + ", ..." * (len(names) > 20)


def short(value: Any) -> str:
    """Returns the `repr` of a value, shortened, for messages."""
    try:
        text = repr(value)
    except RecursionError:
        return f"{type_name(value)} with deep nesting"
    return text if len(text) <= 80 else text[:77] + "..."
