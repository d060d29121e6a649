"""The encoder-decoder Transformers of Vaswani et al. (2017) and of T5 (Raffel et al., 2019).

The encoder reads a source text, `Inputs.source`, from both sides. The decoder reads `Inputs.tokens` from left to right
and attends to the encoder's output, within the segments of the same number, so that packed pairs are independent.
Without a source, `encode` runs the encoder alone, on `Inputs.tokens`. With `stacks` "encoder" there is nothing but the
encoder, a network that is conditioned on both sides, at the paths that it has in the other.

The systems differ in `Config`, whose published values are in `presets.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.core.sharding import gather_params, look_up, shard
from lmrep.layers import attention as attention_layer
from lmrep.layers import dropout, mlp, norm, relative_bias, stack
from lmrep.layers import positions as fixed
from lmrep.layers.attention import Attend, AttentionMask, KVCache, take
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.layers.relative_bias import Buckets
from lmrep.models.base import Encoded, Inputs, Model, ModelDef, Sizes, SourceSizes, check_inputs

INPUTS = frozenset({"tokens", "positions", "attention_mask", "source"})
SOURCE_INPUTS = INPUTS - {"source"}
ENCODER, DECODER = "encoder", "decoder"
EMBEDDING, SOURCE_EMBEDDING = "embedding", "source_embedding"


@dataclass(frozen=True)
class Config:
    """The fields in which the Transformer and T5 differ. The defaults are those of T5."""

    vocab: int = setting(32128, "size of the vocabulary of both texts; 0: the tokenizer's size", at_least=0)
    stacks: str = setting("both", "encoder: the encoder alone, under the head of a task or of a masked language model",
                          choices=("both", "encoder"))
    width: int = setting(512, "d, the model width", at_least=1)
    layers: int = setting(6, "l, layers of the encoder", at_least=1)
    decoder_layers: int = setting(0, "layers of the decoder; 0: as many", at_least=0)
    heads: int = setting(8, "h, attention heads a layer", at_least=1)
    head_width: int = setting(0, "k, the width of a head; 0: d / h", at_least=0)
    mlp: int = setting(2048, "f, the feed-forward width", at_least=1)
    max_length: int = setting(0, "tokens of a text at most, which learned and sinusoidal positions need; 0: any",
                              at_least=0)
    positions: str = setting("relative", "a bias of logits by distance, shared by the layers of a stack (T5), or "
                             "position embeddings", choices=("relative", "sinusoidal", "learned", "none"))
    buckets: int = setting(32, "of distances, for relative positions; an even number", at_least=4)
    max_distance: int = setting(128, "the distance from which on all are in the last bucket", at_least=2)
    norm: str = setting("pre", "norm after each residual sum (Vaswani et al.), or before each block and after the last "
                        "layer (T5)", choices=("post", "pre"))
    rms_norm: bool = setting(True, "RMS norm in place of layer norm: no mean, no bias")
    norm_eps: float = setting(1e-6, "epsilon of the norm", above=0)
    activation: str = setting("relu", "of the feed-forward block", choices=tuple(ACTIVATIONS))
    gated: bool = setting(False, "whether activations multiply a second projection (T5 1.1)")
    mlp_bias: bool = setting(False, "whether the feed-forward block has biases")
    attention_bias: bool = setting(False, "whether the projections of the attention have biases")
    scaled_attention: bool = setting(False, "whether logits are divided by the root of k; otherwise initial queries "
                                     "are (T5)")
    scaled_embedding: bool = setting(False, "whether embeddings are multiplied by the root of d (Vaswani et al.)")
    scaled_output: bool = setting(True, "whether a tied output table is divided by the root of d (T5)")
    tied: str = setting("all", "which of the tables of source, target and output are the same: all, the embeddings (T5 "
                        "1.1), target and output (Press and Wolf, 2017), or none",
                        choices=("all", "embeddings", "output", "none"))
    dropout: float = setting(0.1, "on embeddings, on the output of each block and, with pre norm, of each stack",
                             at_least=0, below=1)
    attention_dropout: float = setting(0.1, "on attention probabilities", at_least=0, below=1)
    mlp_dropout: float = setting(0.1, "inside the feed-forward block", at_least=0, below=1)
    shared_dropout: bool = setting(True, "whether all positions of a text (of probabilities, all queries) have the "
                                   "same dropout mask (T5)")
    init: str = setting("normal", "distribution of initial kernels, whose variance is 1 / inputs",
                        choices=("normal", "uniform"))
    embedding_stddev: float = setting(1.0, "standard deviation of initial embeddings; 0: 1 / root of d", at_least=0)

    @property
    def k(self) -> int:
        """The width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def table_width(self) -> int:
        """Width of the embedding tables."""
        return self.width

    @property
    def depth(self) -> dict[str, int]:
        """The number of layers of each stack that there is."""
        decoder = {DECODER: self.decoder_layers or self.layers} if self.stacks == "both" else {}
        return {ENCODER: self.layers} | decoder


