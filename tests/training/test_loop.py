"""The loop: when it validates, saves and logs, what it logs, and how it stops. (Exact resume: `tests/contract`.)"""

import dataclasses
import logging
import signal
import time
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep.core.errors import RunFault, Stopped
from lmrep.core.sharding import make_mesh
from lmrep.metrics import COMMON, Metric
from lmrep.objectives.base import Objective
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training import loop
from lmrep.training.config import CheckpointConfig, EvaluationConfig, LogConfig, TrainerConfig
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.stages import Stage, best_direction
from tests.contract import objectives as toys

BATCH, STEPS = 16, 10
CLOZE, ADAM = toys.cloze("encoder"), optax.adam(0.05)  # runs of one objective share their programs


def host_batches(rows, first, last):
    for step in range(first, last):
        rng = np.random.default_rng(step)
        lengths = rng.integers(1, 7, BATCH)
        yield {"tokens": rng.integers(1, toys.V, (BATCH, 6)).astype(np.int32)[rows],
               "segment_ids": (np.arange(6) < lengths[:, None]).astype(np.int32)[rows],
               "example": np.arange(step * BATCH, (step + 1) * BATCH, dtype=np.int32)[rows]}


def stage(objective=None, optimizer=None, validation=True, **more):
    return Stage("main", STEPS, objective or CLOZE, optimizer or ADAM, host_batches, BATCH,
                 validation=(lambda rows: host_batches(rows, 100, 102)) if validation else None, **more)


class Recorder:
    """Records what a run logs, in order."""

    def __init__(self):
        self.lines, self.timings, self.shown, self.flushed = [], [], [], []
        self.metrics = SimpleNamespace(write=self.write, timing=lambda *line: self.timings.append(line),
                                       flush=lambda: None, keep_faults=lambda number: None)
        self.progress = SimpleNamespace(update=lambda *shown: self.shown.append(shown), show=lambda text: None)

    def write(self, step, split, values):
        self.lines.append((step, split, values))

    def steps(self, split):
        return [step for step, written, _ in self.lines if written == split]


def run(workdir, *stages, recorder=None, resumed=None, save=100, validate=100, patience=0, log_every=50,
        peak_flops=None):
    """Runs on one device and returns the recorder."""
    recorder = recorder or Recorder()
    checkpoints = Checkpoints(workdir, keep=99)
    config = TrainerConfig(
        CheckpointConfig(every=save, keep=99), EvaluationConfig(every=validate, patience=patience),
        LogConfig(log_every))
    outputs = RunOutputs(checkpoints, recorder.metrics, recorder.progress)
    try:
        Trainer(stages, make_mesh(1, 1, 1), 0, outputs, config, peak_flops).run(resumed)
    finally:
        checkpoints.close()
    return recorder


@pytest.fixture(scope="module")
def every_step(tmp_path_factory):
    """What a run logs at every step."""
    return run(tmp_path_factory.mktemp("every_step"), stage(validation=False, flops=1e6), log_every=1)


# When


@pytest.mark.parametrize(("cadence", "steps"), [(3, [3, 6, 9, 10]), (10, [10])])
def test_it_logs_and_saves_at_its_cadence_and_at_the_end(tmp_path, cadence, steps):
    recorder = run(tmp_path, stage(validation=False), save=cadence, log_every=cadence)
    assert recorder.steps("train") == steps and recorder.steps("validation") == []
    assert Checkpoints(tmp_path).steps() == steps
    assert [step for step, *_ in recorder.shown] == list(range(1, STEPS + 1))


@pytest.mark.parametrize(("cadence", "steps"), [(4, [0, 4, 8, 10]), (100, [0, 10])])
def test_it_validates_before_the_first_step_at_its_cadence_and_at_the_end(tmp_path, cadence, steps):
    assert run(tmp_path, stage(), validate=cadence).steps("validation") == steps


def test_a_line_is_the_mean_of_the_steps_since_the_previous_line(every_step, tmp_path):
    by_step = {step: values for step, _, values in every_step.lines}
    assert list(by_step) == list(range(1, STEPS + 1))
    previous = 0
    for step, _, values in run(tmp_path, stage(validation=False), log_every=3).lines:
        for name in ("loss", "gradient_norm"):
            expected = np.mean([by_step[s][name] for s in range(previous + 1, step + 1)])
            assert values[name] == pytest.approx(expected, rel=1e-12)
        previous = step


