"""Models as Flax modules: the same vectors and the same gradients as the pure function, and training in one's own."""

import runpy
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lmrep.core import params as P
from lmrep.interop import modules
from lmrep.layers.attention import AttentionMask
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.models.transformer import Config
from tests import runs

MODEL = transformer.build(Config(vocab=30, width=12, layers=1, heads=3, mlp=20, max_length=10, dropout=0.5))
PARAMS = P.init(MODEL.specs, jax.random.key(3))
INPUTS = Inputs(tokens=jnp.arange(16).reshape(2, 8), attention_mask=AttentionMask(jnp.ones((2, 8), jnp.int32)))
KEY = jax.random.key(7)
EXAMPLES = sorted((Path(__file__).parents[2] / "experiments/examples").glob("*.py"))


def score(hidden):
    return jnp.square(hidden).sum() + hidden[:, 0, 0].sum()


@pytest.fixture(scope="module")
def expected():
    """(hidden states, gradients) of the pure function."""
    def f(params):
        hidden = MODEL.encode(params, INPUTS).hidden
        return score(hidden), hidden

    grads, hidden = jax.jit(jax.grad(f, has_aux=True))(PARAMS)
    return hidden, grads


def equal(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), a, b)


def test_linen_module_equals_the_pure_function(expected):
    module = modules.linen(MODEL, PARAMS)
    variables = jax.jit(module.init)(jax.random.key(0), INPUTS)
    equal(variables["params"]["encoder"], PARAMS)

    def f(variables):
        hidden = module.apply(variables, INPUTS).hidden
        return score(hidden), hidden

    grads, hidden = jax.jit(jax.grad(f, has_aux=True))(variables)
    equal((hidden, grads["params"]["encoder"]), expected)


def test_nnx_module_equals_the_pure_function(expected):
    module = modules.nnx(MODEL, PARAMS)

    @nnx.jit
    def f(module):
        def loss(module):
            hidden = module(INPUTS).hidden
            return score(hidden), hidden

        return nnx.grad(loss, has_aux=True)(module)

    grads, hidden = f(module)
    equal((hidden, nnx.to_pure_dict(grads)["params"]), expected)


@pytest.mark.slow
def test_dropout_is_applied_on_request():
    linen, other = modules.linen(MODEL, PARAMS), modules.nnx(MODEL, PARAMS)
    noise = jax.jit(lambda variables, key: linen.apply(
        variables, INPUTS, deterministic=False, rngs={"dropout": key}).hidden)
    variables = jax.jit(linen.init)(KEY, INPUTS)
    plain = jax.jit(linen.apply)(variables, INPUTS).hidden
    noisy = [noise(variables, jax.random.key(i)) for i in (0, 0, 1)]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert not np.allclose(noisy[0], noisy[2]) and not np.allclose(noisy[0], plain)
    rngs = nnx.Rngs(dropout=0)
    draw = nnx.jit(lambda module, rngs: module(INPUTS, rngs=rngs).hidden)
    drawn = [draw(other, rngs) for _ in range(2)]
    assert not np.allclose(*drawn)
    assert np.allclose(nnx.jit(lambda module: module(INPUTS).hidden)(other), plain, atol=1e-6)


@pytest.mark.slow
def test_modules_without_weights_initialize_their_own():
    fresh = jax.jit(modules.linen(MODEL).init)(KEY, INPUTS)["params"]["encoder"]
    drawn = nnx.to_pure_dict(nnx.state(modules.nnx(MODEL, rngs=nnx.Rngs(0)), nnx.Param))["params"]
    for tree in (fresh, drawn):
        assert jax.tree.map(jnp.shape, tree) == jax.tree.map(jnp.shape, PARAMS)
        assert np.std(tree["embedding"]["token"]) == pytest.approx(0.0176, rel=0.2)  # 0.02, cut at two deviations
    with pytest.raises(ValueError, match="give the parameters, or rngs"):
        modules.nnx(MODEL)


@pytest.mark.slow
def test_layers_and_attention_are_returned_on_request():
    linen = modules.linen(MODEL, PARAMS)
    encoded = jax.jit(lambda: linen.apply(linen.init(KEY, INPUTS), INPUTS, layers=True, attention=True))()
    also = nnx.jit(lambda module: module(INPUTS, layers=True, attention=True))(modules.nnx(MODEL, PARAMS))
    assert np.stack(encoded.layers).shape == (2, 2, 8, 12) and encoded.attention.shape == (1, 2, 3, 8, 8)
    equal(np.stack(encoded.layers), np.stack(also.layers))


def test_parameters_of_the_run_are_not_changed():
    """Training in another's program updates a copy, even where it donates its buffers."""
    module = modules.nnx(MODEL, PARAMS)
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(
        nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(PARAMS))


@pytest.mark.slow
def test_module_is_a_submodule_with_its_weights():
    class Outer(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            return nn.Dense(2)(modules.linen(MODEL, PARAMS)(inputs).hidden[:, 0])

    variables = jax.jit(Outer().init)(KEY, INPUTS)
    equal(variables["params"]["LinenEncoder_0"]["encoder"], PARAMS)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_learn(example, monkeypatch, capsys):
    assert len(example.read_text().splitlines()) < 40
    monkeypatch.setattr(sys, "argv", [str(example), str(runs.folder("masked") / "run")])
    runpy.run_path(str(example), run_name="__main__")
    output = capsys.readouterr().out
    assert output.startswith("loss ") and float(output.split()[1].rstrip(";")) < 0.7
