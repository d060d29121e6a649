"""Loops whose length is known only when they run."""

from collections.abc import Callable
from typing import TypeVar

import jax

from lmrep.core.params import Array

State = TypeVar("State")


def repeat(
    number: Array, most: int, step: Callable[[Array, State], State], state: State, usual: int | None = None
) -> State:
    """Runs `step(i, state)` for i = 0, ..., number - 1; `number` is at most `most`. Planning counts `most` iterations,
    or `usual` where it is given."""
    if usual is None:
        return jax.lax.while_loop(lambda loop: (loop[0] < number) & (loop[0] < most),
                                  lambda loop: (loop[0] + 1, step(*loop)), (jax.numpy.int32(0), state))[1]

    def group(loop: tuple[Array, State]) -> tuple[Array, State]:
        g, state = loop
        return g + 1, repeat(number - g * usual, usual, lambda i, state: step(g * usual + i, state), state)

    # A loop that no constant bounds counts once. Its counter has steps of 1: with larger ones, XLA's CPU backend drops
    # loops whose constant limit is below the step (jax 0.10.2).
    return jax.lax.while_loop(lambda loop: loop[0] < -(-number // usual), group, (jax.numpy.int32(0), state))[1]
