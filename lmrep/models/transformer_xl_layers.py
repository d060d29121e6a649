"""The config and the layers of Transformer-XL and XLNet."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Initializer, Tree, normal
from lmrep.layers import adaptive, mlp, norm, relative_attention, residual
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.layers.relative_attention import Mask


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
    tied: bool = setting(True, "whether the output layer uses the token table, where it is one softmax")
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
    scale_stddev: float = setting(0.02, "standard deviation of the initial scales of layer norm around 1 (XLNet: 0)",
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
        """The clusters of the vocabulary; one without `cutoffs`."""
        return adaptive.Clusters(self.vocab, self.width, self.width, self.cutoffs, self.div, self.tied_projections)

    def carried(self, length: int) -> int:
        """Returns the number of tokens that are remembered of an example of this length."""
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


def norm_specs(c: Config) -> Tree:
    """Returns the specs of a layer norm whose initial scales are drawn around 1."""
    draw: Initializer = lambda key, shape: 1 + c.scale_stddev * jax.random.normal(key, shape)  # noqa: E731
    tree = norm.specs(c.width)
    return tree | {"scale": tree["scale"]._replace(init=draw)} if c.scale_stddev else tree


def layer_specs(c: Config) -> Tree:
    """Returns the parameters of one layer."""
    init = normal(c.init_stddev)
    biases = relative_attention.bias_specs(c.width, c.heads, init, segments=c.segments) if c.untie else {}
    return {
        "attention": relative_attention.specs(c.width, c.heads, init, segments=c.segments) | biases,
        "attention_norm": norm_specs(c),
        "mlp": mlp.specs(c.width, c.mlp, init),
        "mlp_norm": norm_specs(c),
    }


class Streams(NamedTuple):
    """The residual streams."""

    content: Array  # [b, t, d]
    query: Array | None  # [b, m, d], at the positions that are predicted


def embed(params: Tree, tokens: Array, c: Config) -> Array:
    """Embeds tokens as float32 [b, t, d]."""
    return adaptive.embed(params["embedding"], tokens, c.clusters) * (c.width**0.5 if c.scale_embedding else 1.0)


def layer(
    p: Tree, biases: Mapping[str, Array], x: Array, *, keys: relative_attention.Keys, mask: Mask, key: Array | None,
    c: Config,
) -> tuple[Array, Array]:
    """Applies one layer. Returns (x [b, t, d], attention probabilities)."""
    attention_key, output_key, inner_key, mlp_key = prng.split(key, 4)
    add = partial(residual.apply, pre=c.norm == "pre", eps=c.norm_eps, rate=c.dropout)
    x, probabilities = add(p["attention_norm"], x, lambda y: relative_attention.apply(
        p["attention"], biases, y, keys, mask, c.heads, rate=c.attention_dropout, key=attention_key), key=output_key)
    return add(p["mlp_norm"], x, lambda y: (mlp.apply(
        p["mlp"], y, c.activation, rate=c.dropout, key=inner_key), None), key=mlp_key)[0], probabilities


def relative_positions(t: int, s: int, causal: bool, turned: Array | None, c: Config) -> Array:
    """Returns R of all distances between t queries and s keys, the last of which are the queries', by falling distance:
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
