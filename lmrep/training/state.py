"""The training state, and its layout over devices."""

from functools import partial
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import batch_sharding, replicated, shardings
from lmrep.objectives.base import Carry, Objective
from lmrep.optimizers import state_shardings

SHARED = "shared"  # the subtree of `carry.shared` in the parameters for predictions
FROZEN = "frozen"  # the subtree of parameters that no update changes and no checkpoint holds


@flax.struct.dataclass
class TrainState:
    """The arrays of a run; a checkpoint has them without the frozen parameters. It holds no random state: draws are
    functions of (seed, step)."""

    step: Array  # i32[], steps done
    params: Tree  # {"encoder": ..., "objective": ..., "frozen": ...}; "frozen" only if the objective has any
    opt_state: Any  # the optimizer's state for `encoder` and `objective`
    carry: Carry  # the objective's carry, for example recurrent state


def specs_of(objective: Objective) -> Tree:
    """Returns the spec tree of `TrainState.params`."""
    return objective.specs | ({FROZEN: objective.frozen} if objective.frozen else {})


def trainable(params: Tree) -> Tree:
    """Returns the parameters that get gradients."""
    return {name: subtree for name, subtree in params.items() if name not in (FROZEN, SHARED)}


def with_shared(params: Tree, shared: Tree) -> Tree:
    """Adds `shared`, the run's `carry.shared` or None, to `params`, for `Objective.predict`."""
    return params | {SHARED: shared} if jax.tree.leaves(shared) else params


def layout(objective: Objective, optimizer: optax.GradientTransformation, batch_size: int, mesh: Mesh) -> TrainState:
    """Returns a `TrainState` of shardings, which states of this objective have on the mesh."""
    return TrainState(
        step=replicated(mesh),
        params=shardings(specs_of(objective), mesh),
        opt_state=state_shardings(optimizer, objective.specs, mesh),
        carry=_carry_layout(objective, batch_size, mesh),
    )


def _carry_layout(objective: Objective, batch_size: int, mesh: Mesh) -> Carry:
    carry = jax.eval_shape(lambda: objective.carry(batch_size))
    return Carry(jax.tree.map(lambda _: batch_sharding(mesh), carry.per_example),
                 jax.tree.map(lambda _: replicated(mesh), carry.shared))


def initial_carry(objective: Objective, batch_size: int, mesh: Mesh, shared: Tree = None) -> Carry:
    """Returns the objective's initial carry on its devices, with `shared` as `carry.shared` unless that is None."""
    shardings = _carry_layout(objective, batch_size, mesh)
    carry = jax.jit(partial(objective.carry, batch_size), out_shardings=shardings)()
    return carry if shared is None else carry._replace(shared=jax.device_put(shared, shardings.shared))


def saved(state: TrainState) -> TrainState:
    """Returns the state without frozen parameters, as checkpoints hold it."""
    return state.replace(params=trainable(state.params))


def create(objective: Objective, optimizer: optax.GradientTransformation, batch_size: int, seed: int) -> TrainState:
    """Initializes the state before the first step. Jit it with `layout` as out_shardings, so that arrays are created on
    their devices."""
    params = P.init(specs_of(objective), jax.random.key(seed))
    return TrainState(jnp.int32(0), params, optimizer.init(trainable(params)), objective.carry(batch_size))


def shapes(objective: Objective, optimizer: optax.GradientTransformation, batch_size: int) -> TrainState:
    """Returns a `TrainState` of `jax.ShapeDtypeStruct`."""
    return jax.eval_shape(partial(create, objective, optimizer, batch_size), 0)


def abstract(objective: Objective, optimizer: optax.GradientTransformation, batch_size: int, mesh: Mesh) -> TrainState:
    """Returns a `TrainState` of `jax.ShapeDtypeStruct` with shardings, the target of a restored checkpoint."""
    return jax.tree.map(lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
                        shapes(objective, optimizer, batch_size), layout(objective, optimizer, batch_size, mesh))
