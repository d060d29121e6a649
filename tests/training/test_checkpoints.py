"""A checkpoint is whole or not there; a damaged one is not believed; what is restored is what was saved, to the bit."""

import errno
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import socket
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from lmrep.core.errors import RunFault, UserError
from lmrep.training import workdir
from lmrep.training.checkpoints import Checkpoints

# Children start from a server that has imported what is slow to import, before any of it started a thread.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["jax", "flax", "orbax.checkpoint", "pytest", "rich.live"])

Moments = namedtuple("Moments", "count mu")
META = {"position": [3, 17], "rate": 0.1}


def make_state(seed):
    """A state with every kind of node and leaf that a training state has."""
    draw = np.random.default_rng(seed)
    encoder = {"kernel": draw.normal(size=(8, 16)), "bias": draw.normal(size=16)}
    params = {"encoder": encoder, "head": draw.normal(size=4)}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    return {
        "step": jnp.int32(seed),
        "params": params,
        "opt_state": (Moments(jnp.int32(seed), jax.tree.map(lambda x: x * x, params)), (), None),
        "carry": {"half": jnp.asarray(draw.normal(size=(4, 2)), jnp.bfloat16), "none": jnp.zeros((0, 3), jnp.float16)},
    }


def copied(tree):
    return jax.tree.map(lambda x: np.array(x), tree)


def abstract(tree, sharding=None):
    place = sharding or (lambda x: SingleDeviceSharding(jax.devices()[0]))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place(x)), tree)


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.fixture
def opened(tmp_path):
    """Makes `Checkpoints` in one directory, and closes them."""
    made = []

    def make(**options):
        made.append(Checkpoints(tmp_path / "checkpoints", **options))
        return made[-1]

    yield make
    for checkpoints in made:
        checkpoints.close()


def names(checkpoints):
    return sorted(p.name for p in checkpoints.directory.iterdir())


def test_restores_what_was_saved_although_the_caller_donates_it_at_once(opened):
    checkpoints = opened()
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    state, expected = step(make_state(0)), {}
    for number in (1, 2):
        expected[number] = copied(state)
        checkpoints.save(number, state, META)
        for _ in range(3):
            state = step(state)
    checkpoints.wait()
    for number in (1, 2):
        restored, meta = checkpoints.restore(number, abstract(state))
        assert_same_bits(copied(restored), expected[number])
        assert meta == META and checkpoints.meta(number) == META


def test_values_that_are_not_numbers_keep_their_bits(opened):
    checkpoints = opened()
    bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001], np.uint32)  # a NaN, -inf, -0, the least subnormal
    checkpoints.save(1, {"x": bits.view(np.float32)}, {})
    checkpoints.wait()
    assert checkpoints.read(1)[0]["x"].tobytes() == bits.tobytes()


def test_reads_all_or_a_part_without_a_target(opened):
    checkpoints, state = opened(), make_state(5)
    checkpoints.save(5, state, META)
    checkpoints.wait()
    tree, meta = checkpoints.read(5)
    assert meta == META
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(tree))
    assert_same_bits(tree["params"], copied(state["params"]))
    assert_same_bits(tree["carry"], copied(state["carry"]))
    assert_same_bits(tree["opt_state"]["0"]["mu"], copied(state["opt_state"][0].mu))
    assert_same_bits(checkpoints.read(5, "params/encoder")[0], copied(state["params"]["encoder"]))
    part, _ = checkpoints.restore(5, abstract(state["params"]), part="params")
    assert_same_bits(copied(part), copied(state["params"]))
    with pytest.raises(UserError, match="has no 'param'; at its top it has carry, opt_state, params, step"):
        checkpoints.read(5, "param")


