"""Loads a config from a config file and the argument after its colon, and sets single fields of it.

An experiment is a Python file that defines `get_config(argument) -> ml_collections.ConfigDict`. The argument chooses
components (`size=tiny,objective=masked`, read by `parse_argument`). All errors are `UserError`s.
"""

import ast
import functools
import importlib.util
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_collections

from lmrep.config.record import NAMES, convert, suggestion
from lmrep.core.errors import Broken, UserError

# Tables of a config to which overrides may add keys, and the type of their values.
OPEN_TABLES = {
    "columns": str, "test_columns": str, "label_map": str, "multipliers": float, "frozen": str, "init_mapping": str,
}
# While `load` calls `get_config`: name -> (default, values) of the choices that the file declares.
_DECLARED: ContextVar[dict[str, tuple[Any, Sequence[Any]]] | None] = ContextVar("declared", default=None)
SIGNATURE = '`def get_config(argument=""):`'


def load(file: str | Path, argument: str = "") -> ml_collections.ConfigDict:
    """Loads the config of a config file.

    Args:
      file: a Python file that defines `get_config`. It is executed.
      argument: passed to `get_config`; the text after the colon of `--config=FILE.py:ARGUMENT`.

    Raises:
      UserError: the file cannot be executed or returns no config, or a choice of the argument changes nothing.
    """
    file, declared = Path(file), {}
    token = _DECLARED.set(declared)
    try:
        get_config = _function(file, "get_config", f"expected {SIGNATURE} that returns a ConfigDict")
        config = get_config(argument)
        if not isinstance(config, ml_collections.ConfigDict | dict):
            raise UserError(f"{file}: get_config returned {config!r}; expected an ml_collections.ConfigDict")
        _check_choices(get_config, argument, declared)  # here, since the page of another `load` may be under way
    finally:
        _DECLARED.reset(token)
    return ml_collections.ConfigDict(config).lock()


def _check_choices(get_config: Callable, argument: str, declared: Mapping[str, tuple[Any, Sequence[Any]]]) -> None:
    """Refuses a choice that changes nothing beside the others: the config without it is the same, but for its name. A
    choice of the default, or of what the default "" may mean, changes nothing where all values give one config."""
    @functools.cache
    def fields(parts: tuple[str, ...]) -> dict[str, Any] | None:
        try:
            config = get_config(",".join(parts))
        except UserError:
            return None
        config = config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config
        return {key: value for key, value in config.items() if key != "name"}

    def applies(parts: tuple[str, ...], part: str) -> bool:
        name, _, text = part.partition("=")
        i, (default, values) = parts.index(part), declared[name]
        others = [parts[:i] + parts[i + 1:]]
        if _parsed(text, default, name) == default or (values and default == ""):
            others = [(*parts[:i], f"{name}={value}", *parts[i + 1:]) for value in values if str(value) != text]
        return not others or any(fields(other) != fields(parts) for other in others)

    parts = tuple(filter(None, argument.split(",")))
    for part in parts:
        if part.partition("=")[0] not in declared or applies(parts, part):
            continue
        fewer = ((other, tuple(each for each in parts if each != other)) for other in parts if other != part)
        reason = next((f" beside {other}" for other, rest in fewer if applies(rest, part)), "")
        raise UserError(f"the choice {part} changes nothing{reason}; leave it out" + (
            f", or {reason.removeprefix(' beside ')}" if reason else ""))


def load_sweep(file: str | Path, argument: str = "") -> Any:
    """Returns `get_sweep(argument)` of a config file: the settings that its paper searched.

    Raises:
      UserError: the file cannot be executed, or defines no such function.
    """
    expected = 'expected `def get_sweep(argument=""):` that returns {field: values}'
    return _function(Path(file), "get_sweep", expected)(argument)


def load_chain(file: str | Path, argument: str = "") -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Returns `get_chain(argument)` of a config file: {name of a run: ("FILE.py:CHOICES", {path: value} of fields of
    its config)}, in the order of training. A run without such fields may be the text alone.

    Raises:
      UserError: the file cannot be executed, or returns something else.
    """
    expected = ('expected `def get_chain(argument=""):` that returns {name: "FILE.py:choices"}, or {name: '
                '("FILE.py:choices", {field: value})}')
    return named_runs(_function(Path(file), "get_chain", expected)(argument), f"{file}: get_chain returned", expected)


def named_runs(runs: Any, what: str, expected: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Returns {name: ("FILE.py:CHOICES", {path: value})} of such a dict, in which a run without fields may be the text
    alone. Raises UserError, which begins with `what`, for anything else."""
    if isinstance(runs, dict):
        pairs = {name: (run, {}) if isinstance(run, str) else run for name, run in runs.items()}
        if pairs and all(str(name).isidentifier() and isinstance(run, tuple) and [*map(type, run)] == [str, dict]
                         for name, run in pairs.items()):
            return pairs
    raise UserError(f"{what} {runs!r}; {expected}, whose names are Python identifiers")


