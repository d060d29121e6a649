"""The Transformer encoder or decoder-only stack behind BERT, RoBERTa, ALBERT, ELECTRA, GPT-2, DeBERTa and ModernBERT.

All systems share this code; they differ in `transformer_config.Config`, whose published values are in `presets.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core import prng
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, glorot_uniform, normal, truncated_normal
from lmrep.core.sharding import gather_params, shard
from lmrep.layers import attention as attention_layer
from lmrep.layers import (
    attention_backends,
    convolution,
    depth_average,
    disentangled_attention,
    dropout,
    embedding,
    linear,
    mlp,
    norm,
    residual,
    stack,
)
from lmrep.layers.attention import AttentionMask, KVCache, Rotate
from lmrep.layers.depth_average import Average, last_output
from lmrep.layers.rotary import rotary
from lmrep.models import capped_output, deberta_layers, pruned_heads
from lmrep.models.base import Context, Encoded, Heads, HeadStyle, Inputs, Model, ModelDef, Output, State, check_inputs
from lmrep.models.sizes import Sizes, TransformerSizes
from lmrep.models.transformer_config import SHARING, Config, check


class Cache(NamedTuple):
    """The keys and values of all tokens so far, for generation."""

    kv: KVCache  # keys and values of every layer, [l, b, h, s, k] each
    length: Array  # i32[], number of tokens read


def build(c: Config, execution: stack.Execution = stack.Execution(), name: str = "transformer") -> Model:
    """Builds the model of config `c`."""
    check(c)
    run = partial(encode, c=c, execution=execution)
    table = partial(output_embedding, c=c) if c.tied else None
    return Model(
        name=name,
        specs=specs(c),
        encode=pruned_heads.by_number(run, c.kept_heads, c.heads) if c.pruned_heads else run,
        width=c.width,
        vocab_size=c.vocab,
        max_length=c.max_tokens,
        inputs=input_fields(c),
        conditions_on=frozenset({Context.LEFT, Context.BOTH, Context.MASKED}),
        output=Output(c.table_width, table, capped_output.output_layer(
            c.logit_cap, c.vocab, c.table_width, initializer(c), table) if c.logit_cap else None,
                      encode_masked=partial(run, decoder=True) if c.mask_decoder else None),
        state=State() if c.positions == "disentangled" or c.convolution else State(
            cache=partial(start_cache, c=c, execution=execution), decode=partial(decode, c=c, execution=execution)),
        heads=Heads(c.heads, lambda: c.kept_heads, frozenset({"self"})),
        head_style=HeadStyle(c.activation, c.norm_eps, initializer(c), norm=c.norm_kind, bias=c.bias),
        make_generator=lambda fraction, layers=0: build(generator_config(c, fraction, layers), execution, name),
        sizes=sizes(c),
    )


def sizes(c: Config) -> Sizes:
    """Returns the numbers of published formulas: each layer has four projections of the attention and two, or gated
    three, of the block after it, 4 d h k + 2 d f. A term of disentangled positions costs as much as the products of
    content: it has twice as many distances as there are positions."""
    projection = c.table_width * c.width if c.table_width != c.width else 0
    attention = c.head_width * sum(heads * layers for heads, layers in c.head_counts.items())
    full = attention * -(-c.layers // c.global_every) // c.layers if c.window else attention  # without local layers
    disentangled = c.positions == "disentangled"
    full *= 1 + disentangled * sum(disentangled_attention.TERMS[c.position_terms])
    averages = c.width * sum(spec.shape[0] for spec in depth_average.specs(c.layer_weights, c.layers).values())
    # ELECTRA's script counts layers of one size
    equal_layers = attention == c.layers * c.width and not (
        c.gated or c.window or disentangled or c.convolution or averages)
    layers = 4 * c.width * attention + (2 + c.gated) * c.layers * c.width * c.mlp
    return Sizes(layers + c.convolution * c.width**2 + projection + averages, full,
                 TransformerSizes(c.layers, c.width, c.heads, c.mlp, c.table_width, c.vocab) if equal_layers else None)


def generator_config(c: Config, fraction: float, layers: int = 0) -> Config:
    """Returns the config of a generator (Clark et al., 2020): a fraction of the width, that many layers (0: the same)
    and tables of the same width. Heads keep their width or, if that does not divide the new width, are wider."""
    width = max(1, round(fraction * c.width))
    heads = next(h for h in range(max(1, width * c.heads // c.width), 0, -1) if width % h == 0)
    return replace(c, width=width, heads=heads, mlp=width * c.mlp // c.width, embedding=c.table_width,
                   layers=layers or c.layers, pruned_heads="", embedding_delta=False)


def input_fields(c: Config) -> frozenset[str]:
    """Returns the fields of `Inputs` that `encode` takes."""
    types = ["token_type_ids"] if c.token_types > 1 else []
    return frozenset({"tokens", "positions", "attention_mask", "gates", *types})


def initializer(c: Config, stddev: float = 0.0) -> Initializer:
    """Returns the initializer of kernels and tables, optionally with another standard deviation."""
    return {"normal": normal, "truncated_normal": truncated_normal}[c.init](stddev or c.init_stddev)


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding`, `layers` and, by config, `embedding_norm`, `project`, `relative`, which are
    embeddings of distances, `convolution` and `convolution_norm`, `mask_decoder`, `layer_weights`, `final_norm`."""
    init, e = initializer(c), c.table_width
    rows = c.max_length + c.position_offset if c.positions == "learned" else 0
    tree = {
        "embedding": embedding.specs(c.vocab, e, length=rows, token_types=c.token_types, init=init,
                                     position_init=initializer(c, c.position_stddev), delta=c.embedding_delta),
        "layers": stack.specs(layer_specs(c), c.layers, SHARING[c.share]),
    }
    if c.embedding_norm:
        tree["embedding_norm"] = norm.specs(e, c.norm_kind)
    if e != c.width:
        projecting = glorot_uniform if c.project_init == "glorot" else init
        tree["project"] = linear.specs(e, c.width, (None, "embed"), projecting)
    if c.positions == "disentangled":
        tree["relative"] = disentangled_attention.specs(c.buckets, c.width, init)
    if c.convolution:
        tree["convolution"] = convolution.specs(c.width, c.convolution, init)
        tree["convolution_norm"] = norm.specs(c.width, c.norm_kind)
    if c.mask_decoder:
        tree["mask_decoder"] = {"position": ParamSpec((c.max_length, c.width), (None, "embed"), init)}
    if averages := depth_average.specs(c.layer_weights, c.layers):
        tree["layer_weights"] = averages
    if c.norm == "pre":
        tree["final_norm"] = norm.specs(c.width, c.norm_kind)
    return tree


