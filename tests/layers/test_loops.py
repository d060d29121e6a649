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


@pytest.mark.parametrize("usual", [None, 1, 3, 7])
def test_every_step_runs_once_in_order(usual):
    run = jax.jit(partial(steps, usual=usual))
    assert [int(run(jnp.int32(number))) for number in range(8)] == [0, 1, 12, 123, 1234, 12345, 123456, 1234567]
    assert jax.jit(lambda: steps(jnp.int32(5), usual))() == 12345  # a constant for the compiler


@pytest.mark.parametrize(("usual", "counted"), [(None, 7), (3, 3)])
def test_planning_counts_as_many_steps_as_are_usual(usual, counted):
    def program(number, x):
        return repeat(number, 7, lambda i, y: y @ x, x, usual)

    assert flops.count(program, jnp.int32(5), jnp.ones((4, 4))) == counted * 2 * 4**3
