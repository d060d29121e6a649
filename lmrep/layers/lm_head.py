"""Logits over the vocabulary, at chosen positions or at all of them, and their cross-entropy."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import gather, map_examples, shard, sum_shards
from lmrep.layers import dropout, linear, norm
from lmrep.layers.gradient import with_gradient
from lmrep.layers.mlp import ACTIVATIONS

TABLE = ("vocab", "embed")  # the logical axes of an output table
EXACT = jax.lax.Precision.HIGHEST  # for sums written as products, which accelerators round by default


def specs(
    d: int, e: int, vocab: int, init: Initializer = normal(), *, kind: str = "layer", bias: bool = True
) -> Tree:
    """Returns the specs of BERT's masked-LM head (Devlin et al., 2019): a dense layer d -> e, with `bias`, a norm of
    this `kind` in `norm.NORMS`, and a bias [v]."""
    return {
        "transform": linear.specs(d, e, ("embed", None), init, bias=bias),
        "norm": norm.specs(e, kind),
        "bias": ParamSpec((vocab,), ("vocab",), zeros),
    }


def transform(params: Tree, hidden: Array, *, activation: str, eps: float, kind: str = "layer") -> Array:
    """Applies the head before the output table: hidden [b, m, d] -> [b, m, e]."""
    return norm.apply(params["norm"], ACTIVATIONS[activation](linear.apply(params["transform"], hidden)), eps, kind)


def logits(params: Tree, table: Array, x: Array) -> Array:
    """Returns logits float32 [b, m, v]: the output x [b, m, e] of `transform` times the table [v, e], plus a bias."""
    return _logits(gather(table, TABLE, "embed"), params.get("bias"), x)


def _logits(table: Array, bias: Array | None, x: Array) -> Array:
    y = jnp.einsum("...d,vd->...v", x, table.astype(x.dtype), preferred_element_type=jnp.float32)
    axes = ("tokens",) if x.ndim == 2 else ("batch", "length")
    return shard(y if bias is None else y + bias, *axes, "vocab")


def log_probabilities(params: Tree, table: Array, x: Array, targets: Array) -> Array:
    """Returns log softmax(logits)[target], float32 [b, m], of `targets` i32[b, m]; other arguments as in `logits`.

    The negative of `cross_entropy`, which costs more since it prepares for the gradient. Positions are processed in
    chunks where the logits would be large.
    """
    table = gather(table, TABLE, "embed")

    def of_chunk(x: Array, targets: Array) -> Array:
        y = _logits(table, params.get("bias"), x)
        return jnp.take_along_axis(y, targets[..., None], axis=-1)[..., 0] - jax.nn.logsumexp(y, axis=-1)

    return map_chunks(of_chunk, table.shape[0], x, targets)


def cross_entropy(params: Tree, table: Array, x: Array, targets: Array) -> tuple[Array, Array]:
    """Returns (nll float32 [b, m], -log softmax(logits)[target]; correct bool[b, m], whether the target has the largest
    logit, without a gradient, True for ties). Targets i32[b, m] are in [0, v), which the loader checks."""
    nll, correct, _ = _map_cross_entropy(params, table, x, targets, None, 1.0)
    return nll.reshape(targets.shape), correct.reshape(targets.shape)


def cross_entropy_and_sample(
    params: Tree, table: Array, x: Array, targets: Array, seeds: Array, temperature: float = 1.0
) -> tuple[Array, Array, Array]:
    """Returns the results of `cross_entropy`, and tokens i32[b, m] sampled from softmax(logits / temperature) by the
    Gumbel-max trick, without a gradient. Equal logits and equal `seeds` uint32[b, m] give equal tokens."""
    nll, correct, tokens = _map_cross_entropy(params, table, x, targets, seeds.reshape(-1), temperature)
    return tuple(x.reshape(targets.shape) for x in (nll, correct, tokens))


def _map_cross_entropy(
    params: Tree, table: Array, x: Array, targets: Array, seeds: Array | None, temperature: float
) -> tuple[Array, Array, Array | None]:
    axes = ("tokens", None), TABLE, ("vocab",), ("tokens",), ("tokens",)
    return map_examples(lambda *shards: _cross_entropy(*shards, temperature), axes, ((3, 1),) * 3,
                        x.reshape(-1, x.shape[-1]), table, params["bias"], targets.reshape(-1), seeds)


def chunked_cross_entropy(
    table: Array, x: Array, targets: Array, weights: Array, bias: Array | None = None, z_loss: float = 0.0
) -> tuple[Array, Array, Array]:
    """Returns the weighted sum of the cross-entropies of `targets` i32[b, t], without all logits at once.

    Positions are processed in up to `MAX_CHUNKS` chunks, and the gradient of a chunk is computed together with its
    logits, which are never recomputed. No array is larger than [b, t / MAX_CHUNKS, v] or, if that is more, than 2 *
    CHUNK_LOGITS elements, in the forward and the backward pass.

    The table [v, e] and the bias [v] or None give the logits of x [b, t, e]; `weights` float32 [b, t] are 0 where
    nothing is predicted. `z_loss` times the squares of log sum exp(logits) is added to the cross-entropies in the sum,
    so that logits stay small (T5). Returns (the sum float32 [], nll float32 [b, t] and correct bool[b, t] as in
    `cross_entropy`, both without a gradient).
    """
    return map_weighted(lambda *shards: _chunked(*shards, z_loss), table, x, targets, weights, bias)


def map_weighted(
    f: Callable[..., tuple[Array, Array, Array]], table: Array, x: Array, targets: Array, weights: Array,
    bias: Array | None,
) -> tuple[Array, Array, Array]:
    """Returns f(table, x, targets, weights, bias), arrays as in `chunked_cross_entropy`, computed on each device with
    its examples and positions: (a sum over them, nll and correct [b, t] without a gradient)."""
    axes, shape = ("batch", "length"), targets.shape

    def run(*shards: Array | None) -> tuple[Array, Array, Array]:
        total, nll, correct = f(*shards)
        return sum_shards(total, axes, shape), nll, correct

    total, nll, correct = map_examples(run, (TABLE, (*axes, None), axes, axes, ("vocab",)), ((2, 0), (2, 2), (2, 2)),
                                       table, x, targets, weights, bias)
    return total, jax.lax.stop_gradient(nll), correct


MAX_CHUNKS, CHUNK_LOGITS = 32, 2**24  # chunks of a batch at most, logits of a chunk


def _num_chunks(b: int, t: int, v: int) -> int:
    """Returns the number of chunks along t (so examples stay on their devices); none has only padding."""
    size = max(1, -(-t // max(1, min(MAX_CHUNKS, b * t * v // CHUNK_LOGITS))))
    return max(1, -(-t // size))


def split_chunks(x: Array, chunks: int) -> Array:
    """Splits [b, t, ...] -> [chunks, b, t / chunks, ...], padded with zeros where `chunks` does not divide t."""
    b, t = x.shape[:2]
    size = -(-t // chunks)
    x = jnp.pad(x, [(0, 0), (0, size * chunks - t)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(b, chunks, size, *x.shape[2:]), 1, 0)


def merge_chunks(chunks: Array, t: int) -> Array:
    """Inverts `split_chunks`."""
    merged = jnp.moveaxis(chunks, 0, 1)
    return merged.reshape(merged.shape[0], -1, *merged.shape[3:])[:, :t]


def exp_and_nll(y: Array, targets: Array) -> tuple[Array, Array, Array, Array]:
    """Logits [..., v], targets i32[...] -> (exp(logits - max) [..., v]; its sums, nll and correct, [...] each)."""
    largest = y.max(-1)
    target_logits = jnp.take_along_axis(y, targets[..., None], axis=-1)[..., 0]
    exponentials = jnp.exp(y - largest[..., None])
    total = jnp.matmul(exponentials, jnp.ones(exponentials.shape[-1]), precision=EXACT)
    return exponentials, total, jnp.log(total) + largest - target_logits, target_logits >= largest


def map_chunks(f: Callable[..., Array], v: int, *arrays: Array) -> Array:
    """Computes f of `arrays` [b, t, ...], in chunks of t where the logits of v tokens at all positions would be large;
    f returns [b, t]. The backward pass recomputes each chunk."""
    b, t = arrays[0].shape[:2]
    chunks = _num_chunks(b, t, v)
    if chunks == 1:
        return f(*arrays)
    split = tuple(split_chunks(x, chunks) for x in arrays)
    return merge_chunks(jax.lax.map(lambda chunk: jax.checkpoint(f)(*chunk), split), t)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _chunked(table: Array, x: Array, targets: Array, weights: Array, bias: Array | None, z_loss: float):
    def one_chunk(_, inputs):
        x, targets = inputs
        y = _logits(table, bias, x)
        _, total, nll, correct = exp_and_nll(y, targets)
        return None, (nll, correct, _normalizer_loss(y, total, z_loss)[0])

    b, t = targets.shape
    split = partial(split_chunks, chunks=_num_chunks(b, t, table.shape[0]))
    _, chunks = jax.lax.scan(one_chunk, None, (split(x), split(targets)))
    nll, correct, more = (merge_chunks(chunked, t) for chunked in chunks)
    return ((nll + more) * weights).sum(), nll, correct


def _normalizer_loss(y: Array, total: Array, z_loss: float) -> tuple[Array, Array]:
    """Logits [..., v] and the sums of exp(logits - max) [...] -> (z_loss log(Z)^2 [...], 1 + its derivative by
    log Z)."""
    if not z_loss:
        return jnp.zeros_like(total), jnp.ones_like(total)
    log_z = jnp.log(total) + y.max(-1)
    return z_loss * jnp.square(log_z), 1 + 2 * z_loss * log_z


def _chunked_forward(
    table: Array, x: Array, targets: Array, weights: Array, bias: Array | None, z_loss: float
):
    # The result of `_chunked`, and the gradients for a cotangent of 1.
    def one_chunk(sums, inputs):
        dtable, dbias = sums
        x, targets, weights = inputs
        y = _logits(table, bias, x)
        exponentials, total, nll, correct = exp_and_nll(y, targets)
        more, factor = _normalizer_loss(y, total, z_loss)
        scale = weights * factor / total
        dx = jnp.einsum("btv,vd->btd", exponentials.astype(x.dtype), table.astype(x.dtype)) * scale[..., None]
        # Summed transposed: the product is a quarter faster on XLA's CPU backend.
        dtable += jnp.einsum("btv,btd->dv", exponentials.astype(x.dtype), x * scale[..., None].astype(x.dtype),
                             preferred_element_type=jnp.float32)
        if bias is not None:
            dbias += jnp.einsum("bt,btv->v", scale, exponentials, precision=EXACT)
        return (dtable, dbias), (nll, correct, dx, more)

    b, t = targets.shape
    split = partial(split_chunks, chunks=_num_chunks(b, t, table.shape[0]))
    zeros = (shard(jnp.zeros(table.T.shape, jnp.float32), None, "vocab"),
             None if bias is None else jnp.zeros_like(bias))
    (dtable, dbias), chunks = jax.lax.scan(one_chunk, zeros, (split(x), split(targets), split(weights)))
    nll, correct, dx, more = (merge_chunks(chunked, t) for chunked in chunks)
    if x.dtype != jnp.float32:  # else XLA's CPU backend transposes inside a bfloat16 product, which it then cannot run
        dtable = jax.lax.optimization_barrier(dtable)
    # softmax(y) - one_hot(target): the second term, of all positions at once.
    dx -= table[targets].astype(dx.dtype) * weights[..., None].astype(dx.dtype)
    dtable = dtable.T.at[targets].add(-x.astype(jnp.float32) * weights[..., None])
    if bias is not None:
        dbias = dbias.at[targets].add(-weights)
    losses = nll + more
    total = (losses * weights).sum()
    return (total, nll, correct), (dtable.astype(table.dtype), dx.astype(x.dtype), dbias, losses)


def scaled_gradients(_: float, residuals: tuple, cotangents: tuple[Array, Array, Array]) -> tuple:
    """Scales gradients that the forward pass has computed for a cotangent of 1."""
    dtable, dx, dbias, losses = residuals
    g = cotangents[0]
    return g * dtable, (g * dx).astype(dx.dtype), None, g * losses, None if dbias is None else g * dbias


_chunked.defvjp(_chunked_forward, scaled_gradients)


def _forward(
    x: Array, table: Array, bias: Array, targets: Array, seeds: Array | None, temperature: float
) -> tuple[tuple[Array, Array, Array | None], tuple]:
    """x [n, e], table [v, e], bias [v], targets i32[n], seeds uint32[n] -> (nll [n], correct bool[n], tokens i32[n] or
    None without seeds)."""
    y = _logits(table, bias, x)
    # The exponentials are the only [n, v] array kept, and [n] and [n, e] arrays are divided by their sums instead: this
    # computation is bound by memory.
    exponentials, total, nll, correct = exp_and_nll(y, targets)
    tokens = None if seeds is None else _argmax(y / temperature + _gumbel(seeds, y.shape[-1]))
    return (nll, correct, tokens), (x, table, targets, exponentials, total)


def _gumbel(seeds: Array, v: int) -> Array:
    """Returns standard Gumbel noise float32 [n, v], a hash of (seed, token), so that no random bits are stored."""
    number = jnp.arange(v, dtype=jnp.uint32) * np.uint32(0x9E3779B1)
    bits = dropout.mix(dropout.mix(number[None] ^ seeds[:, None]) + seeds[:, None])
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23  # neither 0 nor 1
    return -jnp.log(-jnp.log(uniform))


def _argmax(y: Array) -> Array:
    """Computes y.argmax(-1) of [n, v], i32[n], as two reductions: XLA's CPU backend does not vectorise argmax."""
    largest = y.max(-1, keepdims=True)
    return jnp.where(y == largest, jnp.arange(y.shape[-1], dtype=jnp.int32), y.shape[-1] - 1).min(-1)


def _backward(temperature: float, residuals: tuple, cotangents: tuple) -> tuple[Array, Array, Array, None, None]:
    # d nll / d y = softmax(y) - one_hot(target), which is never materialised.
    x, table, targets, exponentials, total = residuals
    g = cotangents[0]
    scale = g / total
    dx = (exponentials.astype(x.dtype) @ table.astype(x.dtype)) * scale[:, None] - table[targets] * g[:, None]
    # Summed in float32: in bfloat16 the gradient of a frequent token would stop growing.
    dtable = jnp.einsum("nv,nd->vd", exponentials.astype(x.dtype), x * scale[:, None].astype(x.dtype),
                        preferred_element_type=jnp.float32)
    dtable = dtable.at[targets].add(-x * g[:, None])
    dbias = jnp.matmul(scale, exponentials, precision=EXACT).at[targets].add(-g)
    return dx.astype(x.dtype), dtable.astype(table.dtype), dbias, None, None


_cross_entropy = with_gradient(_forward, _backward, nondiff_argnums=(5,))
