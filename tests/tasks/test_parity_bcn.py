"""The biattentive classification network against its formulas in PyTorch, in training without dropout and after it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.tasks import bcn
from tests.reference import random_params

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow

C = bcn.Config(width=5, maxout=(8, 6), pieces=3, dropout=0.0)
D, FIRST, SECOND = 7, 4, 3
PARAMS = random_params(bcn.specs(C, D), 3)
X = np.random.default_rng(0).normal(size=(6, FIRST + SECOND, D)).astype(np.float32)


def tensor(x):
    return torch.tensor(np.asarray(x))


def dense(params, x):
    return x @ tensor(params["kernel"]) + tensor(params["bias"])


def bilstm(params, x):
    layer = torch.nn.LSTM(x.shape[-1], C.width, batch_first=True, bidirectional=True)
    for direction, suffix in (("forward", ""), ("backward", "_reverse")):
        own = params["0"][direction]
        for name, value in (("weight_ih", own["input"]["kernel"].T), ("weight_hh", own["recurrent"]["kernel"].T),
                            ("bias_ih", own["input"]["bias"]), ("bias_hh", jnp.zeros(4 * C.width))):
            getattr(layer, f"{name}_l0{suffix}").data = tensor(value).contiguous()
    return layer(x)[0]


def pooled(params, y):
    weights = torch.softmax(y @ tensor(params["vector"]), -1)[..., None]
    return torch.cat([y.max(1)[0], y.mean(1), y.min(1)[0], (weights * y).sum(1)], -1)


def reference(x, y):
    """The vectors of pairs of texts x [b, s, d] and y [b, t, d], in the paper's notation: A = X Y^T."""
    x, y = (bilstm(PARAMS["encoder"], torch.relu(dense(PARAMS["feed_forward"], each))) for each in (x, y))
    a = x @ y.transpose(1, 2)
    cx = torch.softmax(a, 1).transpose(1, 2) @ x  # of each token of y
    cy = torch.softmax(a.transpose(1, 2), 1).transpose(1, 2) @ y  # of each token of x
    sides = (("first", x, cy), ("second", y, cx))
    return torch.cat([pooled(PARAMS["pooling"][side], bilstm(
        PARAMS["integrate"][side], torch.cat([h, h - c, h * c], -1))) for side, h, c in sides], -1)


def maxout(z, norms):
    for name, norm in norms.items():
        z = norm(dense(PARAMS["maxout"][name]["dense"], z))
        z = z.reshape(len(z), -1, C.pieces).max(-1)[0]
    return z


@pytest.mark.parametrize("pair", [True, False])
def test_the_network_is_that_of_pytorch(pair):
    norms = {}
    for name, layer in PARAMS["maxout"].items():
        norms[name] = torch.nn.BatchNorm1d(len(layer["norm"]["scale"]))
        norms[name].weight.data, norms[name].bias.data = (tensor(layer["norm"][each]) for each in ("scale", "bias"))
    first, second = (tensor(X[:, :FIRST]), tensor(X[:, FIRST:])) if pair else (tensor(X), tensor(X))
    texts = bcn.Texts(jnp.ones(X.shape[:2], jnp.int32), jnp.broadcast_to(
        pair & (jnp.arange(X.shape[1]) >= FIRST), X.shape[:2]), jnp.ones((len(X), 1), bool))
    apply = jax.jit(bcn.apply, static_argnums=1)
    with torch.no_grad():
        expected = reference(first, second)
        np.testing.assert_allclose(bcn.represent(PARAMS, X, texts)[:, 0], expected, rtol=1e-4, atol=1e-5)
        trained, running = apply(PARAMS, C, X, texts, bcn.statistics(C), jax.random.key(0))
        np.testing.assert_allclose(trained[:, 0], maxout(expected, norms), rtol=1e-3, atol=1e-4)
        for name, norm in norms.items():
            np.testing.assert_allclose(running[name]["mean"], norm.running_mean, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(running[name]["variance"], norm.running_var, rtol=1e-4, atol=1e-5)
            norm.eval()
        after, _ = apply(PARAMS, C, X, texts, running)
        np.testing.assert_allclose(after[:, 0], maxout(expected, norms), rtol=1e-3, atol=1e-4)
