"""Counts floating-point operations in the traced program, rather than by a formula for each model."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import optax
from jax.extend import core as jex

from lmrep.core.sharding import without_mesh
from lmrep.layers import attention_backends
from lmrep.objectives.base import Objective
from lmrep.training.state import create
from lmrep.training.step import train_step


def count(f: Callable, *args) -> int:
    """Counts the floating-point operations of the matrix products in `f(*args)`, over all devices.

    The body of a loop counts once per iteration; where the data decide, for the largest number of iterations. Of the
    branches of a condition the largest counts. Recomputation counts too. Other operations do not count, as in published
    tables. Arguments may be `jax.ShapeDtypeStruct`s.
    """
    return _count(jax.make_jaxpr(f)(*args).jaxpr)


def of_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, batch: Mapping[str, jax.ShapeDtypeStruct],
    microbatches: int = 1,
) -> int:
    """Counts the floating-point operations of one training step on a global batch of these shapes, over all devices.

    Attention is counted as the backend "xla" computes it: fused kernels cannot be counted, and chunked attention
    recomputes. An active mesh has no effect.
    """
    state = jax.eval_shape(partial(create, objective, optimizer, len(batch["tokens"])), 0)
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=0, microbatches=microbatches)
    # Without a mesh: inside `map_examples`, the program for a mesh has the shapes of one device's share.
    with attention_backends.only_dense(), without_mesh():
        return count(step, state, dict(batch))


def _count(jaxpr: jex.Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            products = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * products * math.prod(equation.outvars[0].aval.shape)
        inner = map(_count, jex.jaxprs_in_params(equation.params))
        total += max(inner) if equation.primitive.name == "cond" else _iterations(equation) * sum(inner)
    return total


def _iterations(equation: jex.JaxprEqn) -> int:
    """Returns how often the body of an equation runs; the maximum, where the data decide (`layers.loops`)."""
    if equation.primitive.name == "scan":
        return equation.params["length"]
    if equation.primitive.name != "while":
        return 1
    comparisons = [inner for inner in equation.params["cond_jaxpr"].jaxpr.eqns if inner.primitive.name == "lt"]
    bounds = [operand.val for comparison in comparisons for operand in comparison.invars
              if isinstance(operand, jex.Literal)]
    return int(max(bounds, default=1))
