"""Transformer-XL (Dai et al., 2019) and XLNet (Yang et al., 2019): Transformers with relative positions, which attend
to the states of earlier examples too.

They differ in `Config`, whose published values are in `presets.py`. Transformer-XL reads from left to right. XLNet is
conditioned on any context and, with `Inputs.factorization`, runs two streams with the same parameters: the content
stream h reads each token; the query stream g starts at the positions that are predicted from one vector, `query`, and
attends to h and not to the token of its own position.

**Memory.** `carry` holds the last `memory` inputs of each layer, without a gradient, which the next examples attend to,
as far as they are filled. Texts are independent: where segment ids change, an example leaves its memory behind, and
keeps the memory of its last segment. Padding, which follows the tokens, is not remembered. It is float32, so that a run
resumes with the same values whatever its compute dtype is.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.params import Array, ParamSpec, Tree, normal
from lmrep.core.sharding import shard
from lmrep.layers import adaptive, dropout, norm, relative_attention, stack
from lmrep.layers.attention import AttentionMask, take
from lmrep.layers.relative_attention import Mask
from lmrep.models import transformer_xl_cache
from lmrep.models.base import (
    Context,
    Encoded,
    Heads,
    HeadStyle,
    Inputs,
    Model,
    ModelDef,
    Output,
    OutputLayer,
    State,
    check_inputs,
    token_table,
)
from lmrep.models.sizes import Sizes
from lmrep.models.transformer_xl_layers import (
    Config,
    Streams,
    check,
    embed,
    layer,
    layer_specs,
    norm_specs,
    relative_positions,
)


def build(c: Config, execution: stack.Execution = stack.Execution(), name: str = "transformer_xl") -> Model:
    """Builds the model of config `c`."""
    check(c)
    return Model(
        name=name,
        specs=specs(c),
        encode=partial(encode, c=c, execution=execution),
        width=c.width,
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=input_fields(c),
        conditions_on=frozenset({Context.LEFT} if c.causal else
                                {Context.LEFT, Context.BOTH, Context.MASKED, Context.ORDER}),
        output=Output(c.width, token_table if c.tied and not c.cutoffs else None,
                      output_layer(c) if c.cutoffs else None),
        state=State(partial(initial_memory, c=c) if c.memory else None, c.carried,
                    partial(transformer_xl_cache.start_cache, c=c, execution=execution),
                    partial(transformer_xl_cache.decode, c=c, execution=execution)),
        heads=Heads(attention=frozenset({"self"})),
        head_style=HeadStyle(c.activation, c.norm_eps, normal(c.init_stddev), pooling="last"),
        sizes=Sizes(c.layers * c.width * (4 * c.width + 2 * c.mlp), c.layers * c.width),
    )


def input_fields(c: Config) -> frozenset[str]:
    """Returns the fields of `Inputs` that `encode` takes."""
    return frozenset({"tokens", "attention_mask", "reversed", *(["carry"] if c.memory else []),
                      *(["token_type_ids"] if c.segments else []), *([] if c.causal else ["factorization"])})


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding` (as `adaptive.embedding_specs`), `layers` and, by config, `biases` that
    layers share, `query` and `final_norm`."""
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


