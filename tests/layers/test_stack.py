"""A stack against a loop in numpy, under every execution."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.sharding import batch_sharding, make_mesh, shard, shardings, use_mesh
from lmrep.layers import dropout, linear, stack
from lmrep.layers.stack import REMAT, Execution
from lmrep.planning import flops
from tests import reference
from tests.cases import slow_after

D, L = 6, 3
LAYER = {"one": linear.specs(D, D, ("embed", None)), "two": linear.specs(D, D, ("embed", None))}
PARAMS = reference.random_params(stack.specs(LAYER, L), seed=10)
SHARED = PARAMS | {"one": jax.tree.map(lambda leaf: leaf[0], PARAMS["one"])}
COPIED = PARAMS | {"one": jax.tree.map(lambda leaf: np.stack([leaf[0]] * L), PARAMS["one"])}
X = np.random.default_rng(0).normal(size=(4, D)).astype(np.float32)
KEYS = jax.random.split(jax.random.key(0), L)
EXECUTIONS = [Execution(scan=scan, remat=remat) for scan, remat in (
    (True, "none"), (False, "none"), (True, "full"), (False, "dots"), (False, "full"), (True, "dots"))]
slow = pytest.mark.slow


def layer(p, x, key):
    inner = dropout.apply(key, jnp.tanh(linear.apply(p["one"], x)), 0.5)
    x = x + linear.apply(p["two"], inner)
    return x, (x.sum(-1), None)


def run(params, x, keys, execution=Execution(), shared=()):
    return stack.apply([layer] * L, params, LAYER, x, keys, shared, execution)


def loss(params, x, keys, execution=Execution(), shared=()):
    y, (sums, _) = run(params, x, keys, execution, shared)
    return jnp.square(y).sum() + (sums * jnp.arange(1.0, L + 1)[:, None]).sum()


@pytest.mark.parametrize("execution", EXECUTIONS[:4], ids=str)
def test_equals_the_loop(execution):
    y, (sums, no_output) = jax.jit(partial(run, execution=execution))(PARAMS, X, None)
    x, p = X.astype(np.float64), reference.float64(PARAMS)
    for i in range(L):
        one, two = (jax.tree.map(lambda leaf: leaf[i], p[name]) for name in ("one", "two"))  # noqa: B023
        x = x + reference.linear(two, np.tanh(reference.linear(one, x)))
        np.testing.assert_allclose(sums[i], x.sum(-1), atol=1e-5)
    np.testing.assert_allclose(y, x, atol=1e-5)
    assert no_output is None


@pytest.fixture(scope="module")
def expected():
    execution = EXECUTIONS[0]
    return {shared: jax.jit(jax.value_and_grad(partial(loss, execution=execution, shared=shared)))(params, X, KEYS)
            for shared, params in (((), PARAMS), (("one",), SHARED))}


@pytest.mark.parametrize("shared", [(), ("one",)], ids=["own", "shared"])
@pytest.mark.parametrize("execution", slow_after(1, [EXECUTIONS[2], EXECUTIONS[3], EXECUTIONS[1]]), ids=str)
def test_every_execution_gives_the_same_values_and_gradients_with_dropout(execution, shared, expected):
    f = jax.value_and_grad(partial(loss, execution=execution, shared=shared))
    value, grads = jax.jit(f)(SHARED if shared else PARAMS, X, KEYS)
    np.testing.assert_allclose(value, expected[shared][0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), grads, expected[shared][1])


def windowed(p, x, key, window):
    x, output = layer(p, x, key)
    return (x[:, :window].sum() + x if window else x), output  # a Python value, on which a layer may branch


@pytest.mark.parametrize(("pattern", "execution"), slow_after(1, [
    ((0, 2, 0, 2, 0), EXECUTIONS[2]), ((0, 2, 3), EXECUTIONS[0]), ((0, 2, 2) * 2 + (0,), EXECUTIONS[0])]), ids=str)
def test_layers_may_differ(pattern, execution):
    """They are scanned by periods, unrolled where none repeats, and compute what they do one after another."""
    kinds = {window: partial(windowed, window=window) for window in pattern}
    layers, specs = [kinds[window] for window in pattern], stack.specs(LAYER, len(pattern))
    params, keys = reference.random_params(specs, seed=1), jax.random.split(jax.random.key(1), len(pattern))

    def loss(params, run):
        y, (sums, _) = run(params)
        return jnp.square(y).sum() + (sums * jnp.arange(1.0, len(pattern) + 1)[:, None]).sum()

    def one_by_one(params):
        x, outputs = X, []
        for i, f in enumerate(layers):
            x, (sums, _) = f(jax.tree.map(lambda leaf: leaf[i], params), x, keys[i])  # noqa: B023
            outputs.append(sums)
        return x, (jnp.stack(outputs), None)

    found, expected = (jax.jit(jax.value_and_grad(partial(loss, run=run)))(params) for run in (
        lambda params: stack.apply(layers, params, LAYER, X, keys, execution=execution), one_by_one))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, expected)


def test_layers_have_different_parameters():
    """As ModernBERT's first layer, which has no norm before its attention."""
    trees = [{"one": LAYER["one"]}, LAYER]

    def run(p, x, given):
        return sum(x @ part["kernel"] + part["bias"] for part in p.values()), None

    params = reference.random_params(stack.specs(trees, 2), seed=1)
    y, _ = stack.apply([run] * 2, params, trees, X, None)
    np.testing.assert_allclose(y, run(params["1"], run(params["0"], X, None)[0], None)[0], rtol=1e-5, atol=1e-5)


