"""The config, the parameters and the blocks of the encoder-decoder Transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal
from lmrep.core.sharding import gather_params, look_up, shard
from lmrep.layers import attention as attention_layer
from lmrep.layers import dropout, embedding, mlp, norm, relative_bias, residual, stack
from lmrep.layers.attention import Attend, AttentionMask, KVCache
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.layers.relative_bias import Buckets
from lmrep.models.base import Inputs

ENCODER, DECODER = "encoder", "decoder"
EMBEDDING, SOURCE_EMBEDDING = "embedding", "source_embedding"
SAME_TEXT, START = "same_text", 0  # the id before the text in its decoder, T5's padding


@dataclass(frozen=True)
class Config:
    """The fields in which the Transformer and T5 differ, by default T5's."""

    vocab: int = setting(32128, "size of the vocabulary of both texts; 0: the tokenizer's size", at_least=0)
    stacks: str = setting("both", "under the head of a task or of a masked language model: encoder, the encoder alone, "
                          "or same_text, both stacks on the same text, of whose decoder the head reads the output "
                          "(BART)", choices=("both", "encoder", SAME_TEXT))
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
    def norm_kind(self) -> str:
        """The name of the norm in `norm.NORMS`."""
        return "rms" if self.rms_norm else "layer"

    @property
    def table_width(self) -> int:
        """Width of the embedding tables."""
        return self.width

    @property
    def depth(self) -> dict[str, int]:
        """The number of layers of each stack that there is."""
        decoder = {DECODER: self.decoder_layers or self.layers} if self.stacks != "encoder" else {}
        return {ENCODER: self.layers} | decoder


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


# Parameters


def initializer(c: Config, inputs: int) -> Initializer:
    """Returns the initializer of a kernel with that many inputs."""
    if c.init == "normal":
        return normal(inputs**-0.5)
    limit = (3 / inputs) ** 0.5
    return lambda key, shape: jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding`, `source_embedding` where the source has another table, `encoder` and
    `decoder`."""
    table = {"token": ParamSpec((c.vocab, c.width), ("vocab", "embed"), normal(c.embedding_stddev or c.width**-0.5))}
    return {**dict.fromkeys(tables(c), table), **{name: stack_specs(c, name) for name in c.depth}}


def tables(c: Config) -> tuple[str, ...]:
    """Returns the names of the token tables that the stacks read."""
    if c.tied in ("all", "embeddings"):
        return (EMBEDDING,)
    return (SOURCE_EMBEDDING,) if c.stacks == "encoder" else (EMBEDDING, SOURCE_EMBEDDING)


def stack_specs(c: Config, name: str) -> Tree:
    """Returns the parameters of a stack: `layers` and, by config, `relative`, `position` and `final_norm`."""
    tree = {"layers": stack.specs(layer_specs(c, name), c.depth[name])}
    if c.positions == "relative":
        tree["relative"] = relative_bias.specs(buckets(c, name), c.heads, normal(c.width**-0.5))
    if c.positions == "learned":
        tree["position"] = ParamSpec((c.max_length, c.width), (None, "embed"), normal(c.width**-0.5))
    if c.norm == "pre":
        tree["final_norm"] = norm.specs(c.width, c.norm_kind)
    return tree


def layer_specs(c: Config, name: str) -> Tree:
    """Returns the parameters of one layer of a stack."""
    inner = c.heads * c.k
    attention = attention_layer.specs(
        c.width, c.heads, initializer(c, c.width), initializer(c, inner), c.k,
        query_init=initializer(c, c.width if c.scaled_attention else c.width * c.k), bias=c.attention_bias)
    tree = {"attention": attention, "mlp": mlp.specs(c.width, c.mlp, initializer(c, c.width), initializer(c, c.mlp),
                                                     bias=c.mlp_bias, gated=c.gated)}
    if name == DECODER:
        tree["cross_attention"] = attention
    return tree | {f"{block}_norm": norm.specs(c.width, c.norm_kind) for block in tree}


def buckets(c: Config, name: str) -> Buckets:
    """Returns the buckets of the distances in a stack."""
    return Buckets(c.buckets, c.max_distance, both_sides=name == ENCODER)


# Blocks


def text_mask(inputs: Inputs, causal: bool = False) -> AttentionMask:
    """Makes the mask of a text. Raises ValueError if it is causal where `causal` is not, or the reverse."""
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens), causal=causal)
    if mask.causal != causal:
        raise ValueError("the encoder reads from both sides, and the decoder from left to right; expected an "
                         f"AttentionMask with causal={causal}")
    return mask


def same_text(inputs: Inputs) -> Inputs:
    """Makes the inputs of both stacks that read one text: the decoder's tokens are those before each position of a
    segment, from START on (Lewis et al., 2020, section 3.1)."""
    def before(x: Array, first: int) -> Array:
        return jnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=first)

    mask = text_mask(inputs)
    continues = before(mask.segment_ids, -1) == mask.segment_ids
    return inputs._replace(tokens=jnp.where(continues, before(inputs.tokens, START), START),
                           attention_mask=mask.replace(causal=True), source=inputs)


def embed(params: Tree, name: str, tokens: Array, positions: Array | None, length: int, c: Config) -> Array:
    """Embeds tokens as float32 [b, t, d]; positions are below `length`."""
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
            x += jnp.asarray(embedding.sinusoidal(c.max_length, c.width))[positions]
    return shard(x, "batch", "length", None)


def dropped(key: Array | None, x: Array, c: Config) -> Array:
    """Applies to x [b, t, d] the dropout of embeddings and outputs."""
    return dropout.apply(key, x, c.dropout, (1,) if c.shared_dropout else ())


def attention_block(
    p: Tree, name: str, x: Array, attend: Attend, c: Config, key: Array | None, output_key: Array | None,
    kv: KVCache | None = None,
) -> tuple[Array, Array | None]:
    """Applies a block of attention, to x or to the keys and values `kv`. Returns (x [b, t, d], the probabilities)."""
    return add(p, name, x, lambda y: attention_layer.apply(
        p[name], y, attend, c.heads, rate=c.attention_dropout, key=key, kv=kv), c, output_key)


def mlp_block(p: Tree, x: Array, c: Config, key: Array | None = None, output_key: Array | None = None) -> Array:
    """Applies the feed-forward block."""
    run = partial(mlp.apply, p["mlp"], activation=c.activation, rate=c.mlp_dropout, key=key,
                  same_along=(1,) if c.shared_dropout else ())
    return add(p, "mlp", x, lambda y: (run(y), None), c, output_key)[0]


def add(
    p: Tree, name: str, x: Array, block: Callable[[Array], tuple[Array, Any]], c: Config, key: Array | None = None
) -> tuple[Array, Any]:
    """Calls `residual.apply` with the norm of the block `name`."""
    return residual.apply(p[f"{name}_norm"], x, block, pre=c.norm == "pre", eps=c.norm_eps, kind=c.norm_kind,
                          rate=c.dropout, key=key, same_along=(1,) if c.shared_dropout else ())
