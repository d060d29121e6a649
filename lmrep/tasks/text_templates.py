"""Templates, which make texts of the fields of labelled examples, such as "question: {question} context: {context}"
(Raffel et al., 2019, appendix D)."""

import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lmrep.core.errors import UserError
from lmrep.data.records import FIELDS, TARGETS, Record
from lmrep.data.records.values import SPANS

INPUTS = tuple(name for name in FIELDS if name not in (*TARGETS, *SPANS))


def fields(template: str) -> tuple[str, ...]:
    """Returns the names between braces, in order, without repetitions. Raises ValueError if braces are unbalanced."""
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    return tuple(dict.fromkeys(names))


def check(setting: str, template: str, known: Collection[str], example: str) -> None:
    """Raises UserError if the template, the value of `setting`, has no fields, or others than `known`."""
    try:
        names = fields(template)
        if names and {*names} <= {*known}:
            template.format_map(dict.fromkeys(names, ""))  # a format after a colon may not be one of texts
            return
    except ValueError as error:
        raise UserError(f"{setting} is {template!r}, which is no template ({error}); expected one such as "
                        f"{example!r}") from None
    raise UserError(f"{setting} is {template!r}; expected a text with the fields {', '.join(known)} in braces, such as "
                    f"{example!r}")


def render(template: str, record: Record, setting: str) -> str:
    """Fills a template with the fields of a record. Raises UserError for a field that the record lacks."""
    require(template, record.fields, record.where, setting)
    return template.format_map({name: text(record.fields, name) for name in fields(template)})


def require(template: str, names: Collection[str], where: str, setting: str) -> None:
    """Raises UserError for a field of the template that is not among `names`, the fields of the example `where`."""
    if missing := [name for name in fields(template) if name not in names]:
        raise UserError(f"{where} has no {missing[0]}, which {setting} reads ({template!r}); it has "
                        f"{', '.join(names) or 'nothing'}")


def text(values: Mapping[str, Any], name: str) -> str:
    """Converts a field to text: words and tags with spaces between them, the first of several answers and "" for none,
    choices as "choice1: a choice2: b", and the label of choices as "choice2"."""
    value = values[name]
    if name == "answers":
        return value[0][0] if value else ""
    if name == "choices":
        return " ".join(f"choice{i}: {choice}" for i, choice in enumerate(value, 1))
    if name == "label" and "choices" in values:
        return f"choice{int(value) + 1}"
    return value if isinstance(value, str) else " ".join(value)


def from_texts(names: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """Assigns texts to fields, in order; choices take all that are left. Raises ValueError, which says what was
    expected, if there are more texts than fields."""
    values, rest = {}, list(texts)
    for name in names:
        if rest and name == "choices":
            values[name], rest = rest, []
        elif rest:
            value, *rest = rest
            values[name] = value.split() if name == "words" else value
    if rest:
        raise ValueError(f"at most {len(names)}: {', '.join(names)}")
    return values
