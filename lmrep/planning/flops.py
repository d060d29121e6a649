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

Products = list[tuple[jex.JaxprEqn, int]]  # matrix products of a program, and how often each runs


def count(f: Callable, *args) -> int:
    """Counts the floating-point operations of the matrix products in `f(*args)`, over all devices.

    The body of a loop counts once per iteration; where the data decide, for the largest number of iterations. Of the
    branches of a condition the largest counts. Recomputation counts too. Other operations do not count, as in published
    tables. Arguments may be `jax.ShapeDtypeStruct`s.
    """
    return total(products(f, *args))


def products(f: Callable, *args) -> Products:
    """Finds the matrix products that `count` counts."""
    return _matrix_products(jax.make_jaxpr(f)(*args).jaxpr)


def of_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, batch: Mapping[str, jax.ShapeDtypeStruct],
    microbatches: int = 1,
) -> int:
    """Counts the floating-point operations of one training step on a global batch of these shapes, over all devices.

    Attention is counted as the backend "xla" computes it: fused kernels cannot be counted, and chunked attention
    recomputes. An active mesh has no effect.
    """
    return total(products_of_train_step(objective, optimizer, batch, microbatches))


def products_of_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, batch: Mapping[str, jax.ShapeDtypeStruct],
    microbatches: int = 1,
) -> Products:
    """Finds the matrix products that `of_train_step` counts."""
    state = jax.eval_shape(partial(create, objective, optimizer, len(batch["tokens"])), 0)
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=0, microbatches=microbatches)
    # Without a mesh: inside `map_examples`, the program for a mesh has the shapes of one device's share.
    with attention_backends.only_dense(), without_mesh():
        return products(step, state, dict(batch))


def total(products: Products) -> int:
    """Adds the floating-point operations of matrix products."""
    return sum(times * _operations(equation) for equation, times in products)


def _operations(equation: jex.JaxprEqn) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    summed = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    return 2 * summed * math.prod(equation.outvars[0].aval.shape)


def _matrix_products(jaxpr: jex.Jaxpr) -> Products:
    found: Products = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append((equation, 1))
        inner = [_matrix_products(body) for body in jex.jaxprs_in_params(equation.params)]
        if equation.primitive.name == "cond":
            inner = [max(inner, key=total)]
        found += [(product, _iterations(equation) * times) for body in inner for product, times in body]
    return found


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
