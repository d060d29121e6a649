"""The loop: feeds the one step, and sees to it that what it computes is logged, validated, saved and resumed.

The device never waits for the host: a step's metrics are read while the next one runs, input is prefetched, and
checkpoints are written by threads. What a resumed run must repeat exactly (state, metrics.jsonl, faults.jsonl) is tied
to the checkpoints: the lines up to a step are on the disk before its checkpoint is, and lines beyond it are cut on
resume. What becomes of faults is said in `faults`, of processes that hang in `watchdog`.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh

from lmrep.config.record import setting, suggestion
from lmrep.core.errors import RunFault, Stopped
from lmrep.core.host import peak_memory
from lmrep.core.sharding import batch_sharding, replicated, use_mesh
from lmrep.distributed.agreement import Stop, should_stop, stop_flag
from lmrep.distributed.watchdog import COMPILING, Watch
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training import faults, optimizers
from lmrep.training import state as states
from lmrep.training.evaluation import Evaluator, MetricSums
from lmrep.training.faults import FaultsConfig, Losses, Rewind
from lmrep.training.inputs import global_batches, local_rows
from lmrep.training.metrics_log import MetricsLog, Progress
from lmrep.training.stages import Stage, copy_params, locate_stage, schedule_start, set_params
from lmrep.training.state import TrainState
from lmrep.training.step import train_step

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save, and what to keep."""

    every: int = setting(1000, "steps between checkpoints; the last step is always saved", at_least=1)
    keep: int = setting(3, "newest checkpoints to keep", at_least=1)
    keep_best: int = setting(1, "best checkpoints to keep beside them", at_least=0)
    best: str = setting("loss", "the validation metric that says which is best: the highest accuracy, the lowest of "
                        "anything else; a checkpoint has one where its step validates too")


@dataclass(frozen=True)
class EvaluationConfig:
    """When to validate, and on how much."""

    every: int = setting(1000, "steps between validations; the first and the last step always validate", at_least=1)
    examples: int = setting(2048, "validation examples, from the first on; 0: all", at_least=0)
    averaged: bool = setting(True, "where optimizer.ema is set: validate with the averages, and take them for the "
                             "parameters wherever the run is loaded")


@dataclass(frozen=True)
class LogConfig:
    """What is written down while training."""

    every: int = setting(50, "steps between lines of metrics.jsonl", at_least=1)
    tensorboard: bool = setting(True, "write TensorBoard events")
    wandb: str = setting("", "Weights & Biases project; empty: none")
    report: bool = setting(True, "write report.html at the end")


