"""Layers of LSTM cells (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000) or of plain tanh
cells (Elman, 1990), in one direction or in both."""

from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, zeros
from lmrep.core.sharding import gather_params, map_examples, shard
from lmrep.layers import dropout, linear
from lmrep.layers.gradient import with_gradient

GATES = {"lstm": 4, "rnn": 1}  # LSTM: input, forget, cell, output, in this order
STATES = {"lstm": ("hidden", "cell"), "rnn": ("hidden",)}


def uniform(r: float) -> Initializer:
    """Returns the initializer that draws uniformly from [-r, r]."""
    return lambda key, shape: jax.random.uniform(key, shape, minval=-r, maxval=r)


def specs(d_in: int, width: int, init: Initializer, cell: str = "lstm", forget_bias: float = 1.0) -> Tree:
    """Returns the specs of one layer: `input`, kernel [d_in, g d] and bias [g d], and `recurrent`, kernel [d, g d], for
    g gates. With PyTorch's order of gates, these are its transposed `weight_ih` and `weight_hh`, and the sum of its two
    biases. `forget_bias` is the initial bias of the forget gate."""
    # The `tensor` axis does not split the gates: a time step's product is too small for devices to exchange its result.
    d_out = GATES[cell] * width

    def bias(key: Array, shape: tuple[int, ...]) -> Array:
        return zeros(key, shape).at[width : 2 * width].set(forget_bias)

    projection = linear.specs(d_in, d_out, ("embed", None), init)
    if cell == "lstm":
        projection["bias"] = projection["bias"]._replace(init=bias)
    return {"input": projection, "recurrent": {"kernel": ParamSpec((width, d_out), ("embed", None), init)}}


def initial_state(batch_size: int, width: int, cell: str = "lstm") -> Tree:
    """Zeros: `hidden` and, of LSTM cells, `cell`, float32 [b, d] each."""
    return {name: jnp.zeros((batch_size, width)) for name in STATES[cell]}


