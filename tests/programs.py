"""Properties of the program that JAX traces a function to."""

from collections.abc import Iterator

import jax
from jax.extend import core


def equations(f, *arguments) -> Iterator[core.JaxprEqn]:
    """Every operation of `f(*arguments)`, including those inside loops, derivatives and other calls."""
    yield from _equations(jax.make_jaxpr(f)(*arguments).jaxpr)


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, core.ClosedJaxpr | core.Jaxpr):
                    yield from _equations(getattr(inner, "jaxpr", inner))


def products(f, *arguments) -> list[core.JaxprEqn]:
    """Its matrix products."""
    return [equation for equation in equations(f, *arguments) if equation.primitive.name == "dot_general"]


def largest(f, *arguments) -> int:
    """The number of elements of the largest array that it makes."""
    return max(made.aval.size for equation in equations(f, *arguments) for made in equation.outvars)
