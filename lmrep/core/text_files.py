"""Reads the lines of UTF-8 text files that users name, and numbers in them."""

import codecs
import math
import os
import re
from collections.abc import Iterator

from lmrep.core import input_files
from lmrep.core.errors import UserError

# UTF-32 first: its little-endian mark begins with the mark of UTF-16.
MARKS = {"UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
LONGEST_NUMBER = 400  # characters


def byte_order(head: bytes) -> str | None:
    """Returns "UTF-16" or "UTF-32" if a file begins with its byte order mark, else None."""
    return next((name for name, marks in MARKS.items() if head.startswith(marks)), None)


def check_utf8(head: bytes, path: str | os.PathLike) -> None:
    """Raises UserError if a file begins with the byte order mark of UTF-16 or UTF-32."""
    if name := byte_order(head):
        raise UserError(f"{path} is {name} text, as its byte order mark says; convert it to UTF-8: "
                        f"iconv -f {name} -t UTF-8")


def lines(path: str | os.PathLike, pipes: bool = False, limit: int = input_files.MAX_LINE) -> Iterator[str]:
    """Yields the lines of a file, without line break (LF or CRLF) and byte order mark.

    Args:
      path: as for `input_files.open_input`.
      pipes: whether it may be a named pipe.
      limit: the most bytes of a line.

    Raises:
      UserError: as `open_input`; a line is not UTF-8 or too long.
    """
    with input_files.open_input(path, pipes=pipes) as file:
        for number, line in enumerate(input_files.lines(file, path, limit), 1):
            if number == 1:
                check_utf8(line, path)
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{path} is not UTF-8 text: line {number:,} has the byte 0x{line[error.start]:02x}; "
                                "convert it to UTF-8") from error
            yield text.removesuffix("\n").removesuffix("\r")


def parse_number(text: str) -> float:
    """Parses a decimal number in ASCII digits, such as -2.5 or 1e-3. Returns NaN for other texts, including some that
    `float` accepts: 1_0, inf and digits of other scripts."""
    text = text.strip()
    return float(text) if len(text) < LONGEST_NUMBER and NUMBER.fullmatch(text) else math.nan