def layer_specs(c: Config) -> Tree | list[Tree]:
    """Returns the parameters of one layer; a list, one entry a layer, where layers differ in them."""
    init = initializer(c)
    scale = (2 * c.layers) ** -0.5 if c.residual_init == "scaled" else 1.0
    adding = initializer(c, scale * c.init_stddev)
    layers = [{
        "attention": attention_layer.specs(c.width, heads, init, adding, c.head_width, bias=c.bias,
                                          query_key_norm=c.query_key_norm),
        "attention_norm": norm.specs(c.width, c.norm_kind),
        "mlp": mlp.specs(c.width, c.mlp, init, adding, bias=c.bias, gated=c.gated),
        "mlp_norm": norm.specs(c.width, c.norm_kind),
    } for heads in (map(len, c.kept_heads) if c.layers_differ else c.head_counts)]
    if not c.first_norm:
        del layers[0]["attention_norm"]
    return layers if c.layers_differ else layers[0]


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, decoder: bool = False, c: Config, execution: stack.Execution = stack.Execution(),
) -> Encoded:
    """Implements `Model.encode`. With `at`, the last layer runs at these positions only. With pre norm, `layers` are
    the sums before the final norm, and `hidden` is normalized. Attention probabilities are computed by the backend
    "xla", whatever `execution.attention` is. Heads count from 0 in each layer; a layer that has fewer reads the first
    gates, and its probabilities end with zeros. With `decoder`, for `Output.encode_masked`, the last layer is the
    enhanced mask decoder (He et al., 2021, section 3.2).

    Raises ValueError for a field of `inputs` that the model does not take, more tokens than it has positions for, or
    `at` together with `layers` or `attention`, which are of all positions."""
    if at is not None and (layers or attention):
        raise ValueError("`at` computes the last layer at some positions only; leave out `layers` and `attention`, "
                         "which need all positions")
    check_inputs(inputs, input_fields(c))
    if inputs.positions is None and 0 < c.max_tokens < inputs.tokens.shape[1]:
        raise ValueError(f"got {inputs.tokens.shape[1]} tokens; the model has positions for {c.max_length}")
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens))
    bind = partial(attention_backends.bind, "xla" if attention else execution.attention, head_width=c.head_width,
                   dtype=execution.dtype, dropout=key is not None and c.attention_dropout > 0, cap=c.attention_cap)
    disentangled = c.positions == "disentangled"
    make = partial(deberta_layers.attention, params, c=c, dtype=execution.dtype) if disentangled else bind
    attend = {window: make(mask.replace(window=window)) for window in dict.fromkeys(c.windows)}
    embedding_key, stack_key = prng.split(key, 2)
    positions = inputs.positions
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(inputs.tokens.shape[1]), inputs.tokens.shape)
    rotate = _rotations(positions, c)
    x = _embed(params, inputs, positions, embedding_key, c).astype(execution.dtype)

    def run(
        p: Tree, x: Array, slices: tuple[Array | None, ...], at: Array | None = None, *, window: int,
        average: Average = last_output,
    ) -> tuple[Array, tuple]:
        (key, gates), heads, attend_here = slices, _heads_of(p, c), attend[window]
        attention_key, *keys = prng.split(key, 4)
        if disentangled:
            attention_key, relative_key = prng.split(attention_key, 2)
            attend_here = attend_here(p["attention"], heads, relative_key)

        def block(y: Array) -> tuple[Array, Array | None]:
            return attention_layer.apply(
                p["attention"], y, attend_here, heads, at=at, rate=c.attention_dropout, key=attention_key,
                gates=None if gates is None else gates[..., :heads], rotate=rotate[window])

        x, probabilities = _layer(p, x, block, c, keys, at, average)
        return x, (x if layers else None, _with_heads(probabilities, c.heads) if attention else None)

    def first(p: Tree, x: Array, slices: tuple[Array | None, ...], at: Array | None = None) -> tuple[Array, tuple]:
        key, convolution_key = prng.split(slices[0], 2)
        y, (_, probabilities) = run(p, x, (key, slices[1]), at, window=c.windows[0])
        x = deberta_layers.add_convolution(params, x, y, mask, convolution_key, at, c)
        return x, (x if layers else None, probabilities)

    keys = None if key is None else jax.random.split(stack_key, c.layers)
    functions = _by_window(run, c)
    if c.convolution:
        functions[0] = first
    if decoder:
        functions[-1] = deberta_layers.mask_decoder(params, positions, attend[c.windows[-1]], partial(_layer, c=c), c)
    last, collected = _run_layers(params, functions, x, (keys, inputs.gates), c, execution, at)
    if c.norm == "pre":
        last = norm.apply(params["final_norm"], last, c.norm_eps, c.norm_kind)
    if at is not None:
        last = shard(last, "batch", None, None)  # heads use them in any order
    hidden_states, probabilities = collected or (None, None)
    return Encoded(last, None if hidden_states is None else (x, *hidden_states), probabilities)


