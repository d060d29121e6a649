"""Reads TSV and CSV: an example per line, in columns that have names in the first line or are numbered."""

import contextlib
import csv
import itertools
import logging
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.data.records import files
from lmrep.data.records.base import FIELDS, Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, SEVERAL, SPANS, convert, from_columns, listed, missing_column, short

log = logging.getLogger(__name__)

Lines = Iterator[tuple[int, list[str] | UserError]]
SEPARATORS = ",;\t|"
SAMPLE = 20  # examples by which the separator of a CSV file is detected
READABLE = [field for field in FIELDS if field not in ("answers", *SPANS)] + ["id"]


class Layout(NamedTuple):
    """The columns of the fields of a file."""

    header: bool  # whether the first line names the columns
    single: dict[str, int]  # field -> its column
    several: dict[str, list[int]]  # field with a list as its value -> its columns
    names: dict[str, list[str]]  # field of `several` -> the names of its columns
    width: int  # the number of columns of the first line
    least: int = 0  # the least number of cells of a row; 0 if every row must have `width` cells


def read(job: Job, split_lines: Callable[[Job], Lines]) -> Iterator[Record | UserError]:
    """Yields the examples of a file whose cells `split_lines` yields. Raises UserError if a column is missing."""
    table = split_lines(job)
    first = next(table, None)
    if first is None:
        return
    number, cells = first
    if isinstance(cells, UserError):
        raise cells
    layout = find_columns(cells, job)
    if not layout.header:
        yield _record(layout, cells, f"{job.path}, line {number}")
    named, first = "the header" if layout.header else f"line {number}", number
    widths = {} if layout.header else {layout.width: [1, first]}  # -> rows, the first one's line
    for number, cells in table:
        if isinstance(cells, UserError):
            yield cells
        elif len(cells) < layout.least or (not layout.least and len(cells) != layout.width):
            expected = f"expected at least {layout.least}" if layout.least else "expected as many"
            yield UserError(f"{job.path}, line {number} has {counted(len(cells), 'column')} and {named} "
                            f"{layout.width}; {expected}: {CORRECT}")
        else:
            widths.setdefault(len(cells), [0, number])[0] += 1
            yield _record(layout, cells, f"{job.path}, line {number}")
    usual_width = max(widths, key=lambda width: widths[width][0], default=0)
    if others := [value for width, value in widths.items() if width != usual_width]:
        log.warning("%s: %s of %s rows have other numbers of cells than %d, the first in line %d; columns are given by "
                    "number, and other cells are not read", job.path, f"{sum(count for count, _ in others):,}",
                    f"{sum(count for count, _ in widths.values()):,}", usual_width, min(number for _, number in others))


def _record(layout: Layout, cells: list[str], where: str) -> Record | UserError:
    fields = {field: cells[column].strip() for field, column in layout.single.items()}
    for field, columns in layout.several.items():
        values = [cells[column].strip() for column in columns]
        try:
            fields[field] = convert(field, from_columns(field, layout.names[field], values))
        except ValueError as error:
            return UserError(f"{where}: the columns of {field} have {short(values)}; expected {error}: {CORRECT}")
    for field in ("words", "tags", "senses"):
        if isinstance(fields.get(field), str):
            fields[field] = fields[field].split()
    return Record(fields, fields.pop("id", ""), where)


def find_columns(first: list[str], job: Job) -> Layout:
    """Finds the columns of the fields from the cells of the first line. Raises UserError if a column is missing."""
    names = {name.strip(): column for column, name in reversed(list(enumerate(first)))}  # the first of equal names
    wanted = {field: spec.split(",") if field in SEVERAL else [spec] for field, spec in job.columns.items()}
    if "answers" in wanted:
        raise UserError(f"{job.path}: answers cannot be read from TSV or CSV columns; use JSON Lines or SQuAD's JSON")
    header = job.config.header == "yes" or (job.config.header == "auto" and _has_header(wanted, names, len(first), job))
    columns_of = {}
    for field, specs in wanted.items():
        columns = [int(s) if _is_number(s) else names.get(s) if job.config.header != "no" else None for s in specs]
        if any(column is None or not -len(first) <= column < len(first) for column in columns):
            if job.optional(field):
                continue
            raise _missing(job, field, specs[columns.index(None)] if None in columns else job.columns[field], first)
        columns_of[field] = [column % len(first) for column in columns]
    used = {column for columns in columns_of.values() for column in columns}
    if header:
        columns_of |= {field: [names[field]] for field in READABLE
                       if field in names and field not in wanted and names[field] not in used}
    if not set(columns_of) - {"id", "label", "labels", "senses", "tags"}:
        raise UserError(f"{job.path}: the first line has the columns {listed(first, short)}, none of which is a field "
                        "with text; set config.data.columns, by name ({'text': 'sentence'}) or by number "
                        "({'text': '3'})")
    numbered = wanted and all(re.fullmatch("[0-9]+", spec) for specs in wanted.values() for spec in specs)
    least = max(column for columns in columns_of.values() for column in columns) + 1 if numbered else 0
    lists = {field: columns for field, columns in columns_of.items()
             if field in ("choices", *SPANS) or (field in SEVERAL and len(columns) > 1)}
    names = {field: [first[column].strip() if header else str(column) for column in columns]
             for field, columns in lists.items()}
    return Layout(header, {field: columns[0] for field, columns in columns_of.items() if field not in lists}, lists,
                  names, len(first), least)


