"""Transformer-XL (Dai et al., 2019) and XLNet (Yang et al., 2019): Transformers with relative positions, which attend
to the states of earlier examples too.

They differ in `Config`, whose published values are in `presets.py`. Transformer-XL reads from left to right. XLNet is
conditioned on any context and, with `Inputs.factorization`, runs two streams with the same parameters: the content
stream h reads each token; the query stream g starts at the positions that are predicted from one vector, `query`, and
attends to h and not to the token of its own position.

**Memory.** `carry` holds the last `memory` inputs of each layer, without a gradient, which the next examples attend to,
as far as they are filled. Texts are independent: where segment ids change, an example leaves its memory behind, and
keeps that of its last segment. Padding, which follows the tokens, is not remembered. It is float32, so that a run
resumes with the same values whatever its compute dtype is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.core.sharding import shard
from lmrep.layers import adaptive, dropout, mlp, norm, relative_attention, stack
from lmrep.layers.attention import AttentionMask, take
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.layers.relative_attention import Mask
from lmrep.models.base import Encoded, Inputs, Model, ModelDef, OutputLayer, Sizes, check_inputs


@dataclass(frozen=True)
class Config:
    """The fields in which Transformer-XL and XLNet differ."""

    vocab: int = setting(0, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    width: int = setting(512, "d, the model width", at_least=1)
    layers: int = setting(12, "l, the number of layers", at_least=1)
    heads: int = setting(8, "h, attention heads a layer; a divisor of the width", at_least=1)
    mlp: int = setting(2048, "f, the feed-forward width", at_least=1)
    cutoffs: tuple[int, ...] = setting((), "ids, sorted by falling frequency, at which the clusters of an adaptive "
                                       "softmax start; (): one softmax")
    div: int = setting(1, "the vectors of each cluster are narrower by this factor than those of the one before it, "
                       "and projected", at_least=1)
    tied_projections: str = setting("all", "clusters whose projection the input and the output share; tails: all but "
                                    "the first", choices=adaptive.TIED)
    max_length: int = setting(0, "tokens of a sequence at most; 0: any", at_least=0)
    causal: bool = setting(True, "whether it is conditioned on left contexts only (Transformer-XL), or on any, with a "
                           "query stream (XLNet)")
    memory: int = setting(0, "positions of earlier examples that an example attends to", at_least=0)
    reuse: int = setting(0, "tokens of an example, the first ones, that are remembered (XLNet); 0: all, -1: half",
                         at_least=-1)
    same_length: bool = setting(False, "whether each position attends to the same number of positions, `memory`, with "
                                "itself")
    clamp: int = setting(0, "the distance from which on all positions are equally far; 0: none", at_least=0)
    segments: bool = setting(False, "whether attention depends on whether two tokens have the same token type (XLNet)")
    untie: bool = setting(False, "whether each layer has its own biases of queries (XLNet), or all share theirs")
    scale_embedding: bool = setting(True, "whether embeddings are multiplied by the root of d (Transformer-XL)")
    norm: str = setting("post", "layer norm after each residual sum, or before each block and after the last layer",
                        choices=("post", "pre"))
    norm_eps: float = setting(1e-5, "epsilon of layer norm (XLNet: 1e-12)", above=0)
    activation: str = setting("relu", "of the feed-forward block", choices=tuple(ACTIVATIONS))
    dropout: float = setting(0.1, "on embeddings, sinusoids, within and on the output of each block, and on the output",
                             at_least=0, below=1)
    attention_dropout: float = setting(0.0, "on attention probabilities", at_least=0, below=1)
    init_stddev: float = setting(0.02, "standard deviation of initial weights", above=0)
    scale_stddev: float = setting(0.02, "that of the initial scales of layer norm, whose mean is 1 (XLNet: 0)",
                                  at_least=0)

    @property
    def table_width(self) -> int:
        """e, the width of the token table."""
        return self.width

    @property
    def head_width(self) -> int:
        """k, the width of a head."""
        return self.width // self.heads

    @property
    def clusters(self) -> adaptive.Clusters:
        """Those of the vocabulary; one without `cutoffs`."""
        return adaptive.Clusters(self.vocab, self.width, self.width, self.cutoffs, self.div, self.tied_projections)

    def carried(self, length: int) -> int:
        """The tokens of an example of this length that are remembered."""
        return max(1, length // 2) if self.reuse < 0 else min(self.reuse or length, length)


def check(c: Config) -> None:
    """Raises UserError where fields do not fit each other."""
    if c.width % c.heads:
        near = [h for h in range(1, c.width + 1) if c.width % h == 0]
        raise UserError(f"model.width is {c.width}, which model.heads={c.heads} does not divide; "
                        f"for example, set heads to {min(near, key=lambda h: abs(h - c.heads))}")
    if c.width % 2:
        raise UserError(f"sinusoidal positions need an even width; model.width is {c.width}")
    if c.same_length and not c.memory:
        raise UserError("model.same_length is set, and model.memory, the number of positions that each one attends to, "
                        "is 0; set it too")
    adaptive.check(c.clusters)
    if c.div > 1 and not c.cutoffs:
        raise UserError(f"model.div is {c.div}, and model.cutoffs is (): there is one cluster, of full width; set "
                        "--config.model.cutoffs, as (20000,40000,200000), or --config.model.div=1")


def build(c: Config, execution: stack.Execution = stack.Execution(), name: str = "transformer_xl") -> Model:
    """The model of config `c`."""
    check(c)
    return Model(
        name=name,
        specs=specs(c),
        encode=partial(encode, c=c, execution=execution),
        output_embedding=None if c.cutoffs else output_embedding,
        output_layer=output_layer(c) if c.cutoffs else None,
        width=c.width,
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=input_fields(c),
        context=frozenset({"left"} if c.causal else {"left", "both", "order"}),
        output_dim=c.width,
        attention=True,
        pooling="last",
        carry=partial(initial_memory, c=c) if c.memory else None,
        start_cache=partial(start_cache, c=c, execution=execution),
        decode=partial(decode, c=c, execution=execution),
        carried=c.carried,
        activation=c.activation,
        norm_eps=c.norm_eps,
        init=normal(c.init_stddev),
        sizes=Sizes(c.layers * c.width * (4 * c.width + 2 * c.mlp), c.layers * c.width),
    )


def input_fields(c: Config) -> frozenset[str]:
    """The fields of `Inputs` that `encode` takes."""
    return frozenset({"tokens", "attention_mask", "reversed", *(["carry"] if c.memory else []),
                      *(["token_type_ids"] if c.segments else []), *([] if c.causal else ["factorization"])})


def specs(c: Config) -> Tree:
    """The parameters: `embedding` (as `adaptive.embedding_specs`), `layers` and, by config, `biases` that layers share,
    `query` and `final_norm`."""
    init = normal(c.init_stddev)
    tree = {"embedding": adaptive.embedding_specs(c.clusters, init),
            "layers": stack.specs(layer_specs(c), c.layers)}
    if not c.untie:
        tree["biases"] = relative_attention.bias_specs(c.width, c.heads, init, segments=c.segments)
    if not c.causal:
        # The released code gives it no initializer: TensorFlow's default for a shape of [1, 1, d].
        limit = (6 / (1 + c.width)) ** 0.5
        tree["query"] = ParamSpec((c.width,), (None,),
                                  lambda key, shape: jax.random.uniform(key, shape, minval=-limit, maxval=limit))
    if c.norm == "pre":
        tree["final_norm"] = norm_specs(c)
    return tree


def norm_specs(c: Config) -> Tree:
    """A layer norm whose initial scales are drawn around 1."""
    draw: Initializer = lambda key, shape: 1 + c.scale_stddev * jax.random.normal(key, shape)  # noqa: E731
    found = norm.specs(c.width)
    return found | {"scale": found["scale"]._replace(init=draw)} if c.scale_stddev else found


def layer_specs(c: Config) -> Tree:
    """The parameters of one layer."""
    init = normal(c.init_stddev)
    own = relative_attention.bias_specs(c.width, c.heads, init, segments=c.segments) if c.untie else {}
    return {
        "attention": relative_attention.specs(c.width, c.heads, init, segments=c.segments) | own,
        "attention_norm": norm_specs(c),
        "mlp": mlp.specs(c.width, c.mlp, init),
        "mlp_norm": norm_specs(c),
    }


def initial_memory(batch_size: int, *, c: Config) -> Tree:
    """An empty memory: `layers`, by number the inputs of each layer, float32 [b, memory, d], of which the last are the
    most recent; and `filled` i32[b, memory], 1 where there is one."""
    return {"layers": {str(i): jnp.zeros((batch_size, c.memory, c.width), jnp.float32) for i in range(c.layers)},
            "filled": jnp.zeros((batch_size, c.memory), jnp.int32)}


class _Streams(NamedTuple):
    """The residual streams: that of the content [b, t, d], and that of queries [b, m, d] or None."""

    content: Array
    query: Array | None


class _LayerInputs(NamedTuple):
    """What each layer is given beside the streams, on a leading axis l."""

    key: Array | None
    memory: Array | None  # [l, b, memory, d]


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: stack.Execution = stack.Execution(),
) -> Encoded:
    """`Model.encode`. With `at`, the last layer runs at these positions only. With `Inputs.factorization`, `hidden` is
    the query stream at these positions, by default all, and `layers` and `attention` are those of the content stream.
    Attention probabilities are [l, b, h, t, memory + t] with a carry.

    Raises:
      ValueError: a field of `inputs` that the model does not take, a mask that is not causal for a network of left
        contexts, too many tokens, or, without a factorization, `at` together with `layers` or `attention`.
    """
    order = inputs.factorization
    if at is not None and order is None and (layers or attention):
        raise ValueError("`at` computes the last layer at some positions only; leave out `layers` and `attention`, "
                         "which need all positions")
    check_inputs(inputs, input_fields(c))
    b, t = inputs.tokens.shape
    if 0 < c.max_length < t:
        raise ValueError(f"got {t} tokens; the model takes {c.max_length} at most")
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens), causal=c.causal)
    if c.causal and not mask.causal:
        raise ValueError("this network reads from left to right; expected an AttentionMask with causal=True")
    if order is not None and at is None:
        at = jnp.broadcast_to(jnp.arange(t), (b, t))

    embedding_key, position_key, output_key, stack_key, query_key = prng.split(key, 5)
    x = dropout.apply(embedding_key, _embed(params, inputs.tokens, c), c.dropout)
    x = shard(x, "batch", "length", None).astype(execution.dtype)
    streams = _Streams(x, None)
    if order is not None:
        g = jnp.broadcast_to(params["query"], (b, at.shape[1], c.width))
        streams = _Streams(x, dropout.apply(query_key, g, c.dropout).astype(execution.dtype))

    carry = inputs.carry
    if carry is not None:
        memory = jnp.stack([carry["layers"][str(i)] for i in range(c.layers)]).astype(execution.dtype)
    content_mask = _mask(inputs, mask, c, own=True)
    last_mask = content_mask if at is None else _mask(inputs, mask, c, own=order is None, at=at)
    relative = _relative(t, content_mask.visible.shape[-1], mask.causal, inputs.reversed, c)
    relative = dropout.apply(position_key, relative, c.dropout).astype(execution.dtype)
    remembered = _remembered(mask.segment_ids, carry, c)

    def run(p: Tree, x: _Streams, own: _LayerInputs, last: bool = False) -> tuple[_Streams, tuple]:
        content_key, query_key = prng.split(own.key, 2)
        biases = p["attention"] if c.untie else params["biases"]
        source = x.content if own.memory is None else jnp.concatenate([own.memory, x.content], 1)
        normed = norm.apply(p["attention_norm"], source, c.norm_eps) if c.norm == "pre" else source
        keys = relative_attention.project(p["attention"], normed, relative, c.heads)
        block = partial(_layer, p, biases, keys=keys, c=c)
        kept = None if remembered is None else remembered.of(source, c)
        if last:  # nothing reads the content stream after it
            query = x.query if order is not None else take(x.content, at)
            query, _ = block(query, mask=last_mask, key=query_key if order is not None else content_key)
            return (query, kept), None
        content, probabilities = block(x.content, mask=content_mask, key=content_key)
        query = None if x.query is None else block(x.query, mask=last_mask, key=query_key)[0]
        return _Streams(content, query), (content if layers else None, probabilities if attention else None, kept)

    only_chosen = at is not None and not layers and not attention
    keys = None if key is None else jax.random.split(stack_key, c.layers)
    streams, collected = stack.apply(
        run, params["layers"], layer_specs(c), streams, _LayerInputs(keys, None if carry is None else memory), c.layers,
        execution=execution, last=partial(run, last=True) if only_chosen else None)
    outputs, probabilities, kept = collected or (None, None, None)
    if only_chosen:
        hidden, last_kept = streams
        if remembered is not None:
            kept = last_kept[None] if kept is None else jnp.concatenate([kept, last_kept[None]])
    else:
        hidden = streams.content if order is None else streams.query
    if c.norm == "pre":
        hidden = norm.apply(params["final_norm"], hidden, c.norm_eps)
    hidden = dropout.apply(output_key, hidden, c.dropout)
    if at is not None:
        hidden = shard(hidden, "batch", None, None)  # heads use them in any order
    next_carry = None if remembered is None else {
        "layers": {str(i): kept[i] for i in range(c.layers)}, "filled": remembered.filled}
    return Encoded(hidden, None if outputs is None else (x, *outputs), probabilities, next_carry)


def output_embedding(params: Tree, key: Array | None = None) -> Array:
    """The token table [v, d]."""
    return params["embedding"]["token"]


def output_layer(c: Config) -> OutputLayer:
    """The adaptive softmax of a network with `cutoffs`."""
    def bound(f: Callable) -> Callable:
        return lambda params, head, *arrays: f(params["embedding"], head, *arrays, c.clusters)

    def cross_entropy(
        params: Tree, head: Tree, x: Array, targets: Array, weights: Array, key: Array | None = None
    ) -> tuple[Array, Array, Array]:  # no dropout acts on tables
        return adaptive.cross_entropy(params["embedding"], head, x, targets, weights, c.clusters)

    return OutputLayer(adaptive.output_specs(c.clusters, init=normal(c.init_stddev)), cross_entropy,
                       bound(adaptive.log_probabilities), bound(adaptive.logits))


def _embed(params: Tree, tokens: Array, c: Config) -> Array:
    """float32 [b, t, d]."""
    return adaptive.embed(params["embedding"], tokens, c.clusters) * (c.width**0.5 if c.scale_embedding else 1.0)


def _layer(
    p: Tree, biases: Mapping[str, Array], x: Array, *, keys: relative_attention.Keys, mask: Mask, key: Array | None,
    c: Config,
) -> tuple[Array, Array]:
    """One layer: (x [b, t, d], attention probabilities)."""
    attention_key, output_key, inner_key, mlp_key = prng.split(key, 4)
    pre = c.norm == "pre"
    y = norm.apply(p["attention_norm"], x, c.norm_eps) if pre else x
    y, probabilities = relative_attention.apply(
        p["attention"], biases, y, keys, mask, c.heads, rate=c.attention_dropout, key=attention_key)
    x = _add(p["attention_norm"], x, y, c, output_key)
    y = norm.apply(p["mlp_norm"], x, c.norm_eps) if pre else x
    y = mlp.apply(p["mlp"], y, c.activation, rate=c.dropout, key=inner_key)
    return _add(p["mlp_norm"], x, y, c, mlp_key), probabilities


def _add(p: Tree, x: Array, y: Array, c: Config, key: Array | None) -> Array:
    """The residual stream after adding a block's output y, normalized with post norm."""
    x = x + dropout.apply(key, y, c.dropout)
    return shard(x if c.norm == "pre" else norm.apply(p, x, c.norm_eps), "batch", "length", None)


