"""Functions with a hand-written gradient."""

from collections.abc import Callable

import jax


def with_gradient(forward: Callable, backward: Callable, nondiff_argnums: tuple[int, ...] = ()) -> Callable:
    """Returns the function that `forward` computes, as its arguments -> (result, residuals). `backward` is (the
    arguments `nondiff_argnums`, the residuals, the result's cotangent) -> a cotangent for each other argument."""
    f = jax.custom_vjp(lambda *args: forward(*args)[0], nondiff_argnums)
    f.defvjp(forward, backward)
    return f
