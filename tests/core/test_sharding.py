"""Layout of arrays: rules from logical axes to mesh axes, on eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lmrep.core import params as P
from lmrep.core import sharding
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec
from lmrep.core.sharding import make_mesh, partition_spec

slow = pytest.mark.slow
MESH = make_mesh(2, 2, 2)
SPECS = {
    "table": ParamSpec((8, 4), ("vocab", "embed")),
    "odd": ParamSpec((7, 4), ("vocab", "embed"), P.truncated_normal()),
    "layers": P.stacked({"in": ParamSpec((4, 6), ("embed", "mlp"), P.truncated_normal())}, 3),
    "none": {},
}


@pytest.mark.parametrize(("axes", "shape", "expected"), [
    (("batch", None, "embed"), (4, 3, 2), (("data", "fsdp"), None, "fsdp")),
    (("vocab", "embed"), (8, 4), ("tensor", "fsdp")),
    (("embed", "heads"), (4, 4), ("fsdp", "tensor")),
    (("layers", "mlp", "embed"), (3, 2, 2), (None, "tensor", "fsdp")),  # no rule names `layers`
    (("vocab", "embed"), (7, 4), (None, "fsdp")),  # what does not divide is replicated
    (("batch",), (6,), ("data",)),  # 6 examples on 4 devices
    (("batch",), (7,), (None,)),
    (("batch",), (8,), (("data", "fsdp"),)),
    ((None, "unheard of"), (2, 2), (None, None)),
    ((), (), ()),
])
def test_partition_follows_the_rules(axes, shape, expected):
    assert partition_spec(axes, shape, MESH) == PartitionSpec(*expected)


def test_shape_and_axes_must_have_equal_length():
    with pytest.raises(ValueError, match=r"shorter|longer"):
        partition_spec(("batch",), (4, 4), MESH)


def test_axes_with_the_most_communication_are_innermost():
    assert MESH.axis_names == ("data", "fsdp", "tensor")
    assert [d.id for d in MESH.devices.ravel()] == list(range(8))
    assert [d.id for d in make_mesh(1, 1, 2).devices.ravel()] == [0, 1]
    mesh = make_mesh(1, 2, 2, 2)
    assert mesh.axis_names == ("data", "fsdp", "tensor", "sequence")
    assert [[d.id for d in mesh.devices[0, 0, :, i]] for i in range(2)] == [[0, 1], [2, 3]]  # along `tensor`
    assert [d.id for d in mesh.devices[0, :, 0, 0]] == [0, 4]
    assert [d.id for d in make_mesh(2, devices=jax.devices()[4:6]).devices.ravel()] == [4, 5]


def test_slices_are_along_data(monkeypatch):
    monkeypatch.setattr(sharding, "slice_of", lambda device: device.id % 2)
    assert [d.id for d in make_mesh(4, 2).devices.ravel()] == [0, 2, 4, 6, 1, 3, 5, 7]
    with pytest.raises(UserError, match=r"mesh.data is 1, and the devices are in 2 slices; make it a multiple of 2"):
        make_mesh(1, 8)


@pytest.mark.parametrize(("axes", "shape", "expected"), [
    (("batch", "length", "heads", None), (4, 6, 2, 1), (("data", "fsdp"), "sequence", "tensor", None)),
    (("batch", "length", None), (4, 5, 1), (("data", "fsdp"), None, None)),
    (("tokens", None), (8, 1), (("data", "fsdp", "sequence"), None)),
    (("tokens", None), (6, 1), (("data", "fsdp"), None)),  # the first axes that divide it
])
def test_sequences_are_sharded_along_their_axis(axes, shape, expected):
    assert partition_spec(axes, shape, make_mesh(1, 2, 2, 2)) == PartitionSpec(*expected)


def test_shard_is_the_identity_without_a_mesh():
    x = jnp.ones((4, 4))
    assert sharding.shard(x, "batch", "embed") is x
    params = P.init(SPECS, jax.random.key(0))
    assert sharding.gather_params(params, SPECS)["table"] is params["table"]
    with pytest.raises(RuntimeError, match="inside"), sharding.use_mesh(MESH):
        raise RuntimeError("inside")
    assert sharding.shard(x, "batch", "embed") is x  # also after an exception


def test_shard_constrains_activations_without_changing_values():
    x = jnp.arange(32.0).reshape(4, 8)
    with sharding.use_mesh(MESH):
        sharded = jax.jit(lambda x: sharding.shard(x, "batch", "mlp"))(x)
    assert sharded.sharding.is_equivalent_to(NamedSharding(MESH, PartitionSpec(("data", "fsdp"), "tensor")), 2)
    assert np.array_equal(sharded, x)


@pytest.mark.parametrize(("sizes", "vocab"), [  # a tensor axis divides the vocabulary, or not
    ((2, 2, 2), 24), ((1, 2, 2, 2), 23), *(pytest.param(*case, marks=slow) for case in (
        ((2, 2, 2), 23), ((1, 8, 1), 24), ((1, 1, 1, 4), 24)))])
def test_lookups_and_their_gradients_do_not_depend_on_the_mesh(sizes, vocab):
    draw = np.random.default_rng(0)
    table, weights = draw.normal(size=(vocab, 16)), draw.normal(size=(8, 4, 16))
    ids = draw.integers(0, vocab, (8, 4))

    def loss(table):
        x = sharding.look_up(table, ids)
        return (x * weights).sum(), x

    mesh = make_mesh(*sizes)
    layout = sharding.shardings(ParamSpec((vocab, 16), ("vocab", "embed")), mesh)
    with sharding.use_mesh(mesh):
        gradient, x = jax.jit(jax.grad(loss, has_aux=True))(jax.device_put(np.float32(table), layout))
    np.testing.assert_allclose(x, np.float32(table)[ids])
    np.testing.assert_allclose(gradient, jax.grad(lambda table: loss(table)[0])(table), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("sizes", "batch"), [  # all devices have examples, half of them, or all have the same
    ((2, 2, 2), 8), ((1, 2, 2, 2), 3), pytest.param((2, 4, 1), 4, marks=slow), pytest.param((2, 2, 2), 3, marks=slow)])
def test_functions_of_examples_do_not_depend_on_the_mesh(sizes, batch):
    draw = np.random.default_rng(0)
    kernel, x, bias = (np.float32(draw.normal(size=shape)) for shape in ((8, 4), (batch, 6, 8), (4,)))

    def loss(kernel, x, bias):
        def f(kernel, x, bias, missing):
            y = jnp.tanh(sharding.shard(x @ kernel, "batch", "length", "mlp") + bias)
            return sharding.sum_shards((y**2).sum(), ("batch", "length"), (batch, 6)), y

        axes = ("embed", "mlp"), ("batch", "length", None), ("mlp",), ("batch",)
        total, y = sharding.map_examples(f, axes, ((1, 0), (1, 2)), kernel, x, bias, None)
        return total + y[0].sum(), y

    expected = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(kernel, x, bias)
    mesh = make_mesh(*sizes)
    layout = sharding.shardings(ParamSpec(kernel.shape, ("embed", "mlp")), mesh)
    with sharding.use_mesh(mesh):
        found = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(jax.device_put(kernel, layout), x, bias)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


def test_sharded_init_gives_the_same_parameters():
    layout = sharding.shardings(SPECS, MESH)
    assert layout["layers"]["in"].spec == PartitionSpec(None, "fsdp", "tensor")
    assert layout["none"] == {}
    with sharding.use_mesh(MESH):
        params = jax.jit(lambda key: P.init(SPECS, key), out_shardings=layout)(jax.random.key(3))
        gathered = jax.jit(lambda params: sharding.gather_params(params, SPECS))(params)
    assert {s.data.shape for s in params["layers"]["in"].addressable_shards} == {(3, 2, 3)}
    assert {s.data.shape for s in params["odd"].addressable_shards} == {(7, 2)}
    assert {s.data.shape for s in gathered["layers"]["in"].addressable_shards} == {(3, 4, 3)}  # over fsdp only
    assert {s.data.shape for s in gathered["table"].addressable_shards} == {(4, 4)}
    alone = P.init(SPECS, jax.random.key(3))
    jax.tree.map(lambda a, b, c: (np.testing.assert_allclose(b, a, rtol=1e-6), np.testing.assert_array_equal(c, b)),
                 alone, params, gathered)


def test_batches_are_sharded_by_example_and_scalars_replicated():
    numbers = jax.device_put(np.arange(8), sharding.batch_sharding(MESH))
    assert sorted(s.data.tolist() for s in numbers.addressable_shards) == sorted([[0, 1], [2, 3], [4, 5], [6, 7]] * 2)
    assert {s.data.shape for s in jax.device_put(np.ones(3), sharding.replicated(MESH)).addressable_shards} == {(3,)}
