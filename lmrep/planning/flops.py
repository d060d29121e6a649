"""Floating-point operations, counted in the traced program rather than by a formula for each model."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import optax
from jax.extend import core as jex

from lmrep.layers import attention_backends
from lmrep.objectives.base import Objective
from lmrep.planning import accelerators
from lmrep.training.state import create
from lmrep.training.step import train_step


def peak(device: jax.Device) -> float | None:
    """The device's peak in bfloat16, in floating-point operations per second; None if unknown, as for CPUs."""
    return accelerators.known(device.device_kind).flops


def count(f: Callable, *args) -> int:
    """Floating-point operations of the matrix products in `f(*args)`, over all devices.

    The body of a scan counts once per iteration, and recomputation counts too. Other operations are not counted, as in
    published tables. Arguments may be `jax.ShapeDtypeStruct`s.
    """
    return _count(jax.make_jaxpr(f)(*args).jaxpr)


def of_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, batch: Mapping[str, jax.ShapeDtypeStruct],
    microbatches: int = 1,
) -> int:
    """Floating-point operations of one training step on a global batch of these shapes, over all devices.

    Attention counts as that of the backend "xla", whatever computes it: fused kernels cannot be counted, and chunked
    attention recomputes.
    """
    batch_size = next(iter(batch.values())).shape[0]
    state = jax.eval_shape(partial(create, objective, optimizer, batch_size), 0)
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=0, microbatches=microbatches)
    with attention_backends.only_dense():
        return count(step, state, dict(batch))


def _count(jaxpr: jex.Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            products = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * products * math.prod(equation.outvars[0].aval.shape)
        iterations = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        total += iterations * sum(map(_count, jex.jaxprs_in_params(equation.params)))
    return total
