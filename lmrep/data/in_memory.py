"""Records and texts in memory: written once as JSON Lines, so that all that reads files reads them, in every process.

A file is in `records/HASH/SPLIT.jsonl` of the data directory, where HASH depends on its content.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lmrep.config.record import choose
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import remove_leftovers, temporary_name
from lmrep.data import corpora, records
from lmrep.data.records import values

FOLDER = "records"  # of the data directory
ROWS = 1000  # of a data frame that are converted at once
EXAMPLE = '{"train": records, "validation": records}'


def store_records(
    data: Mapping[str, Iterable], config: records.Config, needed: Collection[str], data_dir: Path
) -> records.Config:
    """Writes labelled examples, and returns the config of a task's data that reads them.

    Args:
      data: split -> records: dicts with the fields or columns of `config.columns`, a `datasets.Dataset`, whose classes
        become their names, or a pandas data frame. Iterated once.
      config: of the data. Its files are replaced; a split that `data` lacks has none.
      needed: fields that every record must have.
      data_dir: the data directory.

    Raises:
      UserError: a record cannot be used; the message names its split and its number, from 0.
      RunFault: the file cannot be written.
    """
    config = dataclasses.replace(config, format="jsonl", encoding="utf-8", tfds="", train="", validation="", test="")
    files = {}
    for split, given in _splits(data).items():
        columns = {**{field: field for field in needed}, **records.columns_of(config, split, needed)}
        job = records.Job(Path(split), split, columns, config)
        files[split] = str(_write(split, _record_lines(given, job), data_dir))
    return dataclasses.replace(config, **files)


def store_texts(data: Mapping[str, Iterable], config: corpora.Config, data_dir: Path) -> corpora.Config:
    """Writes documents, and returns the config of a corpus that reads them.

    Args:
      data: {"train": texts}: strings, or dicts with the field `config.text_field`, a document each. Iterated once.
      config: of the corpus, whose fractions `validation` and `test` hold out documents.
      data_dir: the data directory.

    Raises:
      UserError: as `store_records`, or `data` has other splits.
      RunFault: the file cannot be written.
    """
    splits = _splits(data)
    if len(splits) > 1:
        raise UserError(f"data has the splits {', '.join(splits)}, and a corpus is divided by the fractions "
                        "config.data.validation and config.data.test; give all documents as data={'train': texts}")
    path = _write("train", _text_lines(splits["train"], config.text_field), data_dir)
    return dataclasses.replace(config, corpus="jsonl", files=str(path), text_field="text")


def _splits(data: Mapping[str, Iterable]) -> dict[str, Iterable]:
    """Checks the splits of `data`. Leaves out those that are None."""
    if not isinstance(data, Mapping):
        raise UserError(f"data is {_type(data)}; expected a dict of splits: {EXAMPLE}")
    for split in data:
        choose(dict.fromkeys(records.SPLITS), split, "a split of data")
    splits = {split: given for split, given in data.items() if given is not None}
    for split, given in splits.items():
        if isinstance(given, str | bytes | os.PathLike | Mapping) or not isinstance(given, Iterable):
            raise UserError(f"data[{split!r}] is {_type(given)}; expected an iterable of records, a datasets.Dataset "
                            f"or a pandas DataFrame; files are given as the field data.{split}")
    if "train" not in splits:
        raise UserError(f"data has no split 'train'; expected {EXAMPLE}")
    return splits


def _record_lines(given: Iterable, job: records.Job) -> Iterator[str]:
    """Yields the records of a split as JSON. Raises UserError for one that the reader would refuse, which knows its
    line alone."""
    classes, lenient = _class_names(given), job.config.damaged_examples or job.config.undecodable == "replace"
    for number, record in enumerate(_rows(given)):
        where = f"data[{job.split!r}], record {number}"
        if not isinstance(record, Mapping):
            raise UserError(f"{where} (from 0) is {_type(record)}; expected a dict with the fields "
                            f"{', '.join(job.columns.values())}")
        line = _json({str(name): _plain(value, classes.get(name)) for name, value in record.items()}, where)
        read = values.from_object(json.loads(line), job, f"{where} (from 0)")
        error = read if isinstance(read, UserError) else values.check(
            values.split_labels(read, job.config.label_separator), job.split)
        if error and not lenient:
            raise error
        yield line


def _text_lines(given: Iterable, field: str) -> Iterator[str]:
    """Yields the documents of a split as JSON."""
    for number, record in enumerate(_rows(given)):
        where, text = f"data['train'], record {number}", record
        if isinstance(record, Mapping):
            where, text = f"{field!r} of {where}", _plain(values.follow(record, field))
        if not isinstance(text, str):
            has = f": it has {values.listed(record, repr) or 'no fields'}" if isinstance(record, Mapping) else ""
            raise UserError(f"{where} (from 0) is {_type(text)}{has}; expected a string, or a dict with a string in "
                            "config.data.text_field: set this field, or leave the record out")
        yield json.dumps({"text": text})


def _rows(given: Iterable) -> Iterator[Any]:
    """Yields the rows of a pandas data frame as dicts, and the items of anything else."""
    if not (hasattr(given, "iloc") and hasattr(given, "columns")):
        yield from given
        return
    for start in range(0, len(given), ROWS):
        yield from given.iloc[start : start + ROWS].to_dict("records")


def _class_names(given: Iterable) -> dict[str, list[str]]:
    """Returns {column: names of its classes} of a `datasets.Dataset`, also of columns with lists of classes."""
    classes = {}
    for column, feature in (getattr(given, "features", None) or {}).items():
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if isinstance(names, list):
            classes[column] = names
    return classes


def _plain(value: Any, classes: list[str] | None = None) -> Any:
    """Converts a value of NumPy, pandas or `datasets` to one of JSON; a missing value to None."""
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy, PyTorch
    if type(value).__name__ in ("NAType", "NaTType") or value != value:
        return None
    if classes and isinstance(value, list):
        return [_plain(item, classes) for item in value]
    if classes and isinstance(value, int):
        return classes[value] if value >= 0 else None  # -1: no label
    return value.isoformat() if hasattr(value, "isoformat") else value


def _json(record: dict[str, Any], where: str) -> str:
    def convert(value: Any) -> Any:
        if hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError

    try:
        return json.dumps(record, default=convert, allow_nan=False)
    except (TypeError, ValueError):
        for name, value in record.items():
            try:
                json.dumps(value, default=convert, allow_nan=False)
            except (TypeError, ValueError):
                raise UserError(f"{where} (from 0): {name!r} is {values.short(value)}, {_type(value)}; expected texts, "
                                "numbers, or lists or dicts of them: convert this column, or leave it out") from None
        raise


def _write(split: str, lines: Iterable[str], data_dir: Path) -> Path:
    """Writes lines, and returns the path of the file, which appears when it is complete."""
    folder, digest, count = data_dir / FOLDER, hashlib.sha256(), 0
    temporary = folder / temporary_name(split)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder / split)
        with open(temporary, "xb") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007 - the last number is the count
                content = line.encode() + b"\n"
                digest.update(content)
                file.write(content)
        if not count:
            raise UserError(f"data[{split!r}] has no records; note that a generator gives its records once")
        path = folder / digest.hexdigest()[:16] / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        temporary.replace(path)
    except OSError as error:
        raise RunFault(f"data[{split!r}] cannot be written to {folder}: {error.strerror}; free some space, or set "
                       "another $LMREP_DATA_DIR") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _type(value: Any) -> str:
    return f"of type {type(value).__name__}"