def initial_memory(batch_size: int, *, c: Config) -> Tree:
    """Makes an empty memory: `layers`, by number the inputs of each layer, float32 [b, memory, d], of which the last
    are the most recent; and `filled` i32[b, memory], 1 where there is one."""
    return {"layers": {str(i): jnp.zeros((batch_size, c.memory, c.width), jnp.float32) for i in range(c.layers)},
            "filled": jnp.zeros((batch_size, c.memory), jnp.int32)}


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: stack.Execution = stack.Execution(),
) -> Encoded:
    """Implements `Model.encode`. With `at`, the last layer runs at these positions only. With `Inputs.factorization`,
    `hidden` is the query stream at these positions, by default all, and `layers` and `attention` are the content
    stream's. Attention probabilities are [l, b, h, t, memory + t] with a carry. Raises ValueError for a field of
    `inputs` that the model does not take, a mask that is not causal for a network of left contexts, too many tokens,
    or, without a factorization, `at` together with `layers` or `attention`."""
    order, carry, (b, t) = inputs.factorization, inputs.carry, inputs.tokens.shape
    if at is not None and order is None and (layers or attention):
        raise ValueError("`at` computes the last layer at some positions only; leave out `layers` and `attention`, "
                         "which need all positions")
    check_inputs(inputs, input_fields(c), c.max_length)
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens), causal=c.causal)
    if c.causal and not mask.causal:
        raise ValueError("this network reads from left to right; expected an AttentionMask with causal=True")
    if order is not None and at is None:
        at = jnp.broadcast_to(jnp.arange(t), (b, t))
    embedding_key, position_key, output_key, stack_key, query_key = prng.split(key, 5)
    embedded = _streams(params, inputs, at, embedding_key, query_key, c, execution)
    memory = None if carry is None else jnp.stack(
        [carry["layers"][str(i)] for i in range(c.layers)]).astype(execution.dtype)
    content_mask = _mask(inputs, mask, c, itself=True)
    last_mask = content_mask if at is None else _mask(inputs, mask, c, itself=order is None, at=at)
    relative = relative_positions(t, content_mask.visible.shape[-1], mask.causal, inputs.reversed, c)
    relative = dropout.apply(position_key, relative, c.dropout).astype(execution.dtype)
    remembered = _remembered(mask.segment_ids, carry, c)

    def run(p: Tree, x: Streams, slices: tuple[Array | None, ...], last: bool = False) -> tuple[Streams, tuple]:
        key, before = slices
        content_key, query_key = prng.split(key, 2)
        biases = p["attention"] if c.untie else params["biases"]
        source = x.content if before is None else jnp.concatenate([before, x.content], 1)
        normed = norm.apply(p["attention_norm"], source, c.norm_eps) if c.norm == "pre" else source
        keys = relative_attention.Keys(
            *relative_attention.keys_and_values(p["attention"], normed, c.heads),
            relative_attention.position_keys(p["attention"], relative.astype(normed.dtype), c.heads))
        block = partial(layer, p, biases, keys=keys, c=c)
        new_memory = None if remembered is None else remembered.of(source, c)
        if last:  # nothing reads the content stream after it
            query = x.query if order is not None else take(x.content, at)
            query, _ = block(query, mask=last_mask, key=query_key if order is not None else content_key)
            return (query, new_memory), None
        content, probabilities = block(x.content, mask=content_mask, key=content_key)
        query = None if x.query is None else block(x.query, mask=last_mask, key=query_key)[0]
        return Streams(content, query), (content if layers else None, probabilities if attention else None, new_memory)

    only_chosen = at is not None and not layers and not attention
    keys = None if key is None else jax.random.split(stack_key, c.layers)
    streams, collected = stack.apply(
        [run] * c.layers, params["layers"], layer_specs(c), embedded, (keys, memory), execution=execution,
        last=partial(run, last=True) if only_chosen else None)
    outputs, probabilities, next_memory = collected or (None, None, None)
    if only_chosen:
        hidden, last_memory = streams
        if remembered is not None:
            next_memory = last_memory[None] if next_memory is None else jnp.concatenate(
                [next_memory, last_memory[None]])
    else:
        hidden = streams.content if order is None else streams.query
    if c.norm == "pre":
        hidden = norm.apply(params["final_norm"], hidden, c.norm_eps)
    hidden = dropout.apply(output_key, hidden, c.dropout)
    if at is not None:
        hidden = shard(hidden, "batch", None, None)  # heads use chosen positions in any order
    next_carry = None if remembered is None else {
        "layers": {str(i): next_memory[i] for i in range(c.layers)}, "filled": remembered.filled}
    return Encoded(hidden, None if outputs is None else (embedded.content, *outputs), probabilities, next_carry)


def _streams(
    params: Tree, inputs: Inputs, at: Array | None, key: Array | None, query_key: Array | None, c: Config,
    execution: stack.Execution,
) -> Streams:
    """Returns the input of the first layer; with queries at the positions `at`, where there is a factorization."""
    x = dropout.apply(key, embed(params, inputs.tokens, c), c.dropout)
    x = shard(x, "batch", "length", None).astype(execution.dtype)
    if inputs.factorization is None:
        return Streams(x, None)
    g = jnp.broadcast_to(params["query"], (*at.shape, c.width))
    return Streams(x, dropout.apply(query_key, g, c.dropout).astype(execution.dtype))