def segment_starts(segment_ids: Array) -> Array:
    """Returns bool[b, t], where a segment begins after another. Positions are skipped where `segment_ids` are 0."""
    position = jnp.where(segment_ids > 0, jnp.arange(segment_ids.shape[1]), -1)
    last = jnp.pad(jax.lax.cummax(position, axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    before = jnp.take_along_axis(segment_ids, jnp.maximum(last, 0), 1)
    return (segment_ids > 0) & (last >= 0) & (segment_ids != before)


def apply(
    projection: Tree, kernel: Array, x: Array, state: Tree, *, cell: str = "lstm", real: Array, starts: Array,
    all_states: bool = False, clip_cell: float = 0.0,
) -> tuple[Array, Tree]:
    """Applies one layer to x [b, t, d_in] from left to right. Returns (output [b, t, d], the last state).

    Args:
      projection: the parameters `input`, gathered along `embed`.
      kernel: the parameter `recurrent/kernel` as it is stored.
      state: before the first position, as `initial_state`.
      real: bool[b, t], where the state is updated; elsewhere the last such position's output is repeated.
      starts: bool[b, t], where the state is reset.
      all_states: whether the states after all positions are returned, [b, t, d], in place of the last.
      clip_cell: largest absolute value of an LSTM's `cell`; no gradient passes where it is reached. 0: any.
    """
    projected = shard(linear.apply(projection, x), "batch", None, None)  # all time steps in one product
    names = sorted(state)

    def recur(projected: Array, kernel: Array, real: Array, starts: Array, *values: Array) -> tuple[Array, ...]:
        inputs = jax.tree.map(lambda y: y.swapaxes(0, 1), (projected, real, starts))
        hidden, states = _recur(*inputs, kernel.astype(projected.dtype), dict(zip(names, values, strict=True)), cell,
                                all_states, clip_cell)
        if all_states:
            states = {name: value.swapaxes(0, 1) for name, value in states.items()}
        return hidden.swapaxes(0, 1), *(states[name] for name in names)

    # On each device by itself: the gradient of the kernel is summed over devices once, not at every time step.
    by_example, values = ("batch", None), [state[name] for name in names]
    axes = ("batch", None, None), ("embed", None), *[by_example] * (2 + len(values))
    hidden, *last = map_examples(recur, axes, [(0, 2), *((0 if all_states else 4 + i, 2) for i in range(len(values)))],
                                 projected, kernel, real, starts, *values)
    return hidden, dict(zip(names, last, strict=True))


def _forward(
    projected: Array, real: Array, starts: Array, kernel: Array, state: Tree, cell: str, all_states: bool,
    clip_cell: float,
) -> tuple[tuple[Array, Tree], tuple]:
    """Scans arrays [t, b, ...]: ((the outputs, the last state or all), what the gradient needs)."""
    def scan(projected: Array, state: Tree) -> tuple[Array, Tree]:
        step = partial(_step, kernel=kernel, cell=cell, clip_cell=clip_cell)
        inputs = projected, real, starts
        if all_states:
            _, states = jax.lax.scan(lambda s, at_t: 2 * (step(s, at_t)[0],), state, inputs)
            return states["hidden"].astype(projected.dtype), states
        last, hidden = jax.lax.scan(step, state, inputs)
        return hidden, last

    (hidden, states), pull = jax.vjp(scan, projected, state)
    before = jnp.concatenate([state["hidden"].astype(hidden.dtype)[None], hidden[:-1]])
    return (hidden, states), (pull, jnp.where(starts[..., None], 0, before))


def _backward(cell: str, all_states: bool, clip_cell: float, residuals: tuple, cotangents: tuple[Array, Tree]) -> tuple:
    """The gradient of the kernel is one product over all time steps, in place of a sum at each step."""
    pull, before = residuals
    dprojected, dstate = pull(cotangents)
    return dprojected, None, None, jnp.einsum("tbd,tbg->dg", before, dprojected), dstate


_recur = with_gradient(_forward, _backward, nondiff_argnums=(5, 6, 7))


def _step(
    state: Tree, at_t: tuple[Array, Array, Array], *, kernel: Array, cell: str, clip_cell: float
) -> tuple[Tree, Array]:
    """Computes one time step: (the state after it, its output [b, d])."""
    projected, real, starts = at_t
    before = jax.tree.map(lambda s: jnp.where(starts[:, None], 0, s), state)
    gates = projected + before["hidden"].astype(projected.dtype) @ kernel
    after = CELLS[cell](gates.astype(jnp.float32), before, clip_cell)
    state = jax.tree.map(lambda new, old: jnp.where(real[:, None], new, old), after, state)
    return state, state["hidden"].astype(projected.dtype)


def _lstm(gates: Array, state: Tree, clip_cell: float = 0.0) -> Tree:
    """c' = clip(f c + i g), h' = o tanh(c'), with gates i, f, g, o in [b, 4 d]."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(f) * state["cell"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    if clip_cell:
        cell = jnp.clip(cell, -clip_cell, clip_cell)
    return {"hidden": jax.nn.sigmoid(o) * jnp.tanh(cell), "cell": cell}


def _rnn(gates: Array, state: Tree, clip_cell: float = 0.0) -> Tree:
    return {"hidden": jnp.tanh(gates)}


CELLS = {"lstm": _lstm, "rnn": _rnn}


def bidirectional_specs(d_in: int, width: int, layers: int, d_second: int = 0) -> Tree:
    """Layers of LSTM cells of width `d` in each direction; a layer reads both directions of the layer before it.
    `d_second` is the width of the vectors that the second layer reads beside the first layer's output."""
    init = uniform(width**-0.5)
    widths = [d_in, 2 * width + d_second, *[2 * width] * (layers - 2)][:layers]
    return {str(i): {name: specs(d, width, init) for name in ("forward", "backward")} for i, d in enumerate(widths)}


def bidirectional(
    params: Tree, x: Array, segment_ids: Array, key: Array | None = None, rate: float = 0.0,
    second: Array | None = None,
) -> Array:
    """Applies a bidirectional LSTM (Graves and Schmidhuber, 2005) to x [b, t, d_in]: [b, t, 2 d], 0 at positions whose
    segment id is 0, which are skipped. Segments are independent. `rate` is of dropout on the input of each layer;
    `second` [b, t, d_second] is what the second layer reads beside the first one's output."""
    real = segment_ids > 0
    starts = {"forward": segment_starts(segment_ids), "backward": segment_starts(segment_ids[:, ::-1])}
    for (name, layer), layer_key in zip(sorted(params.items()), prng.split(key, len(params)), strict=True):
        if second is not None and name == "1":
            x = jnp.concatenate([x, second], -1)
        x, outputs = dropout.apply(layer_key, x, rate), []
        for name, step in (("forward", 1), ("backward", -1)):
            width = layer[name]["recurrent"]["kernel"].shape[0]
            gathered = gather_params(layer[name]["input"], linear.specs(x.shape[-1], 4 * width, ("embed", None)))
            y, _ = apply(gathered, layer[name]["recurrent"]["kernel"], x[:, ::step], initial_state(len(x), width),
                         real=real[:, ::step], starts=starts[name])
            outputs.append(y[:, ::step])
        x = jnp.where(real[..., None], jnp.concatenate(outputs, -1), 0)
    return x