def test_padding_does_not_count_as_tokens(every_step):
    expected = np.cumsum([batch["segment_ids"].sum() for batch in host_batches(np.arange(BATCH), 0, STEPS)])
    assert [values["tokens"] for _, _, values in every_step.lines] == expected.tolist()


def test_lines_are_flushed_before_the_checkpoint_of_their_step_is_saved(tmp_path):
    recorder = Recorder()

    def flush():
        step = recorder.steps("train")[-1]
        recorder.flushed.append((step, len(recorder.lines), step in Checkpoints(tmp_path).steps()))

    recorder.metrics.flush = flush
    run(tmp_path, stage(), recorder=recorder, save=5, validate=5, log_every=1)
    assert recorder.flushed == [(5, 7, False), (10, 13, False)]  # a line per step, and one per validation


def slowly(seconds, batches):
    for batch in batches:
        time.sleep(seconds)
        yield batch


def test_goodput_counts_what_training_waits_for(tmp_path):
    """A line where training begins, one for each checkpoint, and one at the end. Batches take 30 ms, those of
    validation 50 ms."""
    waiting = dataclasses.replace(
        stage(), batches=lambda *window: slowly(0.03, host_batches(*window)),
        validation=lambda rows: slowly(0.05, host_batches(rows, 100, 102)))
    lines = [(step, seconds) for step, split, seconds in run(tmp_path, waiting, save=4, validate=10).timings
             if split == "goodput"]
    assert [step for step, _ in lines] == [0, 4, 8, 10, 10]
    first, last = lines[0][1], lines[-1][1]
    assert first["steps"] == first["input"] == first["validation"] == 0 < first["preparation"] < last["began"]
    # While a step runs, the device does not wait; before the first it does.
    assert last["input"] >= 0.03 and last["input"] + last["steps"] >= 10 * 0.03
    assert last["validation"] >= 2 * 2 * 0.05 and last["compilation"] > 0 and last["saves"] > 0


def test_the_best_checkpoint_has_the_lowest_validation_loss(tmp_path):
    recorder = run(tmp_path, stage(optimizer=optax.adam(0.5)), save=1, validate=1)
    scores = {step: values["loss"] for step, split, values in recorder.lines if split == "validation" and step}
    assert Checkpoints(tmp_path).best() == min(scores, key=scores.get)


F1 = {"f1": Metric("F1", "fraction", higher_is_better=True), **COMMON}


def with_f1():
    """`cloze`, with a metric "f1" that rises with the loss."""

    def loss(params, batch, key, carry):
        total, (metrics, carry) = CLOZE.loss(params, batch, key, carry)
        return total, (metrics | {"f1": metrics["nll"]}, carry)

    return CLOZE._replace(loss=loss)


@pytest.mark.slow
def test_the_best_checkpoint_has_the_highest_value_of_a_metric_that_should_be_high(tmp_path):
    """Its direction is that of the metric; here the lowest loss is elsewhere."""
    recorder, checkpoints = Recorder(), Checkpoints(tmp_path, keep=99, best=best_direction(F1, "f1"))
    config = TrainerConfig(CheckpointConfig(every=1, best="f1"), EvaluationConfig(every=1))
    try:
        Trainer([stage(with_f1(), optax.adam(0.5), metrics=F1)], make_mesh(1, 1, 1), 0,
                RunOutputs(checkpoints, recorder.metrics), config).run(None)
    finally:
        checkpoints.close()
    scores = {step: values["f1"] for step, split, values in recorder.lines if split == "validation" and step}
    assert checkpoints.best() == max(scores, key=scores.get) != min(scores, key=scores.get)
    assert best_direction(F1, "loss") == "min"