def _mask(inputs: Inputs, mask: AttentionMask, c: Config, own: bool, at: Array | None = None) -> Mask:
    """What the queries at positions `at`, by default all, may attend to: the memory and the positions of the example.
    With a factorization, a query attends to its own position if `own`."""
    segment_ids, order, types = mask.segment_ids, inputs.factorization, inputs.token_type_ids
    t = segment_ids.shape[1]
    places = jnp.broadcast_to(jnp.arange(t), segment_ids.shape)

    def rows(x: Array) -> Array:
        return x if at is None else take(x, at)

    def pairs(x: Array) -> tuple[Array, Array]:
        """Of queries [b, t, 1] and keys [b, 1, s]."""
        return rows(x)[:, :, None], x[:, None, :]

    query_segments, key_segments = pairs(segment_ids)
    query_places, key_places = pairs(places)
    visible = query_segments == key_segments
    if mask.causal:
        visible &= query_places >= key_places
    if mask.mask is not None:
        visible &= rows(mask.mask)
    if order is not None:
        ordered = order.revealed[:, None, :] < rows(order.sees)[:, :, None]
        visible &= (ordered | (query_places == key_places)) if own else ordered
    distance = query_places - key_places
    equal = None if types is None else rows(types)[:, :, None] == types[:, None, :]
    if inputs.carry is not None:
        first = (query_segments == segment_ids[:, :1, None]) & (query_segments > 0)
        visible = jnp.concatenate([first & (inputs.carry["filled"][:, None, :] > 0), visible], -1)
        back = jnp.broadcast_to(query_places - (jnp.arange(c.memory) - c.memory), (*query_places.shape[:2], c.memory))
        distance = jnp.concatenate([back, distance], -1)
        if equal is not None:  # the type of remembered tokens is 0
            of_memory = jnp.broadcast_to(rows(types)[:, :, None] == 0, back.shape)
            equal = jnp.concatenate([of_memory, equal], -1)
    if c.same_length:
        visible &= distance < c.memory
    return Mask(shard(visible, "batch", "length", None), equal, at, t)


