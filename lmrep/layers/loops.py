"""Loops whose length is known only when they run."""

from collections.abc import Callable
from typing import TypeVar

import jax

from lmrep.core.params import Array

State = TypeVar("State")


def repeat(number: Array, most: int, step: Callable[[Array, State], State], state: State) -> State:
    """`step(i, state)` for i = 0, ..., number - 1, of which there are at most `most`. Planning counts that many."""
    return jax.lax.while_loop(lambda loop: (loop[0] < number) & (loop[0] < most),
                              lambda loop: (loop[0] + 1, step(*loop)), (jax.numpy.int32(0), state))[1]
