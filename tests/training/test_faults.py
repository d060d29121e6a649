"""Faults of a run, by policy: what is skipped is skipped to the bit, what a killed run repeats it repeats to the bit.

The batch of `NAN_BATCH` makes a loss of NaN; that of `SPIKE_BATCH` a loss far above the others.
"""

import contextlib
import functools
import json
import logging
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep import optimizers
from lmrep.core.errors import RunFault, Stopped
from lmrep.core.sharding import make_mesh
from lmrep.objectives.base import Carry, Objective
from lmrep.objectives.outputs import normalize_weights
from lmrep.storage.averaging import mean, parameters
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.config import CheckpointConfig, EvaluationConfig, LogConfig, TrainerConfig
from lmrep.training.faults import FaultsConfig, Losses
from lmrep.training.loop import RunOutputs, Trainer
from lmrep.training.metrics_log import MetricsLog
from lmrep.training.stages import Stage
from tests.contract.objectives import table

BATCH, STEPS, NAN_BATCH, SPIKE_BATCH = 8, 12, 5, 8  # the batches, from 0, of steps 6 and 9
PER_EXAMPLE = ".carry.per_example"


@functools.cache  # runs of one objective share their programs
def objective():
    """The squared distance of a parameter from x, one number per example. x = inf gives a loss of NaN; `carry` counts
    batches."""
    def loss(params, batch, key, carry):
        distance = jnp.square(params["encoder"]["token"][0, 0] - batch["x"])
        carry = Carry(carry.per_example + 1, carry.shared + 1)
        return (jnp.where(jnp.isinf(batch["x"]), jnp.nan, distance) * batch["weights"]).sum(), ({}, carry)

    return Objective("square", specs={"encoder": {"token": table()}, "objective": {}}, loss=loss,
                     prepare=lambda keys, batch: batch | {"weights": normalize_weights(jnp.ones(BATCH))},
                     carry=lambda batch_size: Carry(jnp.zeros(batch_size), jnp.float32(0)))


def batches(bad):
    """Batches of consecutively numbered examples; `bad` replaces an x of the batches in it."""
    def host_batches(indices, first, last):
        for number in range(first, last):
            x = 1 + 0.1 * np.random.default_rng(number).normal(size=BATCH).astype(np.float32)
            x[3] = bad.get(number, x[3])
            yield {"x": x[indices], "segment_ids": np.ones((len(indices), 4), np.int32),
                   "example": (number * BATCH + indices).astype(np.int32)}
    return host_batches


@pytest.fixture(scope="module")
def optimizer():
    specs = objective().specs
    config = optimizers.adamw.Config("adamw", learning_rate=0.01, ema=0.9, bias_correction=True)
    return optimizers.build(config, specs, STEPS)


def stage(optimizer, bad, steps=STEPS, **more):
    return Stage("main", steps, objective(), optimizer, batches(bad), BATCH, **more)


def run(workdir, stages, policy, resumed=None, every=4, devices=1, die=None, averaged=True):
    """Trains, and returns (final state as a flat dict of numpy arrays, lines of metrics.jsonl, of faults.jsonl)."""
    checkpoints, log = Checkpoints(workdir / "checkpoints", keep=9), MetricsLog(workdir)
    workdir.mkdir(exist_ok=True)
    log.resume(resumed)
    if die is not None:
        write = log.write

        def write_and_die(step, split, values):
            write(step, split, values)
            if step == die[0] and die[1] >= 0:
                die[1] -= 1
                if die[1] < 0:
                    raise KeyboardInterrupt  # like a kill: nothing more is saved or logged
        log.write = write_and_die
    try:
        config = TrainerConfig(CheckpointConfig(every=every, keep=9), EvaluationConfig(every=4, averaged=averaged),
                               LogConfig(every=1), policy)
        last = Trainer(stages, make_mesh(devices, 1, 1), 0, RunOutputs(checkpoints, log), config).run(resumed)
        leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(last))
        state = {jax.tree_util.keystr(keys): np.asarray(leaf) for keys, leaf in leaves}
    except KeyboardInterrupt:
        state = None
    finally:
        checkpoints.close()
        log.close()
    return state, (workdir / "metrics.jsonl").read_text(), fault_records(workdir)


