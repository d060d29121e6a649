"""Checkpoints of processes that are killed, that the system refuses a write, or that are several."""

import os
import resource
import signal
import socket

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lmrep.core import files
from lmrep.core.errors import RunFault
from lmrep.storage import orbax
from lmrep.storage.checkpoints import Checkpoints
from tests import small
from tests.forked import context
from tests.storage.test_checkpoints import META, abstract, assert_same_bits, copied, flip, make_state, names

# Killed in the middle of a save


def kill_at(target, name, before=None):
    """From now on, calling `target.name` runs `before` and then kills this process as `kill -9` does."""
    original = getattr(target, name)

    def killed(*arguments, **options):
        if before:
            before(original, *arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(target, name, killed)


def set_aside_and_delete_in_part(set_aside, *arguments):
    next(p for p in set_aside(*arguments).rglob("*") if p.is_file()).unlink()


POINTS = {  # where the kill falls: (what to call, the step found before cleaning up, and after)
    "as Orbax begins": (lambda: kill_at(ocp.AsyncCheckpointer, "wait_until_finished"), 1, 1),
    "when Orbax has written all arrays": (lambda: kill_at(ocp.PyTreeCheckpointHandler, "finalize"), 1, 1),
    "when Orbax is done": (lambda: kill_at(files, "seal"), 1, 1),
    "in the middle of the manifest": (lambda: kill_at(os, "replace"), 1, 1),
    "before the rename": (lambda: kill_at(Checkpoints, "_rename_to_final"), 1, 2),
    "after the rename": (lambda: kill_at(Checkpoints, "_delete_old"), 2, 2),
    "while an old one is deleted": (lambda: kill_at(Checkpoints, "_set_aside", set_aside_and_delete_in_part), 2, 2),
}


def save_and_be_killed(directory, point):
    checkpoints = Checkpoints(directory, keep=1)
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    arm, _, _ = POINTS[point]
    arm()
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()


def end(child):
    child.join(small.SECONDS)
    code = child.exitcode
    child.kill()
    return code


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_process_killed_during_a_save_leaves_the_previous_checkpoint(opened, tmp_path, point):
    child = context.Process(target=save_and_be_killed, args=(tmp_path / "checkpoints", point))
    child.start()
    assert end(child) == -signal.SIGKILL
    checkpoints, (_, before, after) = opened(), POINTS[point]
    assert checkpoints.newest() == before
    checkpoints.clean()
    assert checkpoints.newest() == after
    assert all(name.isdecimal() for name in names(checkpoints))
    assert_same_bits(copied(checkpoints.restore(after, abstract(make_state(0)))[0]), copied(make_state(after)))
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert checkpoints.newest() == 2


def replace_and_be_killed(directory):
    checkpoints = Checkpoints(directory, keep=1)
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    kill_at(Checkpoints, "_set_aside", set_aside_and_delete_in_part)
    checkpoints.save(1, make_state(10), {})
    checkpoints.wait()


@pytest.mark.slow
def test_process_killed_while_replacing_the_only_checkpoint(opened, tmp_path):
    child = context.Process(target=replace_and_be_killed, args=(tmp_path / "checkpoints",))
    child.start()
    assert end(child) == -signal.SIGKILL
    checkpoints = opened()
    checkpoints.clean()
    assert names(checkpoints) == ["1"] and checkpoints.newest() == 1 and checkpoints.read(1)[0]["step"] == 10


# Refused a write


def save_beyond_the_limit(directory, errors):
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, {"x": np.zeros(10)}, {})
    checkpoints.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    checkpoints.save(2, {f"x{i}": jnp.zeros(20_000) for i in range(20)}, {})
    try:
        checkpoints.wait()
    except RunFault as fault:
        os.write(2, str(fault).encode())
        os._exit(fault.exit_code)


@pytest.mark.slow
def test_failed_write_gives_one_message(opened, tmp_path):
    child = context.Process(target=save_beyond_the_limit, args=(tmp_path / "checkpoints", tmp_path / "errors"))
    child.start()
    assert end(child) == 3
    errors = (tmp_path / "errors").read_text()
    assert "checkpoint 2 could not be saved" in errors and "File too large" in errors and "Traceback" not in errors
    assert names(opened()) == ["1"]


def caused_by(error, cause):
    error.__cause__ = cause
    return error


TENSORSTORE = "OUT_OF_RANGE: Error writing \"x/0\": Failed writing: \"d/05a2\": Failed to write 9 bytes: File too large"


@pytest.mark.parametrize(("error", "reason"), [
    (ValueError(f"{TENSORSTORE} [os_error_code='27']"), "File too large"),
    (ValueError(f"{TENSORSTORE} [tensorstore_spec='{{\\\"a\\\": 1}}'] [os_error_code='27']"), "File too large"),
    (ValueError(f"{TENSORSTORE} [os_error_code='27'] [tensorstore_spec='{{\\\"a\\\": 1}}']"), "File too large"),
    (OSError(28, "No space left on device", "x"), "No space left on device"),
    (caused_by(ValueError("Orbax failed"), caused_by(RuntimeError(), OSError(122, "Disk quota exceeded"))),
     "Disk quota exceeded"),
    (ValueError("INTERNAL: it broke [tensorstore_spec='{}']"), "INTERNAL: it broke"),
    (ValueError("Several lines:\nthe last one"), "the last one"),
    (KeyError("x"), "KeyError: 'x'"), (ValueError(), "ValueError: no reason given"),
])
def test_reason_of_a_failed_write_is_that_of_the_system(error, reason):
    assert orbax.reason(error) == reason


# Two processes


def one_of_two(directory, port, index):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    jax.distributed.initialize(f"localhost:{port}", 2, index)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def layout(x):  # both mesh axes cut the kernel, so each process has half of it
        return NamedSharding(mesh, PartitionSpec("data", "tensor") if x.shape == (8, 16) else PartitionSpec())

    host = copied(make_state(1))
    state = jax.tree.map(lambda x: jax.make_array_from_callback(x.shape, layout(x), lambda i: x[i]), host)
    checkpoints = Checkpoints(directory)
    checkpoints.save(1, state, META)
    checkpoints.wait()
    checkpoints.save(2, state, META)
    checkpoints.wait()
    if index == 0:
        flip(checkpoints.directory / "2" / "_METADATA")
    assert checkpoints.newest() == 1  # process 0 looks, both know
    restored, meta = checkpoints.restore(1, abstract(host, layout))
    assert meta == META
    for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(host), strict=True):
        assert all(np.asarray(s.data).tobytes() == y[s.index].tobytes() for s in x.addressable_shards)
    if index == 0:
        files.seal = None  # calling it fails, on this process alone
    checkpoints.save(3, state, META)
    with pytest.raises(RunFault, match="checkpoint 3 could not be saved" if index == 0 else "on another process"):
        checkpoints.wait()
    checkpoints.close()


@pytest.mark.slow
def test_two_processes_save_and_restore_together(opened, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pair = [context.Process(target=one_of_two, args=(tmp_path / "checkpoints", port, i)) for i in range(2)]
    for child in pair:
        child.start()
    codes = [end(child) for child in pair]
    for child in pair:
        child.kill()
    assert codes == [0, 0]
    checkpoints = opened()
    assert checkpoints.newest() == 1
    assert_same_bits(checkpoints.read(1)[0]["params"], copied(make_state(1)["params"]))