def test_nothing_is_unpickled(opened, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    checkpoints, state = opened(), make_state(1)
    checkpoints.save(1, state, META)
    checkpoints.wait()
    assert_same_bits(copied(checkpoints.restore(1, abstract(state))[0]), copied(state))
    checkpoints.read(1)


def test_names_every_entry_that_does_not_fit(opened):
    checkpoints, state = opened(), make_state(1)
    checkpoints.save(1, state, {})
    checkpoints.wait()
    target = abstract(state)
    target["params"]["new"] = jax.ShapeDtypeStruct((2, 3), jnp.int8)
    del target["params"]["head"]
    target["params"]["encoder"]["bias"] = jax.ShapeDtypeStruct((16,), jnp.bfloat16)
    target["params"]["encoder"]["kernel"] = jax.ShapeDtypeStruct((8, 17), jnp.float32)
    with pytest.raises(UserError) as refused:
        checkpoints.restore(1, target)
    assert str(refused.value).split("\n  ")[1:] == [
        "missing in the checkpoint: params/new int8[2,3]",
        "only in the checkpoint: params/head float32[4]",
        "differs: params/encoder/bias is float32[16] in the checkpoint, bfloat16[16] in this run",
        "differs: params/encoder/kernel is float32[8,16] in the checkpoint, float32[8,17] in this run",
    ]


def test_keeps_the_newest_and_the_best(opened):
    checkpoints = opened(keep=2, keep_best=1)
    for step, score in enumerate([float("nan"), 1.0, 2.0, 3.0, None, 5.0]):
        checkpoints.save(step, make_state(step), {}, score)
    checkpoints.wait()
    assert names(checkpoints) == ["1", "4", "5"]
    assert (checkpoints.newest(), checkpoints.best()) == (5, 1)
    highest = opened(keep=1, keep_best=2, best="max")
    assert highest.best() == 5
    highest.save(6, make_state(6), {}, 4.0)
    highest.wait()
    assert names(highest) == ["5", "6"]
    assert highest.steps() == [5, 6]


def test_there_may_be_no_checkpoint_and_no_score(opened):
    checkpoints = opened()
    checkpoints.clean()
    assert (checkpoints.steps(), checkpoints.newest(), checkpoints.best()) == ([], None, None)
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    assert (checkpoints.newest(), checkpoints.best()) == (1, None)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_damaged_checkpoint_is_skipped_and_named_whatever_file_it_is(opened, caplog, tmp_path, damage):
    checkpoints = opened()
    for step in (1, 2):
        checkpoints.save(step, make_state(step), {}, score=-step)
    checkpoints.wait()
    intact = shutil.copytree(checkpoints.directory / "2", tmp_path / "intact")
    files = [p.relative_to(intact) for p in intact.rglob("*") if p.is_file()]
    assert {"manifest.json", "manifest.ocdbt", "_METADATA"} < {p.name for p in files}
    for file in files:
        caplog.clear()
        damage(checkpoints.directory / "2" / file)
        assert checkpoints.newest() == checkpoints.best() == 1
        assert "checkpoint 2" in caplog.text and str(file) in caplog.text
        with pytest.raises(RunFault, match=r"checkpoint 2 .*cannot be used"):
            checkpoints.restore(2, abstract(make_state(2)))
        with pytest.raises(RunFault, match=r"checkpoint 2 .*cannot be used"):
            checkpoints.read(2)
        shutil.copy(intact / file, checkpoints.directory / "2" / file)
    caplog.clear()
    assert checkpoints.newest() == 2 and not caplog.records


def test_an_empty_or_a_copied_directory_is_not_a_checkpoint(opened, caplog):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    (checkpoints.directory / "9").mkdir()
    shutil.copytree(checkpoints.directory / "1", checkpoints.directory / "8")
    (checkpoints.directory / "notes").mkdir()
    assert checkpoints.newest() == 1
    assert "checkpoint 9" in caplog.text and "checkpoint 8" in caplog.text and "copy of checkpoint 1" in caplog.text


def test_refuses_to_start_over_where_no_checkpoint_verifies(opened):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    flip(checkpoints.directory / "1" / "_METADATA")
    with pytest.raises(RunFault, match=r"none of the checkpoints .*_METADATA has changed.*will not start over"):
        checkpoints.newest()


def test_later_damaged_checkpoints_push_no_whole_one_out_and_are_replaced(opened):
    checkpoints = opened(keep=1, keep_best=0)
    for step in (2, 3):
        checkpoints.save(step, make_state(step), {})
    checkpoints.wait()
    flip(checkpoints.directory / "3" / "_METADATA")
    checkpoints.save(1, make_state(1), {})  # the run went back to an earlier state and comes by again
    checkpoints.wait()
    assert checkpoints.newest() == 1
    checkpoints.save(3, make_state(30), {})
    checkpoints.wait()
    assert names(checkpoints) == ["3"] and checkpoints.read(3)[0]["step"] == 30


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
    "when Orbax is done": (lambda: kill_at(workdir, "seal"), 1, 1),
    "in the middle of the manifest": (lambda: kill_at(os, "replace"), 1, 1),
    "before the rename": (lambda: kill_at(Checkpoints, "_put_in_place"), 1, 2),
    "after the rename": (lambda: kill_at(Checkpoints, "_retire"), 2, 2),
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
    child.join(60)
    return child.exitcode


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_the_middle_of_a_save(opened, tmp_path, point):
    child = processes.Process(target=save_and_be_killed, args=(tmp_path / "checkpoints", point))
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


def test_killed_while_the_only_checkpoint_is_replaced(opened, tmp_path):
    child = processes.Process(target=replace_and_be_killed, args=(tmp_path / "checkpoints",))
    child.start()
    assert end(child) == -signal.SIGKILL
    checkpoints = opened()
    checkpoints.clean()
    assert names(checkpoints) == ["1"] and checkpoints.newest() == 1 and checkpoints.read(1)[0]["step"] == 10


# A full disk


def test_a_disk_without_room_is_told_before_anything_is_written(opened, monkeypatch):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    usage = shutil.disk_usage(checkpoints.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=9_000_000))
    big = {"x": np.zeros(2_500_000, np.float32)}
    with pytest.raises(RunFault, match=r"2 .*No space left.*needs 10\.00 MB; 9\.00 MB .*Checkpoint 1 is untouched"):
        checkpoints.save(2, big, {})
    assert names(checkpoints) == ["1"] and checkpoints.newest() == 1


