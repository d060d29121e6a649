"""LSTM cells with a projection of their output (Sak et al., 2014) and clipped states, as in ELMo (Peters et al., 2018):

    i, f, g, o = split(x W + h R + b)
    c' = clip(sigmoid(f) c + sigmoid(i) tanh(g))
    h' = clip((sigmoid(o) tanh(c')) P)

Several sequences with parameters of their own, as the two directions of ELMo, advance together in one loop. The
backward pass is written by hand: the gradients of R and P are one product over all time steps after the loop, in place
of a sum at each step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.core.sharding import map_examples
from lmrep.layers import linear
from lmrep.layers.gradient import with_gradient
from lmrep.layers.recurrent import uniform


class Clip(NamedTuple):
    """The largest absolute values of c and h; 0 for any."""

    cell: float = 0.0
    output: float = 0.0


class Reading(NamedTuple):
    """A sequence, and what reads it from left to right.

    Attributes:
      input: the parameters of that name, as they are stored.
      recurrent, projection: the kernels of that name, as they are stored.
      x: [b, t, d_in].
      state: before the first position, as `initial_state`.
      real: bool[b, t], where the state is updated; elsewhere the last such position's output is repeated.
      starts: bool[b, t], where the state is reset; `real` is true there.
    """

    input: Tree
    recurrent: Array
    projection: Array
    x: Array
    state: Tree
    real: Array
    starts: Array


def specs(d_in: int, cell: int, width: int, forget_bias: float = 1.0) -> Tree:
    """Returns the specs of one layer: `input`, kernel W [d_in, 4 c] and bias b [4 c]; `recurrent`, kernel R [d, 4 c];
    `projection`, kernel P [c, d]. The gates are i, f, g, o in this order, and the bias of f starts at `forget_bias`.
    Initial weights are those of TensorFlow's LSTMCell, whose W and R are one matrix (Glorot and Bengio, 2010)."""
    def bias(key: Array, shape: tuple[int, ...]) -> Array:
        return zeros(key, shape).at[cell : 2 * cell].set(forget_bias)

    init = uniform((6 / (d_in + width + 4 * cell)) ** 0.5)
    projected = linear.specs(d_in, 4 * cell, ("embed", None), init)
    projected["bias"] = projected["bias"]._replace(init=bias)
    return {"input": projected,
            "recurrent": {"kernel": ParamSpec((width, 4 * cell), ("embed", None), init)},
            "projection": {"kernel": ParamSpec((cell, width), (None, "embed"), uniform((6 / (cell + width)) ** 0.5))}}


def initial_state(batch_size: int, cell: int, width: int) -> Tree:
    """Zeros: `hidden` float32 [b, d] and `cell` float32 [b, c]."""
    return {"hidden": jnp.zeros((batch_size, width)), "cell": jnp.zeros((batch_size, cell))}


def apply(readings: Sequence[Reading], clip: Clip = Clip()) -> list[tuple[Array, Tree]]:
    """Returns (outputs [b, t, d], the state after the last position) of each sequence. All have the same shapes."""
    arrays, axes, out, of_state, by_time = [], [], [], ("batch", None), (None, "batch")
    for reading in readings:
        at = len(arrays)
        out += [(at, 2), (at + 7, 2), (at + 8, 2)]
        # Time comes first from here on: the narrow x is transposed, not the wide gates.
        arrays += [reading.x.swapaxes(0, 1), reading.input["kernel"], reading.input["bias"], reading.recurrent,
                   reading.projection, reading.real.T, reading.starts.T, reading.state["hidden"], reading.state["cell"]]
        axes += [(*by_time, None), ("embed", None), (None,), ("embed", None), (None, "embed"), by_time, by_time,
                 of_state, of_state]

    # On each device by itself: the gradients of the kernels are summed over devices once, not at every time step.
    results = map_examples(lambda *shards: _outputs(shards, clip), axes, out, *arrays)
    return [(outputs.swapaxes(0, 1), {"hidden": hidden, "cell": cell})
            for outputs, hidden, cell in zip(results[::3], results[1::3], results[2::3], strict=True)]


def _outputs(arrays: Sequence[Array], clip: Clip) -> tuple[Array, ...]:
    """Computes the arrays of `map_examples`, 9 for each sequence -> outputs, hidden and cell of each."""
    groups = [arrays[i : i + 9] for i in range(0, len(arrays), 9)]
    # All time steps in one product.
    by_time = tuple((linear.apply({"kernel": kernel, "bias": bias}, x), *masks)
                    for x, kernel, bias, _, _, *masks in (group[:7] for group in groups))
    kernels = tuple(tuple(kernel.astype(group[0].dtype) for kernel in group[3:5]) for group in groups)
    states = tuple(tuple(group[7:]) for group in groups)
    outputs, last = _recur(by_time, kernels, states, clip)
    return tuple(x for y, (hidden, cell) in zip(outputs, last, strict=True) for x in (y, hidden, cell))


