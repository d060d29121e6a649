"""TSV and CSV: an example a line, in columns that the first line names or that are numbered."""

import csv
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lmrep.core.errors import UserError
from lmrep.data.records import files
from lmrep.data.records.base import FIELDS, Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, missing_column

Lines = Iterator[tuple[int, list[str] | UserError]]
READABLE = [field for field in FIELDS if field != "answers"] + ["id"]


class Layout(NamedTuple):
    """Where the fields of a file are.

    Attributes:
      header: whether the first line names the columns.
      single: field -> its column.
      several: field -> its columns, of a list.
      width: the number of columns.
    """

    header: bool
    single: dict[str, int]
    several: dict[str, list[int]]
    width: int


def read(job: Job, split_lines: Callable[[Job], Lines]) -> Iterator[Record | UserError]:
    """The examples of a file whose cells `split_lines` gives. Raises UserError if a column is missing."""
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
    named = "the header" if layout.header else f"line {number}"
    for number, cells in table:
        if isinstance(cells, UserError):
            yield cells
        elif len(cells) != layout.width:
            yield UserError(f"{job.path}, line {number} has {len(cells)} columns and {named} {layout.width}; expected "
                            f"as many: {CORRECT}")
        else:
            yield _record(layout, cells, f"{job.path}, line {number}")


def _record(layout: Layout, cells: list[str], where: str) -> Record:
    fields = {field: cells[column].strip() for field, column in layout.single.items()}
    for field, columns in layout.several.items():
        fields[field] = [cells[column].strip() for column in columns]
    for field in ("words", "tags"):
        if isinstance(fields.get(field), str):
            fields[field] = fields[field].split()
    return Record(fields, fields.pop("id", ""), where)


def find_columns(first: list[str], job: Job) -> Layout:
    """Where the fields are, given the first line's cells. Raises UserError if a column is missing."""
    names = {name.strip(): column for column, name in reversed(list(enumerate(first)))}  # the first of equal names
    wanted = {field: spec.split(",") if field == "choices" else [spec] for field, spec in job.columns.items()}
    if "answers" in wanted:
        raise UserError(f"{job.path}: answers cannot be read from TSV or CSV columns; use JSON Lines or SQuAD's JSON")
    header = job.config.header == "yes" or (job.config.header == "auto" and _has_header(wanted, names, job))
    found = {}
    for field, specs in wanted.items():
        columns = [int(s) if _is_number(s) else names.get(s) if job.config.header != "no" else None for s in specs]
        if any(column is None or not -len(first) <= column < len(first) for column in columns):
            if job.optional(field):
                continue
            raise _missing(job, field, specs[columns.index(None)] if None in columns else job.columns[field], first)
        found[field] = [column % len(first) for column in columns]
    used = {column for columns in found.values() for column in columns}
    if header:
        found |= {field: [names[field]] for field in READABLE
                  if field in names and field not in wanted and names[field] not in used}
    if not set(found) - {"id", "label", "tags"}:
        raise UserError(f"{job.path}: the first line has the columns {', '.join(map(repr, first))}, none of which is a "
                        "field with text; set config.data.columns, by name ({'text': 'sentence'}) or by number "
                        "({'text': '3'})")
    return Layout(header, {field: columns[0] for field, columns in found.items() if field != "choices"},
                  {field: columns for field, columns in found.items() if field == "choices"}, len(first))


def _has_header(wanted: dict[str, list[str]], names: dict[str, int], job: Job) -> bool:
    """Whether the first line has the names that the columns need; without such names, any name of a field."""
    needed = [spec for field, specs in wanted.items() for spec in specs
              if not _is_number(spec) and not job.optional(field)]
    known = [spec for specs in wanted.values() for spec in specs if not _is_number(spec)] if wanted else FIELDS
    return all(spec in names for spec in needed) if needed else any(spec in names for spec in known)


def _missing(job: Job, field: str, spec: str, first: list[str]) -> UserError:
    if _is_number(spec) or "," in spec:
        return UserError(f"{job.path} has {len(first)} columns, numbered from 0; there is no column {spec} for the "
                         f"field {field!r}")
    if job.config.header == "no":
        return UserError(f"{job.path}: config.data.columns names {spec!r} for the field {field!r}, but header is "
                         "no; give the column's number, from 0")
    if len(first) == 1 and (separator := next((each for each in "\t;|" if each in first[0]), "")):
        expected = "tabs" if files.suffix(job.path) == ".tsv" else "commas"
        return UserError(f"{job.path}, line 1 has one column, {first[0]!r}; its columns seem to be separated by "
                         f"{separator!r}, and those of this format by {expected}: convert the file")
    error = missing_column(f"{job.path}, line 1", field, spec, first)
    numbers = f"; in a file without a header, by number from 0, such as {{{field!r}: '0'}}"
    return UserError(f"{error}{numbers}") if job.config.header == "auto" else error


def _is_number(spec: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", spec) is not None


def tsv_lines(job: Job) -> Lines:
    """Cells between tabs. Quotes are characters like any other."""
    for number, line in enumerate(files.lines(job.path, job.config.encoding), 1):
        if line.strip(" "):
            yield number, line.split("\t")


def csv_lines(job: Job) -> Lines:
    """Cells between commas, quoted as RFC 4180 says: "" in quotes is a quote, and quoted cells may hold line breaks."""
    csv.field_size_limit(2**31 - 1)  # 128 KiB otherwise, less than a long document
    table = csv.reader((line + "\n" for line in files.lines(job.path, job.config.encoding)), strict=True)
    while True:
        number = table.line_num + 1
        try:
            cells = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            lines = f"line {number}" if table.line_num <= number else f"lines {number} to {table.line_num}"
            yield number, UserError(f"{job.path}, {lines}: not valid CSV ({error}); a cell with quotes, commas or line "
                                    "breaks is quoted, and a quote in it is doubled")
            continue
        if cells:
            yield number, cells


TSV = ReaderDef(lambda job: read(job, tsv_lines), (".tsv",))
CSV = ReaderDef(lambda job: read(job, csv_lines), (".csv",))