def _by_window(layer: Callable, c: Config) -> list[Callable]:
    """Returns `layer` for each layer, with its `window`; equal windows have the same function."""
    functions = {window: partial(layer, window=window) for window in c.windows}
    return [functions[window] for window in c.windows]


def _rotations(positions: Array, c: Config) -> dict[int, Rotate | None]:
    """Returns {window: the rotation of queries and keys in layers with this window}; without rotary positions, None."""
    if c.positions != "rotary":
        return dict.fromkeys(c.windows)
    width = round(c.rotary_fraction * c.head_width)
    return {window: rotary(positions, width, c.local_base if window and c.local_base else c.rotary_base)
            for window in c.windows}


def _scaled(layers: Tree, c: Config) -> Tree:
    """Returns the layers with query projections that are multiplied by the factor of their attention logits:
    implementations of attention divide by the root of the heads' width alone."""
    if c.scaled_attention and not c.attention_by_layer:
        return layers
    factors = (1 if c.scaled_attention else c.head_width**0.5) / (np.arange(c.layers) * c.attention_by_layer + 1)

    def scaled(layer: Tree, factor: np.ndarray) -> Tree:
        attention = layer["attention"]
        query = jax.tree.map(lambda x: x * factor.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)), attention["query"])
        return layer | {"attention": attention | {"query": query}}

    if isinstance(layer_specs(c), list):
        return {name: scaled(layer, factors[int(name), None]) for name, layer in layers.items()}
    return scaled(layers, factors if "attention" not in SHARING[c.share] else factors[:1])


