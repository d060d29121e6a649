"""Documents from records with a text field: JSONL (a JSON object a line) and Parquet (a column)."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from lmrep.core.errors import UserError
from lmrep.data.corpora import cleaning, files
from lmrep.data.corpora.base import Config, Corpus, corpus

CHUNK = 2**22  # bytes of JSONL read, or of text taken from Parquet, at once
LONGEST_LINE = 2**28  # bytes of a line of JSONL


def jsonl(config: Config) -> Corpus:
    """The corpus of JSONL files that a config names."""
    return _open(config, "jsonl", "*.jsonl", _jsonl)


def parquet(config: Config) -> Corpus:
    """The corpus of Parquet files that a config names."""
    return _open(config, "parquet", "*.parquet", _parquet)


def _open(config: Config, kind: str, example: str,
          read: Callable[[files.Source, Config, Counter[str], int], Iterator[str]]) -> Corpus:
    sources = files.find(config.files, kind, example)
    if not config.text_field:
        raise UserError("data.text_field is empty; expected the name of the field or column that holds the text")

    def documents(tally: Counter[str]) -> Iterator[str]:
        most = tally["damaged_lines"] + config.damaged_lines
        for source in sources:
            tally["files"] += 1
            count = 0
            for count, text in enumerate(read(source, config, tally, most), 1):  # noqa: B007 - used after the loop
                yield text
            tally["empty_files"] += not count

    return corpus(kind, f"{files.describe(sources, config.files)}, the {config.text_field!r} of each record", documents,
                  lambda: files.fingerprint(sources, kind, config.text_field),
                  f"data.files {config.files!r} holds no text: {len(sources)} files, no record with text in "
                  f"{config.text_field!r}")


def _jsonl(source: files.Source, config: Config, tally: Counter[str], most: int) -> Iterator[str]:
    """The texts of one file. Raises UserError for damaged lines once the tally holds more than `most` of them."""
    keys, number = config.text_field.split("."), 0

    def place() -> str:
        return f"{source.path}, line {number}"

    for number, line in enumerate(_lines(source), 1):
        if number == 1 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
            tally["byte_order_marks"] += 1
        if line.isspace() or not line:
            tally["blank_lines"] += 1
            continue
        text, problem = _field(cleaning.decoded(line, config.undecodable, place, tally), keys)
        if not problem:
            yield from cleaning.record(text, config.undecodable, place, tally)
            continue
        tally["damaged_lines"] += 1
        if tally["damaged_lines"] > most:
            raise UserError(f"{place()} {problem}; mend it, set --config.data.text_field to the field that holds the "
                            "text, or let a number of such lines be skipped with --config.data.damaged_lines")


def _lines(source: files.Source) -> Iterator[bytes]:
    """The lines of a file, without their line feeds."""
    rest, number = b"", 0
    with files.decompressed(source) as file:
        while block := file.read(CHUNK):
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
            number += len(whole)
            if len(rest) > LONGEST_LINE:
                raise UserError(f"{source.path}, line {number + 1} is longer than {LONGEST_LINE >> 20} MiB; expected "
                                "JSONL, which is one JSON object a line")
    if rest:
        yield rest


def _field(line: str, keys: list[str]) -> tuple[str, str]:
    """The text of a line of JSON, or what is wrong with it."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        return "", f"is no JSON ({error.msg} at character {error.pos + 1})"
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets
        return "", f"is no JSON that can be read ({error})"
    for key in keys:
        if not isinstance(value, dict):
            return "", f"has no field {'.'.join(keys)!r}: it is {_kind(value)} where an object with {key!r} is expected"
        if key not in value:
            return "", f"has no field {'.'.join(keys)!r}; it has {', '.join(value) or 'none'}"
        value = value[key]
    if not isinstance(value, str):
        return "", f"has {_kind(value)} in {'.'.join(keys)!r}, where a string is expected"
    return value, ""


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}.get(
        type(value), "a number")


def _parquet(source: files.Source, config: Config, tally: Counter[str], most: int) -> Iterator[str]:
    """The texts of one file, as many at once as hold about CHUNK bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0

    def place() -> str:
        return f"{source.path}, row {row}"

    with files.opened(source) as file:
        try:
            table = pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True)
            _column(source, table, config.text_field)
            for group in range(table.num_row_groups):
                for values in _batches(table, group, config.text_field):
                    for value in values:
                        row += 1
                        text = cleaning.decoded(value or b"", config.undecodable, place, tally)
                        yield from cleaning.record(text, config.undecodable, place, tally)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{source.path} is no intact Parquet file ({reason}); copy it anew, or leave it out of "
                            "data.files") from error


def _column(source: files.Source, table: Any, name: str) -> None:
    """Refuses a column that is not there or holds no text."""
    import pyarrow.types as kinds

    kind, schema = None, table.schema_arrow
    for key in name.split("."):
        found = schema.get_field_index(key) if schema is not None else -1
        if found < 0:
            has = ", ".join(table.schema_arrow.names)
            raise UserError(f"{source.path} has no column {name!r}; it has {has}: set --config.data.text_field")
        kind = schema.field(found).type
        schema = kind if kinds.is_struct(kind) else None
    value = kind.value_type if kinds.is_dictionary(kind) else kind
    if not any(test(value) for test in (kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_binary,
                                        kinds.is_large_binary, kinds.is_binary_view)):
        raise UserError(f"{source.path}: column {name!r} holds {kind}, where text is expected; set "
                        "--config.data.text_field")


def _batches(table: Any, group: int, name: str) -> Iterator[list[bytes | None]]:
    """The UTF-8 of one column of a row group, some rows at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    facts = table.metadata.row_group(group)
    column = next(facts.column(i) for i in range(facts.num_columns) if facts.column(i).path_in_schema == name)
    size = max(1, column.total_uncompressed_size // max(1, facts.num_rows))
    for batch in table.iter_batches(max(1, min(CHUNK // size, 2**14)), [group], [name]):
        array = batch.column(0)
        for key in name.split(".")[1:]:
            array = pc.struct_field(array, key)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        yield array.cast(pa.large_binary()).to_pylist()
