"""Batch normalization against PyTorch: outputs and running statistics over several batches, and in evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import batch_norm

torch = pytest.importorskip("torch")


def test_running_statistics_are_those_of_pytorch():
    d, draw = 7, np.random.default_rng(0)
    scale, bias = draw.normal(size=(2, d)).astype(np.float32)
    reference = torch.nn.BatchNorm1d(d)
    reference.weight.data, reference.bias.data = torch.tensor(scale), torch.tensor(bias)
    params, running = {"scale": jnp.asarray(scale), "bias": jnp.asarray(bias)}, batch_norm.statistics(d)
    apply = jax.jit(batch_norm.apply, static_argnames="training")
    for rows in (4, 9, 5, 9, 6):
        x = draw.normal(1, 2, (rows, d)).astype(np.float32)
        padded, mask = np.pad(x, ((0, 9 - rows), (0, 0)), constant_values=100), np.arange(9) < rows
        y, running = apply(params, running, padded, mask, training=True)
        with torch.no_grad():
            np.testing.assert_allclose(y[:rows], reference(torch.tensor(x)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(running["mean"], reference.running_mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(running["variance"], reference.running_var, rtol=1e-6)
    reference.eval()
    y, after = apply(params, running, x, np.ones(rows, bool), training=False)
    with torch.no_grad():
        np.testing.assert_allclose(y, reference(torch.tensor(x)), rtol=1e-5, atol=1e-6)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), after, running))