def _step(state: tuple, at_t: tuple, kernels: tuple, clip: Clip) -> tuple[tuple, tuple]:
    """Computes one time step of one sequence: (the state after it, what the gradient needs)."""
    (hidden, cell), (projected, real, starts), (recurrent, projection) = state, at_t, kernels
    before, cell_before = (jnp.where(starts[:, None], 0, x) for x in (hidden, cell))
    gates = (projected + before.astype(projected.dtype) @ recurrent).astype(jnp.float32)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    new_cell = _clipped(f * cell_before + i * g, clip.cell)
    squashed = jnp.tanh(new_cell)
    new = _clipped(((o * squashed).astype(projected.dtype) @ projection).astype(jnp.float32), clip.output)
    hidden, cell = jnp.where(real[:, None], new, hidden), jnp.where(real[:, None], new_cell, cell)
    return (hidden, cell), ((i, f, g, o), before, cell_before, hidden, cell, squashed)


def _clipped(x: Array, limit: float) -> Array:
    return jnp.clip(x, -limit, limit) if limit else x


def _passed(x: Array, limit: float, gradient: Array) -> Array:
    """Returns the gradient before `_clipped`, whose result x is."""
    return jnp.where(jnp.abs(x) < limit, gradient, 0) if limit else gradient


def _forward(by_time: tuple, kernels: tuple, states: tuple, clip: Clip) -> tuple[tuple, tuple]:
    def step(states, at_t):
        results = [_step(*inputs, clip) for inputs in zip(states, at_t, kernels, strict=True)]
        return tuple(state for state, _ in results), tuple(saved for _, saved in results)

    last, saved = jax.lax.scan(step, states, by_time)
    outputs = tuple(hidden.astype(inputs[0].dtype)
                    for (_, _, _, hidden, _, _), inputs in zip(saved, by_time, strict=True))
    return (outputs, last), (saved, tuple(inputs[1:] for inputs in by_time), kernels)


def _step_back(gradient: tuple, at_t: tuple, kernels: tuple, clip: Clip) -> tuple[tuple, tuple]:
    """Computes from the gradients by the state after a step and by its output the gradients by (the state before it;
    its gates, its output before clipping)."""
    (dhidden, dcell), (dy, real, starts, saved), (recurrent, projection) = gradient, at_t, kernels
    (i, f, g, o), _, cell_before, hidden, cell, squashed = saved
    real, continues, dhidden = real[:, None], ~starts[:, None], dhidden + dy
    dnew = _passed(hidden, clip.output, jnp.where(real, dhidden, 0)).astype(recurrent.dtype)
    doutput = (dnew @ projection).astype(jnp.float32)
    dnew_cell = _passed(cell, clip.cell, jnp.where(real, dcell + doutput * o * (1 - squashed**2), 0))
    dgates = jnp.concatenate([dnew_cell * g * i * (1 - i), dnew_cell * cell_before * f * (1 - f),
                              dnew_cell * i * (1 - g**2), doutput * squashed * o * (1 - o)], -1).astype(recurrent.dtype)
    before = (jnp.where(continues, (dgates @ recurrent).astype(jnp.float32), 0),
              jnp.where(continues, dnew_cell * f, 0))
    return tuple(x + jnp.where(real, 0, dx) for x, dx in zip(before, (dhidden, dcell), strict=True)), (dgates, dnew)


def _backward(clip: Clip, residuals: tuple, cotangents: tuple) -> tuple[tuple, tuple, tuple]:
    saved, masks, kernels = residuals
    transposed = tuple(tuple(kernel.T for kernel in pair) for pair in kernels)

    def step(gradients, at_t):
        steps = [_step_back(*arguments, clip) for arguments in zip(gradients, at_t, transposed, strict=True)]
        return tuple(before for before, _ in steps), tuple(of_gates for _, of_gates in steps)

    outputs, last = cotangents
    at_t = tuple((dy.astype(jnp.float32), *mask, arrays)
                 for dy, mask, arrays in zip(outputs, masks, saved, strict=True))
    states, of_gates = jax.lax.scan(step, last, at_t, reverse=True)
    gradients = []
    for (dgates, dnew), ((_, _, _, o), before, _, _, _, squashed) in zip(of_gates, saved, strict=True):
        output = (o * squashed).astype(dnew.dtype)
        gradients.append((_sum_of_products(before.astype(dgates.dtype), dgates), _sum_of_products(output, dnew)))
    return tuple((dgates, None, None) for dgates, _ in of_gates), tuple(gradients), states


def _sum_of_products(x: Array, y: Array) -> Array:
    """[t, b, i], [t, b, o] -> [i, o], summed over t and b."""
    return jnp.einsum("ni,no->io", x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]))


_recur = with_gradient(_forward, _backward, nondiff_argnums=(3,))
