"""The training loop: runs the step, and logs, validates, saves and resumes.

The device never waits for the host: a step's metrics are read while the next one runs, input is prefetched, and threads
write checkpoints. What a resumed run must repeat exactly (state, metrics.jsonl, faults.jsonl) is tied to the
checkpoints: the lines up to a step are on the disk before its checkpoint is, and resuming drops the lines after it.
See `faults` for faulty batches and `lmrep.distributed.watchdog` for processes that hang.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.core.host import peak_memory
from lmrep.core.params import Array
from lmrep.core.sharding import batch_sharding, replicated, use_mesh
from lmrep.distributed.agreement import Stop, should_stop, stop_flag
from lmrep.distributed.watchdog import COMPILING, Watch
from lmrep.objectives.base import Batch, Metrics
from lmrep.optimizers import averaged, plateau
from lmrep.storage.checkpoints import Checkpoints, DamagedCheckpoint
from lmrep.training import state as states
from lmrep.training.config import TrainerConfig
from lmrep.training.evaluation import Evaluator, MetricSums, Predictor
from lmrep.training.faults import Rewind, fault_error, fault_reason, out_of_memory_error
from lmrep.training.goodput import GOODPUT, Stopwatch
from lmrep.training.inputs import local_indices, to_global
from lmrep.training.loop_state import LoopState, Throughput
from lmrep.training.metrics_log import MetricsLog, Progress, format_metrics
from lmrep.training.stages import Stage, best_direction, locate_stage, restore_state, schedule_start, start_state
from lmrep.training.state import TrainState
from lmrep.training.step import compiled_train_step

log = logging.getLogger(__name__)


class RunOutputs(NamedTuple):
    """Where a run's results go."""

    checkpoints: Checkpoints  # the caller holds their workdir's lock and has cleaned them
    metrics: MetricsLog | None = None  # metrics.jsonl and dashboards; None on all processes but the first
    progress: Progress | None = None  # the progress line; None on all processes but the first
    watch: Watch | None = None  # the watchdog of a run of several processes
    cost: Any = None  # a `lmrep.planning.run_cost.CostLog`
    stopwatch: Stopwatch | None = None  # of this start of the run


class PendingStep(NamedTuple):
    """A step whose metrics the host has not read yet."""

    step: int
    stage: int
    metrics: Metrics
    examples: Array
    max_loss: np.float32


