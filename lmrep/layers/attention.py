"""Multi-head dot-product attention (Vaswani et al., 2017, section 3.2)."""

import flax.struct
import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Initializer, Tree, normal
from lmrep.core.sharding import shard
from lmrep.layers import dropout, linear

HIDDEN = -1e9  # in place of a score that must not count; finite, so that a row that sees nothing is not NaN


@flax.struct.dataclass
class Visibility:
    """What each position may attend to: the objective's choice, not the model's."""

    segments: Array  # i32[b, t]; a position sees its own segment alone; 0 is padding
    causal: bool = flax.struct.field(pytree_node=False, default=False)  # whether it sees no later position
    mask: Array | None = None  # bool[b, t, s], in addition to the above; 1 where t may see s

    def allowed(self) -> Array:
        """bool[b, t, s]."""
        allowed = self.segments[:, :, None] == self.segments[:, None, :]
        if self.causal:
            places = jnp.arange(self.segments.shape[1])
            allowed &= places[:, None] >= places[None, :]
        return allowed if self.mask is None else allowed & self.mask


def specs(d: int, init: Initializer = normal()) -> Tree:
    """Query, key, value and output maps, d -> d each, with bias."""
    return {name: linear.specs(d, d, ("embed", "heads"), init) for name in ("query", "key", "value")} | {
        "output": linear.specs(d, d, ("heads", "embed"), init)
    }


def apply(
    params: Tree, x: Array, allowed: Array, heads: int, *,
    queries: Array | None = None, rate: float = 0.0, key: Array | None = None,
) -> tuple[Array, Array]:
    """Self-attention.

    Args:
      params: as `specs`.
      x: [b, s, d], what is attended to.
      allowed: bool[b, t, s], from `Visibility.allowed`.
      heads: h, a divisor of d.
      queries: [b, t, d], what attends; by default x.
      rate: dropout on the attention probabilities.
      key: for dropout.

    Returns:
      ([b, t, d], probabilities [b, h, t, s] before dropout).
    """
    queries = x if queries is None else queries
    b, t, d = queries.shape

    def split(name: str, x: Array) -> Array:
        return shard(linear.apply(params[name], x).reshape(b, -1, heads, d // heads), "batch", None, "heads", None)

    scores = jnp.einsum("bthk,bshk->bhts", split("query", queries) * (d // heads) ** -0.5, split("key", x))
    scores = jnp.where(allowed[:, None], scores.astype(jnp.float32), HIDDEN)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhts,bshk->bthk", dropout.apply(key, probabilities, rate), split("value", x))
    return linear.apply(params["output"], mixed.reshape(b, t, d)), probabilities
