"""Losses of an output table: label smoothing and the z-loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.params import init
from lmrep.layers import lm_head
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.objectives import outputs
from tests.cases import slow_after

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("smoothing", "z_loss", "bias", "chunks"), slow_after(1, [
    (0.3, 0.02, True, 3), (0.0, 0.01, False, 1)]))
def test_smoothing_and_z_loss_equal_their_definitions(smoothing, z_loss, bias, chunks, monkeypatch):
    """Value and gradients of the loss that is written out with all logits."""
    monkeypatch.setattr(lm_head, "_num_chunks", lambda b, t, v: chunks)
    definition = MODELS["transformer"]
    model = definition.build(definition.config(vocab=13, layers=1, width=8, heads=2, mlp=8), Execution(), "model")
    params = init(model.specs, jax.random.key(0))
    params["embedding"]["token"] = 3 * jax.random.normal(jax.random.key(1), (13, 8))
    head = {"bias": jnp.asarray(RNG.normal(size=13), jnp.float32)} if bias else {}
    x = jnp.asarray(RNG.normal(size=(2, 5, 8)), jnp.float32)
    targets, weights = jnp.asarray(RNG.integers(13, size=(2, 5))), jnp.asarray(RNG.uniform(size=(2, 5)), jnp.float32)

    def loss(params, head, x, weights):
        return outputs.smoothed_cross_entropy(
            model, params, head, x, targets, weights, label_smoothing=smoothing, z_loss=z_loss)[0]

    def by_definition(params, head, x, weights):
        logits = jnp.einsum("bte,ve->btv", x, params["embedding"]["token"]) + head.get("bias", 0)
        distribution = (1 - smoothing) * jax.nn.one_hot(targets, 13) + smoothing / 13
        nll = -(distribution * jax.nn.log_softmax(logits)).sum(-1)
        return (weights * (nll + z_loss * jnp.square(jax.nn.logsumexp(logits, -1)))).sum()

    arguments = (params, head, x, weights)
    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*arguments)
    expected, expected_gradients = jax.jit(jax.value_and_grad(by_definition, (0, 1, 2, 3)))(*arguments)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradients, expected_gradients)