def fault_records(workdir):
    path = workdir / "faults.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    for path in state:
        np.testing.assert_array_equal(state[path], expected[path], err_msg=path)


def assert_same_run(results, expected):
    """Compares what `run` returned."""
    assert_same(results[0], expected[0])
    assert results[1:] == expected[1:]


# Skipping


def test_a_skipped_update_changes_only_the_step_and_resets_the_carry(tmp_path, optimizer):
    """Parameters, moments and averages end as in a run without the faulty batch. The next batch may continue the
    skipped one, so the per-example carry, which counts batches, starts again after it; the shared carry is kept."""
    skip = FaultsConfig(policy="skip")
    state, metrics, records = run(tmp_path / "a", [stage(optimizer, {NAN_BATCH: np.inf})], skip)
    assert [(r["step"], r["policy"], r["why"]) for r in records] == [(NAN_BATCH + 1, "skip", "the loss is nan")]
    assert records[0]["examples"] == list(range(NAN_BATCH * BATCH, (NAN_BATCH + 1) * BATCH))
    numbers = [n for n in range(STEPS) if n != NAN_BATCH]
    without = Stage("main", STEPS - 1, objective(), optimizer, lambda indices, first, last: (
        next(batches({})(indices, n, n + 1)) for n in numbers[first:last]), BATCH)
    expected, _, _ = run(tmp_path / "b", [without], skip)
    assert state.pop(".step") == STEPS and expected.pop(".step") == STEPS - 1
    assert set(state.pop(PER_EXAMPLE)) == {STEPS - (NAN_BATCH + 1)} and set(expected.pop(PER_EXAMPLE)) == {STEPS - 1}
    assert state[".carry.shared"] == STEPS - 1
    assert_same(state, expected)
    lines = [json.loads(line) for line in metrics.splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert "loss" not in lines[NAN_BATCH] and lines[NAN_BATCH]["tokens"] == lines[NAN_BATCH - 1]["tokens"]


def test_without_faults_skipping_changes_nothing(tmp_path, optimizer):
    skip, stop = (run(tmp_path / policy, [stage(optimizer, {})], FaultsConfig(policy=policy))
                  for policy in ("skip", "stop"))
    assert_same_run(skip, stop)


SPIKES = FaultsConfig(policy="skip", spike=5, window=3)
BAD = {NAN_BATCH: np.inf, SPIKE_BATCH: 60.0}


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_skipping_a_spike_does_not_depend_on_interruptions_or_the_mesh(tmp_path, optimizer, devices):
    stages = [stage(optimizer, BAD)]
    expected = _, _, records = run(tmp_path / "uninterrupted", stages, SPIKES, devices=devices)
    assert [record["step"] for record in records] == [NAN_BATCH + 1, SPIKE_BATCH + 1]
    assert records[1]["why"].startswith("the loss is ") and "a spike: above" in records[1]["why"]
    if devices == 1:  # killed after each of the two, and resumed
        for step in (7, 10):
            resumed = Checkpoints(tmp_path / "killed/checkpoints").newest()
            assert run(tmp_path / "killed", stages, SPIKES, resumed, die=[step, 0])[0] is None
        assert_same_run(run(tmp_path / "killed", stages, SPIKES, 8), expected)


def test_the_logged_learning_rate_does_not_count_skipped_steps(tmp_path):
    def schedule(step):
        return 0.1 / (1 + step)

    output = run(tmp_path, [stage(optax.sgd(schedule), {NAN_BATCH: np.inf}, schedule=schedule)],
               FaultsConfig(policy="skip"))[1]
    rates = [json.loads(line)["learning_rate"] for line in output.splitlines()]
    assert rates[NAN_BATCH + 1 :] == [0.1 / (1 + step) for step in range(NAN_BATCH, STEPS - 1)]


def test_the_largest_loss_depends_on_losses_up_to_two_steps_before():
    losses = Losses(FaultsConfig(spike=2, window=3))
    largest = []
    for step in range(1, 8):
        largest.append(float(losses.max_loss(step)))
        losses.history.append((step, float(step)))
    # Step 5 is the first to have three losses two steps before: 1, 2, 3.
    assert largest == [np.inf] * 4 + [4.0, 6.0, 8.0]
    again = Losses(FaultsConfig(spike=2, window=3), json.loads(json.dumps([*losses.history])))
    assert again.max_loss(8) == losses.max_loss(8) == 10.0


# Going back


BACK = FaultsConfig(policy="back")


def test_going_back_skips_the_batches_since_the_checkpoint(tmp_path, optimizer, caplog):
    """Two faults: at step 6, back to 4, where step 5 now has batch 6; then batch 8 comes at step 7, back to 4."""
    bad = {NAN_BATCH: np.inf, SPIKE_BATCH: np.inf}
    with caplog.at_level(logging.WARNING, logger="lmrep"):
        state, metrics, records = run(tmp_path / "a", [stage(optimizer, bad)], BACK)
    assert [(r["step"], r["back_to"]) for r in records] == [(6, 4), (7, 4)]
    assert [r["examples"][0] // BATCH for r in records] == [NAN_BATCH, SPIKE_BATCH]
    assert "the loss is nan at step 6 (stage 'main'): going back to step 4; fault 1 of at most 10" in caplog.text
    used = [0, 1, 2, 3, *range(9, 17)]  # the first fault skips 4 and 5, the second 6, 7 and 8
    without = Stage("main", STEPS, objective(), optimizer, lambda indices, first, last: (
        next(batches({})(indices, n, n + 1)) for n in used[first:last]), BATCH)
    expected, expected_metrics, _ = run(tmp_path / "b", [without], FaultsConfig())
    assert metrics == expected_metrics
    # Batch 9 does not continue batch 3: the per-example carry counts from the checkpoint on.
    assert set(state.pop(PER_EXAMPLE)) == {STEPS - 4} and set(expected.pop(PER_EXAMPLE)) == {STEPS}
    assert_same(state, expected)


def test_a_run_that_went_back_repeats_it_when_killed(tmp_path, optimizer):
    """Killed before the fault, after going back and before the next checkpoint, and later."""
    stages = [stage(optimizer, {NAN_BATCH + 1: np.inf, 12: np.inf})]
    expected = run(tmp_path / "uninterrupted", stages, BACK)
    assert [record["step"] for record in expected[2]] == [7, 10]  # batch 12 comes three steps early
    for step, times in ((6, 0), (5, 1), (11, 0)):
        killed = tmp_path / f"{step}-{times}"
        assert run(killed, stages, BACK, die=[step, times])[0] is None
        assert_same_run(run(killed, stages, BACK, Checkpoints(killed / "checkpoints").newest()), expected)


def test_a_run_that_was_stopped_in_between_goes_back_to_the_same_step(tmp_path, optimizer):
    """It saved step 5 or 6, which an uninterrupted run would not have."""
    stages = [stage(optimizer, {NAN_BATCH + 1: np.inf})]
    expected = run(tmp_path / "uninterrupted", stages, BACK)
    log = MetricsLog.write

    def stopping(self, step, *rest):
        log(self, step, *rest)
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(MetricsLog, "write", stopping)
        run(tmp_path / "stopped", stages, BACK)
    resumed = Checkpoints(tmp_path / "stopped/checkpoints").newest()
    assert resumed in (5, 6)
    assert_same_run(run(tmp_path / "stopped", stages, BACK, resumed), expected)
    assert Checkpoints(tmp_path / "stopped/checkpoints").steps() == [4, 8, 12]


def test_before_the_first_checkpoint_it_goes_back_to_the_start(tmp_path, optimizer):
    state, metrics, records = run(tmp_path / "a", [stage(optimizer, {2: np.inf})], BACK)
    assert [(record["step"], record["back_to"]) for record in records] == [(3, 0)]
    without = Stage("main", STEPS, objective(), optimizer,
                    lambda indices, first, last: batches({})(indices, first + 3, last + 3), BATCH)
    expected, expected_metrics, _ = run(tmp_path / "b", [without], FaultsConfig())
    assert metrics == expected_metrics
    assert_same(state, expected)


def test_going_back_passes_over_a_damaged_checkpoint(tmp_path, optimizer):
    def damaging(indices, first, last):
        for number, batch in enumerate(batches({10: np.inf})(indices, first, last), first):
            if number == 10:
                while not checkpoint.exists():  # a thread is saving it
                    time.sleep(0.01)
                checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
            yield batch

    checkpoint = tmp_path / "checkpoints/8/_METADATA"
    damaged = Stage("main", STEPS, objective(), optimizer, damaging, BATCH)
    _, _, records = run(tmp_path, [damaged], BACK)
    assert [(record["step"], record["back_to"]) for record in records] == [(11, 4)]
    assert Checkpoints(tmp_path / "checkpoints").newest() == STEPS  # saved again in place of the damaged one
    assert Checkpoints(tmp_path / "checkpoints").steps() == [4, 8, 12]


def test_a_fault_skips_batches_of_its_own_stage_only(tmp_path, optimizer):
    """Each stage reads its data from the start; a fault in the second does not shift the first."""
    batches_used = [], []

    def seen(i, bad):
        def host_batches(indices, first, last):
            for number, batch in enumerate(batches(bad)(indices, first, last), first):
                batches_used[i].append(number)
                yield batch
        return host_batches

    stages = [Stage(str(i), 8, objective(), optimizer, seen(i, bad), BATCH) for i, bad in enumerate(({}, {3: np.inf}))]
    _, _, records = run(tmp_path, stages, BACK, every=100)
    assert [(record["step"], record["stage"], record["back_to"]) for record in records] == [(12, "1", 8)]
    assert batches_used[0] == list(range(8)) and batches_used[1][-8:] == list(range(4, 12))


# Where it ends


@pytest.mark.parametrize("policy", ["skip", "back"])
def test_more_faults_than_the_limit_stop_the_run(tmp_path, optimizer, policy):
    config = FaultsConfig(policy=policy, limit=2)
    with pytest.raises(RunFault, match=r"the loss is nan at step \d+ .*faults\.limit allows 2 such faults"):
        run(tmp_path, [stage(optimizer, dict.fromkeys(range(5, 99), np.inf))], config)
    assert len(fault_records(tmp_path)) == 2 and Checkpoints(tmp_path / "checkpoints").steps() == [4]


def test_by_default_a_spike_stops_the_run_with_advice(tmp_path, optimizer):
    with pytest.raises(RunFault, match=r"the loss is 4\d\d.*, a spike: above .*at step 9 .*faults\.policy=skip"):
        run(tmp_path, [stage(optimizer, {SPIKE_BATCH: 60.0})], FaultsConfig(spike=5, window=3))
    assert fault_records(tmp_path) == []
    # Following the advice, the run continues.
    _, metrics, records = run(tmp_path, [stage(optimizer, {SPIKE_BATCH: 60.0})], SPIKES, resumed=8)
    assert [record["step"] for record in records] == [9] and len(metrics.splitlines()) == STEPS


@pytest.mark.parametrize(("policy", "message"), [("skip", "the validation loss is nan"), ("back", "faults.limit")])
def test_a_validation_loss_that_is_not_finite_is_not_skipped(tmp_path, optimizer, policy, message):
    """The third and later validations fail: it is too late to skip an update, so the run goes back or stops."""
    calls = []

    def validation(indices):
        calls.append(1)
        return batches({100: np.inf} if len(calls) > 2 else {})(indices, 100, 101)

    with pytest.raises(RunFault, match=message):
        run(tmp_path, [stage(optimizer, {}, validation=validation)], FaultsConfig(policy=policy, limit=2))
    assert len(calls) == 3 + len(fault_records(tmp_path)) == (3 if policy == "skip" else 5)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [4]


# Averages, over steps and over checkpoints


def test_the_average_is_the_debiased_one(tmp_path, optimizer):
    """m = d m + (1 - d) p from zero, divided by 1 - d^t."""
    run(tmp_path, [stage(optimizer, {})], FaultsConfig(), every=1)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    steps = checkpoints.steps()  # the first that is kept holds the average of all before it
    total = (1 - 0.9 ** steps[0]) * checkpoints.read(steps[0], "opt_state/average/encoder/token")[0]
    for step in steps[1:]:
        total = 0.9 * total + 0.1 * checkpoints.read(step, "params/encoder/token")[0]
    average = parameters(checkpoints, STEPS, averaged=True)["encoder"]["token"]
    np.testing.assert_allclose(average, total / (1 - 0.9**STEPS), rtol=1e-5)
    last = parameters(checkpoints, STEPS, averaged=False)["encoder"]["token"]
    assert len(steps) > 5 and np.abs(average - last).max() > 1e-3
    three = [checkpoints.read(step, "params/encoder/token")[0] for step in (10, 11, 12)]
    np.testing.assert_allclose(mean(checkpoints, (10, 11, 12), averaged=False)["encoder"]["token"],
                               np.mean(three, axis=0), rtol=1e-6)
    checkpoints.close()


def test_validation_uses_the_averages_if_configured(tmp_path, optimizer):
    losses = {}
    for averaged in (True, False):
        valid = stage(optimizer, {}, validation=lambda indices: batches({})(indices, 100, 101))
        _, metrics, _ = run(tmp_path / str(averaged), [valid], FaultsConfig(), averaged=averaged)
        lines = [json.loads(line) for line in metrics.splitlines()]
        losses[averaged] = [line["loss"] for line in lines if line["split"] == "validation"]
    assert losses[True][0] == losses[False][0]  # before the first step there is no average
    with contextlib.closing(Checkpoints(tmp_path / "True/checkpoints")) as checkpoints:
        for averaged in (True, False):
            w = parameters(checkpoints, STEPS, averaged)["encoder"]["token"][0, 0]
            [batch] = batches({})(np.arange(BATCH), 100, 101)
            assert losses[averaged][-1] == pytest.approx(np.square(w - batch["x"]).mean(), rel=1e-5)
    assert losses[True][-1] != pytest.approx(losses[False][-1], rel=1e-3)


# A full device


def test_the_out_of_memory_error_says_what_a_device_holds_and_what_to_change(tmp_path, optimizer):
    """A real allocation failure: the loss needs more memory than any machine has."""
    def loss(params, batch, key, carry):
        size = 1 << 24
        huge = jnp.outer(jnp.arange(size, dtype=jnp.float32), jnp.arange(size, dtype=jnp.float32))  # 1 PB
        return (params["encoder"]["token"][0, 0] * jnp.sort(huge, axis=0)[0]).sum(), ({}, carry)

    full = Stage("main", STEPS, objective()._replace(loss=loss), optimizer, batches({}), BATCH, microbatches=2)
    with pytest.raises(RunFault) as fault:
        run(tmp_path, [full], FaultsConfig(), devices=2)
    for text in ("out of memory in stage 'main'", "Each of 2 device(s) has 4 examples of 4 tokens of batch_size=8, "
                 "in 2 microbatch(es) of 2", "Raise microbatches (for example to 4", "execution.remat=full",
                 "mesh.fsdp=-1"):
        assert text in str(fault.value)
