"""Optional random keys: `None` means deterministic."""

import jax

from lmrep.core.params import Array


def split(key: Array | None, n: int) -> tuple[Array | None, ...]:
    """Splits a key into `n` keys; `n` times None if it is None."""
    return (None,) * n if key is None else tuple(jax.random.split(key, n))