def load_claim(file: str | Path, scale: str) -> Any:
    """Returns `get_claim(scale)` of a file. Raises UserError if the file cannot be executed."""
    return _function(Path(file), "get_claim", 'expected `def get_claim(scale="miniature"):` that returns a '
                     "lmrep.claims.Claim")(scale)


def override(config: ml_collections.ConfigDict, path: str, text: str) -> None:
    """Sets an existing field in place: `override(config, "stages.0.length", "128")`.

    The value is parsed as the type of the current one: a whole number, a number, True or False, a string, or several of
    one type separated by commas, with or without brackets. If the current value is None, any Python literal or string.

    Raises:
      UserError: the field does not exist, has fields of its own, or the value has another type.
    """
    def replaced(node: Any, keys: list[str], where: str) -> Any:
        if not keys:
            return _parsed(text, node, where)
        key, rest = keys[0], keys[1:]
        if isinstance(node, list | tuple):
            if not (key.isdecimal() and int(key) < len(node)):
                raise UserError(f"{where} has no entry {key!r}; expected a number from 0 to {len(node) - 1}")
            items = list(node)
            items[int(key)] = replaced(items[int(key)], rest, f"{where}.{key}")
            return type(node)(items)
        if not isinstance(node, Mapping | ml_collections.ConfigDict):
            raise UserError(f"{where} is {node!r}; it has no fields, so {where}.{key} cannot be set")
        name = where.rpartition(".")[2]
        if name in OPEN_TABLES and not rest:  # its keys are the user's
            return ml_collections.ConfigDict({**node, key: _parsed(text, OPEN_TABLES[name](), f"{where}.{key}")})
        chosen = f" {node['name']!r}" if "name" in node and "." in where else ""  # a row of a table
        if key not in node:
            raise UserError(f"{where}{chosen} has no field {key!r}"
                            f"{suggestion(key, node) or '; it has ' + ', '.join(node)}")
        value = replaced(node[key], rest, f"{where}.{key}")
        if not isinstance(node, ml_collections.ConfigDict):
            return {**node, key: value}
        try:
            node[key] = value
        except TypeError as error:  # a placeholder, which has a type but no value
            raise UserError(f"{where}.{key} cannot be {text!r}: {error}") from None
        return node

    replaced(config, path.split("."), "config")


def parse_argument(argument: str, **defaults: Any) -> SimpleNamespace:
    """Parses an experiment's argument: `parse_argument("size=base", size=("tiny", PRESETS), length=128)`.

    Args:
      argument: "name=value,name=value", or "".
      **defaults: name=default or name=(default, choices). A value is parsed as the type of the default.

    Raises:
      UserError: a name is unknown, or a value is not among its choices.
    """
    declared = {name: d if isinstance(d, tuple) else (d, ()) for name, d in defaults.items()}
    chosen = {name: default for name, (default, _) in declared.items()}
    if (record := _DECLARED.get()) is not None:
        record.update(declared)
    named = set()
    for part in filter(None, argument.split(",")):
        name, equals, text = part.partition("=")
        if not equals:
            raise UserError(f"the experiment's argument has {part!r}; expected name=value, as in\n"
                            f"{_listing(declared)}")
        if name not in declared:
            near = suggestion(name, declared) or f"; its choices are\n{_listing(declared)}"
            raise UserError(f"the experiment has no choice {name!r}{near}")
        default, choices = declared[name]
        if name in named:
            raise UserError(f"the experiment's argument gives {name} twice; give it once")
        named.add(name)
        chosen[name] = _parsed(text, default, name)
        if choices and chosen[name] not in choices:
            expected = ", ".join(str(choice) for choice in choices if choice != "")
            raise UserError(f"{name} is {text!r}; expected one of {expected}{suggestion(text, choices)}")
    return SimpleNamespace(**chosen)


def _listing(declared: Mapping[str, tuple[Any, Sequence[Any]]]) -> str:
    """Lists each choice of an experiment with its values, wrapped."""
    width, lines = max(map(len, declared)), []
    for name, (default, choices) in declared.items():
        values = ", ".join(str(value) for value in choices if value != "") or "any"
        text = f"{values} (default: {default})" if default != "" else values
        lines.append(textwrap.fill(f"  {name:{width}}  {text}", 100, subsequent_indent=" " * (width + 4)))
    return "\n".join(lines)


