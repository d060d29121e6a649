"""Makes global arrays on the mesh from the examples that each process reads."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

HostBatch = dict[str, Any]  # arrays, nested where a batch has a second text


def local_indices(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """Returns the indices of the global batch's examples that this process's devices hold: int64[n], ascending.

    They do not follow from the process index: if a model axis spans processes, several hold the same examples.
    """
    slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[shard] for shard in slices]))


def to_global(
    batch: HostBatch, indices: np.ndarray, sharding: NamedSharding, batch_size: int
) -> dict[str, Any]:
    """Makes global arrays [batch_size, ...], of which this process provides the examples at `indices`. If it provides
    a fraction of these, the arrays have the same fraction of `batch_size`."""
    provided = len(jax.tree.leaves(batch)[0])
    if provided != len(indices):
        batch_size = batch_size * provided // len(indices)
        indices = local_indices(sharding, batch_size)

    def array(values: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            return values[np.searchsorted(indices, np.arange(batch_size)[index[0]])]

        return jax.make_array_from_callback((batch_size, *values.shape[1:]), sharding, shard)

    return jax.tree.map(array, batch)