def output_layer(c: Config) -> OutputLayer:
    """Returns the adaptive softmax of a network with `cutoffs`."""
    def bound(f: Callable) -> Callable:
        return lambda params, head, *arrays: f(params["embedding"], head, *arrays, c.clusters)

    def cross_entropy(
        params: Tree, head: Tree, x: Array, targets: Array, weights: Array, key: Array | None = None
    ) -> tuple[Array, Array, Array]:  # no dropout acts on tables
        return adaptive.cross_entropy(params["embedding"], head, x, targets, weights, c.clusters)

    return OutputLayer(adaptive.output_specs(c.clusters, init=normal(c.init_stddev)), cross_entropy,
                       bound(adaptive.log_probabilities), bound(adaptive.logits))


def _mask(inputs: Inputs, mask: AttentionMask, c: Config, itself: bool, at: Array | None = None) -> Mask:
    """Returns the mask of the queries at positions `at`, by default all. They may attend to the memory and the
    positions of the example. With a factorization, a query attends to its position if `itself`."""
    segment_ids, order, types = mask.segment_ids, inputs.factorization, inputs.token_type_ids
    t = segment_ids.shape[1]
    positions = jnp.broadcast_to(jnp.arange(t), segment_ids.shape)

    def rows(x: Array) -> Array:
        return x if at is None else take(x, at)

    def pairs(x: Array) -> tuple[Array, Array]:
        """Lays out x [b, s] for queries, [b, t, 1], and for keys, [b, 1, s]."""
        return rows(x)[:, :, None], x[:, None, :]

    query_segments, key_segments = pairs(segment_ids)
    query_positions, key_positions = pairs(positions)
    visible = query_segments == key_segments
    if mask.causal:
        visible &= query_positions >= key_positions
    if mask.mask is not None:
        visible &= rows(mask.mask)
    if order is not None:
        ordered = order.revealed[:, None, :] < rows(order.sees)[:, :, None]
        visible &= (ordered | (query_positions == key_positions)) if itself else ordered
    distance = query_positions - key_positions
    equal = None if types is None else rows(types)[:, :, None] == types[:, None, :]
    if inputs.carry is not None:
        first = (query_segments == segment_ids[:, :1, None]) & (query_segments > 0)
        visible = jnp.concatenate([first & (inputs.carry["filled"][:, None, :] > 0), visible], -1)
        memory_distance = query_positions - (jnp.arange(c.memory) - c.memory)
        memory_distance = jnp.broadcast_to(memory_distance, (*query_positions.shape[:2], c.memory))
        distance = jnp.concatenate([memory_distance, distance], -1)
        if equal is not None:  # the type of remembered tokens is 0
            of_memory = jnp.broadcast_to(rows(types)[:, :, None] == 0, memory_distance.shape)
            equal = jnp.concatenate([of_memory, equal], -1)
    if c.same_length:
        visible &= distance < c.memory
    return Mask(shard(visible, "batch", "length", None), equal, at, t)


# Memory


class _Memory(NamedTuple):
    """Which positions are remembered, of the memory and the example side by side, [b, memory + t]."""

    start: Array  # i32[b], the first of the `memory` positions
    filled: Array  # i32[b, memory], the next `Memory.filled`
    has_carry: bool

    def of(self, source: Array, c: Config) -> Array:
        """Returns the next memory float32 [b, memory, d] of a layer whose inputs, with its memory, are [b, s, d]."""
        source = jax.lax.stop_gradient(source)
        if not self.has_carry:
            source = jnp.pad(source, ((0, 0), (c.memory, 0), (0, 0)))
        return shard(_windows(source, self.start, c.memory), "batch", None, None).astype(jnp.float32)


def _remembered(segment_ids: Array, carry: Tree, c: Config) -> _Memory | None:
    """Prepares the next memory; None for a network without memory."""
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
    """Cuts windows x [b, s, ...] -> [b, size, ...]: positions from `start` i32[b] on."""
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