def test_periods_are_compiled_once():
    layers = [partial(windowed, window=0), partial(windowed, window=2)]
    sizes = [len(str(jax.make_jaxpr(lambda params, n=n: stack.apply(
        layers * n, params, LAYER, X, None, execution=Execution(scan=True))[0])(
            reference.random_params(stack.specs(LAYER, 2 * n), seed=1)))) for n in (4, 8)]
    assert sizes[1] < 1.3 * sizes[0]


def test_layers_have_different_masks():
    def masks(p, x, key):
        return x, dropout.apply(key, jnp.ones((64, 64)), 0.5)

    _, masks_drawn = stack.apply([masks] * L, PARAMS, LAYER, X, KEYS, execution=Execution(scan=True))
    assert all(0.4 < (masks_drawn[i] == masks_drawn[j]).mean() < 0.6 for i in range(L) for j in range(i))
    _, unrolled = stack.apply([masks] * L, PARAMS, LAYER, X, KEYS, execution=Execution(scan=False))
    np.testing.assert_array_equal(masks_drawn, unrolled)


def test_shared_parameters_are_there_once():
    specs = stack.specs(LAYER, L, ("one",))
    assert specs["one"]["kernel"].shape == (D, D)
    assert specs["two"]["kernel"].shape == (L, D, D)
    assert P.count(specs) == (1 + L) * (D * D + D)
    assert P.count(stack.specs(LAYER, L)) == 2 * L * (D * D + D)
    assert P.count(stack.specs(LAYER, L, ("one", "two"))) == P.count(stack.specs(LAYER, 30, ("one", "two")))


def test_shared_parameters_equal_copied_ones(expected):
    value, grads = jax.jit(jax.value_and_grad(loss))(COPIED, X, KEYS)
    shared_value, shared_grads = expected["one",]
    np.testing.assert_allclose(shared_value, value, rtol=1e-6)
    assert not np.isclose(value, expected[()][0], rtol=1e-3)  # with layers of their own it is another function
    summed = grads | {"one": jax.tree.map(lambda leaf: leaf.sum(0), grads["one"])}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), shared_grads, summed)


@pytest.mark.parametrize("shared", [("one", "two")])
@pytest.mark.parametrize("scan", [True, False])
def test_all_parameters_can_be_shared(scan, shared):
    params = jax.tree.map(lambda leaf: leaf[0], PARAMS)
    y, (sums, _) = run(params, X, None, Execution(scan=scan), shared)
    assert sums.shape == (L, 4)
    np.testing.assert_allclose(y.sum(-1), sums[-1], rtol=1e-5)


@pytest.mark.parametrize("scan", [True, False])
def test_rematerialisation_recomputes_what_is_configured(scan):
    """Counted in products: `full` computes a layer twice, `dots` keeps every product, `none` keeps everything."""
    ways = {remat: partial(loss, execution=Execution(scan=scan, remat=remat)) for remat in REMAT}
    products = {remat: flops.count(jax.grad(f), PARAMS, X, None) for remat, f in ways.items()}
    forward = L * 2 * (2 * 4 * D * D)
    assert products["none"] == products["dots"]
    assert products["none"] in (3 * forward, 3 * forward - 2 * 4 * D * D)  # unrolled, nothing asks for x's gradient
    assert products["none"] + forward // 2 <= products["full"] <= products["none"] + forward


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gathered_weights_are_not_kept_for_the_backward_pass(dtype):
    """Under fsdp each device would otherwise hold all of them at the end of the forward pass."""
    d, layers, mesh = 256, 16, make_mesh(1, 8)
    spec = {"kernel": P.ParamSpec((d, d), ("embed", None))}
    with use_mesh(mesh):
        params = jax.tree.map(lambda s, sharding: jax.ShapeDtypeStruct(s.shape, jnp.float32, sharding=sharding),
                              stack.specs(spec, layers), shardings(stack.specs(spec, layers), mesh), is_leaf=P.is_spec)

        def total(params, x):
            def layer(p, x, key):
                return shard(jnp.tanh(x @ p["kernel"].astype(dtype)), "batch", None, None), None
            y, _ = stack.apply([layer] * layers, params, spec, x, None, execution=Execution(scan=True))
            return y.astype(jnp.float32).sum()

        x = jax.ShapeDtypeStruct((8, 4, d), dtype, sharding=batch_sharding(mesh))
        compiled = jax.jit(jax.grad(total)).lower(params, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < layers * d * d * jnp.dtype(dtype).itemsize
