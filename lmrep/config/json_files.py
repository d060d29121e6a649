"""JSON files that lmrep wrote and reads back. What a file may hold is a type: a NamedTuple, a TypedDict, or another
annotation that `lmrep.config.record.convert` takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from lmrep.config.record import convert
from lmrep.core.errors import UserError
from lmrep.core.json_text import InvalidJSON, loads

T = TypeVar("T")

LIMITS = {int: 2**63, float: 1e300}
TEXTS = ("nan", "inf", "-inf")  # numbers that JSON lacks, as lmrep writes them; `float` converts them

def is_number(value: Any) -> bool:
    """Tells whether a value is a finite number that NumPy takes, and whose sums are finite."""
    return type(value) in LIMITS and abs(value) < LIMITS[type(value)]


# Types of values. Numbers stay integers or floats, as they were written.
Count = Annotated[Any, lambda value: "" if type(value) is int and 0 <= value < 2**63 else "a whole number from 0 on"]
Number = Annotated[Any, lambda value: "" if is_number(value) else "a number"]
Measured = Annotated[Any, lambda value: "" if is_number(value) or value in TEXTS else "a number"]


class Lines(NamedTuple):
    """The records of a file of one JSON object per line, and a message for each line that is damaged."""

    records: list
    damaged: list[str]

    @property
    def note(self) -> str:
        """Says how many lines are damaged, and which is the first; "" if none is."""
        total = len(self.records) + len(self.damaged)
        return f"{len(self.damaged):,} of {total:,} lines are damaged and left out: {self.damaged[0]}" if (
            self.damaged) else ""


def read(type_: Callable[..., T], path: Path, advice: str = "restore it, or remove it") -> T | None:
    """Reads the value in a JSON file; None if there is no such file.

    Args:
      type_: of the value.
      path: the file.
      advice: what to do about a damaged file.

    Raises:
      UserError: it cannot be read, is not JSON, or does not hold such a value. The message names the file and the key.
    """
    if (content := _content(path)) is None:
        return None
    try:
        return parse(type_, content)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}; {advice}") from None


def read_lines(type_: Callable[..., T], path: Path) -> Lines | None:
    """Reads a file with one JSON object per line; None if there is no such file.

    Raises:
      UserError: it cannot be read. Damaged lines are no error.
    """
    if (content := _content(path)) is None:
        return None
    lines = Lines([], [])
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), 1) if content else ():
        try:
            lines.records.append(parse(type_, line))
        except UserError as error:
            lines.damaged.append(f"line {number:,}: {error}")
    return lines


def parse(type_: Callable[..., T], text: str | bytes) -> T:
    """Parses a JSON text. Raises UserError, with a message that continues the name of the text."""
    try:
        value = loads(text)
    except InvalidJSON as error:
        raise UserError(f"it is not JSON: {error}") from None
    try:
        return convert(type_, value, "$")
    except UserError as error:
        raise UserError(str(error).removeprefix("$.").removeprefix("$: ").replace("$ ", "it ", 1)) from None


def numbers(*others: str, measured: bool = True) -> Callable[[dict[str, Any]], str]:
    """Makes a check of a record: all values but those of the fields `others` are numbers, finite or `Measured`."""
    def check(record: dict[str, Any]) -> str:
        return next((f"a number as {name!r}" for name, value in record.items()
                     if not (name in others or is_number(value) or (measured and value in TEXTS))), "")

    return check


def _content(path: Path) -> bytes | None:
    try:
        if not path.is_file() and path.exists():
            raise UserError(f"{path} is not a file; remove it")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