class Trainer:
    """Trains `stages`, from the start or from a checkpoint.

    Args:
      stages: in order.
      mesh: the devices.
      seed: of the initial parameters and all draws of training.
      outputs: where results go.
      config: when to save, validate and log, and what to do about faults.
      peak_flops: floating-point operations a second that the mesh's devices can do together, for the utilisation; None
        if unknown.

    Raises:
      UserError: no stage has a metric of the name `checkpoint.best`; a schedule or `evaluation.patience` depends on
        validation, and there is no data for it.
    """

    def __init__(
        self, stages: Sequence[Stage], mesh: Mesh, seed: int, outputs: RunOutputs,
        config: TrainerConfig = TrainerConfig(), peak_flops: float | None = None,
    ):
        direction = best_direction({name: metric for stage in stages for name, metric in stage.metrics.items()},
                                   config.checkpoint.best)
        self._sign = 1 if direction == "max" else -1
        for stage in stages:
            if stage.validation_rule is not None and stage.validation is None:
                raise UserError(f"the optimizer of stage {stage.name!r} follows the validation loss, and "
                                "there is no validation data; give some, or choose another schedule or optimizer")
        if config.evaluation.patience and stages[-1].validation is None:
            raise UserError(f"evaluation.patience is {config.evaluation.patience}, and there is no validation data; "
                            "give some, or set it to 0")
        self._stages, self._mesh, self._seed, self._config, self._peak_flops = stages, mesh, seed, config, peak_flops
        self._checkpoints, self._metrics, self._progress = outputs.checkpoints, outputs.metrics, outputs.progress
        self._watch, self._cost = outputs.watch or Watch(), outputs.cost
        self._stopwatch = outputs.stopwatch or Stopwatch()
        self._ends = [*itertools.accumulate(stage.steps for stage in stages)]
        self._loop = LoopState.from_json({}, config.faults, len(stages))
        self._score: float | None = None  # what the newest validation found
        self._pending: deque[PendingStep] = deque()
        self._throughput = Throughput()
        self._compiled: dict[int, tuple[Callable, Evaluator | None]] = {}  # by stage
        self._stop_checks = itertools.count()
        self._rate_scale = 1.0  # factor of the learning rate, which validation sets
        self._current: tuple[Stage, int | None] = stages[0], None  # the stage in progress and its sequence length

    def run(self, resumed: int | None = None) -> TrainState:
        """Trains to the end and returns the last state.

        Args:
          resumed: the step of the checkpoint to continue from; None to start.

        Raises:
          RunFault: a fault that the policy does not pass over; a device without memory; a checkpoint that cannot be
            saved.
          UserError: the checkpoint is of another model.
          Stopped: on SIGTERM or Ctrl-C, once the state is saved.
        """
        try:
            with stop_flag() as stop, use_mesh(self._mesh), self._stopwatch.compilation():
                if self._progress:
                    self._progress.show("compiling")
                index, state = self._load_undamaged(resumed)
                self._time(int(state.step), "preparation")
                if self._metrics:
                    self._metrics.keep_faults(len(self._loop.faults))
                while True:
                    rewind = None
                    try:
                        state = self._train_stage(index, state, stop)
                    except Rewind as error:
                        rewind, state = error.with_traceback(None), None  # no frame may hold the state that is given up
                    if rewind:
                        index, state = self._rewind(rewind)
                        continue
                    index += 1
                    if index == len(self._stages):
                        self._watch.mark("waiting for the last checkpoint")
                        self._stopwatch.lap("steps")
                        self._checkpoints.wait()
                        self._time(int(state.step), "saves")
                        return state
                    state = start_state(self._stages[index], state, self._mesh, self._seed)
        except jax.errors.JaxRuntimeError as error:
            if fault := out_of_memory_error(error, *self._current, self._mesh):
                raise fault from error
            raise

    def _train_stage(self, index: int, state: TrainState, stop: Stop) -> TrainState:
        """Trains from `state` to the end of a stage."""
        stage, end, first = self._stages[index], self._ends[index], int(state.step)
        step_fn, evaluator = self._compile(index)

        def validate(step: int, state: TrainState) -> TrainState:
            self._read_metrics()
            self._stopwatch.lap("steps")
            state = self._validate(index, evaluator, step, state)
            self._stopwatch.lap("validation")
            return state

        if first == end - stage.steps and self._loop.validated < first:
            state = validate(first, state)
        self._rate_scale = plateau.scale(state.opt_state)
        if first >= end or self._reason_to_end(index, state):
            return state
        saving = self._config.checkpoint
        if first == 0 and 0 in saving.steps:
            self._save(0, state)
        self._watch.mark(f"{COMPILING} stage {stage.name!r}")
        for step, batch in enumerate(self._timed(self._batches(index, first)), first + 1):
            self._current = stage, batch["segment_ids"].shape[1]
            max_loss = self._loop.losses.max_loss(step)
            skip = (max_loss,) if self._config.faults.policy == "skip" else ()
            state, metrics = step_fn(state, batch, *skip)
            if self._cost:
                self._cost.count(stage, batch)
            self._pending.append(PendingStep(step, index, metrics, batch["example"], max_loss))
            self._read_metrics(keep=1)
            self._watch.mark(f"step {step:,}")
            self._checkpoints.check()
            stopping = step < self._ends[-1] and should_stop(stop, next(self._stop_checks))
            if step == end or step % self._config.evaluation.every == 0:
                state = validate(step, state)
            if over := self._loop.validated == step and self._reason_to_end(index, state):
                log.info("%s: training ends at step %s of %s", over, f"{step:,}", f"{self._ends[-1]:,}")
                if step % self._config.log.every and step != self._ends[-1]:
                    self._log(step, index)  # the metrics since the last line
            if (step == end or over or stopping or step % saving.every == 0 or step in saving.steps
                    or (saving.keep_best and self._is_best(step))):
                self._save(step, state)
            if over:
                break
            if stopping:
                self._checkpoints.wait()
                raise Stopped(f"stopped at step {step:,} of {self._ends[-1]:,}, which is saved; "
                              "the same command continues from there", 128 + stop.signal)
        self._throughput.clear()
        return state

    def _reason_to_end(self, index: int, state: TrainState) -> str:
        """Says why training ends before its last step; "" if it goes on."""
        rule, patience = self._stages[index].validation_rule, self._config.evaluation.patience
        if rule and rule.reason_to_end and (reason := rule.reason_to_end(state.opt_state, rule)):
            return reason
        if patience and index == len(self._stages) - 1 and self._loop.unimproved >= patience:
            return (f"{self._config.checkpoint.best} has not improved in {self._loop.unimproved} validations "
                    f"(evaluation.patience={patience})")
        return ""

    def _batches(self, index: int, first: int) -> Iterator[Batch]:
        """Reads the global batches of a stage after step `first` of the run."""
        stage, sharding = self._stages[index], batch_sharding(self._mesh)
        indices, skipped = local_indices(sharding, stage.batch_size), self._loop.skipped_batches[index]
        begin = self._ends[index] - stage.steps
        for batch in stage.batches(indices, first - begin + skipped, stage.steps + skipped):
            yield to_global(batch, indices, sharding, stage.batch_size)

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields the batches. What it takes to get one counts as input if the device has nothing left to do."""
        while True:
            self._stopwatch.lap("steps")
            batch = next(batches, None)
            idle = not self._pending or self._pending[-1].metrics["loss"][0].is_ready()
            self._stopwatch.lap("input" if idle else "steps")
            if batch is None:
                return
            yield batch

    def _compile(self, index: int) -> tuple[Callable, Evaluator | None]:
        """Returns the step and the evaluator of a stage, which are compiled once."""
        if index not in self._compiled:
            stage, evaluator = self._stages[index], None
            if self._progress:
                self._progress.show("compiling")
            step = compiled_train_step(stage.objective, stage.optimizer, self._mesh, stage.batch_size, self._seed,
                                       stage.microbatches)
            if stage.validation is not None and stage.score is not None:
                evaluator = Predictor(stage.objective.predict, self._mesh, stage.batch_size, stage.score)
            elif stage.validation is not None:
                evaluator = Evaluator(stage.objective, self._mesh, stage.batch_size, self._config.evaluation.seed,
                                      stage.microbatches)
            self._compiled[index] = step, evaluator
        return self._compiled[index]

    # Where training starts

    def _load(self, step: int | None) -> tuple[int, TrainState]:
        """Loads (stage, state) of checkpoint `step`; None: of the start."""
        if step is None:
            self._loop = LoopState.from_json({}, self._config.faults, len(self._stages))
            return 0, start_state(self._stages[0], None, self._mesh, self._seed)
        # A checkpoint between two stages belongs to the one that ended there.
        index, _ = locate_stage(self._stages, max(step - 1, 0))
        state, meta = restore_state(self._stages[index], self._checkpoints, step, self._mesh)
        self._loop = LoopState.from_json(meta, self._config.faults, len(self._stages))
        if step == self._ends[index] and index + 1 < len(self._stages):
            return index + 1, start_state(self._stages[index + 1], state, self._mesh, self._seed)
        return index, state

    def _load_undamaged(self, step: int | None) -> tuple[int, TrainState]:
        """Loads as `_load`, or from the newest checkpoint before `step` that is not damaged."""
        while True:
            try:
                return self._load(step)
            except DamagedCheckpoint:
                step = self._checkpoints.newest()
                if self._metrics:
                    self._metrics.rewind(step)

    def _rewind(self, rewind: Rewind) -> tuple[int, TrainState]:
        """Loads a checkpoint after a fault. The record of faults and skipped batches stays."""
        faults, skipped = self._loop.faults, self._loop.skipped_batches
        self._pending.clear()
        self._throughput.clear()
        self._checkpoints.drop_after(rewind.step)
        if self._metrics:
            self._metrics.rewind(rewind.step)
        index, state = self._load(rewind.step)
        self._loop.faults, self._loop.skipped_batches = faults, skipped
        if index == rewind.stage:  # its next batch does not continue the last one that the carry has seen
            stage = self._stages[index]
            state = state.replace(carry=states.initial_carry(
                stage.objective, stage.batch_size, self._mesh, state.carry.shared))
        return index, state

    # Metrics, validation, checkpoints

    def _read_metrics(self, keep: int = 0) -> None:
        """Reads and logs the metrics of all pending steps but the newest `keep`."""
        while len(self._pending) > keep:
            step, index, metrics, examples, max_loss = self._pending.popleft()
            values, tokens = jax.device_get(metrics), 0
            loss, targets = float(values["loss"][0]), float(values.pop("targets")[0])
            if reason := fault_reason(loss, float(values["gradient_norm"][0]), max_loss, targets):
                # All processes gather the numbers of the global batch's examples.
                examples = jax.jit(lambda x: x, out_shardings=replicated(self._mesh))(examples)
                self._handle_fault(step, index, reason, np.asarray(examples).tolist())
            else:  # a skipped step counts nowhere
                tokens = int(values.pop("tokens")[0])
                self._loop.losses.history.append((step, loss))
                self._loop.sums.add(values)
                self._loop.tokens += tokens
            self._throughput.add(tokens)
            if self._progress:
                rates, stage, utilisation = self._throughput.rates(), self._stages[index], None
                if rates and stage.flops and self._peak_flops:
                    utilisation = rates["steps_per_second"] * stage.flops / self._peak_flops
                headlines = format_metrics(self._loop.sums.means(), stage.metrics, headlines=True)
                self._progress.update(step, headlines, rates.get("tokens_per_second"), utilisation)
            if step % self._config.log.every == 0 or step == self._ends[-1]:
                self._log(step, index)

    def _log(self, step: int, index: int) -> None:
        """Writes one line: means since the line before."""
        stage, loop = self._stages[index], self._loop
        values = loop.sums.means() | {"tokens": loop.tokens}
        if stage.schedule is not None:
            begin = schedule_start(self._stages, index)
            skipped = sum(fault["policy"] == "skip" and begin < fault["step"] <= step for fault in loop.faults)
            values["learning_rate"] = float(stage.schedule(step - 1 - begin - skipped)) * self._rate_scale
        loop.sums = MetricSums()
        if self._metrics:
            self._metrics.write(step, "train", values)
            if rates := self._throughput.rates():
                self._metrics.timing(step, "train", rates | peak_memory())

    def _validate(self, index: int, evaluator: Evaluator | None, step: int, state: TrainState) -> TrainState:
        """Validates, and returns the state, whose learning rate the schedule may have changed."""
        self._loop.validated, self._score = step, None
        if evaluator is None:
            return state
        stage, config = self._stages[index], self._config
        params = averaged(state.params, state.opt_state) if config.evaluation.averaged else state.params
        batches = self._watch.through(stage.validation(evaluator.indices), "validation")
        values = evaluator(params, batches, state.carry.shared)
        if not np.isfinite(values["loss"]):
            reason = f"the validation loss is {values['loss']}: an update broke the parameters"
            self._handle_fault(step, index, reason, [], updated=True)
        if (best := config.checkpoint.best) in stage.metrics:
            if best not in values:
                raise RunFault(f"checkpoint.best is {best!r}, which validation does not give; it gives "
                               f"{', '.join(values)}")
            self._score = values[best]
            if index == len(self._stages) - 1:
                self._loop.count_validation(self._sign, self._score)
        if self._metrics:
            self._metrics.write(step, "validation", values)
        figures = "  ".join(f"{name} {text}" for name, text in format_metrics(values, stage.metrics).items())
        log.info("validation at step %s: %s", f"{step:,}", figures)
        self._throughput.clear()
        if stage.validation_rule is None:
            return state
        rule = stage.validation_rule
        opt_state = rule.after_validation(state.opt_state, values["loss"], rule)
        self._rate_scale = plateau.scale(opt_state)
        return state.replace(opt_state=opt_state)

    def _save(self, step: int, state: TrainState) -> None:
        """Saves a state that `_read_metrics` has found finite, once the lines up to it are on the disk."""
        self._read_metrics()
        self._stopwatch.lap("steps")
        if self._metrics:
            self._metrics.flush()
        self._watch.mark("saving")
        if self._cost:
            self._cost.write(step)
        score = self._score if self._loop.validated == step else None
        if self._is_best(step):
            self._loop.best = score
        self._checkpoints.save(step, states.saved(state), self._loop.to_json(), score)
        self._time(step, "saves")

    def _time(self, step: int, kind: str) -> None:
        """Counts the time since the last lap as `kind`, and writes what all kinds took in this start."""
        self._stopwatch.lap(kind)
        if self._metrics:
            self._metrics.timing(step, GOODPUT, self._stopwatch.seconds | {"began": self._stopwatch.began})

    def _is_best(self, step: int) -> bool:
        """Tells whether step `step` has validated better than every checkpoint so far."""
        if self._loop.validated != step or self._score is None:
            return False
        return self._loop.best is None or self._sign * self._score > self._sign * self._loop.best

    # Faults

    def _handle_fault(self, step: int, index: int, reason: str, examples: list[int], updated: bool = False) -> None:
        """Records a fault in stage number `index`, and returns if its update is skipped. `updated`: the parameters are
        broken already, so that skipping does not help.

        Raises:
          Rewind: the policy is to go back.
          RunFault: the policy is to stop, or there were too many faults.
        """
        stage, config, loop = self._stages[index], self._config.faults, self._loop
        begin = self._ends[index] - stage.steps
        if config.policy == "stop" or (updated and (config.policy == "skip" or step == begin)):
            raise fault_error(reason, step, stage, examples)
        if len(loop.faults) >= config.limit:
            raise fault_error(reason, step, stage, examples,
                              f"faults.limit allows {config.limit} such faults, and this is one more")
        fault, target, action = {"step": step, "stage": stage.name, "policy": config.policy}, None, "update skipped"
        if config.policy == "back":
            self._checkpoints.wait()
            # At the regular cadence, if there is one: a run that was stopped in between, and saved there, goes back to
            # the same step as one that was not.
            every = self._config.checkpoint.every
            target = self._checkpoints.newest(lambda s: s < step and (s % every == 0 or s in self._ends))
            target = self._checkpoints.newest(lambda s: s < step) if target is None else target
            fault["back_to"], action = target or 0, f"going back to step {target or 0:,}"
            loop.skipped_batches[index] += step - max(target or 0, begin)
        loop.faults.append(fault)
        if self._metrics:
            self._metrics.fault(fault | {"why": reason, "examples": examples})
        log.warning("%s at step %s (stage %r): %s; fault %d of at most %d, its examples are in faults.jsonl",
                    reason, f"{step:,}", stage.name, action, len(loop.faults), config.limit)
        if config.policy == "back":
            raise Rewind(target, index)