class Cache(NamedTuple):
    """The keys and values of the source, and of all tokens so far, for generation."""

    layers: Tree  # the decoder's parameters, unstacked: in a loop, slices of stacked ones would be copied at each step
    kv: list[KVCache]  # of each layer of the decoder, [n b, h, t, k]
    source: list[KVCache]  # [b, h, s, k]; each source is that of n consecutive texts
    real: Array  # bool[b, s], the source without padding
    length: Array  # i32[], number of tokens read


def check(c: Config) -> None:
    """Raises UserError where fields do not fit each other."""
    if not c.head_width and c.width % c.heads:
        raise UserError(f"model.width is {c.width}, which model.heads={c.heads} does not divide; change one of them, "
                        "or set model.head_width")
    if c.positions in ("sinusoidal", "learned") and not c.max_length:
        raise UserError(f"model.positions is {c.positions}, and model.max_length is 0; set max_length to the number of "
                        "positions")
    if c.positions == "sinusoidal" and c.width % 2:
        raise UserError(f"sinusoidal positions need an even width; model.width is {c.width}")
    if c.positions == "relative" and (c.buckets % 2 or c.max_distance <= c.buckets // 2):
        raise UserError(f"model.buckets is {c.buckets} and model.max_distance {c.max_distance}; expected an even "
                        "number of buckets and a distance of more than half of it")


def build(c: Config, execution: stack.Execution = stack.Execution(), name: str = "encoder_decoder") -> Model:
    """The model of config `c`."""
    check(c)
    encoder_alone, tied = c.stacks == "encoder", c.tied in ("all", "output") and EMBEDDING in tables(c)
    return Model(
        name=name,
        specs=specs(c),
        encode=partial(encode, c=c, execution=execution),
        output_embedding=partial(output_embedding, c=c) if tied else None,
        width=c.width,
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=SOURCE_INPUTS if encoder_alone else INPUTS,
        context=frozenset({"both" if encoder_alone else "source"}),
        output_dim=c.width,
        attention=frozenset({"self"} if encoder_alone else {"self", "cross"}),
        pooling="mean",
        start_cache=None if encoder_alone else partial(start_cache, c=c, execution=execution),
        decode=None if encoder_alone else partial(decode, c=c, execution=execution),
        activation=c.activation,
        norm_eps=c.norm_eps,
        init=initializer(c, c.width),
        sizes=sizes(c),
    )


def sizes(c: Config) -> Sizes:
    """The numbers of published formulas. Keys and values of the attention to the source are made of its tokens."""
    inner = c.heads * c.k
    projection, block = c.width * inner, (3 if c.gated else 2) * c.width * c.mlp
    encoder, decoder = c.layers, c.depth.get(DECODER, 0)
    alone = encoder * (4 * projection + block)
    if c.stacks == "encoder":
        return Sizes(alone, encoder * inner)
    source = SourceSizes(alone + decoder * 2 * projection, encoder * inner, decoder * inner)
    return Sizes(decoder * (6 * projection + block), decoder * inner, source=source)


# Parameters


def initializer(c: Config, inputs: int) -> Initializer:
    """Of a kernel with that many inputs."""
    if c.init == "normal":
        return normal(inputs**-0.5)
    limit = (3 / inputs) ** 0.5
    return lambda key, shape: jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def specs(c: Config) -> Tree:
    """The parameters: `embedding`, that of the source where it is another one, and the stacks `encoder` and
    `decoder`."""
    table = {"token": ParamSpec((c.vocab, c.width), ("vocab", "embed"), normal(c.embedding_stddev or c.width**-0.5))}
    return {**dict.fromkeys(tables(c), table), **{name: stack_specs(c, name) for name in c.depth}}


def tables(c: Config) -> tuple[str, ...]:
    """The names of the token tables that the stacks read."""
    if c.tied in ("all", "embeddings"):
        return (EMBEDDING,)
    return (SOURCE_EMBEDDING,) if c.stacks == "encoder" else (EMBEDDING, SOURCE_EMBEDDING)


def stack_specs(c: Config, name: str) -> Tree:
    """The parameters of a stack: `layers` and, by config, `relative`, `position` and `final_norm`."""
    tree = {"layers": stack.specs(layer_specs(c, name), c.depth[name])}
    if c.positions == "relative":
        tree["relative"] = relative_bias.specs(_buckets(c, name), c.heads, normal(c.width**-0.5))
    if c.positions == "learned":
        tree["position"] = ParamSpec((c.max_length, c.width), (None, "embed"), normal(c.width**-0.5))
    if c.norm == "pre":
        tree["final_norm"] = norm.specs(c.width, c.rms_norm)
    return tree


def layer_specs(c: Config, name: str) -> Tree:
    """The parameters of one layer of a stack."""
    inner = c.heads * c.k
    attention = attention_layer.specs(
        c.width, c.heads, initializer(c, c.width), initializer(c, inner), c.k,
        query_init=initializer(c, c.width if c.scaled_attention else c.width * c.k), bias=c.attention_bias)
    tree = {"attention": attention, "mlp": mlp.specs(c.width, c.mlp, initializer(c, c.width), initializer(c, c.mlp),
                                                     bias=c.mlp_bias, gated=c.gated)}
    if name == DECODER:
        tree["cross_attention"] = attention
    return tree | {f"{block}_norm": norm.specs(c.width, c.rms_norm) for block in tree}


def _buckets(c: Config, name: str) -> Buckets:
    return Buckets(c.buckets, c.max_distance, both_sides=name == ENCODER)


def output_embedding(params: Tree, key: Array | None = None, *, c: Config) -> Array:
    """The token table [v, d], divided by the root of d where the config says so."""
    table = params[EMBEDDING]["token"]
    return table * c.width**-0.5 if c.scaled_output else table


# The network


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: stack.Execution = stack.Execution(),
) -> Encoded:
    """`Model.encode`: the decoder's outputs or, without `inputs.source`, those of the encoder, for `inputs.tokens`.
    With pre norm, `layers` are the sums before the final norm.

    Raises:
      ValueError: a field of `inputs` that the model does not take, a mask that does not fit the stack, or more tokens
        than the model has positions for.
    """
    check_inputs(inputs, SOURCE_INPUTS if c.stacks == "encoder" else INPUTS)
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
    """A stack, on `inputs.tokens`; that of the decoder attends to the encoder's output `source` [b, s, d]."""
    own, t = params[name], inputs.tokens.shape[1]
    mask = _mask(inputs, causal=name == DECODER)
    embedding_key, stack_key, output_key = prng.split(key, 3)
    x = _embed(params, name, inputs.tokens, inputs.positions, t, c)
    x = _dropped(embedding_key, x, c).astype(execution.dtype)

    bind = partial(attention_layer.dense, scaled=c.scaled_attention, same_along=(2,) if c.shared_dropout else ())
    bias = relative_bias.apply(own["relative"], t, t, _buckets(c, name)) if c.positions == "relative" else None
    attend, cross = bind(mask.to_bool(), bias), None
    if source is not None:
        cross = bind(mask.segment_ids[:, :, None] == _mask(inputs.source).segment_ids[:, None, :])

    def run(p: Tree, x: Array, key: Array | None) -> tuple[Array, tuple]:
        self_key, cross_key, *keys = prng.split(key, 5 + (cross is not None))
        x, probabilities = _attention(p, "attention", x, attend, c, self_key, keys[0])
        cross_probabilities = None
        if cross is not None:
            kv = attention_layer.project_kv(p["cross_attention"], source, c.heads)
            x, cross_probabilities = _attention(p, "cross_attention", x, cross, c, cross_key, keys[-1], kv)
        x = _mlp(p, x, c, keys[1], keys[2])
        return x, (x if layers else None, (probabilities, cross_probabilities) if attention else (None, None))

    depth = c.depth[name]
    last, (outputs, (probabilities, cross_probabilities)) = stack.apply(
        run, own["layers"], layer_specs(c, name), x, None if key is None else jax.random.split(stack_key, depth), depth,
        execution=execution)
    hidden = _dropped(output_key, norm.apply(own["final_norm"], last, c.norm_eps), c) if c.norm == "pre" else last
    return Encoded(hidden, (x, *outputs) if layers else None, probabilities, cross_attention=cross_probabilities)


