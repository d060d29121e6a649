"""Frozen dataclasses whose values are checked.

A record is a frozen dataclass whose fields are declared with `setting`. `read` makes one from a mapping and refuses
unknown keys, wrong types, NaN and values out of range. The error names the field by its full path:

    >>> @dataclass(frozen=True)
    ... class Masking:
    ...     rate: float = setting(0.15, "fraction of the tokens to predict", above=0, at_most=1)
    >>> read(Masking, {"rate": 0.2}, "objective")
    Masking(rate=0.2)
    >>> read(Masking, {"rat": 0.2}, "objective")
    Traceback (most recent call last):
    lmrep.core.errors.UserError: objective has no field 'rat'; did you mean 'rate'?
"""

import dataclasses
import difflib
import functools
import math
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lmrep.core.errors import Broken, UserError
from lmrep.core.messages import shown

Record = TypeVar("Record")
LIMITS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}


@dataclass(frozen=True)
class Bounds:
    """Limits for the value of a field, or for each of its entries, in addition to its type. Of a path, or a table of
    paths, `path` is the function of `lmrep.core.paths` by which `read` makes it usable."""

    help: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    choices: tuple = ()
    path: Callable[[str], str] | None = None

    def broken_by(self, value: Any, suggest: bool = True) -> str:
        """Says what was expected in place of `value`; "" if it is valid, or None and its type allows that."""
        if isinstance(value, tuple | dict):
            entries = value.values() if isinstance(value, dict) else value
            return next(filter(None, map(self.broken_by, entries)), "")
        if self.choices and value is not None and value not in self.choices:
            return "one of " * (len(self.choices) > 1) + ", ".join(map(str, self.choices)) + (
                suggestion(value, self.choices) if suggest else "")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if isinstance(value, float) and not math.isfinite(value):
                return "a finite number"
            for name, holds in LIMITS.items():
                limit = getattr(self, name)
                if limit is not None and not holds(value, limit):
                    return f"{name.replace('_', ' ')} {limit:,.12g}"
        return ""


def setting(default: Any, help: str = "", **bounds) -> Any:
    """Declares a field of a record: its default, its meaning, and its `Bounds` as keywords. Raises Broken, which names
    the file and line of the call, if the meaning is missing."""
    if not help:
        caller = sys._getframe(1)
        raise Broken(f"{caller.f_code.co_filename}, line {caller.f_lineno}: setting({shown(default)}) does not say "
                     "what the field means; expected a text after the default; correct this component")
    metadata = {"bounds": Bounds(help, **bounds)}
    if isinstance(default, dict | list) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def read(cls: type[Record], mapping: Mapping[str, Any], where: str = "config", suggest: bool = True) -> Record:
    """Makes a `cls` from `mapping` and checks it.

    Args:
      cls: a dataclass; or, for JSON that is read back, a NamedTuple, or a TypedDict, which keeps keys that it lacks.
      mapping: the values.
      where: its path in error messages; "" for options of a function.
      suggest: whether messages propose the closest choice; a file that a program wrote has no misspelt values.

    Raises:
      UserError: a field is unknown or missing, or its value is not valid.
    """
    if not isinstance(mapping, Mapping):
        raise UserError(f"{where} is {shown(mapping)}; expected a mapping of {cls.__name__} fields")
    (types_, required, bounds), prefix = _fields(cls), f"{where}." * bool(where)
    for key in () if typing.is_typeddict(cls) else mapping:
        if key not in types_:
            near, listed = suggestion(key, types_), ", ".join(types_) or "none"
            raise UserError(f"{where} has no field {shown(key)}{near or f'; it has {listed}'}" if where else
                            f"there is no option {shown(key)}{near or f'; the options are: {listed}'}")
    if missing := [name for name in types_ if name in required and name not in mapping]:
        raise UserError(f"{prefix}{missing[0]} is missing")
    values = {key: convert(types_[key], value, f"{prefix}{key}") if key in types_ else value
              for key, value in mapping.items()}
    for key, limits in bounds.items():
        if limits.path and values.get(key):
            values[key] = _as_path(limits.path, values[key], f"{prefix}{key}")
        if key in values and (expected := limits.broken_by(values[key], suggest)):
            raise UserError(f"{prefix}{key} is {shown(values[key])}; expected {expected}")
    return cls(**values)


