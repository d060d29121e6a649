"""Lists the fields of an experiment's config with their values, types, bounds and meanings."""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lmrep.config.record import NAMES, Bounds
from lmrep.experiment.record import ALL_FORMATS, ALL_OBJECTIVES, TaskExperiment, record_of
from lmrep.models import MODELS
from lmrep.optimizers import OPTIMIZERS, SCHEDULES

# Fields that choose a row of a table, whose config is a subclass of the section's record.
RECORDS: Mapping[str, Mapping[str, Any]] = {"optimizer.name": OPTIMIZERS, "optimizer.schedule.name": SCHEDULES}


class Field(NamedTuple):
    """A field of a config."""

    path: str  # "optimizer.learning_rate"
    choice: str  # "objective masked" for a field of one objective, network or format; "" for all others
    value: Any  # its default, or its value in a config
    type_name: str  # the type of its values, for people
    bounds: Bounds  # which values are allowed, and what the field means


def list_fields(config: Mapping[str, Any] | None) -> Iterator[Field]:
    """Yields the fields of a config with its values, or, for None, all fields with their defaults."""
    top = record_of(config or {})
    tables = {"model": MODELS, "objective": ALL_OBJECTIVES if config is None else top.objectives,
              "format": ALL_FORMATS if config is None else top.formats}
    seen: dict[str, str] = {}  # path -> type
    for field in _of_record(top, "", config or {}):
        seen.setdefault(field.path, field.type_name)
        value = (config or {}).get(field.path)
        if field.path in tables:
            table = tables[field.path]
            chosen = (value or {}).get("name", "")
            yield field._replace(path=f"{field.path}.name", value=chosen, type_name="",
                                 bounds=Bounds(field.bounds.help, choices=tuple(table)))
            for name in [chosen] if chosen else table:
                yield from _of_record(table[name].config, f"{field.path}.", value or {}, f"{field.path} {name}")
        else:
            rows = RECORDS.get(field.path)
            yield field._replace(bounds=dataclasses.replace(field.bounds, choices=tuple(rows))) if rows else field
    for path, rows in RECORDS.items():  # the fields that only some rows have
        section = path.removesuffix(".name")
        values = functools.reduce(lambda node, key: node.get(key, {}), section.split("."), config or {})
        for name in rows.keys() & {values.get("name")} if values else rows:
            yield from (field for field in _of_record(rows[name].config, f"{section}.", values, f"{section} {name}")
                        if field.path not in seen)
    if config is None:
        yield from (field._replace(choice="tasks") for field in _of_record(TaskExperiment, "", {})
                    if seen.get(field.path) != field.type_name)


def _of_record(record: type, where: str, values: Mapping[str, Any], choice: str = "") -> Iterator[Field]:
    """Yields the fields of a record and of the records in it, at path `where`. Fields that `values` lacks have their
    defaults."""
    types_by_name = typing.get_type_hints(record)
    for field in dataclasses.fields(record):
        make = field.default_factory
        default = field.default if make is dataclasses.MISSING else make()
        value, annotation, path = values.get(field.name, default), types_by_name[field.name], f"{where}{field.name}"
        inner = next(iter(typing.get_args(annotation)), None)
        if dataclasses.is_dataclass(annotation):
            yield from _of_record(annotation, f"{path}.", _mapping(value), choice)
        elif dataclasses.is_dataclass(inner):  # a list of records by number; N where it is empty
            for number, entry in dict(enumerate(value)).items() or [("N", {})]:
                yield from _of_record(inner, f"{path}.{number}.", _mapping(entry), choice)
        else:
            yield Field(path, choice, value, _type_name(annotation), field.metadata.get("bounds", Bounds()))


def _mapping(record: Any) -> Mapping[str, Any]:
    return dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record


def _type_name(annotation: Any) -> str:
    """Describes a type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join("none" if member is types.NoneType else _type_name(member) for member in arguments)
    if origin is tuple:
        return f"{_type_name(arguments[0])}, or several between commas"
    if origin is dict:
        return "a table"
    return NAMES.get(getattr(annotation, "__name__", ""), "")
