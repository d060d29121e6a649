"""Reads Parquet: an example a row, as the data sets of the Hugging Face Hub have them."""

import json
from collections.abc import Iterator
from typing import Any

from lmrep.core import parquet
from lmrep.core.errors import UserError
from lmrep.data.records import values
from lmrep.data.records.base import FIELDS, Job, ReaderDef, Record

ROWS = 1024  # rows that are read at once


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields the examples of a file. A class that is a number becomes its name in the Hub's metadata, if there is one;
    the class -1, as in the test sets of GLUE, is no label. Raises UserError for a damaged file."""
    for number, row in enumerate(_rows(job), 1):
        where = f"{job.path}, row {number}"
        yield UserError(f"{where} is not UTF-8 ({row})") if isinstance(row, UnicodeDecodeError) else \
            values.from_object(row, job, where)


def _rows(job: Job) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Yields the rows, with values as in JSON. Columns that are not used are not read, and are None."""
    import pyarrow as pa

    paths = [part for path in job.columns.values() for part in (path, *path.split(","))]
    # bytes that become lone surrogates are replaced by the caller, as those of JSON are
    errors = "surrogateescape" if job.config.undecodable == "replace" else "strict"
    used = {*paths, *(path.split(".")[0] for path in paths), *FIELDS, "id"}
    with parquet.opened(job.path) as table:
        names, metadata = table.schema_arrow.names, table.schema_arrow.metadata or {}
        features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features") or {}
        for batch in table.iter_batches(ROWS, columns=[name for name in names if name in used] or None):
            # 3.8, not the nearest float32 in double precision: Arrow writes the shortest text of a float32
            columns = [column.cast(pa.string()).cast(pa.float64()) if pa.types.is_float32(column.type) else
                       column.cast(_as_bytes(column.type)) for column in batch.columns]
            for row in zip(*columns, strict=True):
                try:
                    yield dict.fromkeys(names) | {name: _to_plain(value.as_py(), features.get(name), errors)
                                                  for name, value in zip(batch.schema.names, row, strict=True)}
                except UnicodeDecodeError as error:
                    yield error


def _as_bytes(type_: Any) -> Any:
    """Returns the Arrow type with bytes in place of text, which may not be UTF-8; types of objects as they are."""
    import pyarrow as pa

    if pa.types.is_list(type_):
        return pa.list_(_as_bytes(type_.value_type))
    return pa.large_binary() if pa.types.is_string(type_) or pa.types.is_large_string(type_) else type_


def _to_plain(value: Any, feature: Any, errors: str) -> Any:
    """Converts a value to JSON. `feature` is its type in the metadata of the Hub, an object with `_type`; a list has
    the type `feature` or a list of one type; objects have an object of types. None: unknown. `errors` is as for
    `bytes.decode`."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors)
    if isinstance(value, list | dict):
        if isinstance(feature, list):
            [feature] = feature
        elif feature and "_type" in feature:
            feature = feature.get("feature", feature)  # a list of objects may be stored as an object of lists
    if isinstance(value, list):
        return [_to_plain(item, feature, errors) for item in value]
    if isinstance(value, dict):
        return {name: _to_plain(item, (feature or {}).get(name), errors) for name, item in value.items()}
    if isinstance(value, int) and (feature or {}).get("_type") == "ClassLabel":
        return feature["names"][value] if value >= 0 else None
    return value


DEFINITION = ReaderDef(read, (".parquet",))
