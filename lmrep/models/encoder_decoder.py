"""The encoder-decoder Transformers of Vaswani et al. (2017) and of T5 (Raffel et al., 2019).

The encoder reads a source text, `Inputs.source`, from both sides. The decoder reads `Inputs.tokens` from left to right
and attends to the encoder's output, within the segments of the same number, so that packed pairs are independent.
Without a source, `encode` runs the encoder alone, on `Inputs.tokens`. With `stacks` "encoder" there is nothing but the
encoder, a network that is conditioned on both sides, at the paths that it has in the other. With "same_text", both
stacks read `Inputs.tokens`; the decoder's output at a position follows the tokens before it and the whole source.

The systems differ in `Config`, whose published values are in `presets.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import shard
from lmrep.layers import attention as attention_layer
from lmrep.layers import norm, relative_bias, stack
from lmrep.layers.attention import KVCache, take
from lmrep.models import encoder_decoder_layers as blocks
from lmrep.models.base import Context, Encoded, Heads, HeadStyle, Inputs, Model, ModelDef, Output, State, check_inputs
from lmrep.models.encoder_decoder_layers import DECODER, EMBEDDING, ENCODER, SAME_TEXT, Config, specs
from lmrep.models.sizes import Sizes, SourceSizes

INPUTS = frozenset({"tokens", "positions", "attention_mask", "source"})
SOURCE_INPUTS = INPUTS - {"source"}
class Cache(NamedTuple):
    """The keys and values of the source, and of all tokens so far, for generation."""

    layers: Tree  # the decoder's parameters, unstacked: in a loop, slices of stacked ones would be copied at each step
    kv: list[KVCache]  # of each layer of the decoder, [n b, h, t, k]
    source: list[KVCache]  # [b, h, s, k]; each source is that of n consecutive texts
    real: Array  # bool[b, s], the source without padding
    length: Array  # i32[], number of tokens read


def build(c: Config, execution: stack.Execution = stack.Execution(), name: str = "encoder_decoder") -> Model:
    """Builds the model of config `c`."""
    blocks.check(c)
    generates, tied = c.stacks == "both", c.tied in ("all", "output") and EMBEDDING in blocks.tables(c)
    return Model(
        name=name,
        specs=specs(c),
        encode=partial(encode, c=c, execution=execution),
        width=c.width,
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=INPUTS if generates else SOURCE_INPUTS,
        conditions_on=frozenset({Context.SOURCE if generates else Context.BOTH}),
        output=Output(c.width, partial(output_embedding, c=c) if tied else None),
        state=State(cache=partial(start_cache, c=c, execution=execution),
                    decode=partial(decode, c=c, execution=execution)) if generates else State(),
        heads=Heads(attention=frozenset({"self", "cross"} if generates else {"self"})),
        head_style=HeadStyle(c.activation, c.norm_eps, blocks.initializer(c, c.width),
                             "last" if c.stacks == SAME_TEXT else "mean"),
        sizes=sizes(c),
    )


def sizes(c: Config) -> Sizes:
    """Returns the numbers of published formulas. Keys and values of the cross-attention are made of source tokens."""
    inner = c.heads * c.k
    projection, block = c.width * inner, (3 if c.gated else 2) * c.width * c.mlp
    encoder, decoder = c.layers, c.depth.get(DECODER, 0)
    alone = encoder * (4 * projection + block)
    if c.stacks == "encoder":
        return Sizes(alone, encoder * inner)
    if c.stacks == SAME_TEXT:
        return Sizes(alone + decoder * (8 * projection + block), (encoder + 2 * decoder) * inner)
    source = SourceSizes(alone + decoder * 2 * projection, encoder * inner, decoder * inner)
    return Sizes(decoder * (6 * projection + block), decoder * inner, source=source)


def output_embedding(params: Tree, key: Array | None = None, *, c: Config) -> Array:
    """Returns the token table [v, d], divided by the root of d where the config says so."""
    table = params[EMBEDDING]["token"]
    return table * c.width**-0.5 if c.scaled_output else table


# The network


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: stack.Execution = stack.Execution(),
) -> Encoded:
    """Implements `Model.encode`: returns the outputs of the decoder or, without `inputs.source`, of the encoder, for
    `inputs.tokens`. With pre norm, `layers` are the sums before the final norm. Raises ValueError for a field of
    `inputs` that the model does not take, a mask that does not fit the stack, or more tokens than the model has
    positions for."""
    check_inputs(inputs, INPUTS if c.stacks == "both" else SOURCE_INPUTS)
    inputs = blocks.same_text(inputs) if c.stacks == SAME_TEXT else inputs
    run = partial(_run, params, c=c, execution=execution, attention=attention)
    if inputs.source is None:
        encoded = run(ENCODER, inputs, key, layers=layers)
    else:
        check_inputs(inputs.source, SOURCE_INPUTS)
        source_key, key = prng.split(key, 2)
        source = run(ENCODER, inputs.source, source_key)
        encoded = run(DECODER, inputs, key, source=source.hidden, layers=layers)._replace(
            source_attention=source.attention)
    if at is None:
        return encoded
    return encoded._replace(hidden=shard(take(encoded.hidden, at), "batch", None, None))


def _run(
    params: Tree, name: str, inputs: Inputs, key: Array | None, source: Array | None = None, *, c: Config,
    execution: stack.Execution, layers: bool = False, attention: bool = False,
) -> Encoded:
    """Runs the stack `name` on `inputs.tokens`; the decoder attends to the encoder's output `source` [b, s, d]."""
    stack_params, t = params[name], inputs.tokens.shape[1]
    mask = blocks.text_mask(inputs, causal=name == DECODER)
    embedding_key, stack_key, output_key = prng.split(key, 3)
    x = blocks.embed(params, name, inputs.tokens, inputs.positions, t, c)
    x = blocks.dropped(embedding_key, x, c).astype(execution.dtype)

    bind = partial(attention_layer.dense, scaled=c.scaled_attention, same_along=(2,) if c.shared_dropout else ())
    bias = None
    if c.positions == "relative":
        bias = relative_bias.apply(stack_params["relative"], t, t, blocks.buckets(c, name))
    attend, cross = bind(mask.to_bool(), bias), None
    if source is not None:
        cross = bind(mask.segment_ids[:, :, None] == blocks.text_mask(inputs.source).segment_ids[:, None, :])

    def run(p: Tree, x: Array, key: Array | None) -> tuple[Array, tuple]:
        self_key, cross_key, *keys = prng.split(key, 5 + (cross is not None))
        x, probabilities = blocks.attention_block(p, "attention", x, attend, c, self_key, keys[0])
        cross_probabilities = None
        if cross is not None:
            kv = attention_layer.project_kv(p["cross_attention"], source, c.heads)
            x, cross_probabilities = blocks.attention_block(p, "cross_attention", x, cross, c, cross_key, keys[-1], kv)
        x = blocks.mlp_block(p, x, c, keys[1], keys[2])
        return x, (x if layers else None, (probabilities, cross_probabilities) if attention else (None, None))

    depth = c.depth[name]
    last, (outputs, (probabilities, cross_probabilities)) = stack.apply(
        [run] * depth, stack_params["layers"], blocks.layer_specs(c, name), x,
        None if key is None else jax.random.split(stack_key, depth), execution=execution)
    hidden = last
    if c.norm == "pre":
        hidden = blocks.dropped(output_key, norm.apply(stack_params["final_norm"], last, c.norm_eps, c.norm_kind), c)
    return Encoded(hidden, (x, *outputs) if layers else None, probabilities, cross_attention=cross_probabilities)