def _function(file: Path, name: str, expected: str) -> Callable[[str], Any]:
    """Loads the function `name` of a config file, which takes one argument."""
    function = _guarded(file, lambda: getattr(load_module(file), name, None))
    if not callable(function):
        if name == "get_config" and callable(getattr(load_module(file), "get_chain", None)):
            raise UserError(f"{file} defines a chain of runs, which lmrep train takes; give the config file of one of "
                            "them, or the workdir of one that has begun")
        raise UserError(f"{file} defines no function {name}; {expected}")
    signature = inspect.signature(function)
    try:
        signature.bind("")
    except TypeError:
        raise UserError(f"{file} defines {name}{signature}, not of one argument; "
                        f"{expected.partition(' that')[0]}") from None
    return lambda argument: _guarded(file, lambda: function(argument))


def load_module(file: Path) -> ModuleType:
    """Executes a config file, and returns its module."""
    if not file.exists():
        similar = suggestion(file.name, [f.name for f in file.parent.glob("*.py") if f.name != "setup.py"])
        raise UserError(f"there is no config file {file}{similar or '; `lmrep pages` lists those of the package'}")
    spec = importlib.util.spec_from_file_location(f"experiment_{file.stem}", file)
    if file.is_dir() or spec is None or spec.loader is None:
        raise UserError(f"{file} is not a Python file; expected one that ends in .py and defines get_config")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module here
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


def _guarded(file: Path, action: Callable[[], Any]) -> Any:
    """Returns `action()`. Errors of the config file become one line with the line number."""
    try:
        return action()
    except Broken as error:
        raise UserError(f"{file}: {error}") from None
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"{error.filename or file}:{error.lineno or 1}: {type(error).__name__}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file.absolute())]
        location = f"{file}:{lines[-1]}" if lines else f"{file}"
        message = " ".join(str(error).split())
        raise UserError(f"{location}: {type(error).__name__}: {message}".removesuffix(": ")) from None


def _parsed(text: str, present: Any, where: str) -> Any:
    """Parses `text` as the type of `present`."""
    if isinstance(present, Mapping | ml_collections.ConfigDict):
        return _table(text, present, where)
    if isinstance(present, str):
        return text
    if isinstance(present, list | tuple):
        return type(present)(_items(text, present, where))
    return _typed(_literal(text), present, text, where)


def _typed(value: Any, present: Any, text: str, where: str) -> Any:
    """Converts `value` to the type of `present` without loss."""
    if present is None:
        return value
    if isinstance(present, str):
        return str(value)
    try:
        return convert(type(present), value, where)
    except UserError:
        name = type(present).__name__
        raise UserError(f"{where} cannot be {text!r}; expected {NAMES.get(name, name)}, as {present!r} is") from None


def _items(text: str, present: Sequence[Any], where: str) -> Iterable[Any]:
    """Parses the entries of "a,b", "(a, b)" or "[a, b]" as the type of the first present entry."""
    first = present[0] if present else None
    if not text.strip("()[] "):
        return []
    if isinstance(first, Mapping | ml_collections.ConfigDict):
        example = f"--{where}.0.{next(iter(first))}=..."
        raise UserError(f"{where} cannot be set as a whole; set a field of an entry, as {example}")
    text = text.strip()
    bracketed = text[:1] + text[-1:] in ("()", "[]")
    values = _literal(text) if bracketed else None
    if isinstance(values, list | tuple):
        return [_typed(v, first, text, where) for v in values]
    inner = text[1:-1] if bracketed else text
    return [_parsed(item.strip(), first, where) for item in inner.split(",") if item.strip()]


def _table(text: str, present: Mapping, where: str) -> Mapping:
    """Parses a dict literal, for an empty dict, which has no fields to set one by one."""
    if len(present):
        raise UserError(f"{where} cannot be set as a whole; set its fields, as --{where}.{next(iter(present))}=..., "
                        "or make a choice after the colon, as --config=FILE.py:name=value")
    value = _literal(text)
    if not isinstance(value, dict):
        raise UserError(f"{where} cannot be {text!r}; expected a table, as {{'name': 1}}")
    try:
        return type(present)(value)
    except ValueError as error:  # a key with a dot
        raise UserError(f"{where} cannot be {text!r}: {error}") from None


def _literal(text: str) -> Any:
    """Parses `text` as a Python literal (true, false and none in any case), or else returns `text`."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
