"""Caches the vectors of a frozen encoder. Each set of examples has a sealed directory under DATA_DIR/features with an
array, float32 [tokens, n, d], which is mapped into memory and read as a column of the examples.

The directory's name is a fingerprint of the encoder's parameters and tokenizer, of the layers that are read, and of the
tokens.
"""

import dataclasses
import functools
import hashlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from lmrep.core import sealed_cache
from lmrep.core.errors import RunFault
from lmrep.core.files import Damaged, digest
from lmrep.core.messages import byte_size
from lmrep.core.params import unflatten
from lmrep.core.progress import ProgressReporter
from lmrep.core.remote_cache import local_data_dir
from lmrep.data.records.examples import Examples
from lmrep.experiment import config as experiments
from lmrep.experiment.record import Data
from lmrep.inference import evaluate_task
from lmrep.objectives.base import FrozenPart, FrozenParts
from lmrep.tasks import frozen_features, heads

FOLDER, ARRAY = "features", "features.npy"  # of data_dir, and in the directory of a set of examples
ADVICE = "free some space, give another --data_dir, or set --config.cache_features=False"

log = logging.getLogger(__name__)


def cached(data: Data, frozen: FrozenParts, data_dir: Path) -> Data:
    """Adds the column `features` to labelled examples if `cache_features` is set, and returns other data unchanged.
    Computes features that do not exist or are damaged, and logs their size before.

    Raises:
      RunFault: the features cannot be written, or the disk has too little space.
    """
    experiment = data.experiment
    if not getattr(experiment, "cache_features", False):
        return data
    part, c = frozen[frozen_features.NAME], experiments.resolve_stages(experiment)[0].objective.features
    folder = local_data_dir(data_dir) / FOLDER
    dtype = experiment.execution.dtype
    directories = {split: folder / _key(part, c, examples, dtype) for split, examples in data.splits.items()}
    splits = {}
    _announce(part, c, {split: data.splits[split] for split, path in directories.items() if not path.exists()},
              folder)
    for split, examples in data.splits.items():
        features = sealed_cache.cached(
            directories[split], functools.partial(_write, part=part, c=c, examples=examples, split=split), _load,
            {"features": directories[split].name}, "the features", ADVICE)
        units = examples.units
        columns = units.columns | {frozen_features.NAME: features}
        units = units._replace(columns=columns, token_columns=(*units.token_columns, frozen_features.NAME))
        splits[split] = dataclasses.replace(examples, units=units)
    log.info("features are read from %s", folder)
    return dataclasses.replace(data, splits=splits)


def _key(part: FrozenPart, c: frozen_features.Config, examples: Examples, dtype: str) -> str:
    """Returns a fingerprint of everything that the vectors depend on."""
    units, layers = examples.units, frozen_features.choice(c, part)
    words = examples.vocabulary.characters
    tokens = (units.tokens,) if words is None else words.split(units.tokens)  # ids of unknown words mean nothing later
    content = [hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
               for array in (*tokens, units.token_types, units.offsets)]
    return digest([part.fingerprint, dataclasses.asdict(layers), dtype, content])


def _shape(part: FrozenPart, c: frozen_features.Config, examples: Examples) -> tuple[int, int, int]:
    """Returns (tokens, n, d), the shape of the array."""
    layers = frozen_features.choice(c, part)
    number = len(layers.numbers) if layers.join == "mix" else 1
    return len(examples.units.tokens), number, frozen_features.width(c, part)


def _announce(part: FrozenPart, c: frozen_features.Config, stores: Mapping[str, Examples], folder: Path) -> None:
    """Logs the size of the features to be written. Raises RunFault if the disk has too little space."""
    if not stores:
        return
    shapes = {split: _shape(part, c, examples) for split, examples in stores.items()}
    size = sum(4 * int(np.prod(shape)) for shape in shapes.values())
    tokens, (_, n, d) = sum(shape[0] for shape in shapes.values()), next(iter(shapes.values()))
    log.info("writing the features of %s tokens (%s), %d x %d float32 each, %s, to %s", f"{tokens:,}",
             ", ".join(shapes), n, d, byte_size(size), folder)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if (free := shutil.disk_usage(existing).free) < size:
        raise RunFault(f"the features take {byte_size(size)}, and {folder} has {byte_size(free)} left; {ADVICE}")


def _write(directory: Path, part: FrozenPart, c: frozen_features.Config, examples: Examples, split: str) -> None:
    """Writes the features of all tokens. The file is not mapped: on a full disk, a write raises OSError, but a write to
    a map ends the process."""
    shape, done = _shape(part, c, examples), 0
    reporter = ProgressReporter(log.info, shape[0])
    with open(directory / ARRAY, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        header = file.tell()
        for rows, vectors in _vectors(part, c, examples):
            breaks = np.flatnonzero(np.diff(rows) != 1) + 1  # batches hold examples in any order
            for numbers, block in zip(np.split(rows, breaks), np.split(vectors, breaks), strict=True):
                if len(numbers):
                    file.seek(header + 4 * int(numbers[0]) * shape[1] * shape[2])
                    file.write(np.ascontiguousarray(block, "<f4").data)
            done += len(rows)
            reporter.report(done, lambda _, done=done: f"features of {split}: {done / shape[0]:.0%}")
        file.truncate(header + 4 * int(np.prod(shape)))


def _load(directory: Path) -> np.ndarray:
    try:
        return np.load(directory / ARRAY, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise Damaged(f"{ARRAY} cannot be read ({error})") from error


def _vectors(
    part: FrozenPart, c: frozen_features.Config, examples: Examples
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (numbers of tokens int[m], their vectors [m, n, d]) of each batch."""
    compute = jax.jit(functools.partial(frozen_features.encode, c, part))
    params = jax.device_put(unflatten({path.removeprefix("encoder/"): value for path, value in part.values.items()
                                       if path.startswith("encoder/")}), jax.local_devices()[0])
    offsets = examples.units.offsets
    for batch in evaluate_task.batches(examples):
        flat = heads.ungrouped(batch)
        vectors = np.asarray(compute(params, {name: flat[name] for name in (
            "tokens", "segment_ids", "positions", "token_type_ids", "characters") if name in flat}))  # [n, b, t, d]
        row, slot = np.nonzero(batch["unit"] >= 0)
        unit, first = batch["unit"][row, slot], batch["first"][row, slot]
        line = row * batch["unit"].shape[1] + slot if examples.group else row
        sizes = offsets[unit + 1] - offsets[unit]
        inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        rows = np.repeat(offsets[unit], sizes) + inside
        yield rows, vectors[:, np.repeat(line, sizes), np.repeat(first, sizes) + inside].swapaxes(0, 1)
