"""Reads documents from the examples of a prepared TFDS dataset, without TensorFlow."""

import contextlib
import hashlib
import itertools
import os
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.data.corpora import cleaning
from lmrep.data.corpora.base import Config, Corpus, CorpusDef, Reader


def open_corpus(config: Config) -> Corpus:
    """Opens a TFDS dataset as a corpus. Raises UserError as `open_builder`, and if it lacks the split or the text
    feature or needs TensorFlow."""
    if not config.tfds_name:
        raise UserError("data.corpus is tfds but data.tfds_name is empty; expected a TFDS name or a directory")
    builder = open_builder(config.tfds_name)
    _check(builder, config)

    def fingerprint() -> str:
        splits = {name: (info.shard_lengths, info.num_bytes) for name, info in sorted(builder.info.splits.items())}
        content = [builder.info.full_name, splits, config.tfds_split, config.text_feature]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    directory = str(builder.data_path)
    sizes = [instruction.take for instruction in builder.info.splits[config.tfds_split].file_instructions]
    ends = list(itertools.accumulate(sizes))
    readers = [Reader(directory, partial(_texts, directory, end - size, end, config))
               for size, end in zip(sizes, ends, strict=True)]
    return Corpus("tfds", f"{builder.info.full_name}, split {config.tfds_split}", tuple(readers), fingerprint,
                  f"{config.tfds_name} holds no text")


def _texts(directory: str, first: int, last: int, config: Config, tally: Counter[str]) -> Iterator[str]:
    """Yields the texts of the examples `first` up to `last` of a split."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    with _examples(builder, config, first) as (examples, before):
        for start in range(first, last, 256):
            values = examples(range(start - before, min(start + 256, last) - before))
            for number, value in enumerate(values, start):
                for key in config.text_feature.split("/"):
                    value = value[key]
                location = f"{config.tfds_name}, example {number}, {config.text_feature!r}"
                yield from cleaning.field_documents(value, config.undecodable, location, tally)


@contextlib.contextmanager
def _examples(builder: Any, config: Config, first: int) -> Iterator[tuple[Callable[[range], Any], int]]:
    """Yields (a function from indices to examples, the number of the example at index 0). Of a remote dataset, the file
    that begins with example `first` is downloaded, and the indices are within it."""
    import tensorflow_datasets as tfds
    from array_record.python import array_record_data_source

    url = remote.as_url(str(builder.data_path))
    if not url:
        yield open_split(builder, config.tfds_name, config.tfds_split).__getitems__, 0
        return
    files = builder.info.splits[config.tfds_split].file_instructions
    begins = itertools.accumulate((file.take for file in files), initial=0)
    file = next(file for file, begin in zip(files, begins, strict=False) if begin == first and file.take)
    with tempfile.TemporaryDirectory() as temporary:
        name = os.path.basename(file.filename)
        copy = tfds.core.utils.shard_utils.FileInstruction(
            os.path.join(temporary, name), file.skip, file.take, file.examples_in_shard)
        with remote.user_errors(url):
            store = remote.Store(url, "data.tfds_name", "gs://bucket/tfds/NAME/1.0.0")
            store.download(name, pathlib.Path(copy.filename))
        records = array_record_data_source.ArrayRecordDataSource([copy])
        decode = builder.info.features.deserialize_example_np
        yield lambda numbers: map(decode, records.__getitems__(numbers)), first


def check_present(config: Config) -> None:
    """Raises UserError if the dataset is not prepared."""
    if config.tfds_name:
        open_builder(config.tfds_name, download=False)


def prepare_files(config: Config, runner: Any, options: Any) -> None:
    """Downloads and prepares the dataset, unless it is prepared. A Beam pipeline uses the runner and options of Apache
    Beam. Raises UserError as `open_builder`."""
    import tensorflow_datasets as tfds

    if config.tfds_name:
        open_builder(config.tfds_name, settings=tfds.download.DownloadConfig(beam_runner=runner, beam_options=options))


def open_builder(name: str, data_dir: str = "", download: bool = True, settings: Any = None) -> Any:
    """Opens the TFDS builder of a directory, or of a name in `data_dir`, by default the directory of TFDS. With
    `download`, downloads and prepares a missing dataset by `settings`, a `DownloadConfig`. Raises UserError if the
    dataset is unknown, cannot be prepared, or (not `download`) is not prepared."""
    import tensorflow_datasets as tfds

    folder = data_dir or tfds.core.constants.DATA_DIR
    fix = (f"Prepare it where TensorFlow is installed (tfds build NAME --file_format=array_record), and copy it into "
           f"{folder}, or give its directory, which has dataset_info.json, in place of its name")
    try:
        if remote.as_url(name) or os.path.isdir(name):
            return tfds.builder_from_directory(name)
        builder = tfds.builder(name, data_dir=data_dir or None, file_format="array_record")
        prepared = bool(builder.info.splits)
        if download and not prepared:
            builder.download_and_prepare(download_config=settings, file_format="array_record")
    except Exception as error:  # code of datasets may raise anything
        reason = (str(error).splitlines()[0] if str(error) else type(error).__name__).rstrip(".")
        raise UserError(
            f"no TFDS dataset {name!r} in {folder}, and TFDS cannot prepare it here: {reason}. {fix}") from error
    if not (prepared or download):
        raise UserError(f"the TFDS dataset {name!r} is not prepared in {folder}; a run would first try to download and "
                        f"prepare it. {fix}")
    return builder


def _check(builder: Any, config: Config) -> None:
    """Raises UserError if the dataset lacks the split or the text feature, or needs TensorFlow."""
    import tensorflow_datasets as tfds

    features, names = builder.info.features, config.text_feature.split("/")
    for name in names:
        nested = isinstance(features, tfds.features.FeaturesDict) and name in features
        features = features[name] if nested else None
    if getattr(features, "shape", None) != () or np.dtype(features.np_dtype).kind not in "OSU":
        raise UserError(f"{config.tfds_name} has no text feature {config.text_feature!r}; it has "
                        f"{', '.join(builder.info.features)}: set --config.data.text_feature")
    if not remote.as_url(str(builder.data_path)):
        open_split(builder, config.tfds_name, config.tfds_split)
        return
    stored, splits = builder.info.file_format.value, list(builder.info.splits)
    if stored != "array_record" or config.tfds_split.partition("[")[0] not in splits:
        raise UserError(f"{config.tfds_name} is stored as {stored} and has the splits {', '.join(splits)}; expected "
                        f"array_record and split {config.tfds_split!r}")


def open_split(builder: Any, name: str, split: str) -> Any:
    """Returns the data source of a split, with random access to its examples. Raises UserError if the dataset lacks the
    split or needs TensorFlow."""
    try:
        return builder.as_data_source(split)
    except NotImplementedError as error:
        raise UserError(f"{name} is stored as {builder.info.file_format.value}, which only TensorFlow "
                        "reads; prepare it with file_format='array_record'") from error
    except (KeyError, ValueError) as error:
        raise UserError(f"{name} has no split {split!r}; it has "
                        f"{', '.join(builder.info.splits)}") from error


DEFINITION = CorpusDef(open_corpus, lambda config: f"the TFDS corpus {config.tfds_name}", sentences="split",
                       check_present=check_present, prepare_files=prepare_files)
