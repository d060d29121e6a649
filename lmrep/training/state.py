"""What a run carries from one step to the next, and where it lives."""

from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import RULES, Rules, batch_sharding, replicated, shardings
from lmrep.objectives.base import Carry, Objective
from lmrep.training import optimizers


@flax.struct.dataclass
class TrainState:
    """All that a checkpoint holds. There is no randomness in it: draws are functions of (seed, step)."""

    step: Array  # i32[], updates done
    params: Tree  # {"encoder": ..., "objective": ..., "frozen": ...}; frozen only where there is any
    opt_state: Any  # of `encoder` and `objective`
    carry: Carry  # the objective's


def specs_of(objective: Objective) -> Tree:
    """The spec tree of `TrainState.params`."""
    return objective.specs | ({"frozen": objective.frozen} if objective.frozen else {})


def trainable(params: Tree) -> Tree:
    """The parameters that get gradients."""
    return {name: part for name, part in params.items() if name != "frozen"}


def layout(
    objective: Objective, optimizer: optax.GradientTransformation, rows: int, mesh: Mesh, rules: Rules = RULES
) -> TrainState:
    """A `TrainState` of shardings."""
    return TrainState(
        step=replicated(mesh),
        params=shardings(specs_of(objective), mesh, rules),
        opt_state=optimizers.state_shardings(optimizer, objective.specs, mesh, rules),
        carry=carry_layout(objective, rows, mesh, rules),
    )


def carry_layout(objective: Objective, rows: int, mesh: Mesh, rules: Rules = RULES) -> Carry:
    """A `Carry` of shardings."""
    carry = jax.eval_shape(lambda: objective.carry(rows))
    return Carry(
        per_example=jax.tree.map(lambda _: batch_sharding(mesh, rules), carry.per_example),
        shared=jax.tree.map(lambda _: replicated(mesh), carry.shared),
    )


def create(
    objective: Objective, optimizer: optax.GradientTransformation, rows: int, seed: int
) -> TrainState:
    """The state before the first step. Under `jax.jit` with `layout` as out_shardings every array is made
    where it lives."""
    params = P.init(specs_of(objective), jax.random.key(seed))
    return TrainState(jnp.int32(0), params, optimizer.init(trainable(params)), objective.carry(rows))


def abstract(
    objective: Objective, optimizer: optax.GradientTransformation, rows: int, mesh: Mesh, rules: Rules = RULES
) -> TrainState:
    """A `TrainState` of `jax.ShapeDtypeStruct` with shardings: what a checkpoint is restored into."""
    shapes = jax.eval_shape(partial(create, objective, optimizer, rows), 0)
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        shapes, layout(objective, optimizer, rows, mesh, rules))
