"""Loops whose length is known only when they run."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from lmrep.layers.loops import repeat
from lmrep.planning import flops


def steps(number, usual):
    """The numbers of the steps that ran, in order, as digits."""
    return repeat(number, 7, lambda i, found: 10 * found + i + 1, jnp.int32(0), usual)


@pytest.mark.parametrize("usual", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("number", range(8))
def test_every_step_runs_once_in_order(number, usual):
    expected = int("".join(str(i + 1) for i in range(number)) or 0)
    assert jax.jit(partial(steps, usual=usual))(jnp.int32(number)) == expected
    assert jax.jit(lambda: steps(jnp.int32(number), usual))() == expected  # a constant for the compiler


@pytest.mark.parametrize(("usual", "counted"), [(None, 7), (3, 3)])
def test_planning_counts_as_many_steps_as_are_usual(usual, counted):
    def program(number, x):
        return repeat(number, 7, lambda i, y: y @ x, x, usual)

    assert flops.count(program, jnp.int32(5), jnp.ones((4, 4))) == counted * 2 * 4**3