def _relative(t: int, s: int, causal: bool, turned: Array | None, c: Config) -> Array:
    """R of all distances between t queries and s keys, the last of which are the queries', by falling distance:
    [s + t, d], [s + 1, d] if no key is after a query, or [b, ..., d] where the signs of examples differ."""
    distances = np.arange(s - 1, -2 if causal else -t - 1, -1)
    if c.clamp:
        distances = distances.clip(-c.clamp, c.clamp)
    relative = relative_attention.sinusoids(distances, c.width)
    if turned is None:
        return relative
    signs = jnp.where(turned > 0, -1.0, 1.0)[:, None, None]  # of sines
    return relative * jnp.concatenate([jnp.broadcast_to(signs, (*signs.shape[:2], c.width // 2)),
                                       jnp.ones((*signs.shape[:2], c.width // 2))], -1)


# Generation


class Cache(NamedTuple):
    """The keys and values of the last m tokens, the most recent one last, for generation."""

    keys: Array  # [l, b, m, h, k]
    values: Array  # [l, b, m, h, k]
    positions: Array  # [l, n, h, k], the keys of the n distances that a single token needs
    length: Array  # i32[], number of tokens read


def start_cache(
    params: Tree, batch_size: int, length: int, *, c: Config, execution: stack.Execution = stack.Execution()
) -> Cache:
    """An empty cache of `memory` tokens; without a memory, for `length` tokens."""
    m = min(c.memory, length) if c.memory else length
    empty = jnp.zeros((c.layers, batch_size, m, c.heads, c.head_width), execution.dtype)
    relative = _relative(1, _distances(1, m, c) - 1, True, None, c).astype(execution.dtype)
    _, positions = stack.apply(
        lambda p, x, _: (x, relative_attention.position_keys(p["attention"], relative, c.heads)),
        params["layers"], layer_specs(c), jnp.float32(0), None, c.layers, execution=_scanned(execution))
    return Cache(empty, empty, positions, jnp.int32(0))


def _scanned(execution: stack.Execution) -> stack.Execution:
    """Without a gradient, a stack need not be unrolled."""
    return replace(execution, scan=True, remat="none")


def _distances(t: int, m: int, c: Config) -> int:
    """How many distances t tokens need with a cache of m: those to all keys, -1, and one more for the query stream."""
    return t + m + (1 if c.causal else 2)


def decode(
    params: Tree, tokens: Array, cache: Cache, real: Array | None = None, *, query: bool = False, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> tuple[Array, Cache]:
    """The output [b, t, d] at the next t tokens i32[b, t], and the cache with these tokens.

    Each token attends to itself and to `memory` tokens before it, or to all without a memory. It is what `encode` gives
    when it is given the tokens one at a time, each with the memory of those before it, however they are divided into
    calls. With `query`, the output is the query stream at the position after each token, which attends to that token
    and those before it. `real` i32[] is the number of the t tokens that are not padding.
    """
    (b, t), m = tokens.shape, cache.keys.shape[2]
    s, n, count = m + t, _distances(t, m, c), t if real is None else real
    x = _embed(params, tokens, c).astype(execution.dtype)
    g = jnp.broadcast_to(params["query"], x.shape).astype(execution.dtype) if query else None
    relative = _relative(t, n - 1, True, None, c).astype(execution.dtype)
    distance = m + jnp.arange(t)[:, None] - jnp.arange(s)
    known = (distance >= 0) & (jnp.arange(s) >= m - cache.length)

    def mask(distance: Array) -> Mask:
        visible = known & (distance < c.memory + (not c.same_length)) if c.memory else known
        return Mask(jnp.broadcast_to(visible, (b, t, s)), None, None, t)

    def run(p: Tree, streams: _Streams, own: Cache) -> tuple[_Streams, Cache]:
        attention, biases = p["attention"], p["attention"] if c.untie else params["biases"]
        positions = own.positions if t == 1 else relative_attention.position_keys(attention, relative, c.heads)
        source = norm.apply(p["attention_norm"], streams.content, c.norm_eps) if c.norm == "pre" else streams.content
        new = relative_attention.keys_and_values(attention, source, c.heads)
        keys, values = (jnp.concatenate(pair, 1) for pair in zip((own.keys, own.values), new, strict=True))

        def layer(x: Array, first: int, mask: Mask) -> Array:
            found = relative_attention.Keys(keys, values, positions[first : first + s + 1])
            return _layer(p, biases, x, keys=found, mask=mask, key=None, c=c)[0]

        g = None if streams.query is None else layer(streams.query, 0, mask(distance + 1))
        streams = _Streams(layer(streams.content, n - s - 1, mask(distance)), g)
        keys, values = (jax.lax.dynamic_slice_in_dim(each, count, m, 1) for each in (keys, values))
        return streams, own._replace(keys=keys, values=values)

    of_layers = cache._replace(length=None)
    streams, of_layers = stack.apply(run, params["layers"], layer_specs(c), _Streams(x, g), of_layers, c.layers,
                                     execution=_scanned(execution))
    hidden = streams.query if query else streams.content
    if c.norm == "pre":
        hidden = norm.apply(params["final_norm"], hidden, c.norm_eps)
    return hidden, of_layers._replace(length=cache.length + count)


# Memory


class _Memory(NamedTuple):
    """Which positions are remembered, of the memory and the example side by side, [b, memory + t]."""

    start: Array  # i32[b], the first of the `memory` positions
    filled: Array  # i32[b, memory], the next `Memory.filled`
    has_carry: bool

    def of(self, source: Array, c: Config) -> Array:
        """The next memory float32 [b, memory, d] of a layer whose inputs, with its memory, are [b, s, d]."""
        source = jax.lax.stop_gradient(source)
        if not self.has_carry:
            source = jnp.pad(source, ((0, 0), (c.memory, 0), (0, 0)))
        return shard(_windows(source, self.start, c.memory), "batch", None, None).astype(jnp.float32)


def _remembered(segment_ids: Array, carry: Tree, c: Config) -> _Memory | None:
    """None for a network without memory."""
    if not c.memory:
        return None
    b, t = segment_ids.shape
    known = segment_ids[:, : c.carried(t)]
    count = ((known > 0) * jnp.arange(1, known.shape[1] + 1)).max(1)  # up to the last token
    last = jnp.take_along_axis(known, jnp.maximum(count - 1, 0)[:, None], 1)
    before = jnp.zeros((b, c.memory), jnp.int32) if carry is None else carry["filled"]
    before *= (last == known[:, :1]) | (count == 0)[:, None]
    filled = jnp.concatenate([before, ((known == last) & (known > 0)).astype(jnp.int32)], 1)
    return _Memory(count, _windows(filled, count, c.memory), carry is not None)


def _windows(x: Array, start: Array, size: int) -> Array:
    """x [b, s, ...] -> [b, size, ...]: positions from `start` i32[b] on."""
    return jax.vmap(lambda x, start: jax.lax.dynamic_slice_in_dim(x, start, size))(x, start)


DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "layers": 2, "width": 128, "heads": 4, "mlp": 512, "cutoffs": (), "div": 1, "dropout": 0.0,
          "attention_dropout": 0.0, "init_stddev": 0.08},
    check=check,
    architecture_fields=("heads", "causal", "clamp", "segments", "scale_embedding", "norm"),
    dropout_fields=("dropout", "attention_dropout", "memory", "reuse"),
    evaluation_fields=("memory", "clamp", "same_length"),
    carried_field="reuse",
)
