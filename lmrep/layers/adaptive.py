"""Adaptive softmax (Grave et al., 2017) and adaptive input embeddings (Baevski and Auli, 2019), as Transformer-XL uses
them for vocabularies of full words (Dai et al., 2019).

Ids are sorted by falling frequency. `cutoffs` split them into clusters: the head, and tails of rarer words. A softmax
over the head has one more class for each tail; the probability of a word in a tail is the tail's class's times
its probability among the tail's words. Only the positions whose target is in a tail compute its logits.

Cluster i has vectors of width e / div^i. With div = 1, all clusters are ranges of one table, and a projection from e to
the network's width d is needed only where these differ; otherwise each cluster has a table and a projection of its own.
"""

import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import gather, look_up, shard
from lmrep.layers import lm_head
from lmrep.layers.lm_head import EXACT, TABLE
from lmrep.layers.loops import repeat

TIED = ("all", "tails", "none")  # which clusters' projections of the input the output layer uses
PROJECTION = (None, "embed")  # logical axes
# A block of a tail has as many logits at most, or a fraction of the positions if more; a usual tail has so many blocks.
BLOCK_LOGITS, BLOCKS, USUAL_BLOCKS = 2**24, 32, 4


class Clusters(NamedTuple):
    """The clusters of a vocabulary, and the widths of their vectors."""

    vocab: int  # v
    width: int  # d, of the network
    embedding: int  # e, of the first cluster's vectors
    cutoffs: tuple[int, ...] = ()  # the first id of each tail, ascending; () for one cluster
    div: int = 1  # each cluster's vectors are narrower by this factor
    tied: str = "all"  # of `TIED`

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ids [start, end) of each cluster. The last is empty where the size of the vocabulary is not known yet."""
        return list(itertools.pairwise((0, *self.cutoffs, self.vocab or max((0, *self.cutoffs)))))

    @property
    def widths(self) -> list[int]:
        """e of each cluster."""
        return [self.embedding // self.div**i for i in range(len(self.cutoffs) + 1)]

    @property
    def projects(self) -> bool:
        """Whether there are projections from e to d."""
        return self.div > 1 or self.embedding != self.width


def check(c: Clusters, names: str = "config.model.cutoffs") -> None:
    """Raises UserError where the cutoffs are not ascending ids, or vectors would have no width. A vocabulary of unknown
    size (0) is not checked."""
    below = c.vocab or 2**31
    if list(c.cutoffs) != sorted({cutoff for cutoff in c.cutoffs if 0 < cutoff < below}):
        raise UserError(f"{names} is {c.cutoffs}; expected ascending ids from 1 to {below - 1:,}, each the first of a "
                        "cluster of rarer words, below the size of the vocabulary; () for one softmax")
    if c.widths[-1] < 1:
        raise UserError(f"the vectors of cluster {len(c.cutoffs)} have width {c.embedding} / {c.div}^{len(c.cutoffs)}, "
                        "which is below 1; choose a smaller div or fewer cutoffs")


# Input


def embedding_specs(c: Clusters, init: Initializer = normal()) -> Tree:
    """Returns the specs `token` [v, e] and, if e is not d, `project` [e, d]; with div > 1, in `clusters` by number."""
    def cluster(vocab: int, e: int) -> Tree:
        project = {"project": ParamSpec((e, c.width), PROJECTION, normal(0.01))} if c.projects else {}
        return {"token": ParamSpec((vocab, e), TABLE, init)} | project

    if c.div == 1:
        return cluster(c.vocab, c.embedding)
    sizes = zip(c.ranges, c.widths, strict=True)
    return {"clusters": {str(i): cluster(end - start, e) for i, ((start, end), e) in enumerate(sizes)}}


def embed(params: Tree, tokens: Array, c: Clusters) -> Array:
    """Returns the vectors float32 [b, t, d] of tokens i32[b, t], which are not scaled."""
    if c.div == 1:
        return _projected(params, look_up(params["token"], tokens))
    x = 0.0
    for i, (start, end) in enumerate(c.ranges):
        cluster = params["clusters"][str(i)]
        vectors = look_up(cluster["token"], (tokens - start).clip(0, end - start - 1))
        x += _projected(cluster, jnp.where(((tokens >= start) & (tokens < end))[..., None], vectors, 0))
    return x


def _projected(params: Tree, x: Array) -> Array:
    if "project" not in params:
        return x
    return jnp.einsum("bte,ed->btd", x, gather(params["project"], PROJECTION, "embed"))


# Output


def output_specs(c: Clusters, init: Initializer = normal()) -> Tree:
    """Returns the parameters of the output layer that it does not share with the input: `clusters` (kernel [k, e] and
    bias [k] of the k tails' classes), and by number of the cluster `cluster_projects` [e, d]."""
    k = len(c.cutoffs)
    specs = {}
    if k:
        specs["clusters"] = {"kernel": ParamSpec((k, c.embedding), (None, "embed"), init),
                             "bias": ParamSpec((k,), (None,), zeros)}
    untied = {"all": 0, "tails": 1, "none": len(c.widths)}[c.tied]  # clusters with a projection of their own
    projects = {str(i): ParamSpec((e, c.width), PROJECTION, normal(0.01))
                for i, e in enumerate(c.widths[:untied]) if c.projects}
    return specs | ({"cluster_projects": projects} if projects else {})


class _Cluster(NamedTuple):
    """One cluster's part of the output layer: x [b, t, e], table [words, e], bias [words] or None."""

    x: Array
    table: Array
    bias: Array | None


def _clusters(embedding: Tree, head: Tree, x: Array, c: Clusters) -> list[_Cluster]:
    """Returns x [b, t, d] and the parameters, for each cluster; the head's with the classes of the tails."""
    clusters = []
    for i, (start, end) in enumerate(c.ranges):
        tables = embedding if c.div == 1 else embedding["clusters"][str(i)]
        project = head.get("cluster_projects", {}).get(str(i), tables.get("project"))
        projected = x
        if project is not None:
            project = gather(project, PROJECTION, "embed")
            projected = jnp.einsum("btd,ed->bte", x, project.astype(x.dtype))
        table = tables["token"][start:end] if c.div == 1 else tables["token"]
        bias = head["bias"][start:end] if "bias" in head else None
        if i == 0 and c.cutoffs:
            more = head["clusters"]
            table = jnp.concatenate([table, more["kernel"]])
            bias = jnp.concatenate([jnp.zeros(end, table.dtype) if bias is None else bias, more["bias"]])
        clusters.append(_Cluster(projected, table, bias))
    return clusters


def cross_entropy(
    embedding: Tree, head: Tree, x: Array, targets: Array, weights: Array, c: Clusters
) -> tuple[Array, Array, Array]:
    """Returns the weighted sum of the cross-entropies of `targets` i32[b, t] given x [b, t, d], without the logits of
    all positions at once. `head` is as in `output_specs`, and has a `bias` [v] if the words have one; `weights` float32
    [b, t] are 0 where nothing is predicted. Returns (the sum float32 [], nll float32 [b, t] and correct bool[b, t],
    both without a gradient). A target counts as correct if its class has the largest logit in the head and, in a tail,
    its word in the tail."""
    first, *tails = _clusters(embedding, head, x, c)
    classes = targets  # in the head: words, or their tails
    for i, (start, end) in enumerate(c.ranges[1:]):
        classes = jnp.where((targets >= start) & (targets < end), c.cutoffs[0] + i, classes)
    total, nll, correct = lm_head.chunked_cross_entropy(first.table, first.x, classes, weights, first.bias)
    for tail, (start, end) in zip(tails, c.ranges[1:], strict=True):
        fraction = math.log(end / start) / math.log(c.vocab)  # of a text, by Zipf's law
        of_tail, tail_nll, right = lm_head.map_weighted(
            lambda *shards, fraction=fraction: _tail(*shards, fraction), tail.table, tail.x, targets - start, weights,
            tail.bias)
        total, nll = total + of_tail, nll + tail_nll
        correct &= right | (targets < start) | (targets >= end)
    return total, nll, correct


def log_probabilities(embedding: Tree, head: Tree, x: Array, targets: Array, c: Clusters) -> Array:
    """Returns log p(target) float32 [b, m], without a gradient, given the network's output x [b, m, d]."""
    return -cross_entropy(embedding, head, x, targets, jnp.ones(targets.shape, jnp.float32), c)[1]


def logits(embedding: Tree, head: Tree, x: Array, c: Clusters) -> Array:
    """Returns log p float32 [b, t, v] of all words, whose softmax is p: x [b, t, d]."""
    first, *tails = (jax.nn.log_softmax(lm_head.logits(
        {} if cluster.bias is None else {"bias": cluster.bias}, cluster.table, cluster.x)) for cluster in
        _clusters(embedding, head, x, c))
    size = c.ranges[0][1]
    return jnp.concatenate([first[..., :size], *(first[..., size + i, None] + tail for i, tail in enumerate(tails))],
                           axis=-1)


def block_size(n: int, v: int, fraction: float) -> int:
    """Positions of a block, of n positions and a tail of v words that is expected to have a `fraction` of them."""
    most = max(BLOCK_LOGITS // v, -(-n // BLOCKS))
    return max(1, min(n, most, max(8, math.ceil(fraction * n / USUAL_BLOCKS))))


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _tail(
    table: Array, x: Array, targets: Array, weights: Array, bias: Array | None, fraction: float
) -> tuple[Array, Array, Array]:
    """Returns the cross-entropies among the words of a table [v, e], at the positions whose `targets` i32[b, t] are in
    [0, v): (weighted sum, nll [b, t], correct bool[b, t]); 0 and False at the others. A `fraction` of them is
    expected."""
    return _tail_blocks(table, x, targets, weights, bias, fraction, gradient=False)[0]


def _tail_blocks(
    table: Array, x: Array, targets: Array, weights: Array, bias: Array | None, fraction: float, gradient: bool
) -> tuple[tuple[Array, Array, Array], tuple]:
    """Returns the result of `_tail`, and the gradients for a cotangent of 1.

    The positions of the tail are gathered into blocks of one size, and the loop ends with the last block that has any:
    only these positions are computed, whatever their number, and the shapes are static.
    """
    shape, v, n = targets.shape, len(table), targets.size
    rows = block_size(n, v, fraction)
    flat, targets, weights = x.reshape(n, -1), targets.reshape(n), weights.reshape(n)
    members = (targets >= 0) & (targets < v)
    count = members.sum()
    order = jnp.nonzero(members, size=n + -n % rows, fill_value=n)[0]  # n: no position
    kernel = table.astype(x.dtype)

    def one_block(i: Array, state: tuple) -> tuple:
        nll, correct, gradients = state
        at = jax.lax.dynamic_slice_in_dim(order, i * rows, rows)
        xs, target, weight = (jnp.take(array, at, axis=0, mode="fill", fill_value=0)
                              for array in (flat, targets, weights))
        y = jnp.einsum("ne,ve->nv", xs, kernel, preferred_element_type=jnp.float32)
        y = shard(y if bias is None else y + bias, None, "vocab")
        exponentials, total, block_nll, right = lm_head.exp_and_nll(y, target)
        nll, correct = nll.at[at].set(block_nll, mode="drop"), correct.at[at].set(right, mode="drop")
        if gradient:
            dtable, dx, dbias = gradients
            scale, p = weight / total, exponentials.astype(x.dtype)
            block_dx = (p @ kernel) * scale[:, None].astype(x.dtype) - kernel[target] * weight[:, None].astype(x.dtype)
            dx = dx.at[at].set(block_dx, mode="drop")
            dtable += jnp.einsum("nv,ne->ve", p, xs * scale[:, None].astype(x.dtype),
                                 preferred_element_type=jnp.float32)
            dtable = dtable.at[target].add(-xs.astype(jnp.float32) * weight[:, None])
            if bias is not None:
                dbias = (dbias + jnp.matmul(scale, exponentials, precision=EXACT)).at[target].add(-weight)
            gradients = dtable, dx, dbias
        return nll, correct, gradients

    gradients = (jnp.zeros(table.shape, jnp.float32), jnp.zeros_like(flat),
                 None if bias is None else jnp.zeros(bias.shape, jnp.float32)) if gradient else ()
    most = -(-n // rows)
    nll, correct, gradients = repeat(
        -(-count // rows), most, one_block, (jnp.zeros(n, jnp.float32), jnp.zeros(n, bool), gradients),
        usual=min(most, math.ceil(fraction * n / rows)))
    result = (nll * weights).sum(), nll.reshape(shape), correct.reshape(shape)
    if not gradient:
        return result, ()
    dtable, dx, dbias = gradients
    return result, (dtable.astype(table.dtype), dx.reshape(x.shape), dbias, result[1])


_tail.defvjp(partial(_tail_blocks, gradient=True), lm_head.scaled_gradients)
