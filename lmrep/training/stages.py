"""The stages of a run (most runs have one), and the parameters that a stage starts from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from lmrep.config.record import choose, suggestion
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, abstract, flatten, is_under, map_paths
from lmrep.metrics import COMMON, Metric
from lmrep.objectives.base import Carry, Objective
from lmrep.optimizers import Rule
from lmrep.training import state as states
from lmrep.training.inputs import HostBatch
from lmrep.training.state import FROZEN, TrainState

if TYPE_CHECKING:
    from lmrep.storage.checkpoints import Checkpoints


@dataclass(frozen=True, eq=False)
class Stage:
    """A number of steps with one objective, one optimizer and one stream of batches."""

    name: str  # the name in logs
    steps: int  # number of steps
    objective: Objective  # the objective
    # The optimizer of the trainable parameters. If `start` is None it continues from the state of the previous stage's
    # optimizer, so both states must have the same structure.
    optimizer: optax.GradientTransformation
    # (indices, first, last) -> host batches of steps `first` up to `last` of this stage, with the examples at `indices`
    # of each global batch. A smaller batch has the same fraction of them.
    batches: Callable[[np.ndarray, int, int], Iterator[HostBatch]]
    batch_size: int  # examples of the global batch
    microbatches: int = 1  # number of chunks of a batch over which gradients are accumulated
    # indices -> host batches of `batch_size`, the last one padded with empty examples; None: no validation
    validation: Callable[[np.ndarray], Iterator[HostBatch]] | None = None
    schedule: optax.Schedule | None = None  # the optimizer's step count -> learning rate, for logs
    # How validations change the learning rate; None: they do not. Only the last stage of a run may end early.
    validation_rule: Rule | None = None
    # None: continue with the previous stage's parameters and moments. Otherwise the start of parameters, by path:
    # {"encoder": "objective/generator"} takes the previous stage's generator; all others are initialized.
    start: Mapping[str, str] | None = None
    # path -> initial value, which replaces others: parameters of another run, and all frozen parameters
    init_values: Mapping[str, np.ndarray] = field(default_factory=dict)
    # outputs of `objective.predict` for all validation batches -> metrics, for metrics that are not means over
    # examples; None: the metrics of `objective.loss`
    score: Callable[[list[dict]], dict[str, float]] | None = None
    # name -> definition of the metrics of training and validation
    metrics: Mapping[str, Metric] = field(default_factory=lambda: COMMON)
    flops: float | None = None  # floating-point operations of one step, for the utilisation; None if unknown
    # shapes and dtypes of a global batch
    batch_struct: Mapping[str, jax.ShapeDtypeStruct] = field(default_factory=dict)
    fingerprint: str = ""  # identifies the examples and their order, which must be the same on resume


def locate_stage(stages: Sequence[Stage], step: int) -> tuple[int, int]:
    """Returns (index, first step of the run) of the stage that does the update after `step`; at the end, of the last
    stage."""
    begin = 0
    for i, stage in enumerate(stages):
        if step < begin + stage.steps or i == len(stages) - 1:
            return i, begin
        begin += stage.steps
    raise ValueError("a run has at least one stage")


def schedule_start(stages: Sequence[Stage], i: int) -> int:
    """Returns the run's step at which the step count of stage `i`'s optimizer began: the start of the last stage up to
    stage `i` that does not continue from the previous one."""
    while i and stages[i].start is None:
        i -= 1
    return sum(stage.steps for stage in stages[:i])


def best_direction(metrics: Mapping[str, Metric], name: str) -> str:
    """Returns "max" or "min", the direction of the metric `checkpoint.best`. Raises UserError if it does not exist."""
    return "max" if choose(metrics, name, "checkpoint.best").higher_is_better else "min"


def check(stages: Sequence[Stage]) -> None:
    """Checks before the first step that each stage can follow the previous one. Raises UserError if a stage continues
    with parameters or moments of another structure than those of the previous stage, or starts from paths that the
    previous stage lacks."""
    for previous, stage in pairwise(stages):
        old, new = abstract(previous.objective.specs), abstract(stage.objective.specs)
        if stage.start is not None:
            copy_params(new, old, stage.start)
            continue
        if old != new or jax.eval_shape(previous.optimizer.init, old) != jax.eval_shape(stage.optimizer.init, new):
            raise UserError(f"stage {stage.name!r} continues from {previous.name!r}, but its parameters or its "
                            "optimizer's moments differ; give it a start, for example {'encoder': 'encoder'}")


def copy_params(params: Tree, previous: Tree, start: Mapping[str, str]) -> Tree:
    """Returns `params`, with the subtree at each target path of `start` copied from its source path in `previous`.

    Raises UserError if a path has no parameters, or if shapes differ.
    """
    new, old = flatten(params), flatten(previous)
    values = {}
    for target, source in start.items():
        sources = {path: source + path.removeprefix(target) for path in new if is_under(path, target)}
        if not sources:
            raise UserError(f"stage start: there are no parameters under {target!r}; there are "
                            f"{', '.join(sorted({'/'.join(p.split('/')[:2]) for p in new}))}")
        for path, old_path in sources.items():
            if old_path not in old:
                raise UserError(f"stage start: {path!r} should start from {old_path!r}, which the previous stage lacks")
            if new[path].shape != old[old_path].shape:
                raise UserError(f"stage start: {path!r} has shape {new[path].shape}, and {old_path!r}, from which it "
                                f"should start, {old[old_path].shape}; give {target!r} and {source!r} the same sizes")
            values[path] = old[old_path]
    return set_params(params, values)


def set_params(params: Tree, values: Mapping[str, Array]) -> Tree:
    """Returns `params` with the leaves at the paths of `values` replaced.

    Raises UserError if a path has no parameter, or if shapes differ.
    """
    shapes = {path: leaf.shape for path, leaf in flatten(params).items()}
    for path, value in values.items():
        if path not in shapes:
            raise UserError(f"there is no parameter {path!r} to give an initial value to{suggestion(path, shapes)}")
        if shapes[path] != value.shape:
            raise UserError(f"parameter {path!r} has shape {shapes[path]}, and its initial value {value.shape}; "
                            "expected the same shape")
    return map_paths(lambda path, leaf: values.get(path, leaf), params)


def frozen_params(stage: Stage) -> Tree:
    """Returns the stage's frozen parameters on the host, as the subtree {FROZEN: ...} of the state's parameters; {}
    without any. Raises ValueError if `init_values` lacks one of them."""
    def value(path: str, spec: ParamSpec) -> np.ndarray:
        if f"{FROZEN}/{path}" not in stage.init_values:
            raise ValueError(f"stage {stage.name!r} has no value for the frozen parameter {path!r}")
        return stage.init_values[f"{FROZEN}/{path}"]

    return {FROZEN: map_paths(value, stage.objective.frozen)} if stage.objective.frozen else {}


def start_state(stage: Stage, previous: TrainState | None, mesh: Mesh, seed: int) -> TrainState:
    """Makes the state at the first step of `stage`, on the mesh. It continues with the parameters and moments of
    `previous`, the last state of the stage before, or copies some of these parameters and initializes the others by
    `seed`. Running statistics continue where all parameters do."""
    layout = states.layout(stage.objective, stage.optimizer, stage.batch_size, mesh)
    if previous is not None and stage.start is None:
        params = states.trainable(previous.params) | frozen_params(stage)
        params = jax.device_put(set_params(params, stage.init_values), layout.params)
        return previous.replace(params=params, carry=_next_carry(stage, previous, mesh))
    create = partial(states.create, stage.objective, stage.optimizer, stage.batch_size)
    state = jax.jit(create, static_argnums=0, out_shardings=layout)(seed)
    params = state.params
    if previous is not None:  # two subtrees may start from the same one: they are copied, since a step donates them
        copied = copy_params(states.trainable(params), previous.params, stage.start) | frozen_params(stage)
        params = jax.device_put(copied, layout.params, may_alias=False)
    params = jax.device_put(set_params(params, stage.init_values), layout.params)
    if previous is None:
        return state.replace(params=params)
    return state.replace(step=jax.device_put(np.asarray(previous.step), layout.step), params=params,
                         carry=_next_carry(stage, previous, mesh))


def _next_carry(stage: Stage, previous: TrainState, mesh: Mesh) -> Carry:
    """Returns the initial carry of a stage, with the running statistics of the stage before where all parameters
    continue."""
    initial = jax.eval_shape(lambda: stage.objective.carry(stage.batch_size)).shared
    same = all(target == source for target, source in (stage.start or {}).items())
    shapes = [jax.tree.map(jnp.shape, shared) for shared in (initial, previous.carry.shared)]
    shared = previous.carry.shared if same and shapes[0] == shapes[1] else None
    return states.initial_carry(stage.objective, stage.batch_size, mesh, shared)


def restore_state(stage: Stage, checkpoints: "Checkpoints", step: int, mesh: Mesh) -> tuple[TrainState, dict]:
    """Restores (the state of checkpoint `step` with the stage's frozen parameters, the checkpoint's `meta`). Raises as
    `Checkpoints.restore`."""
    built = stage.objective, stage.optimizer, stage.batch_size, mesh
    state, meta = checkpoints.restore(step, states.saved(states.abstract(*built)))
    params = jax.device_put(state.params | frozen_params(stage), states.layout(*built).params)
    return state.replace(params=params), meta