# Generation


def start_cache(
    params: Tree, batch_size: int, length: int, source: Inputs | None = None, *, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> Cache:
    """Makes the cache for `batch_size` texts of `length` tokens that are conditioned on `source`, texts i32[b, s],
    whose keys and values are computed once. `batch_size` is a multiple n b: each source is that of n consecutive texts.
    Raises ValueError without one."""
    if source is None:
        raise ValueError("an encoder-decoder generates given a source text; give start_cache its `source`")
    if 0 < c.max_length < length:
        raise ValueError(f"a cache of {length} tokens was requested; the model takes {c.max_length} at most")
    hidden = _run(params, ENCODER, source, None, c=c, execution=execution).hidden

    def run(p: Tree, x: Array, _: None) -> tuple[Array, KVCache]:
        return x, attention_layer.heads_first(attention_layer.project_kv(p["cross_attention"], hidden, c.heads))

    depth, empty = c.depth[DECODER], jnp.zeros((batch_size, c.heads, length, c.k), execution.dtype)
    layers = {str(i): jax.tree.map(lambda leaf: leaf[i], params[DECODER]["layers"]) for i in range(depth)}  # noqa: B023
    _, projected = _apply_unrolled(run, layers, hidden, [None] * depth, c, execution)
    real = blocks.text_mask(source).segment_ids > 0
    return Cache(layers, [KVCache(empty, empty)] * depth, projected, real, jnp.int32(0))


def _apply_unrolled(
    run: Callable[[Tree, Array, Any], tuple[Array, Any]], layers: Tree, x: Array, inputs: list, c: Config,
    execution: stack.Execution,
) -> tuple[Array, list]:
    """Runs x through the decoder's unstacked layers. Each also reads its entry of `inputs`."""
    return stack.apply([run] * len(inputs), layers, [blocks.layer_specs(c, DECODER)] * len(inputs), x, inputs,
                       execution=replace(execution, remat="none"))


def decode(
    params: Tree, tokens: Array, cache: Cache, real: Array | None = None, *, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> tuple[Array, Cache]:
    """Returns the decoder's output [b, t, d] at the next t tokens i32[b, t], and the cache with these tokens. The
    result is undefined beyond the cache's capacity.

    `real` i32[] is the number of the t tokens that are not padding: the next call overwrites the others.
    """
    decoder, t, capacity = params[DECODER], tokens.shape[1], cache.kv[0].keys.shape[2]
    positions = jnp.broadcast_to(cache.length + jnp.arange(t), tokens.shape)
    x = blocks.embed(params, DECODER, tokens, positions, capacity, c).astype(execution.dtype)
    bias = None
    if c.positions == "relative":
        bias = relative_bias.apply_at(decoder["relative"], cache.length, t, capacity, blocks.buckets(c, DECODER))

    def run(p: Tree, x: Array, caches: tuple[KVCache, KVCache]) -> tuple[Array, KVCache]:
        kv, source = caches
        x, kv = blocks.add(p, "attention", x, lambda y: attention_layer.cached_attention(
            p["attention"], y, kv, cache.length, c.heads, bias, c.scaled_attention), c)
        x, _ = blocks.add(p, "cross_attention", x, lambda y: (attention_layer.attend_to_cache(
            p["cross_attention"], y, source, cache.real[:, None], c.heads, scaled=c.scaled_attention), None), c)
        return blocks.mlp_block(p, x, c), kv

    x, kv = _apply_unrolled(run, cache.layers, x, [*zip(cache.kv, cache.source, strict=True)], c, execution)
    if c.norm == "pre":
        x = norm.apply(decoder["final_norm"], x, c.norm_eps, c.norm_kind)
    return x, cache._replace(kv=kv, length=cache.length + (t if real is None else real))


DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "layers": 2, "width": 128, "heads": 4, "head_width": 0, "mlp": 512, "dropout": 0.0,
          "attention_dropout": 0.0, "mlp_dropout": 0.0},
    check=blocks.check,
    architecture_fields=("heads", "positions", "buckets", "max_distance", "norm", "scaled_attention",
                         "scaled_embedding", "scaled_output", "tied"),
    dropout_fields=("dropout", "attention_dropout", "mlp_dropout", "shared_dropout"),
    encoder={"stacks": "encoder"},
)
