"""Depth-weighted averages: after a layer, a learned sum of the outputs of all layers so far replaces the last output.

Three published forms, by the names in `KINDS`; "none" is a stack without averages. Output 0 is the embedding.

- "dense" (DenseFormer, Pagliardini et al., 2024): after each layer. The weights are free, and begin as 1 for the last
  output and 0 for the others, with which the network is the one without averages.
- "dense_blocks" (GPT-BERT, Charpentier and Samuel, 2024): the same after each block, of attention or feed-forward.
- "convex" (ELC-BERT, Charpentier and Samuel, 2023): the input of each layer but the first is a convex combination. Its
  weights are a softmax of numbers that begin as 1 for the last output and 0 for the others; all begin as 0 in the
  paper's variant "convex_zero". The output of a layer is without its input: what its two blocks add.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.layers import stack
from lmrep.layers.attention import take


class Kind(NamedTuple):
    """A published form of the averages."""

    averages: int = 1  # after each layer; 2: one after each of its blocks
    convex: bool = False  # whether weights are a softmax, and outputs of layers are without their inputs
    last: float = 1.0  # the initial weight of the last output; of others it is 0


KINDS = {"none": Kind(averages=0), "dense": Kind(), "dense_blocks": Kind(averages=2), "convex": Kind(convex=True),
         "convex_zero": Kind(convex=True, last=0.0)}

# A layer (parameters, x [b, t, d], inputs, at=None, average=) -> (x, collected) calls `average` with the sum x after
# each of its blocks and the block's number, 0 or 1, and goes on with the result.
Average = Callable[[Array, int], Array]


def last_output(x: Array, block: int) -> Array:
    """Implements `Average` of a stack without averages."""
    return x


def specs(kind: str, layers: int) -> Tree:
    """Returns the weights of each average, [n] of the n outputs before it, under its number: "0", "1", ..."""
    form = KINDS[kind]
    return {str(i): ParamSpec((i + 2,), (None,), lambda key, shape: jnp.zeros(shape).at[-1].set(form.last))
            for i in range(form.averages * layers - form.convex)}


def apply(
    kind: str, weights: Tree, layers: Sequence[Callable], params: Tree, layer_specs: Tree | list[Tree], x: Array,
    inputs: Tree, shared: tuple[str, ...], execution: stack.Execution, at: Array | None = None,
) -> tuple[Array, Any]:
    """Runs a stack of layers with averages of `kind`, for which it is unrolled.

    `weights` are the parameters of `specs`; a layer is a function as `Average` says; `at` i32[b, m] are positions at
    which the last one runs, and the average after it. Other arguments and results are those of `stack.apply`.
    """
    form = KINDS[kind]
    if not form.averages:
        last = None if at is None else partial(layers[-1], at=at)
        return stack.apply(layers, params, layer_specs, x, inputs, shared, execution, last)
    if form.convex:
        weights = {name: jax.nn.softmax(w.astype(jnp.float32)) for name, w in weights.items()}
    names = [(str(2 * i), str(2 * i + 1)) if form.averages == 2 else ("", str(i)) for i in range(len(layers))]
    by_layer = [(jax.tree.map(lambda leaf: leaf[i], inputs), tuple(map(weights.get, after)))  # noqa: B023
                for i, after in enumerate(names)]
    averaged = [_averaged(layer, form.convex) for layer in layers]
    last = None if at is None else _averaged(layers[-1], form.convex, at)
    (x, _), collected = stack.apply(averaged, params, layer_specs, (x, (x,)), by_layer, shared, execution, last)
    return x, collected and jax.tree.map(lambda *leaves: jnp.stack(leaves), *collected)


def _averaged(layer: Callable, convex: bool, at: Array | None = None) -> stack.Layer:
    """Makes a layer of `stack.apply` on (the last average, the outputs so far), whose inputs are (those of `layer`, the
    weights after each of its blocks, None for no average)."""
    def run(p: Tree, state: tuple[Array, tuple[Array, ...]], inputs: Any) -> tuple[tuple, Any]:
        (x, known), (inputs, weights) = state, inputs
        before, *outputs = (x, *known) if at is None else (take(y, at) for y in (x, *known))

        def average(y: Array, block: int) -> Array:
            y = y - before if convex and block else y
            if weights[block] is None:
                return y
            outputs.append(y)
            total = sum(w * output.astype(jnp.float32) for w, output in zip(weights[block], outputs, strict=True))
            return total.astype(y.dtype)

        x, collected = layer(p, x, inputs, at, average=average)
        return (x, tuple(outputs)), collected

    return run
