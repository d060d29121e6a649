"""The memory of a process that saves and restores is bounded by its shards, however large the whole state is. That no
file on its disk holds a shard is tested in `test_remote_processes.py`."""

import ctypes
import gc
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lmrep.distributed import process_group
from lmrep.storage import lease, remote_workdir, shards
from tests import forked, small

COUNT, SHAPE = 128, (256, 2048)  # arrays of 2 MB: 256 MB, of which each process has a half
EXTRA = 2**26  # bytes beyond the shards that a process copies or restores: files on their way, and what libraries need


def grown(action):
    """Returns (result, by how many bytes the memory of this process grew at most) of an action."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("RSS")
    return action(), memory("HWM") - before


def memory(name: str) -> int:
    return 1024 * int(re.search(rf"Vm{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def save_and_restore(url):
    process_group.start()
    lease.SETTLE, shards.FILE = 0.0, 2**20
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    layout = NamedSharding(mesh, PartitionSpec("data"))

    def value(number, index):
        return np.full((SHAPE[0] // 2, SHAPE[1]), number + (index[0].start or 0), np.float32)

    state = {str(number): jax.make_array_from_callback(SHAPE, layout, lambda index, number=number: value(number, index))
             for number in range(COUNT)}
    own = sum(x.addressable_shards[0].data.nbytes for x in state.values())
    with remote_workdir.training(url) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.clean()
        checkpoints.save(1, {"x": np.zeros(3)}, {})  # what a first save loads
        checkpoints.wait()

        def save():
            checkpoints.save(2, state, {})
            checkpoints.wait()

        _, growth = grown(save)
        assert growth < own + EXTRA, f"saving took {growth / 2**20:.0f} MB"
        target = {path: jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=layout) for path in state}
        state.clear()
        (restored, _), growth = grown(lambda: checkpoints.restore(2, target))
        assert growth < own + EXTRA, f"restoring took {growth / 2**20:.0f} MB"
        for number in range(COUNT):
            (shard,) = restored[str(number)].addressable_shards
            np.testing.assert_array_equal(shard.data, value(number, shard.index))
        checkpoints.close()


@pytest.mark.slow
def test_memory_is_bounded_by_the_shards_of_a_process(tmp_path):
    children = [forked.Child(save_and_restore, f"local://{tmp_path}/store/run", environment={
        **own, "LMREP_DATA_DIR": str(tmp_path / f"machines/{i}")}) for i, own in enumerate(forked.addresses(2))]
    for answer in map(small.finish, children):
        assert answer.code == 0, answer.err
