"""A model as a Flax module, to stand in one's own: Linen or NNX, with its weights, trainable like any other.

    run = lmrep.load("runs/mine")
    encoder = modules.linen(run.model, run.params["encoder"])    # inside a linen.Module: encoder(Inputs(tokens=...))
    encoder = modules.nnx(run.model, run.params["encoder"])      # an nnx.Module that holds nnx.Param

Both call the model's pure `encode` on their parameters, so vectors and gradients are its own. The parameters are a copy
of those given; the run's are left as they are.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as flax_linen
from flax import nnx as flax_nnx

from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.models.base import Encoded, Inputs, Model


class LinenEncoder(flax_linen.Module):
    """`encode` over one variable, `params/encoder`: the model's parameter tree. Made by `linen`."""

    encode: Callable[..., Encoded]
    initial: Callable[[Array], Tree]

    @flax_linen.compact
    def __call__(self, inputs: Inputs, *, deterministic: bool = True, **asked) -> Encoded:
        """As the model's `encode`; `asked` are its keywords. Dropout draws from the stream "dropout"."""
        params = self.param("encoder", self.initial)
        return self.encode(params, inputs, None if deterministic else self.make_rng("dropout"), **asked)


def linen(model: Model, params: Tree | None = None) -> LinenEncoder:
    """The model as a Linen module whose `init` gives `params`, or where there are none draws them from the key.

    Args:
      model: `lmrep.load(...).model`, say.
      params: as `model.specs`.
    """
    return LinenEncoder(model.encode, lambda key: P.init(model.specs, key) if params is None else _copy(params))


class NNXEncoder(flax_nnx.Module):
    """`encode` over `nnx.Param`s in `params`, a tree as the model's. Made by `nnx`."""

    def __init__(self, encode: Callable[..., Encoded], params: Tree):
        self.encode = flax_nnx.static(encode)
        self.params = flax_nnx.data(jax.tree.map(flax_nnx.Param, params))

    def __call__(self, inputs: Inputs, *, rngs: flax_nnx.Rngs | None = None, **asked) -> Encoded:
        """As the model's `encode`; `asked` are its keywords. With `rngs` dropout is on, drawn from its "dropout"."""
        params = jax.tree.map(lambda p: p[...], self.params, is_leaf=lambda p: isinstance(p, flax_nnx.Variable))
        return self.encode(params, inputs, None if rngs is None else rngs.dropout(), **asked)


def nnx(model: Model, params: Tree | None = None, *, rngs: flax_nnx.Rngs | None = None) -> NNXEncoder:
    """The model as an NNX module that holds `params`, or where there are none draws them from `rngs`.

    Raises:
      ValueError: neither is given.
    """
    if params is None and rngs is None:
        raise ValueError("give the parameters, or rngs to draw them from: modules.nnx(model, rngs=nnx.Rngs(0))")
    return NNXEncoder(model.encode, P.init(model.specs, rngs.params()) if params is None else _copy(params))


def _copy(params: Tree) -> Tree:
    return jax.tree.map(jnp.array, params)
