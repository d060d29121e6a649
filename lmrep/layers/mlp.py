"""The position-wise feed-forward block (Vaswani et al., 2017, section 3.3), optionally gated (Shazeer, 2020)."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.params import Array, Initializer, Tree, normal
from lmrep.core.sharding import shard
from lmrep.layers import dropout, linear
from lmrep.layers.gradient import with_gradient

IN, OUT = ("embed", "mlp"), ("mlp", "embed")  # the logical axes of the two kernels


def _recomputed(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Returns `f` with a backward pass that keeps only its input: recomputing the intermediate values of a wide layer
    is faster than reading them from memory."""
    return with_gradient(lambda x: (f(x), x), lambda x, d: jax.vjp(f, x)[1](d))


def _gelu(x: Array) -> Array:
    """Returns x times the normal distribution function, by erf as PyTorch has it: XLA computes erfc, which
    `jax.nn.gelu` uses, more slowly. In float32, because 1 + erf has no small values in bfloat16."""
    y = x.astype(jnp.float32)
    return (0.5 * y * (1 + jax.lax.erf(y * math.sqrt(0.5)))).astype(x.dtype)


# BERT and GPT use the tanh approximation of GELU, RoBERTa and ELECTRA the exact (erf) form. The others of published
# checkpoints: x sigmoid(x) (UL2) and x sigmoid(1.702 x) (Hendrycks and Gimpel, 2016).
ACTIVATIONS = {
    "gelu_tanh": _recomputed(partial(jax.nn.gelu, approximate=True)),
    "gelu": _recomputed(_gelu),
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": _recomputed(jax.nn.silu),
    "quick_gelu": _recomputed(lambda x: x * jax.nn.sigmoid(1.702 * x)),
}


def specs(
    d: int, f: int, init: Initializer = normal(), output_init: Initializer | None = None, *, bias: bool = True,
    gated: bool = False,
) -> Tree:
    """d -> f -> d, both with `bias`. `output_init` initializes the second layer, by default as `init`. If `gated`, the
    first layer is two: the activations of `gate` multiply the outputs of `up`."""
    first = linear.specs(d, f, IN, init, bias=bias)
    return {**({"gate": first, "up": first} if gated else {"in": first}),
            "out": linear.specs(f, d, OUT, output_init or init, bias=bias)}


def apply(
    params: Tree, x: Array, activation: str, *, rate: float = 0.0, key: Array | None = None,
    same_along: tuple[int, ...] = (),
) -> Array:
    """x [b, t, d] -> [b, t, d]; `rate` is the dropout between the two layers, and `same_along` as in
    `dropout.apply`."""
    (key,) = prng.split(key, 1)
    hidden = ACTIVATIONS[activation](linear.apply(params["gate" if "gate" in params else "in"], x, IN))
    if "gate" in params:
        hidden *= linear.apply(params["up"], x, IN)
    hidden = shard(dropout.apply(key, hidden, rate, same_along), "batch", "length", "mlp")
    return linear.apply(params["out"], hidden, OUT)
