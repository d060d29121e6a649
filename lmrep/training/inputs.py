"""From the rows that a host reads to global arrays on the mesh."""

from collections.abc import Iterable, Iterator

import jax
import numpy as np
from jax.sharding import NamedSharding

HostBatch = dict[str, np.ndarray]


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """Which rows of the global batch this process's devices hold: int64[n], ascending.

    Not a share by process index: where a model axis spans processes, several of them hold the same rows.
    """
    cuts = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[cut] for cut in cuts]))


def place(batch: HostBatch, rows: np.ndarray, sharding: NamedSharding, batch_size: int) -> dict[str, jax.Array]:
    """Global arrays of `batch_size` rows, of which this process gives those numbered `rows`."""

    def array(values: np.ndarray) -> jax.Array:
        def piece(index: tuple[slice, ...]) -> np.ndarray:
            return values[np.searchsorted(rows, np.arange(batch_size)[index[0]])]

        return jax.make_array_from_callback((batch_size, *values.shape[1:]), sharding, piece)

    return {name: array(values) for name, values in batch.items()}


def global_batches(
    batches: Iterable[HostBatch], rows: np.ndarray, sharding: NamedSharding, batch_size: int
) -> Iterator[tuple[HostBatch, dict[str, jax.Array]]]:
    """Each batch as it came and as global arrays."""
    for batch in batches:
        yield batch, place(batch, rows, sharding, batch_size)
