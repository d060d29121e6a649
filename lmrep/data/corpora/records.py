"""Reads documents from a field of JSONL (a JSON object per line) or a column of Parquet."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lmrep.core import input_files, json_text, parquet
from lmrep.core.errors import UserError
from lmrep.data.corpora import cleaning, files
from lmrep.data.corpora.base import Config, Corpus, CorpusDef, Reader

CHUNK = 2**22  # bytes of text taken from Parquet at once
MAX_LINE = 2**28  # bytes of a line of JSONL


def _open(name: str, read: Callable[[files.CorpusFile, Config, Counter[str]], Iterator[str]], config: Config) -> Corpus:
    sources = files.find(config.files, name, f"*.{name}")
    if not config.text_field:
        raise UserError("data.text_field is empty; expected the name of the field or column that holds the text")

    return Corpus(name, f"{files.describe(sources, config.files)}, the {config.text_field!r} of each record",
                  tuple(Reader(source.path, partial(_documents, read, source, config)) for source in sources),
                  lambda: files.fingerprint(sources, name, config.text_field),
                  f"data.files {config.files!r} holds no text: {len(sources)} files, no record with text in "
                  f"{config.text_field!r}")


def _documents(read: Callable[[files.CorpusFile, Config, Counter[str]], Iterator[str]], source: files.CorpusFile,
               config: Config, tally: Counter[str]) -> Iterator[str]:
    tally["files"] += 1
    count = 0
    for count, text in enumerate(read(source, config, tally), 1):  # noqa: B007 - used after the loop
        yield text
    tally["empty_files"] += not count


def _jsonl(source: files.CorpusFile, config: Config, tally: Counter[str]) -> Iterator[str]:
    """Yields the texts of one file. Raises UserError if the corpus has more than `damaged_lines` damaged lines."""
    keys = config.text_field.split(".")
    with files.opened(source) as file:
        lines = input_files.lines(file, source.path, MAX_LINE, "JSONL, which is one JSON object a line")
        for number, line in enumerate(lines, 1):
            location = f"{source.path}, line {number}"
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                line = line[3:]
                tally["byte_order_marks"] += 1
            if line.isspace() or not line:
                tally["blank_lines"] += 1
                continue
            text, problem = _field(cleaning.decode(line, config.undecodable, location, tally), keys)
            if not problem:
                yield from cleaning.field_documents(text, config.undecodable, location, tally)
                continue
            tally["damaged_lines"] += 1
            if tally["damaged_lines"] > config.damaged_lines:
                raise UserError(f"{location} {problem}; correct it, set --config.data.text_field to the field with the "
                                "text, or skip such lines with --config.data.damaged_lines, up to that number")


def _field(line: str, keys: list[str]) -> tuple[str, str]:
    """Returns (text of a line of JSON, ""), or ("", the problem with the line)."""
    try:
        value = json_text.loads(line, surrogates=True)  # `field_documents` refuses or replaces them
    except json_text.InvalidJSON as error:
        return "", f"is not JSON ({error})"
    for key in keys:
        if not isinstance(value, dict):
            type_ = json_text.type_name(value)
            return "", f"has no field {'.'.join(keys)!r}: it is {type_} instead of an object with {key!r}"
        if key not in value:
            return "", f"has no field {'.'.join(keys)!r}; it has {', '.join(map(repr, value))[:200] or 'none'}"
        value = value[key]
    if not isinstance(value, str):
        return "", f"has {json_text.type_name(value)} in {'.'.join(keys)!r} instead of a string"
    return value, ""


def _parquet(source: files.CorpusFile, config: Config, tally: Counter[str]) -> Iterator[str]:
    """Yields the texts of one file, read in batches of about CHUNK bytes."""
    row = 0
    with parquet.opened(source.path, source.store) as table:
        _column(source, table, config.text_field)
        for group in range(table.num_row_groups):
            for values in _batches(table, group, config.text_field):
                for value in values:
                    row += 1
                    location = f"{source.path}, row {row}"
                    yield from cleaning.field_documents(value or b"", config.undecodable, location, tally)


def _column(source: files.CorpusFile, table: Any, name: str) -> None:
    from pyarrow import types

    column_type, schema = None, table.schema_arrow
    for key in name.split("."):
        index = schema.get_field_index(key) if schema is not None else -1
        if index < 0:
            columns = ", ".join(table.schema_arrow.names)[:200]
            raise UserError(f"{source.path} has no column {name!r}; it has {columns}: set --config.data.text_field")
        column_type = schema.field(index).type
        schema = column_type if types.is_struct(column_type) else None
    value = column_type.value_type if types.is_dictionary(column_type) else column_type
    if not any(test(value) for test in (types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
                                        types.is_large_binary, types.is_binary_view)):
        raise UserError(f"{source.path}: column {name!r} has type {column_type} instead of text; set "
                        "--config.data.text_field")


def _batches(table: Any, group: int, name: str) -> Iterator[list[bytes | None]]:
    """Yields the UTF-8 of one column of a row group, in batches of rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = table.metadata.row_group(group)
    [column] = [rows.column(i) for i in range(rows.num_columns) if rows.column(i).path_in_schema == name]
    size = max(1, column.total_uncompressed_size // max(1, rows.num_rows))  # bytes of a row
    for batch in table.iter_batches(max(1, min(CHUNK // size, 2**14)), [group], [name]):
        array = batch.column(0)
        for key in name.split(".")[1:]:
            array = pc.struct_field(array, key)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        yield array.cast(pa.large_binary()).to_pylist()


JSONL = CorpusDef(partial(_open, "jsonl", _jsonl), lambda config: f"the JSONL files {config.files}", "*.jsonl")
PARQUET = CorpusDef(partial(_open, "parquet", _parquet), lambda config: f"the Parquet files {config.files}",
                    "*.parquet")