def test_a_disk_that_fills_up_in_the_background_is_told_by_wait_or_the_next_save(opened, monkeypatch):
    checkpoints = opened()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for told in (checkpoints.wait, lambda: checkpoints.save(3, make_state(3), {})):
        with monkeypatch.context() as patch:
            patch.setattr(workdir, "seal", full)
            checkpoints.save(2, make_state(2), {})
            with pytest.raises(RunFault, match=r"checkpoint 2 .*No space left.*There is no earlier checkpoint"):
                told()
        assert names(checkpoints) == []
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert checkpoints.newest() == 2


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


def test_a_write_that_the_system_refuses_is_one_message(opened, tmp_path):
    child = processes.Process(target=save_beyond_the_limit, args=(tmp_path / "checkpoints", tmp_path / "errors"))
    child.start()
    assert end(child) == 3
    told = (tmp_path / "errors").read_text()
    assert "checkpoint 2 could not be saved" in told and "File too large" in told and "Traceback" not in told
    assert names(opened()) == ["1"]


# Other devices, other processes


def on_eight_devices(source, target):
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def layout(x):
        return NamedSharding(mesh, PartitionSpec("fsdp", "tensor") if x.shape == (8, 16) else PartitionSpec())

    state, meta = Checkpoints(source).restore(1, abstract(make_state(0), layout))
    assert len(jax.devices()) == 8 and state["params"]["encoder"]["kernel"].addressable_shards[3].data.shape == (2, 8)
    assert_same_bits(copied(state), copied(make_state(1)))
    checkpoints = Checkpoints(target)
    checkpoints.save(1, state, meta)
    jax.block_until_ready(jax.jit(lambda s: jax.tree.map(lambda x: 0 * x, s), donate_argnums=0)(state))
    checkpoints.close()


def test_one_device_to_eight_and_back(opened, tmp_path):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), META)
    checkpoints.wait()
    child = processes.Process(target=on_eight_devices, args=(checkpoints.directory, tmp_path / "sharded"))
    child.start()
    assert end(child) == 0
    back = Checkpoints(tmp_path / "sharded")
    restored, meta = back.restore(1, abstract(make_state(0)))
    back.close()
    assert meta == META
    assert_same_bits(copied(restored), copied(make_state(1)))


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
        workdir.seal = None  # calling it fails, on this process alone
    checkpoints.save(3, state, META)
    with pytest.raises(RunFault, match="checkpoint 3 could not be saved" if index == 0 else "on another process"):
        checkpoints.wait()
    checkpoints.close()


def test_two_processes_save_and_restore_together(opened, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pair = [processes.Process(target=one_of_two, args=(tmp_path / "checkpoints", port, i)) for i in range(2)]
    for child in pair:
        child.start()
    codes = [end(child) for child in pair]
    for child in pair:
        child.kill()
    assert codes == [0, 0]
    checkpoints = opened()
    assert checkpoints.newest() == 1
    assert_same_bits(checkpoints.read(1)[0]["params"], copied(make_state(1)["params"]))