def _heads_of(p: Tree, c: Config) -> int:
    """Returns the number of heads that a layer with these parameters has."""
    return p["attention"]["query"]["kernel"].shape[-1] // c.head_width


def _with_heads(x: Array, heads: int) -> Array:
    """Pads x [b, h, ...] with zeros for further heads, so that the arrays of all layers have as many."""
    return jnp.pad(x, ((0, 0), (0, heads - x.shape[1]), (0, 0), (0, 0))) if x.shape[1] < heads else x


def output_embedding(params: Tree, key: Array | None = None, *, c: Config) -> Array:
    """Returns the token table [v, e], with the dropout of `encode` with this key if dropout acts on the tables."""
    embedding_key, _ = prng.split(key, 2)
    table = embedding.token_table(params["embedding"])
    return embedding.dropped_table(table, embedding_key, c.dropout) if c.table_dropout else table


def start_cache(
    params: Tree, batch_size: int, length: int, *, c: Config, execution: stack.Execution = stack.Execution()
) -> Cache:
    """Makes an empty cache for `length` tokens. Raises ValueError if the model has fewer positions."""
    if 0 < c.max_tokens < length:
        raise ValueError(f"a cache of {length} tokens was requested; the model has positions for {c.max_length}")
    empty = jnp.zeros((c.layers, batch_size, max(c.head_counts), length, c.head_width), execution.dtype)
    return Cache(KVCache(empty, empty), jnp.int32(0))


