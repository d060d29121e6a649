"""Random keys that may be absent: `None` stands for a deterministic computation."""

import jax

from lmrep.core.params import Array


def split(key: Array | None, n: int) -> tuple[Array | None, ...]:
    """`n` keys from one, or `n` times None."""
    return (None,) * n if key is None else tuple(jax.random.split(key, n))
