"""Detects the format of a labelled file by its name and its first lines."""

import re
from collections.abc import Collection
from pathlib import Path

from lmrep.config.record import choose
from lmrep.core.errors import UserError
from lmrep.data.records import files
from lmrep.data.records.base import FIELDS, Config, ReaderDef

READERS: dict[str, ReaderDef] = {}  # filled by the package
LINES = 200  # lines by which a format is guessed
LABEL = re.compile(r"[+-]?[0-9]+([.][0-9]+)?|__label__\S+|[A-Z]{2,}(:\w+)?")  # of fastText and TREC, or a number
REPEATED = 10  # least number of lines per distinct first word, if first words are labels of another form


def detect(path: Path, config: Config, needed: Collection[str] = ()) -> str:
    """Returns the format of a file that has the fields `needed`, a key of READERS. Raises UserError if no format or two
    formats are possible."""
    if config.format != "auto":
        choose(READERS, config.format, "config.data.format")
        if path.is_dir() and config.format != "folders":
            raise UserError(f"{path} is a folder; expected a file of the format {config.format}, or a glob such as "
                            f"{str(path / '*')!r}")
        return config.format
    if path.is_dir():
        return "folders"
    by_suffix = [name for name, reader in READERS.items() if files.suffix(path) in reader.suffixes]
    # Column files, which may look like texts between blank lines, have words and tags only.
    names = [name for name in by_suffix or READERS
             if not (needed and READERS[name].columns) or {*READERS[name].columns} & {*needed}] or by_suffix
    delimited = names[-1:] in (["tsv"], ["csv"])
    beginning = files.beginning(path, config) if len(names) != 1 or delimited else ""
    if config.comment:
        beginning = "\n".join(line for line in beginning.split("\n") if not line.startswith(config.comment))
    for name in names:
        if READERS[name].detects and READERS[name].detects(beginning):
            return name
    whole = beginning if len(beginning) < files.BEGINNING // 4 else beginning.rpartition("\n")[0]  # the last may be cut
    lines = [line for line in whole.split("\n") if line.strip()][:LINES]
    if by_suffix:
        no_table = delimited and not config.columns and not any("\t" in line for line in lines[:1])
        return "label_text" if no_table and _text_alone(needed) and has_labels(lines) \
            and not {*re.split(r"[,;|]", lines[0])} & {*FIELDS} else names[-1]
    return _guess(path, lines, config, needed)


def _text_alone(needed: Collection[str]) -> bool:
    """Returns whether lines of a label and a text have all needed fields."""
    return {*needed} <= {"text", "label"}


def _guess(path: Path, lines: list[str], config: Config, needed: Collection[str]) -> str:
    """Guesses the format of a file whose suffix is unknown. Raises UserError as `detect`."""
    widths = {len(line.split()) for line in lines if not line.startswith(("#", "-DOCSTART-"))}
    if "words" in needed and len(widths) == 1 and 2 <= max(widths) <= 12:
        return "columns"
    column_names = {spec for field in needed for spec in config.columns.get(field, field).split(",")} or {*FIELDS}
    first_cells = {mark: {cell.strip() for cell in (lines or [""])[0].split(mark)} for mark in "\t,;|"}
    if header := next((mark for mark, cells in first_cells.items() if len(cells) > 1 and (
            column_names <= cells if needed else column_names & cells)), ""):
        return "tsv" if header == "\t" else "csv"
    widths = {line.count("\t") for line in lines}
    tabs = bool(widths) and 0 not in widths and (len(widths) == 1 or bool(config.columns))
    labels = _text_alone(needed) and has_labels(lines)
    if tabs and labels and not config.columns and widths != {1}:
        raise UserError(f"{path} may have a label and a text in each line, or {widths.pop() + 1} columns between tabs "
                        "without a header; set --config.data.format=label_text for the one, or --config.data.format=tsv"
                        " and --config.data.columns, by number from 0, for the other")
    if labels and not config.columns:
        return "label_text"
    if tabs:
        return "tsv"
    raise UserError(f"the format of {path} is not clear from its name and its first lines; set config.data.format to "
                    f"one of {', '.join(READERS)}")


def has_labels(lines: list[str]) -> bool:
    """Returns whether lines begin with labels: all first words are numbers, fastText's labels or capitals as in TREC,
    or there are few distinct first words."""
    words = [line.split(maxsplit=1) for line in lines]
    first = {cells[0] for cells in words}
    return (len(first) > 1 and all(len(cells) > 1 for cells in words) and (
        (all(map(LABEL.fullmatch, first)) and len(first) < len(lines)) or REPEATED * len(first) <= len(lines)))
