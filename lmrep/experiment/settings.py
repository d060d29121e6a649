"""Parses the settings and seeds of a sweep: a grid, a list in a file, the `get_sweep` of a config file."""

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmrep.config.record import suggestion
from lmrep.core import text_files
from lmrep.core.errors import UserError
from lmrep.core.messages import shown
from lmrep.experiment.fine_tuning import grids

AUTO, RATE = "auto", "optimizer.learning_rate"  # the grid that searches this field
MAX_RATES = 9  # that the search tries
MAX_RUNS = 10_000
MAX_SEED = 2**32 - 1
BRACKETS = {"(": ")", "[": "]", "{": "}"}

# The fields of a setting: ("optimizer.learning_rate", "1e-4"), or (":size", "tiny") for a choice of the argument.
Fields = tuple[tuple[str, str], ...]


def parse_grid(text: str) -> list[Fields]:
    """Parses a grid, "field=value,value;field=value,value", to the settings of all combinations.

    Commas and semicolons inside brackets or quotes belong to a value: "optimizer.betas=(0.9,0.98),(0.9,0.999)".

    Raises:
      UserError: the grid is empty, or a field is given twice or has no value.
    """
    axes: dict[str, list[str]] = {}
    if text.strip() and "=" not in text:
        raise UserError(f"--grid is {text!r}; expected FIELD=VALUE,VALUE;FIELD=VALUE,..., auto, paper, or one "
                        f"of {', '.join(grids())}{suggestion(text, grids())}")
    for part in filter(str.strip, _split(text, ";")):
        path, equals, values = part.partition("=")
        path = _path(path, f"the grid has {part.strip()!r}") if equals else ""
        if not path:
            raise UserError(f"the grid has {part.strip()!r}; expected FIELD=VALUE,VALUE;FIELD=VALUE,...")
        if path in axes:
            raise UserError(f"the grid gives {path} twice; list all its values once")
        axes[path] = [value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
                      for value in map(str.strip, _split(values, ","))]
    if not axes or not any(value for values in axes.values() for value in values):
        raise UserError("the grid is empty; expected FIELD=VALUE,VALUE;FIELD=VALUE,... such as "
                        "--grid='optimizer.learning_rate=1e-4,3e-4;batch_size=16,32'")
    return _product(axes)


def next_rate(settings: Sequence[Any], best: Sequence[Any]) -> str | None:
    """Chooses the next learning rate of a search.

    Args:
      settings: those that were tried, each with its `fields`.
      best: the best of them, several where they are equal.

    Returns:
      Three times the best rate if that is the highest, a third of it if it is the lowest, as text. None if one of the
      best lies between others, or `MAX_RATES` were tried.
    """
    rates = [float(value) for setting in settings for path, value in setting.fields if path == RATE]
    equal = [float(dict(setting.fields).get(RATE, 0)) for setting in best]
    if len(rates) >= MAX_RATES or any(not rate or min(rates) < rate < max(rates) for rate in equal):
        return None
    return f"{equal[0] * 3 if equal[0] == max(rates) else equal[0] / 3:.3g}"


def read_list(file: str | Path) -> list[Fields]:
    """Reads the settings in a text file, one a line: "optimizer.learning_rate=1e-4 batch_size=16".

    Lines are split as a shell does; a comment begins with #, and `--config.` before a field is optional.

    Raises:
      UserError: there is no such file, a line is invalid, or there is no setting.
    """
    settings = []
    for number, line in enumerate(text_files.lines(file, pipes=True), 1):
        where = f"{file}:{number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UserError(f"{where}: {error}; expected FIELD=VALUE FIELD=VALUE ...") from None
        fields: dict[str, str] = {}
        for word in words:
            path, equals, value = word.removeprefix("--config.").partition("=")
            if not equals:
                raise UserError(f"{where} has {word!r}; expected FIELD=VALUE FIELD=VALUE ...")
            path = _path(path, f"{where} has {word!r}")
            if path in fields:
                raise UserError(f"{where} gives {path} twice; give it once")
            fields[path] = value
        if fields:
            settings.append(tuple(fields.items()))
    if not settings:
        raise UserError(f"the list of settings {file} is empty; expected a line FIELD=VALUE FIELD=VALUE ... per "
                        "setting")
    return settings


def from_grid(grid: Any, source: str | Path) -> list[Fields]:
    """Converts {field: values} to the settings of all combinations, or a list of {field: value} to a setting each.

    Args:
      grid: the result of `get_sweep` of a config file, or one of `grids()`.
      source: the name of the file or grid, for messages.

    Raises:
      UserError: the grid is neither.
    """
    expected = UserError(f"{source}: get_sweep returned {grid!r}; expected {{field: values}}, or a list of "
                         "{field: value} for each setting")

    def texts(values: Iterable[Any]) -> list[str]:
        return [value if isinstance(value, str) else repr(value) for value in values]

    if isinstance(grid, Mapping) and grid:
        if not all(isinstance(values, list | tuple) and values for values in grid.values()):
            raise expected
        return _product({_path(path, f"{source}: get_sweep has {path!r}"): texts(values)
                         for path, values in grid.items()})
    if not (isinstance(grid, list | tuple) and grid and all(isinstance(s, Mapping) and s for s in grid)):
        raise expected
    return [tuple(zip([_path(path, f"{source}: get_sweep has {path!r}") for path in setting], texts(setting.values()),
                      strict=True)) for setting in grid]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parses seeds: "0-2,7" to (0, 1, 2, 7). Raises UserError if they are invalid, or one is given twice."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:\s*-\s*([0-9]{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_SEED:
            raise UserError(f"--seeds is {shown(text)}; expected numbers from 0 to {MAX_SEED:,} and ranges of them, as "
                            "0-4 or 0,1,7")
        if last - first >= MAX_RUNS:
            raise UserError(f"--seeds has {last - first + 1:,} seeds; a sweep may have {MAX_RUNS:,} runs")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise UserError(f"--seeds has {twice} twice; give each seed once")
    return tuple(seeds)


def _split(text: str, separator: str) -> list[str]:
    """Splits `text` at separators that are outside brackets and quotes."""
    parts, closing, quote = [""], [], ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in BRACKETS:
            closing.append(BRACKETS[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
        elif letter == separator and not closing:
            parts.append("")
            continue
        parts[-1] += letter
    if quote or closing:
        raise UserError(f"the grid has {text.strip()!r}, where {quote or closing[-1]} is missing")
    return parts


def _path(text: str, where: str) -> str:
    """Returns the path of a field without "config.". Raises UserError for `seed`."""
    path = str(text).strip().removeprefix("--").removeprefix("config.")
    if path == "seed":
        raise UserError(f"{where}; seeds are given by --seeds, as --seeds=0-4")
    return path


def _product(axes: Mapping[str, Sequence[str]]) -> list[Fields]:
    return [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