class Trainer:
    """Trains `stages`, from the start or from where an earlier process stopped.

    Args:
      stages: what to do, in order.
      mesh: where.
      seed: decides initial parameters and all draws.
      checkpoints: where the state is saved; the caller holds their workdir's lock and has cleaned it.
      metrics: where lines go; None on all processes but the first.
      progress: the live line, likewise.
      checkpoint, evaluation: cadences.
      faults: what to do about batches that a run cannot learn from.
      log_every: steps between lines of metrics.jsonl.
      watch: told how far this process is.
      peak: the most multiplications and additions a second that the mesh's devices can do; None where unknown.
    """

    def __init__(
        self, stages: Sequence[Stage], mesh: Mesh, seed: int, checkpoints: Checkpoints, *,
        metrics: MetricsLog | None = None, progress: Progress | None = None,
        checkpoint: CheckpointConfig = CheckpointConfig(), evaluation: EvaluationConfig = EvaluationConfig(),
        faults: FaultsConfig = FaultsConfig(), log_every: int = 50, watch: Watch | None = None,
        peak: float | None = None,
    ):
        self._stages, self._mesh, self._seed, self._checkpoints = stages, mesh, seed, checkpoints
        self._metrics, self._progress, self._peak = metrics, progress, peak
        self._checkpoint, self._evaluation, self._log_every = checkpoint, evaluation, log_every
        self._total = sum(stage.steps for stage in stages)
        self._sums, self._tokens = MetricSums(), 0
        self._on_fault, self._losses, self._watch = faults, Losses(faults), watch or Watch()
        self._faults: list[dict] = []  # those that were skipped or gone back for: step, stage, policy
        self._left_out = [0] * len(stages)  # batches of each stage that going back has left out
        self._programs: dict[int, tuple[Callable, Evaluator | None]] = {}  # of each stage, compiled once
        self._asked = itertools.count()  # calls of `stops`
        self._shown: tuple[Stage, int | None] = stages[0], None  # the stage under way, the length of its rows
        self._pending: deque = deque()  # (step, stage, device metrics, example numbers, limit) of steps not read yet
        self._validated = -1  # the step of the newest validation
        self._score: float | None = None  # what it found
        self._recent: deque = deque(maxlen=64)  # (time, tokens) of the last steps read

    def run(self, resumed: int | None = None) -> TrainState:
        """Trains to the end and returns the last state.

        Args:
          resumed: the step of the checkpoint to go on from; None to start.

        Raises:
          RunFault: a fault that the policy does not pass over; a full device; a checkpoint that cannot be saved.
          UserError: the checkpoint is of another model.
          Stopped: on SIGTERM or Ctrl-C, once the state is saved.
        """
        try:
            with stop_flag() as stop, use_mesh(self._mesh):
                return self._run(resumed, stop)
        except jax.errors.JaxRuntimeError as error:
            if fault := faults.out_of_memory(error, *self._shown, self._mesh):
                raise fault from error
            raise

    def _run(self, resumed: int | None, stop: Stop) -> TrainState:
        i, begin, state = self._begin(resumed)
        while True:
            back = None
            try:
                state = self._stage(i, begin, state, stop)
            except Rewind as fault:
                back, state = fault.with_traceback(None), None  # no frame may hold the state that is given up
            if back:
                i, begin, state = self._go_back(back.step)
                continue
            begin, i = begin + self._stages[i].steps, i + 1
            if i == len(self._stages):
                self._watch.mark("waiting for the last checkpoint")
                self._checkpoints.wait()
                return state
            state = self._start(self._stages[i], state)

    # Where a run starts

    def _begin(self, step: int | None) -> tuple[int, int, TrainState]:
        """(stage, the step it begins at, state) of checkpoint `step`, or of the start where that is None."""
        found = (0, 0, self._start(self._stages[0], None)) if step is None else self._restore(step)
        if self._metrics:
            self._metrics.keep_faults(len(self._faults))
        return found

    def _go_back(self, step: int | None) -> tuple[int, int, TrainState]:
        """As `_begin`, in the middle of a run. What it knows of faults it keeps."""
        known = self._faults, self._left_out
        self._pending.clear()
        self._recent.clear()
        self._checkpoints.drop_after(step)
        if self._metrics:
            self._metrics.rewind(step)
        self._sums, self._tokens, self._validated, self._losses = MetricSums(), 0, -1, Losses(self._on_fault)
        found = self._restore(step) if step is not None else (0, 0, self._start(self._stages[0], None))
        self._faults, self._left_out = known
        return found

    def _restore(self, step: int) -> tuple[int, int, TrainState]:
        """(stage, the step it begins at, state), of checkpoint `step`."""
        # A checkpoint at the border of two stages is of the one that ended there.
        i, begin = locate_stage(self._stages, max(step - 1, 0))
        stage = self._stages[i]
        target = states.abstract(stage.objective, stage.optimizer, stage.batch_size, self._mesh)
        state, meta = self._checkpoints.restore(step, target)
        self._sums, self._tokens, self._validated = MetricSums(meta["sums"]), meta["tokens"], meta["validated"]
        self._losses = Losses(self._on_fault, meta.get("losses", ()))
        self._faults = list(meta.get("faults", ()))
        left_out = list(meta.get("left_out", ()))
        self._left_out = left_out + [0] * (len(self._stages) - len(left_out))
        if step == begin + stage.steps and i + 1 < len(self._stages):
            return i + 1, step, self._start(self._stages[i + 1], state)
        return i, begin, state

    def _start(self, stage: Stage, former: TrainState | None) -> TrainState:
        """The state that `stage` starts from."""
        layout = states.layout(stage.objective, stage.optimizer, stage.batch_size, self._mesh)
        if former is not None and stage.start is None:
            carry = jax.jit(partial(stage.objective.carry, stage.batch_size), out_shardings=layout.carry)()
            params = jax.device_put(set_params(former.params, stage.init_values), layout.params)
            return former.replace(params=params, carry=carry)
        create = partial(states.create, stage.objective, stage.optimizer, stage.batch_size)
        state = jax.jit(create, static_argnums=0, out_shardings=layout)(self._seed)
        params = state.params
        if former is not None:  # two parts may start from one: each gets its own copy, since a step donates them
            params = jax.device_put(copy_params(params, former.params, stage.start), layout.params, may_alias=False)
        params = jax.device_put(set_params(params, stage.init_values), layout.params)
        step = state.step if former is None else former.step
        return state.replace(step=jax.device_put(np.asarray(step), layout.step), params=params)

    # One stage

    def _stage(self, i: int, begin: int, state: TrainState, stop: Stop) -> TrainState:
        """Runs stage `i`, which begins after step `begin`, from `state` to its end."""
        stage, end = self._stages[i], begin + self._stages[i].steps
        first = int(state.step)
        if i not in self._programs:
            self._programs[i] = self._compile(stage), self._evaluator(stage)
        step_fn, evaluator = self._programs[i]
        validate = partial(self._validate, stage, evaluator)
        if first == begin and self._validated < begin:
            validate(begin, state)
        if first >= end:
            return state
        sharding, left_out = batch_sharding(self._mesh), self._left_out[i]
        rows = local_rows(sharding, stage.batch_size)
        batches = stage.batches(rows, first - begin + left_out, stage.steps + left_out)
        self._watch.mark(f"{COMPILING} stage {stage.name!r}")
        for step, (_, batch) in enumerate(global_batches(batches, rows, sharding, stage.batch_size), first + 1):
            self._shown = stage, batch["segment_ids"].shape[1]
            limit = self._losses.limit(step)
            skip = (limit,) if self._on_fault.policy == "skip" else ()
            state, metrics = step_fn(state, batch, *skip)
            self._pending.append((step, stage, metrics, batch["example"], limit))
            self._read(keep=1)
            self._watch.mark(f"step {step:,}")
            stopping = step < self._total and should_stop(stop, next(self._asked))
            if step == end or step % self._evaluation.every == 0:
                validate(step, state)
            if step == end or stopping or step % self._checkpoint.every == 0:
                self._save(step, state)
            if stopping:
                self._checkpoints.wait()
                raise Stopped(f"stopped at step {step:,} of {self._total:,}, which is saved; "
                              "the same command goes on from there", 128 + stop.signal)
        self._recent.clear()
        return state

    def _compile(self, stage: Stage) -> Callable:
        layout = states.layout(stage.objective, stage.optimizer, stage.batch_size, self._mesh)
        step = partial(train_step, objective=stage.objective, optimizer=stage.optimizer, seed=self._seed,
                       microbatches=stage.microbatches)
        return jax.jit(step, donate_argnums=0, out_shardings=(layout, replicated(self._mesh)))

    def _evaluator(self, stage: Stage) -> Evaluator | None:
        if stage.validation is None:
            return None
        return Evaluator(stage.objective, self._mesh, stage.batch_size, self._seed, stage.microbatches)

    # What is written down

    def _read(self, keep: int = 0) -> None:
        """Reads the metrics of all pending steps but the newest `keep`, and logs."""
        while len(self._pending) > keep:
            step, stage, metrics, examples, limit = self._pending.popleft()
            values = jax.device_get(metrics)
            loss = float(values["loss"][0])
            if why := faults.reason(loss, float(values["gradient_norm"][0]), limit):
                self._fault(step, stage, why, faults.examples(examples, self._mesh))
                tokens = 0  # it was skipped: no figure tells of it
            else:
                tokens = int(values.pop("tokens")[0])  # of the whole batch, on whatever host its rows are
                self._losses.add(step, loss)
                self._sums.add(values)
                self._tokens += tokens
            self._recent.append((time.monotonic(), tokens))
            pace = self._pace()
            if self._progress:
                share = pace[1] * stage.flops / self._peak if pace and stage.flops and self._peak else None
                means = self._sums.means()
                shown = {name: means[name] for name in means if name == "loss" or name.endswith("accuracy")}
                self._progress.update(step, shown, pace and pace[0], share)
            if step % self._log_every == 0 or step == self._total:
                self._log(step, stage, pace)

    def _fault(self, step: int, stage: Stage, why: str, examples: list[int], updated: bool = False) -> None:
        """Writes a fault down and returns where it is passed over.

        Args:
          updated: whether parameters are broken already, so that skipping is no help.

        Raises:
          Rewind: by that policy.
          RunFault: by policy, or because there were too many.
        """
        policy, limit, number = self._on_fault.policy, self._on_fault.limit, self._stages.index(stage)
        begun = sum(former.steps for former in self._stages[:number])
        if policy == "stop" or (updated and (policy == "skip" or step == begun)):
            raise faults.stopped(why, step, stage, examples)
        if len(self._faults) >= limit:
            raise faults.stopped(why, step, stage, examples,
                                 f"faults.limit allows {limit} such faults, and this one comes after them")
        fault, back, done = {"step": step, "stage": stage.name, "policy": policy}, None, "its update is skipped"
        if policy == "back":
            back = self._last_checkpoint(step)
            fault["back_to"], done = back or 0, f"back to step {back or 0:,}"
            self._left_out[number] += step - max(back or 0, begun)
        self._faults.append(fault)
        if self._metrics:
            self._metrics.fault(fault | {"why": why, "examples": examples})
        log.warning("%s at step %s (stage %r): %s; %d of %d such faults, the examples are in faults.jsonl",
                    why, f"{step:,}", stage.name, done, len(self._faults), limit)
        if policy == "back":
            raise Rewind(back)

    def _last_checkpoint(self, step: int) -> int | None:
        """The newest before `step` that verifies; of those at their cadence if there are such, so that a run which was
        stopped in between, and saved there, goes back to where one never stopped does."""
        self._checkpoints.wait()
        ends = {*itertools.accumulate(stage.steps for stage in self._stages)}
        due = self._checkpoints.newest(lambda s: s < step and (s % self._checkpoint.every == 0 or s in ends))
        return due if due is not None else self._checkpoints.newest(lambda s: s < step)

    def _pace(self) -> tuple[float, float] | None:
        """(tokens a second, steps a second) over the last steps; None after the first of a stage."""
        seconds = self._recent[-1][0] - self._recent[0][0]
        if seconds <= 0:
            return None
        return sum(tokens for _, tokens in list(self._recent)[1:]) / seconds, (len(self._recent) - 1) / seconds

    def _log(self, step: int, stage: Stage, pace: tuple[float, float] | None) -> None:
        """One line: means since the line before."""
        values = self._sums.means() | {"tokens": self._tokens}
        if stage.schedule is not None:
            begun = schedule_start(self._stages, self._stages.index(stage))
            skipped = sum(fault["policy"] == "skip" and begun < fault["step"] <= step for fault in self._faults)
            values["learning_rate"] = float(stage.schedule(step - 1 - begun - skipped))
        self._sums = MetricSums()
        if self._metrics:
            self._metrics.write(step, "train", values)
            if pace:
                rates = {"tokens_per_second": pace[0], "steps_per_second": pace[1]}
                self._metrics.timing(step, "train", rates | peak_memory())

    def _validate(self, stage: Stage, evaluator: Evaluator | None, step: int, state: TrainState) -> None:
        self._read()
        self._validated = step
        if evaluator is None:
            return
        params = optimizers.averaged(state.params, state.opt_state) if self._evaluation.averaged else state.params
        values = evaluator(params, self._watch.through(stage.validation(evaluator.rows), "validation"))
        if not np.isfinite(values["loss"]):
            self._fault(step, stage, f"the validation loss is {values['loss']}: an update broke the parameters", [],
                        updated=True)
        if self._checkpoint.best not in values:
            raise RunFault(f"checkpoint.best is {self._checkpoint.best!r}, which validation does not give; it gives "
                           f"{', '.join(values)}{suggestion(self._checkpoint.best, values)}")
        self._score = values[self._checkpoint.best]
        if self._metrics:
            self._metrics.write(step, "validation", values)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        log.info("validation at step %s: %s", f"{step:,}", shown)
        self._recent.clear()

    def _save(self, step: int, state: TrainState) -> None:
        """Saves a state that `_read` has found finite, once the lines up to it are on the disk."""
        self._read()
        if self._metrics:
            self._metrics.flush()
        self._watch.mark("saving")
        meta = {"sums": self._sums.sums, "tokens": self._tokens, "validated": self._validated,
                "losses": self._losses.seen, "faults": self._faults, "left_out": self._left_out}
        self._checkpoints.save(step, state, meta, self._score if self._validated == step else None)
