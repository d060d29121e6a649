"""A checkpoint is complete or absent; damaged ones are refused; restored arrays equal the saved ones, to the bit."""

import errno
import json
import os
import pickle
import shutil
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from lmrep.core import files
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import signed

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
    layout = sharding or (lambda x: SingleDeviceSharding(jax.devices()[0]))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout(x)), tree)


def assert_same_bits(tree, expected):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def names(checkpoints):
    return sorted(p.name for p in checkpoints.directory.iterdir())


def test_saved_state_is_safe_from_donation(opened):
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


def test_a_directory_that_denies_new_ones_is_a_fault_before_orbax_starts(opened, monkeypatch):
    """Of an immutable directory or a quota; threads of Orbax would wait for ten minutes."""
    checkpoints, mkdir = opened(), Path.mkdir

    def deny(path, *args, **kwargs):
        if path.name.startswith(".unfinished-"):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", deny)
    monkeypatch.setattr(checkpoints._orbax, "save", lambda *_, **__: pytest.fail("Orbax was called"))
    with pytest.raises(RunFault, match=r"checkpoint 5 could not be saved in .*: Operation not permitted"):
        checkpoints.save(5, make_state(5), META)


def test_special_float_values_keep_their_bits(opened):
    checkpoints = opened()
    bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001], np.uint32)  # a NaN, -inf, -0, the least subnormal
    checkpoints.save(1, {"x": bits.view(np.float32)}, {})
    checkpoints.wait()
    assert checkpoints.read(1)[0]["x"].tobytes() == bits.tobytes()


def test_reads_full_or_partial_state_without_a_target(opened):
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
    params, _ = checkpoints.restore(5, abstract(state["params"]), part="params")
    assert_same_bits(copied(params), copied(state["params"]))
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


def test_state_restores_from_one_device_to_eight_and_back(opened):
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def layout(x):
        return NamedSharding(mesh, PartitionSpec("fsdp", "tensor") if x.shape == (8, 16) else PartitionSpec())

    checkpoints, expected = opened(), copied(make_state(1))
    checkpoints.save(1, make_state(1), META)
    checkpoints.wait()
    state, meta = checkpoints.restore(1, abstract(make_state(0), layout))
    assert state["params"]["encoder"]["kernel"].addressable_shards[3].data.shape == (2, 8)
    assert_same_bits(copied(state), expected)
    checkpoints.save(2, state, meta)
    jax.block_until_ready(jax.jit(lambda s: jax.tree.map(lambda x: 0 * x, s), donate_argnums=0)(state))
    checkpoints.wait()
    restored, meta = checkpoints.restore(2, abstract(make_state(0)))
    assert meta == META and len(restored["params"]["encoder"]["kernel"].addressable_shards) == 1
    assert_same_bits(copied(restored), expected)


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


def test_missing_checkpoints_and_scores_are_none(opened):
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


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_damage_to_any_file_skips_and_names_the_checkpoint(opened, caplog, tmp_path, damage):
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


def test_manifest_with_fields_of_other_types_is_damaged(opened, caplog):
    checkpoints = opened()
    for step in (1, 2):
        checkpoints.save(step, make_state(step), {})
    checkpoints.wait()
    path = checkpoints.directory / "2/manifest.json"
    intact = json.loads(path.read_text())
    del intact["sha256"]
    for field, value in (
            ("files", []), ("files", {"a": [1]}), ("files", {"a": ["x", ""]}), ("step", "1"), ("score", "x"),
            ("meta", []), ("arrays", {"params/w": 3}), ("arrays", {"params/w": "float33[2]"}),
            ("arrays", {"params/w": "float32[2"})):
        caplog.clear()
        path.write_text(json.dumps(signed(intact | {field: value})))
        assert checkpoints.newest() == 1 and "checkpoint 2" in caplog.text, (field, value)
        with pytest.raises(RunFault, match=r"checkpoint 2 .*cannot be used: .*manifest"):
            checkpoints.read(2)
    path.write_text(json.dumps(signed(intact)))
    assert checkpoints.newest() == 2