def _as_path(as_path: Callable[[str], str], value: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {name: _as_path(as_path, text, f"{where}.{name}") for name, text in value.items()}
    try:
        return as_path(value)
    except ValueError as error:
        raise UserError(f"{where} is {shown(value)}: {error}") from None


@functools.cache
def _fields(cls: type) -> tuple[dict[str, Any], frozenset[str], dict[str, Bounds]]:
    """Returns (types, names of fields without a default, bounds) of the fields of a record."""
    types_ = typing.get_type_hints(cls, include_extras=True)
    if dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
        return (types_, frozenset(field.name for field in fields
                                  if field.default is field.default_factory is dataclasses.MISSING),
                {field.name: field.metadata["bounds"] for field in fields if "bounds" in field.metadata})
    if typing.is_typeddict(cls):
        types_ = {name: typing.get_args(type_)[0] if typing.get_origin(type_) is typing.NotRequired else type_
                  for name, type_ in types_.items()}
        return types_, cls.__required_keys__, {}
    return types_, frozenset(types_.keys() - cls._field_defaults.keys()), {}


def optional(cls: type, name: str, *bases: type) -> type:
    """Makes a record with the fields of `cls` and `bases`. The fields of `cls` are None, not given, by default."""
    types_ = typing.get_type_hints(cls)
    return dataclasses.make_dataclass(name, [
        (field.name, types_[field.name] | None, dataclasses.field(default=None, metadata=field.metadata))
        for field in dataclasses.fields(cls)], bases=bases, frozen=True)


def flatten_config(value: Any, path: str = "", *, list_items: bool = False) -> dict[str, Any]:
    """Flattens a nested config to {dotted path: value}. A list of plain values is one value, unless `list_items` is
    true; the items of other lists are named by index. A tuple equals a list."""
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping) and value:
        items = value.items()
    elif isinstance(value, list | tuple) and (value if list_items else any(isinstance(x, Mapping) for x in value)):
        items = enumerate(value)
    else:
        return {path: list(value) if isinstance(value, tuple) else value}
    flat = {}
    for key, item in items:
        flat |= flatten_config(item, f"{path}.{key}" if path else str(key), list_items=list_items)
    return flat


def suggestion(word: Any, known: Iterable[Any]) -> str:
    """Returns "; did you mean 'x'?" with the known name closest to `word`, or "" if none is close."""
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def choose(table: Mapping[str, Any], name: str, what: str) -> Any:
    """Returns `table[name]`. Raises UserError with the choices if there is no such entry; `what` names the setting."""
    if not isinstance(name, str) or name not in table:
        near = suggestion(name, table) if isinstance(name, str) else ""
        raise UserError(f"{what} is {shown(name)}; expected one of {', '.join(sorted(table))}{near}")
    return table[name]


def convert(type_: Any, value: Any, where: str) -> Any:
    """Converts `value` to a type, or an annotation of one, without loss. Raises UserError if that is impossible.

    In `Annotated[T, check, ...]`, a check is a `Bounds`, or a function of the value that returns what was expected, or
    "" for a valid value.
    """
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if type_ is Any:
        return value
    if origin is typing.Annotated:
        value = convert(arguments[0], value, where)
        checks = (check.broken_by if isinstance(check, Bounds) else check for check in arguments[1:])
        if expected := next(filter(None, (check(value) for check in checks)), ""):
            found = f"{where} is {shown(value)}; " if isinstance(value, str | int | float) else f"{where}: "
            raise UserError(f"{found}expected {expected}")
        return value
    if dataclasses.is_dataclass(type_) or typing.is_typeddict(type_) or hasattr(type_, "_field_defaults"):
        return value if dataclasses.is_dataclass(type_) and isinstance(value, type_) else read(type_, value, where)
    if origin in (types.UnionType, typing.Union):
        return _convert_to_one_of(arguments, value, where)
    if origin is typing.Literal and any(value == one and type(value) is type(one) for one in arguments):
        return value
    if origin in (tuple, list) and isinstance(value, list | tuple):
        if origin is tuple and arguments[-1] is not ...:
            if len(value) == len(arguments):
                pairs = zip(arguments, value, strict=True)
                return tuple(convert(*pair, f"{where}.{i}") for i, pair in enumerate(pairs))
        else:
            return origin(convert(arguments[0], v, f"{where}.{i}") for i, v in enumerate(value))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {str(k): str(v) if arguments[1] is str and type(v) is int else convert(arguments[1], v, f"{where}.{k}")
                for k, v in value.items()}  # numbers of columns and labels are text
    if type_ is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type_ is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(type_, type) and isinstance(value, type_) and (type_ is bool or not isinstance(value, bool)) and not (
            type_ is int and abs(value) >= 2**63):
        return value
    raise UserError(f"{where} is {shown(value)}; expected {_name(type_)}")


def _convert_to_one_of(alternatives: Sequence[Any], value: Any, where: str) -> Any:
    """Converts `value` to the first type that it can be converted to."""
    if value is None and type(None) in alternatives:
        return None
    alternatives = [one for one in alternatives if one is not type(None)]
    for one in alternatives:
        try:
            return convert(one, value, where)
        except UserError:
            if len(alternatives) == 1:
                raise
    raise UserError(f"{where} is {shown(value)}; expected {' or '.join(map(_name, alternatives))}")


def _name(type_: Any) -> str:
    """Names a type in a message."""
    origin, arguments = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is typing.Annotated:
        return _name(arguments[0])
    if origin is tuple and arguments[-1] is not ...:
        return f"{len(arguments)} values"
    name = getattr(origin or type_, "__name__", str(type_))
    return NAMES.get(name, name)


NAMES = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "True or False", "list": "a list",
         "tuple": "a list", "dict": "a mapping", "Mapping": "a mapping"}
