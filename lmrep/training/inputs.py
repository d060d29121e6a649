"""From the examples that one process reads to global arrays on the mesh."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

HostBatch = dict[str, Any]  # arrays, nested where a batch has a second text


def local_indices(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """Which examples of the global batch this process's devices hold: int64[n], ascending.

    They do not follow from the process index: where a model axis spans processes, several hold the same examples.
    """
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[shard] for shard in slices]))


def to_global(
    batch: HostBatch, indices: np.ndarray, sharding: NamedSharding, batch_size: int
) -> dict[str, Any]:
    """Global arrays of `batch_size` examples, of which this process provides those at `indices`; or of fewer, where it
    provides fewer: the same fraction of the batch."""
    provided = len(jax.tree.leaves(batch)[0])
    if provided != len(indices):
        batch_size = batch_size * provided // len(indices)
        indices = local_indices(sharding, batch_size)

    def array(values: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            return values[np.searchsorted(indices, np.arange(batch_size)[index[0]])]

        return jax.make_array_from_callback((batch_size, *values.shape[1:]), sharding, shard)

    return jax.tree.map(array, batch)