def _mask(inputs: Inputs, causal: bool = False) -> AttentionMask:
    """The mask of a text. Raises ValueError if it is causal where `causal` is not, or the reverse."""
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens), causal=causal)
    if mask.causal != causal:
        raise ValueError("the encoder reads from both sides, and the decoder from left to right; expected an "
                         f"AttentionMask with causal={causal}")
    return mask


def _embed(params: Tree, name: str, tokens: Array, positions: Array | None, length: int, c: Config) -> Array:
    """Float32 [b, t, d]; positions are below `length`."""
    if 0 < c.max_length < length:
        raise ValueError(f"got {length} tokens; the model takes {c.max_length} at most")
    table = params[SOURCE_EMBEDDING if name == ENCODER and SOURCE_EMBEDDING in params else EMBEDDING]
    x = look_up(table["token"], tokens) * (c.width**0.5 if c.scaled_embedding else 1.0)
    if c.positions in ("learned", "sinusoidal"):
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        if c.positions == "learned":
            known = {"position": params[name]["position"]}
            x += gather_params(known, {"position": stack_specs(c, name)["position"]})["position"][positions]
        else:
            x += jnp.asarray(fixed.sinusoidal(c.max_length, c.width))[positions]
    return shard(x, "batch", "length", None)


def _dropped(key: Array | None, x: Array, c: Config) -> Array:
    return dropout.apply(key, x, c.dropout, (1,) if c.shared_dropout else ())