def _has_header(wanted: dict[str, list[str]], names: dict[str, int], width: int, job: Job) -> bool:
    """Returns whether the first line is a header: it has all names of the configured columns, or, without configured
    columns, the name of a field, or, for columns by number, one of them has its field's name."""
    needed = [spec for field, specs in wanted.items() for spec in specs
              if not _is_number(spec) and not job.optional(field)]
    known = [spec for specs in wanted.values() for spec in specs if not _is_number(spec)] if wanted else FIELDS
    if not known:
        return any(names.get(field) == int(specs[0]) % width for field, specs in wanted.items())
    return all(spec in names for spec in needed) if needed else any(spec in names for spec in known)


def _missing(job: Job, field: str, spec: str, first: list[str]) -> UserError:
    if _is_number(spec) or "," in spec:
        return UserError(f"{job.path} has {counted(len(first), 'column')}, numbered from 0; there is no column "
                         f"{spec} for the field {field!r}")
    if job.config.header == "no":
        return UserError(f"{job.path}: config.data.columns names {short(spec)} for the field {field!r}, but header is "
                         "no; give the column's number, from 0")
    if len(first) == 1 and (separator := next((mark for mark in SEPARATORS if mark in first[0]), "")):
        return UserError(f"{job.path}, line 1 has one column, {short(first[0])}; its columns seem to be separated by "
                         f"{separator!r}: set config.data.separator={_name(separator)!r}")
    numbers = f"; in a file without a header, by number from 0, such as {{{field!r}: '0'}}"
    return missing_column(f"{job.path}, line 1", field, spec, first, advice=numbers * (job.config.header == "auto"))


def _is_number(spec: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,9}", spec) is not None


def tsv_lines(job: Job) -> Lines:
    """Yields (line number, cells) of the cells between tabs, or `separator`. Quotes have no special meaning."""
    separator = _separator(job) or "\t"
    for number, line in enumerate(files.lines(job.path, job.config), 1):
        if line.strip(" "):
            yield number, line.split(separator)


def csv_lines(job: Job) -> Lines:
    """Yields (line number, cells) of the cells between commas or another separator, quoted as in RFC 4180: "" within
    quotes is a quote, and quoted cells may hold line breaks. Yields a UserError for an invalid row."""
    csv.field_size_limit(2**31 - 1)  # 128 KiB otherwise, less than a long document
    separator = _separator(job) or find_separator(files.beginning(job.path, job.config))
    ended = False

    def content() -> Iterator[str]:
        nonlocal ended
        for line in files.lines(job.path, job.config):
            yield line + "\n"
        ended = True

    table = csv.reader(content(), strict=True, delimiter=separator)
    while True:
        number = table.line_num + 1
        try:
            cells = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            if ended:  # the text after the quote is not an example that could be left out
                raise UserError(f"{job.path}, line {number}: a quote that opens in this row is not closed before the "
                                "end of the file; close it, or, where quotes are characters like any other, set "
                                f"--config.data.format=tsv --config.data.separator={_name(separator)!r}") from None
            lines = f"line {number}" if table.line_num <= number else f"lines {number} to {table.line_num}"
            yield number, UserError(f"{job.path}, {lines}: not valid CSV ({error}); a cell with quotes, {separator!r} "
                                    "or line breaks is quoted, and a quote in it is doubled")
            continue
        if cells:
            yield number, cells


def _name(separator: str) -> str:
    """Returns the name of a separator in the config."""
    return "tab" if separator == "\t" else separator


def _separator(job: Job) -> str:
    """Returns the separator of the config; "" for auto."""
    return {"auto": "", "tab": "\t"}.get(job.config.separator, job.config.separator)


def find_separator(beginning: str) -> str:
    """Detects the separator of a CSV file: the one that gives the largest share of its first lines as many cells as
    line 1, at least two; of equal ones the first of `SEPARATORS`."""
    lines = [f"{line}\n" for line in beginning.split("\n")]

    def agreement(separator: str) -> float:
        widths = []
        with contextlib.suppress(csv.Error):  # not valid CSV, or the end of the beginning
            widths.extend(len(cells) for cells in itertools.islice(
                csv.reader(lines, strict=True, delimiter=separator), SAMPLE) if cells)
        return widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0.0

    return max(SEPARATORS, key=agreement)  # the first of equal ones


TSV = ReaderDef(lambda job: read(job, tsv_lines), (".tsv",))
CSV = ReaderDef(lambda job: read(job, csv_lines), (".csv",))