@pytest.mark.parametrize(("losses", "keep_best", "steps", "best"), [
    ([9, 5, 6, 4, 7], 1, [3, 4, 8, 9, 10], 9),  # validated at 0, 3, 6, 9 and 10; saved at 4, 8 and 10 whatever they are
    # the best of the checkpoints, which step 0 is not
    pytest.param([1, 2, 3, 4, 5], 1, [3, 4, 8, 10], 3, marks=pytest.mark.slow),
    ([9, 5, 6, 4, 7], 0, [4, 8, 10], 10),
])
def test_the_best_validation_has_a_checkpoint_at_any_cadence(tmp_path, monkeypatch, losses, keep_best, steps, best):
    class Scripted:
        indices = np.arange(BATCH)

        def __init__(self, *_):
            pass

        def __call__(self, *_):
            return {"loss": float(values.pop(0))}

    monkeypatch.setattr(loop, "Evaluator", Scripted)
    config = TrainerConfig(CheckpointConfig(every=4, keep_best=keep_best), EvaluationConfig(every=3))
    for stopped in (False, True):  # a run that is killed after step 4 or 8 goes on as one that is not
        values, directory = list(losses), tmp_path / str(stopped)
        checkpoints = Checkpoints(directory, keep=99)
        Trainer([stage()], make_mesh(1, 1, 1), 0, RunOutputs(checkpoints), config).run(None)
        for killed in (4, 8) if stopped else ():
            checkpoints.drop_after(killed)
            values = losses[killed // 3 + 1 :]
            Trainer([stage()], make_mesh(1, 1, 1), 0, RunOutputs(checkpoints), config).run(killed)
        checkpoints.close()
        assert checkpoints.steps() == steps and checkpoints.best() == best


def test_a_best_metric_that_validation_lacks_stops_the_run_at_its_first_validation(tmp_path):
    config = TrainerConfig(CheckpointConfig(best="f1"))
    with pytest.raises(RunFault, match=r"best is 'f1', which validation does not give; it gives .*nll.*"):
        Trainer([stage(metrics=F1)], make_mesh(1, 1, 1), 0, RunOutputs(Checkpoints(tmp_path)), config).run(None)
    assert Checkpoints(tmp_path).steps() == []


def test_progress_shows_headline_metrics_in_their_formats(tmp_path):
    metrics = COMMON | {"f1": Metric("F1", format=".2%", headline=True)}
    shown = run(tmp_path, stage(with_f1(), validation=False, metrics=metrics)).shown[-1][1]
    assert list(shown) == ["f1", "loss"] and shown["f1"].endswith("%") and "%" not in shown["loss"]


def test_validation_draws_depend_on_the_evaluation_seed_and_not_on_the_run_s(tmp_path):
    def loss(params, batch, key, carry):
        total, (metrics, carry) = CLOZE.loss(params, batch, key, carry)
        return total, (metrics | {"position": (batch["position"].sum(), len(batch["position"]))}, carry)

    objective = CLOZE._replace(loss=loss)

    def positions(seed, evaluation_seed):
        recorder, checkpoints = Recorder(), Checkpoints(tmp_path / f"{seed}-{evaluation_seed}")
        config = TrainerConfig(evaluation=EvaluationConfig(seed=evaluation_seed))
        try:
            Trainer([stage(objective)], make_mesh(1, 1, 1), seed,
                    RunOutputs(checkpoints, recorder.metrics), config).run()
        finally:
            checkpoints.close()
        return [values["position"] for _, split, values in recorder.lines if split == "validation"]

    assert positions(0, 0) == positions(1, 0) != positions(0, 1)


def test_a_validation_loss_that_is_not_finite_stops_the_run_before_saving(tmp_path):
    """The values overflow in validation only."""
    def loss(params, batch, key, carry):
        big = jnp.where((batch["example"] >= 100 * BATCH).any(), 1e38, 1.0)
        return (jnp.square(params["encoder"]["token"] * big).sum() * big, ({}, carry))

    wild = Objective("wild", specs=bare().specs, prepare=lambda keys, batch: batch, loss=loss)
    with pytest.raises(RunFault, match="validation"):
        run(tmp_path, stage(wild), save=5, validate=5)
    assert Checkpoints(tmp_path).steps() == []


def test_the_logged_learning_rate_is_that_of_the_optimizer(tmp_path):
    def schedule(step):
        return 0.1 / (1 + step)

    recorder = run(tmp_path, stage(validation=False, optimizer=optax.sgd(schedule), schedule=schedule), log_every=1)
    assert [values["learning_rate"] for *_, values in recorder.lines] == [0.1 / (1 + step) for step in range(STEPS)]


def test_utilisation_is_shown_if_the_peak_is_known(every_step, tmp_path):
    recorder = run(tmp_path, stage(validation=False, flops=1e6), peak_flops=1e12)
    utilisation = recorder.shown[-1][-1]
    assert 0 < utilisation < 1
    assert all(shown[-1] is None for shown in every_step.shown)


# How it stops


def bare(of=jnp.square):
    """An objective whose loss is the sum of `of` over the entries of a table."""
    return Objective("bare", specs={"encoder": {"token": toys.table()}, "objective": {}},
                     prepare=lambda keys, batch: batch,
                     loss=lambda params, batch, key, carry: (of(params["encoder"]["token"]).sum(), ({}, carry)))


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "loss is nan"), (1e25, "loss is inf")])
def test_a_loss_that_is_not_finite_stops_the_run_before_saving(tmp_path, value, reason):
    table = np.zeros((toys.V, toys.D), np.float32)
    table[3, 3] = value
    with pytest.raises(RunFault) as fault:
        run(tmp_path, stage(bare(), validation=False, init_values={"encoder/token": table}), save=1)
    location = f"at step 1 (stage 'main', examples {', '.join(map(str, range(BATCH)))})"
    assert str(fault.value).startswith(f"the {reason} {location}; this state is not saved")
    assert Checkpoints(tmp_path).steps() == []


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path):
    """The square root at zero has an infinite slope."""
    table = np.zeros((toys.V, toys.D), np.float32)
    with pytest.raises(RunFault, match=r"the gradient norm is (inf|nan) at step 1 "):
        run(tmp_path, stage(bare(jnp.sqrt), validation=False, init_values={"encoder/token": table}), save=1)
    assert Checkpoints(tmp_path).steps() == []