def test_empty_or_a_copied_directory_is_not_a_checkpoint(opened, caplog):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    (checkpoints.directory / "9").mkdir()
    shutil.copytree(checkpoints.directory / "1", checkpoints.directory / "8")
    (checkpoints.directory / "notes").mkdir()
    assert checkpoints.steps() == [1, 8] and checkpoints.newest() == 1
    assert "checkpoint 9" not in caplog.text
    assert "checkpoint 8" in caplog.text and "copy of checkpoint 1" in caplog.text
    with caplog.at_level("INFO", "lmrep"):
        checkpoints.clean()
    assert f"removed {checkpoints.directory / '9'}, an empty directory" in caplog.text
    assert {path.name for path in checkpoints.directory.iterdir()} == {"1", "8", "notes"}


def test_empty_directories_alone_do_not_let_a_run_start_over(opened):
    checkpoints = opened()
    (checkpoints.directory / "9").mkdir(parents=True)
    checkpoints.clean()
    assert checkpoints.steps() == [9]
    with pytest.raises(RunFault, match=r"none of the checkpoints .*will not start over"):
        checkpoints.newest()


def test_refuses_to_start_over_where_no_checkpoint_verifies(opened):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    flip(checkpoints.directory / "1" / "_METADATA")
    with pytest.raises(RunFault, match=r"none of the checkpoints .*_METADATA has changed.*will not start over"):
        checkpoints.newest()


def test_damaged_checkpoints_do_not_displace_valid_ones(opened):
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


def test_clean_removes_entries_that_are_not_checkpoints(opened, tmp_path):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    folder = checkpoints.directory
    shutil.copytree(folder / "1", folder / ".unfinished-7")  # undamaged, but of another step
    shutil.copytree(folder / "1", folder / ".unfinished-abc")
    for name in (".unfinished-", ".unfinished-007", ".unfinished-" + "9" * 200, ".removed-70", ".removed-x"):
        (folder / name).mkdir()
    for name in (".unfinished-8", ".removed-80"):
        (folder / name).write_text("")
    (tmp_path / "elsewhere").mkdir()
    for name in (".unfinished-9", ".removed-90"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    for name in ("12", "notes"):
        (folder / name).write_text("")
    checkpoints.clean()
    assert names(checkpoints) == ["1", "12", "notes"] and (tmp_path / "elsewhere").is_dir()
    assert checkpoints.newest() == 1


def test_file_in_place_of_a_checkpoint_is_replaced(opened):
    checkpoints = opened()
    checkpoints.directory.mkdir()
    for name in ("2", ".unfinished-2", ".removed-2"):
        (checkpoints.directory / name).write_text("")
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert checkpoints.newest() == 2 and names(checkpoints) == ["2"]


def test_file_in_place_of_the_directory_is_an_error(opened):
    checkpoints = opened()
    checkpoints.directory.write_text("")
    checkpoints.clean()
    with pytest.raises(RunFault, match=r"checkpoint 1 could not be saved in .*: File exists"):
        checkpoints.save(1, make_state(1), {})


# A full disk


def test_full_disk_is_reported_before_writing(opened, monkeypatch):
    checkpoints = opened()
    checkpoints.save(1, make_state(1), {})
    checkpoints.wait()
    usage = shutil.disk_usage(checkpoints.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=9_000_000))
    big = {"x": np.zeros(2_500_000, np.float32)}
    with pytest.raises(RunFault, match=r"2 .*No space left.*needs 10 MB; 9 MB .*Checkpoint 1 is untouched"):
        checkpoints.save(2, big, {})
    assert names(checkpoints) == ["1"] and checkpoints.newest() == 1


def test_failed_background_save_is_reported_by_wait_or_the_next_save(opened, monkeypatch):
    checkpoints = opened()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for report in (checkpoints.wait, lambda: checkpoints.save(3, make_state(3), {})):
        with monkeypatch.context() as patch:
            patch.setattr(files, "seal", full)
            checkpoints.save(2, make_state(2), {})
            with pytest.raises(RunFault, match=r"checkpoint 2 .*No space left.*There is no earlier checkpoint"):
                report()
        assert names(checkpoints) == []
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert checkpoints.newest() == 2
