"""Reads TFDS data sets as records, without TensorFlow."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.corpora.tfds import open_builder, open_split
from lmrep.data.records import values
from lmrep.data.records.base import Config, Job, ReaderDef, Record

BLOCK = 256  # examples read at once
PREFIX = "tfds:"  # begins the name of a data set and split, given in place of files


def dataset_and_split(files: str) -> tuple[str, str]:
    """Returns the data set and the split of tfds:DATA_SET:SPLIT. Raises UserError for another form."""
    dataset, _, split = files.removeprefix(PREFIX).rpartition(":")
    if not dataset or not split:
        raise UserError(f"--files is {files!r}; expected a TFDS data set and a split of it, such as tfds:glue/ax:test")
    return dataset, split


def read(job: Job) -> Iterator[Record | UserError]:
    """Yields the examples of a split. Labels are the class names of the data set; an example of class -1, as in the
    test sets of GLUE, has no label. Raises UserError if the data set or the split does not exist."""
    if not job.config.tfds:
        raise UserError("config.data.format is tfds, but config.data.tfds is empty; expected a TFDS name, "
                        "such as glue/sst2, or a directory")
    builder = open_builder(job.config.tfds, job.config.tfds_dir)
    split = str(job.path)
    data = open_split(builder, job.config.tfds, split)
    for start in range(0, len(data), BLOCK):
        examples = data.__getitems__(range(start, min(start + BLOCK, len(data))))
        for number, example in enumerate(examples, start):
            where = f"{job.config.tfds}, {split}, example {number}"
            try:
                plain = to_plain(builder.info.features, example)
            except UnicodeDecodeError as error:
                yield UserError(f"{where} is not UTF-8 ({error})")
                continue
            yield values.from_object(plain, job, where)


def check_present(config: Config) -> None:
    """Raises UserError if reading would first download and prepare the data set."""
    if config.tfds:
        open_builder(config.tfds, config.tfds_dir, download=False)


def to_plain(feature: Any, value: Any) -> Any:
    """Converts a value of a TFDS feature to JSON. Classes become their names, or None for -1; TFDS has lists of objects
    as an object of lists."""
    import tensorflow_datasets as tfds

    features = tfds.features
    if isinstance(feature, features.Sequence) and isinstance(value, dict):
        return {key: to_plain(features.Sequence(feature.feature[key]), item) for key, item in value.items()}
    if isinstance(feature, features.Sequence):
        return [to_plain(feature.feature, item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(feature[key], item) for key, item in value.items()}
    if isinstance(feature, features.ClassLabel):
        return feature.int2str(int(value)) if value >= 0 else None
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, float | np.floating):  # 3.8, not the nearest float32 written in double precision
        return float(str(np.dtype(feature.np_dtype).type(value)))
    if isinstance(value, np.generic):
        return to_plain(feature, value.item())
    if isinstance(value, np.ndarray):
        return [to_plain(feature, item) for item in value] if value.ndim else to_plain(feature, value[()])
    return value


DEFINITION = ReaderDef(read)
