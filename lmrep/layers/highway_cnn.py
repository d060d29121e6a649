"""Vectors of words from their characters, as ELMo's: convolutions of several widths, the maximum of each over the word,
highway layers (Srivastava et al., 2015) and a projection (Jozefowicz et al., 2016; Kim et al., 2016; Peters et al.,
2018)."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, is_spec, normal, zeros
from lmrep.core.sharding import map_examples
from lmrep.layers import distinct, linear
from lmrep.layers.recurrent import uniform

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}
CARRY_BIAS = -2.0  # initially a highway layer copies most of its input


def specs(
    characters: int, width: int, filters: Sequence[int], highways: int, d: int, activation: str = "relu"
) -> Tree:
    """Returns the parameters, of `characters` ids (0 is padding after the word), vectors of `width` e, and n =
    sum(filters) filters: `embedding` [characters, e]; `convolutions`, by the number of characters w a `kernel` [w, e,
    filters] with `bias`; `highways`, by number, `gate` and `transform` [n, n]; `projection` [n, d], none where d is
    n."""
    n = sum(filters)
    init = normal(n**-0.5)

    def convolution(w: int, number: int) -> Tree:
        kernel = uniform(0.05) if activation == "relu" else normal((w * width) ** -0.5)
        return {"kernel": ParamSpec((w, width, number), (None, None, None), kernel),
                "bias": ParamSpec((number,), (None,), zeros)}

    def highway() -> Tree:
        gate = linear.specs(n, n, ("embed", None), init)
        gate["bias"] = gate["bias"]._replace(init=lambda key, shape: jnp.full(shape, CARRY_BIAS))
        return {"gate": gate, "transform": linear.specs(n, n, ("embed", None), init)}

    tree = {
        "embedding": ParamSpec((characters, width), (None, None), _characters),
        "convolutions": {str(w): convolution(w, number) for w, number in enumerate(filters, 1)},
    }
    if highways:
        tree["highways"] = {str(i): highway() for i in range(highways)}
    return tree | ({} if n == d else {"projection": linear.specs(n, d, ("embed", None), init)})


def _characters(key: Array, shape: tuple[int, ...]) -> Array:
    """Draws uniformly from [-1, 1], with 0 for padding, like the released files."""
    return uniform(1.0)(key, shape).at[0].set(0)


def apply(params: Tree, specs: Tree, characters: Array, dtype: str = "float32", activation: str = "relu") -> Array:
    """characters i32[b, t, c], read by convolutions -> [b, t, d] in `dtype`; `specs` are those of the stored `params`.

    Each distinct word of a device's examples is computed once, in the backward pass too, which computes it again. The
    maximum of a convolution is taken before the activation.
    """
    leaves, tree = jax.tree.flatten(params)
    axes = [spec.axes for spec in jax.tree.leaves(specs, is_leaf=is_spec)]
    def run(characters: Array, *leaves: Array) -> tuple[Array]:
        words = characters.reshape(-1, characters.shape[-1])
        of_words = distinct.apply(partial(vectors, dtype=dtype, activation=activation), tree.unflatten(leaves), words,
                               reach=len(params["convolutions"]))
        return (of_words.reshape(*characters.shape[:-1], -1),)

    return map_examples(run, [("batch", None, None), *axes], ((0, 2),), characters, *leaves)[0]


def vectors(params: Tree, characters: Array, dtype: str, activation: str) -> Array:
    """characters i32[n, c] -> [n, d]."""
    # Looked up as stored, so that the gradients of a character, which is read many times, are summed in float32.
    x = jnp.take(params["embedding"], characters, axis=0).astype(dtype)
    maxima = [_convolve(params["convolutions"][name], x) for name in sorted(params["convolutions"], key=int)]
    x = ACTIVATIONS[activation](jnp.concatenate(maxima, -1))
    for _, highway in sorted(params.get("highways", {}).items()):
        gate = jax.nn.sigmoid(_linear(highway["gate"], x))
        x = gate * jax.nn.relu(_linear(highway["transform"], x)) + (1 - gate) * x
    return _linear(params["projection"], x) if "projection" in params else x


def _linear(params: Tree, x: Array) -> Array:
    return x @ params["kernel"].astype(x.dtype) + params["bias"].astype(x.dtype)


def _convolve(params: Tree, x: Array) -> Array:
    """x [n, c, e] -> the maximum of the convolution over c, [n, filters]."""
    w, e, filters = params["kernel"].shape
    positions = x.shape[1] - w + 1
    # One matrix product. As a convolution, its gradient is slow on CPUs.
    windows = jnp.concatenate([x[:, i : i + positions] for i in range(w)], -1)
    y = windows @ params["kernel"].reshape(w * e, filters).astype(x.dtype)
    return y.max(1) + params["bias"].astype(x.dtype)
