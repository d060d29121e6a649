"""LSTM layers that attend to the outputs of an encoder at each step, with input feeding (Luong et al., 2015)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Tree
from lmrep.core.sharding import map_examples
from lmrep.layers import recurrent
from lmrep.layers.attention import MASKED_LOGIT


class Steps(NamedTuple):
    """What is read at each step. Inside the loop the axis t is gone, and `x` is projected for the first layer."""

    x: Array  # [b, t, e], embeddings
    starts: Array  # bool[b, t], where a text begins
    real: Array  # bool[b, t]; the state is kept where it is False
    visible: Array  # bool[b, t, s], the encoder's outputs of the same text
    initial: dict[str, Tree]  # by layer, the states [b, t, d] that texts start from
    masks: list[Array]  # dropout of the input of each layer but the first and of the output, [b, t, d]; [] for none


class _Weights(NamedTuple):
    """By layer, and of the attention; None where there is none."""

    kernels: tuple[Array, ...]
    recurrents: tuple[Array, ...]
    biases: tuple[Array, ...]
    output: Array | None
    weigh: Array | None


def apply(
    layers: Tree, attention: Tree, steps: Steps, encoded: Array, last: Array, state: dict[str, Tree]
) -> tuple[Array, Array, Array, dict[str, Tree]]:
    """Runs the steps of b texts, from the output `last` [b, d] and `state` on, over the encoder's outputs `encoded`
    [b, s, d].

    Args:
      layers: by name, parameters as of `recurrent.specs`. The first layer reads the last output too if its kernel has
        more rows than the embedding has columns.
      attention: `output` [2 d, d], and `weigh` [d, d] where keys are projected; {} for no attention.

    Returns:
      (outputs [b, t, d], attention probabilities [b, t, s], 0 without attention, the last output, the state).
    """
    ordered = [layers[name] for name in sorted(layers)]
    kernels, recurrents = (tuple(layer[name]["kernel"] for layer in ordered) for name in ("input", "recurrent"))
    output, weigh = (attention[name]["kernel"] if name in attention else None for name in ("output", "weigh"))
    weights = _Weights(kernels, recurrents, tuple(layer["input"]["bias"] for layer in ordered), output, weigh)
    arrays, structure = jax.tree.flatten((weights, steps, encoded, last, state))
    first, first_state = len(jax.tree.leaves(weights)), len(arrays) - len(jax.tree.leaves(state))
    parameter, time = ("embed", None), ("batch", None, None)
    axes = [parameter if x.ndim == 2 else (None,) for x in arrays[:first]] + [time[: x.ndim] for x in arrays[first:]]

    def run(*arrays: Array) -> tuple[Array, ...]:
        return tuple(jax.tree.leaves(_scan(*jax.tree.unflatten(structure, arrays))))

    outputs, probabilities, last, *after = map_examples(
        run, axes, [(first, 2), (first, 2), *((i, 2) for i in range(first_state - 1, len(arrays)))], *arrays)
    return outputs, probabilities, last, jax.tree.unflatten(jax.tree.structure(state), after)


def _scan(
    weights: _Weights, steps: Steps, encoded: Array, last: Array, state: dict[str, Tree]
) -> tuple[Array, Array, Array, dict[str, Tree]]:
    """Computes `apply` on one device."""
    dtype = steps.x.dtype
    weights = jax.tree.map(lambda x: x.astype(dtype), weights)
    keys = encoded if weights.weigh is None else encoded @ weights.weigh.T
    from_embedding, from_output = jnp.split(weights.kernels[0], [steps.x.shape[-1]])
    projected = steps.x @ from_embedding + weights.biases[0]  # of all steps in one product

    def step(carry: tuple[Tree, Array], now: Steps) -> tuple[tuple[Tree, Array], tuple[Array, Array]]:
        state, last = carry
        last = jnp.where(now.starts[:, None], 0, last)
        gates = now.x + (last @ from_output if len(from_output) else 0)
        state, hidden = _layers(weights, now, gates, state)
        if weights.output is None:
            output, probabilities = hidden, jnp.zeros(now.visible.shape, dtype)
        else:
            output, probabilities = _attend(weights.output, hidden, keys, encoded, now.visible)
        output = output * now.masks[-1] if now.masks else output
        return (state, jnp.where(now.real[:, None], output, last)), (output, probabilities)

    by_time = jax.tree.map(lambda x: x.swapaxes(0, 1), steps._replace(x=projected))
    (state, last), (outputs, probabilities) = jax.lax.scan(step, (state, last), by_time)
    return outputs.swapaxes(0, 1), probabilities.swapaxes(0, 1), last, state


def _layers(weights: _Weights, now: Steps, inputs: Array, state: dict[str, Tree]) -> tuple[dict[str, Tree], Array]:
    """Returns (the state after a step, the hidden state [b, d] of the last layer). `inputs` [b, 4 d] are the gates of
    the first layer without their recurrent term."""
    after, hidden, dtype = {}, None, inputs.dtype
    for i, name in enumerate(sorted(state)):
        before = {part: jnp.where(now.starts[:, None], now.initial[name][part].astype(jnp.float32), value)
                  for part, value in state[name].items()}
        gates = before["hidden"].astype(dtype) @ weights.recurrents[i]
        if i:
            inputs = (hidden * now.masks[i - 1] if now.masks else hidden) @ weights.kernels[i] + weights.biases[i]
        new = recurrent.CELLS["lstm"]((gates + inputs).astype(jnp.float32), before)
        after[name] = {part: jnp.where(now.real[:, None], new[part], value) for part, value in before.items()}
        hidden = new["hidden"].astype(dtype)
    return after, hidden


def _attend(output: Array, hidden: Array, keys: Array, values: Array, visible: Array) -> tuple[Array, Array]:
    """Returns (the output [b, d], the probabilities [b, s]) of attention from `hidden` [b, d] to `values` [b, s, d]."""
    logits = jnp.einsum("bd,bsd->bs", hidden, keys).astype(jnp.float32)
    probabilities = jax.nn.softmax(jnp.where(visible, logits, MASKED_LOGIT)).astype(values.dtype)
    context = jnp.einsum("bs,bsd->bd", probabilities, values)
    return jnp.tanh(jnp.concatenate([context, hidden], -1) @ output), probabilities