def decode(
    params: Tree, tokens: Array, cache: Cache, real: Array | None = None, *, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> tuple[Array, Cache]:
    """Returns the last layer's output [b, t, d] at the next t tokens i32[b, t], as `encode` with a causal mask, and the
    cache with these tokens. The result is undefined beyond the cache's capacity.

    `real` i32[] is the number of the t tokens that are not padding: the next call overwrites the others.
    """
    positions = jnp.broadcast_to(cache.length + jnp.arange(tokens.shape[1]), tokens.shape)
    x = _embed(params, Inputs(tokens=tokens), positions, None, c).astype(execution.dtype)
    rotate = _rotations(positions, c)

    def run(
        p: Tree, x: Array, kv: KVCache, at: None = None, *, window: int,
        average: Average = last_output,
    ) -> tuple[Array, KVCache]:
        heads = _heads_of(p, c)
        known = KVCache(*(part[:, :heads] for part in kv))
        x, new = _layer(p, x, lambda y: attention_layer.cached_attention(
            p["attention"], y, known, cache.length, heads, rotate=rotate[window],
            window=window + 1 if window else 0, cap=c.attention_cap), c, average=average)
        return x, KVCache(*(_with_heads(part, kv.keys.shape[1]) for part in new))

    x, kv = _run_layers(params, _by_window(run, c), x, cache.kv, c, replace(execution, scan=True, remat="none"))
    if c.norm == "pre":
        x = norm.apply(params["final_norm"], x, c.norm_eps, c.norm_kind)
    return x, Cache(kv, cache.length + (tokens.shape[1] if real is None else real))


def _embed(params: Tree, inputs: Inputs, positions: Array, key: Array | None, c: Config) -> Array:
    """Embeds tokens at these positions as float32 [b, t, d]. Norm and dropout act before the projection (Lan et al.,
    2019)."""
    tables = gather_params(params["embedding"], specs(c)["embedding"]) | {
        name: params["embedding"][name] for name in ("token", "delta") if name in params["embedding"]}
    x = embedding.apply(
        tables, inputs.tokens, positions + c.position_offset, inputs.token_type_ids,
        sinusoidal_length=c.max_length + c.position_offset if c.positions == "sinusoidal" else 0,
        key=key if c.table_dropout else None, rate=c.dropout)
    x = shard(x, "batch", "length", None)
    if c.embedding_norm:
        x = norm.apply(params["embedding_norm"], x, c.norm_eps, c.norm_kind)
    if not c.table_dropout:
        x = dropout.apply(key, x, c.dropout)
    return linear.apply(params["project"], x) if "project" in params else x


def _run_layers(
    params: Tree, layers: Sequence[Callable], x: Array, inputs: Tree, c: Config, execution: stack.Execution,
    at: Array | None = None,
) -> tuple[Array, Any]:
    """Runs all layers, the last one at positions `at` or all; `inputs` and results as in `stack.apply`."""
    return depth_average.apply(
        c.layer_weights, params.get("layer_weights", {}), layers, _scaled(params["layers"], c), layer_specs(c), x,
        inputs, SHARING[c.share], execution, at)


def _layer(
    p: Tree, x: Array, attend: Callable[[Array], tuple[Array, Any]], c: Config,
    keys: Sequence[Array | None] = (None,) * 3, at: Array | None = None, average: Average = last_output,
) -> tuple[Array, Any]:
    """Applies one layer, at positions `at` or all: x [b, s, d] -> (x [b, t, d], second result of `attend`). `average`
    is called after each block."""
    attention_key, inner_key, mlp_key = keys
    add = partial(residual.apply, pre=c.norm == "pre", eps=c.norm_eps, kind=c.norm_kind, rate=c.dropout)
    x, collected = add(p.get("attention_norm"), x, attend, key=attention_key, at=at)
    x, _ = add(p["mlp_norm"], average(x, 0), lambda y: (mlp.apply(
        p["mlp"], y, c.activation, rate=c.mlp_dropout, key=inner_key), None), key=mlp_key)
    return average(x, 1), collected


DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "layers": 2, "width": 128, "heads": 4, "mlp": 512, "max_length": 64, "dropout": 0.0,
          "attention_dropout": 0.0, "init_stddev": 0.08},
    check=check,
    architecture_fields=("heads", "norm", "positions", "position_offset", "embedding_norm", "pruned_heads",
                         "scaled_attention", "attention_by_layer", "rotary_base", "rotary_fraction", "window",
                         "global_every", "local_base", "norm_kind", "first_norm", "bias", "gated", "position_buckets",
                         "max_distance", "position_terms", "convolution", "embedding_delta", "query_key_norm",
                         "layer_weights", "attention_cap", "logit_cap"),
    dropout_fields=("dropout", "table_dropout", "attention_dropout", "mlp_dropout"),
    attention=lambda c: None if c.positions == "disentangled" else attention_backends.Needs(
        c.head_width, dropout=c.attention_dropout > 0, capped=c.attention_cap > 0),
)
