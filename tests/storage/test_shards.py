"""The format of checkpoints in stores: each process writes and reads parts of arrays."""

import uuid
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lmrep.core import object_store, remote
from lmrep.core.files import Damaged
from lmrep.storage import remote_workdir, shards
from lmrep.storage.manifests import array_type
from tests.storage import emulators

DTYPES = ["bool", "int4", "uint8", "int32", "uint32", "int64", "bfloat16", "float16", "float32", "float64",
          "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow),
                        pytest.param("gs", marks=pytest.mark.slow)])
def place(request, tmp_path, monkeypatch):
    """A place for arrays: `opened(types, grids)` gives `Arrays`, and `files` reads, replaces and removes files."""
    monkeypatch.setattr(shards, "FILE", 2**12)
    monkeypatch.setattr(shards, "CHUNK", 2**9)
    folder, emulator, spec = f"{tmp_path}/arrays", None, None
    url = str(tmp_path) if request.param == "file" else f"memory://{uuid.uuid4().hex}"
    if request.param in ("s3", "gs"):
        kind = emulators.S3 if request.param == "s3" else emulators.GoogleCloudStorage
        emulator, url = emulators.started(kind, tmp_path / "emulator"), f"{kind.url}/{uuid.uuid4().hex}"
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
    store = remote_workdir.open_store(url)
    if request.param == "file":
        yield SimpleNamespace(opened=lambda *cut: shards.Arrays(*cut, folder), files=store, emulator=None)
        return
    if emulator:
        store.names()
        spec = object_store.native(store)
        assert spec["driver"] == {"s3": "s3", "gs": "gcs"}[request.param]
    yield SimpleNamespace(opened=lambda *cut: shards.Arrays(*cut, "arrays", store, spec), files=store,
                          emulator=emulator)
    if emulator:
        emulator.stop()


def written(place, state):
    """Writes a state, and returns (its arrays, (their types, their grids))."""
    types, grids = ({path: of(x) for path, x in state.items()} for of in (array_type, shards.grid))
    arrays = place.opened(types, grids)
    for piece in shards.copied(state, grids).values():
        arrays.write(piece)
    return arrays, (types, grids)


def random(dtype, shape=(3, 50)):
    return np.random.default_rng(0).integers(0, 2, shape).astype(jnp.dtype(dtype))


def test_values_of_all_dtypes_and_shapes_come_back(place):
    state = {f"of/{dtype}": random(dtype) for dtype in DTYPES}
    state |= {"scalar": np.float32(3.5), "none": np.zeros((0, 3)), "zeros": np.zeros((64, 64)),
              "prime": np.arange(3001.0), "large": random("float32", (48, 53, 6))}
    arrays, (_, grids) = written(place, state)
    assert grids["prime"].block == [3001] and grids["large"].block == [12, 53, 1]
    for path, x in state.items():
        value = arrays.read(path)
        assert value.dtype == x.dtype and value.shape == x.shape and value.tobytes() == x.tobytes(), path
    np.testing.assert_array_equal(arrays.read("large", (slice(5, 20), slice(None), slice(2, 4))),
                                  state["large"][5:20, :, 2:4])
    assert not [name for name in place.files.names() if "none" in name]


def test_damage_is_an_error_and_names_the_file(place):
    _, cut = written(place, {"x": np.arange(2048.0).reshape(32, 64), "zeros": np.zeros(10)})
    assert len([name for name in place.files.names() if "/x/" in name]) == 4
    name = next(name for name in place.files.names() if "/x/c/0/1" in name)
    content = place.files.read(name)
    damaged = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1:] for at in (0, len(content) // 2, -5)]
    for change in (*damaged, content[:-1], content[:40], content[:3], None):
        if change is None:
            place.files.remove(name)
        else:
            place.files.write(name, change)
        for index in (None, (slice(0, 32), slice(33, 64))):
            with pytest.raises(Damaged, match="c/0/1"):
                place.opened(*cut).read("x", index)
        assert place.opened(*cut).read("x", (slice(0, 16), slice(0, 32))).sum()  # another file
    place.files.remove("arrays/zeros")
    with pytest.raises(Damaged):
        place.opened(*cut).read("zeros")


def test_store_that_refuses_is_no_damage(place):
    arrays, _ = written(place, {"x": np.zeros(10)})
    if place.emulator is None:
        pytest.skip("needs a server")
    for writes in (True, False):
        assert object_store.refusal(object_store.native(place.files), "probe", writes) == ""
    assert "probe" not in place.files.names()
    place.emulator.stop()
    for writes in (True, False):
        assert "connect" in object_store.refusal(object_store.native(place.files), "probe", writes)
    for action in (lambda: arrays.read("x"), lambda: arrays.write(shards.Piece("x", (slice(0, 10),), np.zeros(10)))):
        with pytest.raises(OSError, match="connect") as failure:
            action()
        assert remote._of_store(failure.value)
    place.emulator.start()
    assert arrays.read("x").sum() == 0


def test_denied_access_is_no_other_failure():
    """Of which a run retries for longer."""
    with pytest.raises(PermissionError, match=r"Error writing x: no$") as failure, object_store.errors():
        raise ValueError("PERMISSION_DENIED: Error writing x: no [tensorstore_spec='{}']")
    assert remote._denied(failure.value)


def test_shards_are_copied_once_and_before_they_change():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.device_put(np.arange(8.0), NamedSharding(mesh, PartitionSpec("data")))
    host = np.arange(3.0)
    state = {"x": x, "host": host, "empty": np.zeros(0)}
    grids = {path: shards.grid(value) for path, value in state.items()}
    pieces = shards.copied(state, grids)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x).block_until_ready()
    host += 1
    assert {piece.path: piece.value.tolist() for piece in pieces.values()} == {
        "x": list(range(8)), "host": [0, 1, 2]}


def test_another_mesh_reads_each_byte_about_once(tmp_path):
    """Of the chunks that its shards have a part in."""
    x = np.random.default_rng(0).random((1024, 2048), np.float32)
    grids = {"x": shards.grid(x)}
    arrays = shards.Arrays({"x": array_type(x)}, grids, str(tmp_path))
    for piece in shards.copied({"x": x}, grids).values():
        arrays.write(piece)

    def count() -> int:
        name = "/tensorstore/kvstore/file/bytes_read"
        return sum(value["value"] for metric in ts.experimental_collect_matching_metrics(name)
                   for value in metric["values"])

    for index in ((slice(256, 512), slice(None)), (slice(None), slice(512, 768)), (slice(512), slice(1024))):
        before = count()
        assert arrays.read("x", index).tobytes() == x[index].tobytes()
        assert x[index].nbytes <= count() - before < 1.01 * x[index].nbytes
