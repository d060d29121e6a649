"""From host arrays to arrays on a mesh. (Of several processes: `tests/distributed/test_processes.py`.)"""

import numpy as np
import pytest

from lmrep.core.sharding import batch_sharding, make_mesh
from lmrep.training.inputs import local_indices, to_global

BATCH = 16
MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (1, 4, 1)]


def batch(start=0):
    return {"tokens": np.arange(start, start + BATCH * 3, dtype=np.int32).reshape(BATCH, 3),
            "example": np.arange(start, start + BATCH, dtype=np.int32)}


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_every_device_holds_its_examples_of_the_batch(sizes):
    mesh = make_mesh(*sizes)
    sharding = batch_sharding(mesh)
    indices = local_indices(sharding, BATCH)
    np.testing.assert_array_equal(indices, np.arange(BATCH))
    arrays = to_global(batch(), indices, sharding, BATCH)
    per_device = BATCH // (sizes[0] * sizes[1])
    for name, values in batch().items():
        np.testing.assert_array_equal(arrays[name], values)
        assert arrays[name].dtype == values.dtype and arrays[name].sharding.is_equivalent_to(sharding, values.ndim)
        for i, shard in enumerate(arrays[name].addressable_shards):
            first = i // sizes[2] * per_device  # neighbours on the tensor axis hold the same examples
            np.testing.assert_array_equal(shard.data, values[first : first + per_device])