def _attention(
    p: Tree, name: str, x: Array, attend: Attend, c: Config, key: Array | None, output_key: Array | None,
    kv: KVCache | None = None,
) -> tuple[Array, Array | None]:
    """A block of attention, to x or to the keys and values `kv`: (x [b, t, d], the probabilities)."""
    return _block(p, name, x, lambda y: attention_layer.apply(
        p[name], y, attend, c.heads, rate=c.attention_dropout, key=key, kv=kv), c, output_key)


def _mlp(p: Tree, x: Array, c: Config, key: Array | None = None, output_key: Array | None = None) -> Array:
    """The feed-forward block."""
    run = partial(mlp.apply, p["mlp"], activation=c.activation, rate=c.mlp_dropout, key=key,
                  same_along=(1,) if c.shared_dropout else ())
    return _block(p, "mlp", x, lambda y: (run(y), None), c, output_key)[0]


def _block(
    p: Tree, name: str, x: Array, f: Callable[[Array], tuple[Array, Any]], c: Config, key: Array | None = None
) -> tuple[Array, Any]:
    """The residual stream after adding the output of `f`, and what f returns beside it. A norm precedes or follows."""
    normalize = partial(norm.apply, p[f"{name}_norm"], eps=c.norm_eps)
    y, other = f(normalize(x) if c.norm == "pre" else x)
    x = x + _dropped(key, y, c)
    return shard(normalize(x) if c.norm == "post" else x, "batch", "length", None), other


# Generation


