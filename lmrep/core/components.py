"""Checks of components, the entries of tables such as `MODELS` and `OBJECTIVES`, and error messages about them."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lmrep.core.errors import FAULTS, TRACEBACK, Broken, RunFault, Stopped, UserError

Row = TypeVar("Row", bound=tuple)


def row(table_row: type[Row]) -> type[Row]:
    """Decorates the named tuple that is a table's row type. A missing or unknown field raises Broken, which names the
    file and line of the call."""
    make = table_row.__new__

    @functools.wraps(make)
    def checked(cls: type[Row], *values: Any, **fields: Any) -> Row:
        try:
            return make(cls, *values, **fields)
        except TypeError as error:
            caller = sys._getframe(1)
            required = [name for name in cls._fields if name not in cls._field_defaults]
            raise Broken(f"{caller.f_code.co_filename}, line {caller.f_lineno}: {str(error).replace('.__new__()', '')};"
                         f" expected {', '.join(required)}, and optionally {', '.join(cls._field_defaults)}; correct "
                         "this component") from None

    table_row.__new__ = checked
    return table_row


def component_table(row_type: type[Row], rows: Mapping[str, Row]) -> dict[str, Row]:
    """Makes a table, such as `MODELS`. Raises Broken if an entry is not a `row_type`, such as a module in place of its
    `.DEFINITION`, its config is no frozen dataclass of settings, a name is no string, or the call writes a name twice,
    of which Python would keep the second."""
    caller = sys._getframe(1)
    for name in _repeated(caller.f_code.co_filename, caller.f_lineno):
        raise Broken(f"{caller.f_code.co_filename} has two rows {name!r}; give yours a name that no other row has")
    for name, entry in rows.items():
        if not isinstance(name, str):
            raise Broken(f"the name of a row in {caller.f_code.co_filename} is {name!r}; expected a string")
        if not isinstance(entry, row_type):
            raise Broken(f"the row {name!r} in {caller.f_code.co_filename} is a {type(entry).__name__}; "
                         f"expected {row_type.__name__}, such as {name}.DEFINITION")
        if config := getattr(getattr(entry, "objective", entry), "config", None):
            _check_config(f"the config of the row {name!r}, in {_file(config)},", config)
    return dict(rows)


def _check_config(what: str, config: Any) -> None:
    """Raises Broken if a config class is no frozen dataclass, or a field of it was not declared by `setting`."""
    if not dataclasses.is_dataclass(config) or not config.__dataclass_params__.frozen:
        raise Broken(f"{what} is {getattr(config, '__name__', config)}, which is no frozen dataclass; write "
                     "@dataclass(frozen=True) above the class")
    if undeclared := [name for name, value in vars(config).items() if isinstance(value, dataclasses.Field)]:
        raise Broken(f"{what} has the field {undeclared[0]!r}, which @dataclass has not read; write "
                     "@dataclass(frozen=True) above the class")
    for field in dataclasses.fields(config):
        if "bounds" not in field.metadata:
            raise Broken(f"{what} has the field {field.name!r} without a meaning; declare it as {field.name}: TYPE = "
                         "setting(DEFAULT, \"what it means\"), with setting of lmrep.config.record")


def _repeated(file: str, line: int) -> list[str]:
    """Lists the keys that the dict displays at a line of a file have more than once."""
    displays = [[key.value for key in node.keys if isinstance(key, ast.Constant)]
                for node in ast.walk(ast.parse("".join(linecache.getlines(file))))
                if isinstance(node, ast.Dict) and node.lineno <= line <= (node.end_lineno or line)]
    return [key for keys in displays for i, key in enumerate(keys) if key in keys[:i]]


def described(kind: str, name: str, config: Any) -> str:
    """Describes a component for messages: "objective 'masked' (lmrep/objectives/masked.py)". `config` is its config
    class or function, which gives the file."""
    return f"{kind} {name!r} ({_file(config)})"


def _file(config: Any) -> str:
    try:
        return inspect.getsourcefile(config) or config.__module__
    except TypeError:  # no class, or one of an interactive session
        return getattr(config, "__module__", type(config).__module__)


def check_build(
    what: str, build: Callable, arguments: Sequence[str], name: str = "build", keywords: Sequence[str] = ()
) -> None:
    """Raises UserError if `build`, the component's function called `name`, cannot be called with these arguments, and
    these by keyword."""
    signature = inspect.signature(build)
    try:
        signature.bind(*arguments, **dict.fromkeys(keywords))
    except TypeError:
        bound = build.keywords if isinstance(build, functools.partial) else {}
        names = inspect.Signature([parameter.replace(annotation=parameter.empty, default=parameter.empty)
                                   for parameter in signature.parameters.values() if parameter.name not in bound])
        expected = ", ".join([*arguments, *(["*", *keywords] if keywords else [])])
        raise UserError(f"{what}: its {name} takes {names}; expected ({expected}); correct this component") from None


def check_built(what: str, built: Any, expected: type, name: str = "build") -> None:
    """Raises UserError if `built`, the result of the row's function called `name`, is not of the type `expected`."""
    if not isinstance(built, expected):
        raise UserError(f"{what}: its {name} returns {type_of(built)}; expected {expected.__name__} of "
                        f"{expected.__module__.partition('._')[0]}; correct this component")


def type_of(value: Any) -> str:
    """Returns the type of a value for messages, also of a traced array: "an array float32[2, 3]"."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {value.dtype}{list(value.shape)}"
    if type(value) is not tuple:
        return type(value).__name__
    return f"({', '.join(map(type_of, value))})" if len(value) < 5 else f"a tuple of {len(value)}"


@contextlib.contextmanager
def faults_of(what: str, config: Any) -> Iterator[None]:
    """Turns an exception of a component's code into a UserError that names `what` and the line of its file. Errors of
    lmrep and of the system (`FAULTS`) pass unchanged."""
    try:
        yield
    except Broken as error:
        raise UserError(f"{what}: {error}; correct this component") from error
    except (UserError, RunFault, Stopped, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FAULTS:
            raise
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if frame.filename == _file(config)), frames[-1])
        message = " ".join(str(error).split())[:300]
        raise UserError(f"{what}: {type(error).__name__}: {message} (line {frame.lineno} of {frame.filename}); "
                        f"correct this component ({TRACEBACK}=1 shows the traceback)") from error
