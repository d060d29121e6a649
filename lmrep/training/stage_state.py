"""The training state that a stage starts from."""

from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from lmrep.core.params import Tree
from lmrep.objectives.base import Carry
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training import state as states
from lmrep.training.stages import Stage, copy_params, frozen_params, set_params
from lmrep.training.state import TrainState


def start(stage: Stage, previous: TrainState | None, mesh: Mesh, seed: int) -> TrainState:
    """The state at the first step of `stage`, on the mesh: it continues with the parameters and moments of `previous`,
    the state that the stage before left, or copies some of these parameters. Others are initialized by `seed`.
    """
    layout = _layout(stage, mesh)
    if previous is not None and stage.start is None:
        params = states.trainable(previous.params) | frozen_params(stage)
        params = jax.device_put(set_params(params, stage.init_values), layout.params)
        return previous.replace(params=params, carry=initial_carry(stage, mesh))
    create = partial(states.create, stage.objective, stage.optimizer, stage.batch_size)
    state = jax.jit(create, static_argnums=0, out_shardings=layout)(seed)
    params = state.params
    if previous is not None:  # two subtrees may start from one: each gets its own copy, since a step donates them
        copied = copy_params(states.trainable(params), previous.params, stage.start) | frozen_params(stage)
        params = jax.device_put(copied, layout.params, may_alias=False)
    params = jax.device_put(set_params(params, stage.init_values), layout.params)
    step = state.step if previous is None else previous.step
    return state.replace(step=jax.device_put(np.asarray(step), layout.step), params=params)


def restore(stage: Stage, checkpoints: Checkpoints, step: int, mesh: Mesh) -> tuple[TrainState, dict]:
    """(the state of checkpoint `step` with the stage's frozen parameters, the JSON saved beside it). Raises as
    `Checkpoints.restore`."""
    target = states.abstract(stage.objective, stage.optimizer, stage.batch_size, mesh)
    state, meta = checkpoints.restore(step, states.saved(target))
    params = jax.device_put(state.params | frozen_params(stage), _layout(stage, mesh).params)
    return state.replace(params=params), meta


def initial_carry(stage: Stage, mesh: Mesh, shared: Tree = None) -> Carry:
    """`state.initial_carry` of a stage."""
    return states.initial_carry(stage.objective, stage.batch_size, mesh, shared)


def _layout(stage: Stage, mesh: Mesh) -> TrainState:
    return states.layout(stage.objective, stage.optimizer, stage.batch_size, mesh)