def test_a_run_that_diverges_keeps_its_finite_checkpoints(tmp_path):
    """Gradient descent on a square with too high a rate grows by a factor at each step until it overflows."""
    grows = stage(bare(), optax.sgd(1e4), validation=False)
    recorder = Recorder()
    with pytest.raises(RunFault) as fault:
        run(tmp_path, grows, recorder=recorder, save=1, log_every=1)
    step = int(str(fault.value).split("at step ")[1].split()[0])
    assert 1 < step < STEPS and Checkpoints(tmp_path).steps() == list(range(1, step))
    assert recorder.steps("train") == list(range(1, step))
    assert f"examples {(step - 1) * BATCH}, {(step - 1) * BATCH + 1}, " in str(fault.value)


def stop_after(after, *signals):
    """A recorder that sends signals, by default SIGTERM, to this process when the line of a step is written."""
    recorder = Recorder()

    def write(step, *rest):
        recorder.write(step, *rest)
        if step == after:
            for number in signals or [signal.SIGTERM]:
                signal.raise_signal(number)  # in this thread, so that two of them are two

    recorder.metrics.write = write
    return recorder


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_after_a_signal_the_current_step_is_saved(tmp_path, number, code):
    recorder = stop_after(4, number)
    previous = signal.getsignal(number)
    with pytest.raises(Stopped, match=r"stopped at step [56] of 10, which is saved; .* continues") as stop:
        run(tmp_path, stage(validation=False), recorder=recorder, log_every=1)
    assert stop.value.exit_code == code
    [step] = Checkpoints(tmp_path).steps()
    assert step in (5, 6) and recorder.steps("train") == list(range(1, step + 1))
    assert signal.getsignal(number) is previous


def test_a_second_interrupt_stops_at_once(tmp_path):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, stage(validation=False), recorder=stop_after(4, signal.SIGINT, signal.SIGINT), log_every=1)
    assert Checkpoints(tmp_path).steps() == [] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_in_the_last_step_lets_the_run_finish(tmp_path):
    recorder = stop_after(after=9)
    run(tmp_path, stage(validation=False), recorder=recorder, log_every=1)
    assert recorder.steps("train") == list(range(1, STEPS + 1)) and Checkpoints(tmp_path).steps() == [STEPS]


def test_resuming_a_finished_run_does_nothing(tmp_path, caplog):
    run(tmp_path, stage())
    with caplog.at_level(logging.INFO):
        recorder = run(tmp_path, stage(), resumed=STEPS)
    assert recorder.lines == recorder.shown == [] and Checkpoints(tmp_path).steps() == [STEPS]
