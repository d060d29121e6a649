"""The loop: feeds the one step, and sees to it that what it computes is logged, validated, saved and resumed.

The device never waits for the host: a step's metrics are read while the next one runs, input is prefetched, and
checkpoints are written by threads. What a resumed run must repeat exactly (state, metrics.jsonl) is tied to the
checkpoints: the lines up to a step are on the disk before its checkpoint is, and lines beyond it are cut on resume.
"""

import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lmrep.config.record import setting, suggestion
from lmrep.core.errors import RunFault, Stopped
from lmrep.core.host import peak_memory
from lmrep.core.sharding import batch_sharding, replicated, use
from lmrep.training import state as states
from lmrep.training.checkpoints import Checkpoints
from lmrep.training.evaluation import Evaluator, Sums
from lmrep.training.inputs import host_rows, placed
from lmrep.training.logging import MetricsLog, Progress
from lmrep.training.stages import Stage, locate, origin, overlay, put
from lmrep.training.state import TrainState
from lmrep.training.step import train_step

log = logging.getLogger(__name__)

MEND = ("Lower optimizer.learning_rate, lengthen the warm-up or set optimizer.clip, and start again in a new workdir")


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
      log_every: steps between lines of metrics.jsonl.
      peak: the most multiplications and additions a second that the mesh's devices can do; None where unknown.
    """

    def __init__(
        self, stages: Sequence[Stage], mesh: Mesh, seed: int, checkpoints: Checkpoints, *,
        metrics: MetricsLog | None = None, progress: Progress | None = None,
        checkpoint: CheckpointConfig = CheckpointConfig(), evaluation: EvaluationConfig = EvaluationConfig(),
        log_every: int = 50, peak: float | None = None,
    ):
        self._stages, self._mesh, self._seed, self._checkpoints = stages, mesh, seed, checkpoints
        self._metrics, self._progress, self._peak = metrics, progress, peak
        self._checkpoint, self._evaluation, self._log_every = checkpoint, evaluation, log_every
        self._total = sum(stage.steps for stage in stages)
        self._sums, self._tokens = Sums(), 0
        self._pending: deque = deque()  # (step, device metrics, host facts) of steps not read yet
        self._validated = -1  # the step of the newest validation
        self._score: float | None = None  # what it found
        self._recent: deque = deque(maxlen=64)  # (time, tokens) of the last steps read

    def run(self, resumed: int | None = None) -> TrainState:
        """Trains to the end and returns the last state.

        Args:
          resumed: the step of the checkpoint to go on from; None to start.

        Raises:
          RunFault: a non-finite loss; a checkpoint that cannot be saved.
          UserError: the checkpoint is of another model.
          Stopped: on SIGTERM, once the state is saved.
        """
        with _stop_flag() as stop, use(self._mesh):
            if resumed is None:
                i, begin, state = 0, 0, self._start(self._stages[0], None)
            else:
                i, begin, state = self._restore(resumed)
            while True:
                state = self._stage(i, begin, state, stop)
                begin, i = begin + self._stages[i].steps, i + 1
                if i == len(self._stages):
                    self._checkpoints.wait()
                    return state
                state = self._start(self._stages[i], state)

    # Where a run starts

    def _restore(self, step: int) -> tuple[int, int, TrainState]:
        """(stage, the step it begins at, state), of checkpoint `step`."""
        # A checkpoint at the border of two stages is of the one that ended there.
        i, begin = locate(self._stages, max(step - 1, 0))
        stage = self._stages[i]
        target = states.abstract(stage.objective, stage.optimizer, stage.batch_size, self._mesh)
        state, meta = self._checkpoints.restore(step, target)
        self._sums, self._tokens, self._validated = Sums(meta["sums"]), meta["tokens"], meta["validated"]
        if step == begin + stage.steps and i + 1 < len(self._stages):
            return i + 1, step, self._start(self._stages[i + 1], state)
        return i, begin, state

    def _start(self, stage: Stage, former: TrainState | None) -> TrainState:
        """The state that `stage` starts from."""
        layout = states.layout(stage.objective, stage.optimizer, stage.batch_size, self._mesh)
        if former is not None and stage.start is None:
            carry = jax.jit(partial(stage.objective.carry, stage.batch_size), out_shardings=layout.carry)()
            params = jax.device_put(put(former.params, stage.given), layout.params)
            return former.replace(params=params, carry=carry)
        create = partial(states.create, stage.objective, stage.optimizer, stage.batch_size)
        state = jax.jit(create, static_argnums=0, out_shardings=layout)(self._seed)
        params = state.params if former is None else overlay(state.params, former.params, stage.start)
        params = jax.device_put(put(params, stage.given), layout.params)
        step = state.step if former is None else former.step
        return state.replace(step=jax.device_put(np.asarray(step), layout.step), params=params)

    # One stage

    def _stage(self, i: int, begin: int, state: TrainState, stop: threading.Event) -> TrainState:
        """Runs stage `i`, which begins after step `begin`, from `state` to its end."""
        stage, end = self._stages[i], begin + self._stages[i].steps
        first = int(state.step)
        validate = partial(self._validate, stage, self._evaluator(stage))
        if first == begin and self._validated < begin:
            validate(begin, state)
        if first >= end:
            return state
        step_fn = self._compile(stage)
        sharding = batch_sharding(self._mesh)
        rows = host_rows(sharding, stage.batch_size)
        batches = stage.batches(rows, first - begin, stage.steps)
        for step, (host, batch) in enumerate(placed(batches, rows, sharding, stage.batch_size), first + 1):
            state, metrics = step_fn(state, batch)
            self._pending.append((step, stage, metrics, host))
            self._read(keep=1)
            stopping = step < self._total and _agreed(stop, step)
            if step == end or step % self._evaluation.every == 0:
                validate(step, state)
            if step == end or stopping or step % self._checkpoint.every == 0:
                self._save(step, state)
            if stopping:
                self._checkpoints.wait()
                raise Stopped(f"stopped at step {step:,} of {self._total:,}, which is saved; "
                              "the same command goes on from there")
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
            step, stage, metrics, host = self._pending.popleft()
            values = jax.device_get(metrics)
            for name in ("loss", "gradient_norm"):
                if not np.isfinite(values[name][0]):
                    raise RunFault(_not_finite(name, float(values[name][0]), step, stage, host["example"]))
            tokens = int(values.pop("tokens")[0])  # of the whole batch, on whatever host its rows are
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
            begun = origin(self._stages, self._stages.index(stage))
            values["learning_rate"] = float(stage.schedule(step - 1 - begun))
        self._sums = Sums()
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
        values = evaluator(state.params, stage.validation(evaluator.rows))
        if not np.isfinite(values["loss"]):
            raise RunFault(f"the validation loss after step {step:,} (stage {stage.name!r}) is {values['loss']}: that "
                           "update broke the parameters, which are not saved. " + MEND)
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
        meta = {"sums": self._sums.sums, "tokens": self._tokens, "validated": self._validated}
        self._checkpoints.save(step, state, meta, self._score if self._validated == step else None)


def _not_finite(name: str, value: float, step: int, stage: Stage, examples: np.ndarray) -> str:
    named = ", ".join(map(str, examples[:32])) + (", ..." if len(examples) > 32 else "")
    return (f"the {name.replace('_', ' ')} is {value} at step {step:,} (stage {stage.name!r}, examples {named}); this "
            "state is not saved. " + MEND)


@contextlib.contextmanager
def _stop_flag() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, in the main thread of a single process."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread() or jax.process_count() > 1:
        yield stop  # of several processes, JAX's own preemption service is told
        return
    former = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, former)


def _agreed(stop: threading.Event, step: int) -> bool:
    """Whether every process stops after this step."""
    if jax.process_count() > 1:
        return multihost_utils.reached_preemption_sync_point(step)
    return stop.is_set()