def start_cache(
    params: Tree, batch_size: int, length: int, source: Inputs | None = None, *, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> Cache:
    """The cache for `batch_size` texts of `length` tokens that are conditioned on `source`, texts i32[b, s], whose keys
    and values are computed once. `batch_size` is a multiple n b: each source is that of n consecutive texts. Raises
    ValueError without one."""
    if source is None:
        raise ValueError("an encoder-decoder generates given a source text; give start_cache its `source`")
    if 0 < c.max_length < length:
        raise ValueError(f"a cache of {length} tokens was requested; the model takes {c.max_length} at most")
    hidden = _run(params, ENCODER, source, None, c=c, execution=execution).hidden

    def run(p: Tree, x: Array, _: None) -> tuple[Array, KVCache]:
        return x, attention_layer.heads_first(attention_layer.project_kv(p["cross_attention"], hidden, c.heads))

    depth, empty = c.depth[DECODER], jnp.zeros((batch_size, c.heads, length, c.k), execution.dtype)
    layers = stack.unstacked(params[DECODER]["layers"], depth)
    _, projected = _apply_each(run, layers, hidden, [None] * depth, c, execution)
    return Cache(layers, [KVCache(empty, empty)] * depth, projected, _mask(source).segment_ids > 0, jnp.int32(0))


def _apply_each(
    run: Callable[[Tree, Array, Any], tuple[Array, Any]], layers: Tree, x: Array, others: list, c: Config,
    execution: stack.Execution,
) -> tuple[Array, list]:
    """`stack.apply` of the decoder's layers, unstacked, with a list of what each is given beside x."""
    return stack.apply(run, layers, [layer_specs(c, DECODER)] * len(others), x, others, len(others),
                       execution=replace(execution, remat="none"))


def decode(
    params: Tree, tokens: Array, cache: Cache, real: Array | None = None, *, c: Config,
    execution: stack.Execution = stack.Execution(),
) -> tuple[Array, Cache]:
    """The decoder's output [b, t, d] at the next t tokens i32[b, t], and the cache with these tokens. The result is
    undefined beyond the cache's capacity.

    `real` i32[] is the number of the t tokens that are not padding: the next call overwrites the others.
    """
    own, t, capacity = params[DECODER], tokens.shape[1], cache.kv[0].keys.shape[2]
    positions = jnp.broadcast_to(cache.length + jnp.arange(t), tokens.shape)
    x = _embed(params, DECODER, tokens, positions, capacity, c).astype(execution.dtype)
    bias = None
    if c.positions == "relative":
        bias = relative_bias.apply_at(own["relative"], cache.length, t, capacity, _buckets(c, DECODER))

    def run(p: Tree, x: Array, caches: tuple[KVCache, KVCache]) -> tuple[Array, KVCache]:
        kv, source = caches
        x, kv = _block(p, "attention", x, lambda y: attention_layer.cached_attention(
            p["attention"], y, kv, cache.length, c.heads, bias, c.scaled_attention), c)
        x, _ = _block(p, "cross_attention", x, lambda y: (attention_layer.attend_to_cache(
            p["cross_attention"], y, source, cache.real[:, None], c.heads, scaled=c.scaled_attention), None), c)
        return _mlp(p, x, c), kv

    x, kv = _apply_each(run, cache.layers, x, [*zip(cache.kv, cache.source, strict=True)], c, execution)
    if c.norm == "pre":
        x = norm.apply(own["final_norm"], x, c.norm_eps)
    return x, cache._replace(kv=kv, length=cache.length + (t if real is None else real))


DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "layers": 2, "width": 128, "heads": 4, "head_width": 0, "mlp": 512, "dropout": 0.0,
          "attention_dropout": 0.0, "mlp_dropout": 0.0},
    check=check,
    architecture_fields=("heads", "positions", "buckets", "max_distance", "norm", "scaled_attention",
                         "scaled_embedding", "scaled_output", "tied"),
    dropout_fields=("dropout", "attention_dropout", "mlp_dropout", "shared_dropout"),
    encoder={"stacks": "encoder"},
)
