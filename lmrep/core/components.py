"""Components, the entries of tables such as `MODELS` and `OBJECTIVES`: what messages call them, and their faults."""

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lmrep.core.errors import RunFault, Stopped, UserError


def described(kind: str, name: str, config: Any) -> str:
    """A component for messages, "objective 'masked' (lmrep/objectives/masked.py)"; `config` is its record or
    function."""
    return f"{kind} {name!r} ({_file(config)})"


def _file(config: Any) -> str:
    try:
        return inspect.getsourcefile(config) or config.__module__
    except TypeError:  # defined in an interactive session
        return config.__module__


def check_build(what: str, build: Callable, arguments: Sequence[str], name: str = "build") -> None:
    """Raises UserError where the `build` of a row, or another function of it, cannot be called with these arguments."""
    try:
        inspect.signature(build).bind(*arguments)
    except TypeError:
        raise UserError(f"{what}: its {name} takes {inspect.signature(build)}; expected ({', '.join(arguments)}); "
                        "correct this component") from None


def check_built(what: str, built: Any, expected: type) -> None:
    """Raises UserError where `build` returned something else."""
    if not isinstance(built, expected):
        raise UserError(f"{what}: build returns {type(built).__name__}; expected {expected.__name__} of "
                        f"{expected.__module__}; correct this component")


@contextlib.contextmanager
def faults_of(what: str, config: Any) -> Iterator[None]:
    """Turns an exception of a component's code into a UserError that names `what` and the line of its file. The errors
    of lmrep pass."""
    try:
        yield
    except (UserError, RunFault, Stopped, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if frame.filename == _file(config)), frames[-1])
        lines = str(error).strip().splitlines() or [""]
        raise UserError(f"{what}: {type(error).__name__}: {lines[0][:300]} (line {frame.lineno} of {frame.filename}); "
                        "correct this component") from error
