"""The learning rate that validation lowers: its rule, where training ends, and that runs resume exactly."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep import optimizers
from lmrep.core.params import init
from lmrep.core.sharding import make_mesh
from lmrep.optimizers import ScheduleConfig, adamw, plateau, sgd
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training import loop
from lmrep.training import state as states
from tests.contract import objectives as toys
from tests.training.test_loop import CLOZE, STEPS, run, stage


def settings(**fields):
    return sgd.Config("sgd", learning_rate=0.5, weight_decay=0.0, clip=0.0,
                      schedule=plateau.Config("plateau", **fields))


@functools.cache
def optimizer(final):
    return optimizers.build(settings(final=final), CLOZE.specs, STEPS)


def staged(final=0.0, **more):
    """A stage with the rule; SGD at a rate at which its loss goes up and down."""
    config = settings(final=final)
    return stage(None, optimizer(final), validation_rule=optimizers.validation_rule(config),
                 schedule=optimizers.schedule(config, STEPS), **more)


def losses(monkeypatch, values):
    """Validation gives these losses, by step."""
    class Fixed:
        indices = np.arange(16)

        def __init__(self, *_):
            pass

        def __call__(self, params, batches, shared):
            return {"loss": values.pop(0)}

    monkeypatch.setattr(loop, "Evaluator", Fixed)


def resumed(monkeypatch, directory, staged, values):
    """The last state of a run with these losses of validation, which equals that of the run resumed from step 4."""
    def last():
        one = staged()
        target = states.abstract(one.objective, one.optimizer, one.batch_size, make_mesh(1, 1, 1))
        return Checkpoints(directory).restore(STEPS, states.saved(target))[0]

    losses(monkeypatch, [*values])
    straight = run(directory, staged(), save=4, validate=1, log_every=1)
    expected = last()
    Checkpoints(directory).drop_after(4)
    losses(monkeypatch, values[5:])
    again = run(directory, staged(), save=4, validate=1, log_every=1, resumed=4)
    assert again.lines == [line for line in straight.lines if line[0] > 4]
    jax.tree.map(np.testing.assert_array_equal, last(), expected)
    return expected


def test_the_rate_falls_after_each_loss_that_is_not_the_lowest_so_far():
    state, scales = optimizers.build(settings(), {}, 10).init({}), []
    for loss in (3.0, 2.0, 2.0, 1.0, 1.5, 1.2, 0.9):
        state = plateau.after_validation(state, loss, optimizers.Rule(0.5, 0.0))
        scales.append(plateau.scale(state))
    assert scales == [1, 1, 0.5, 0.5, 0.25, 0.125, 0.125]
    assert float(plateau.find(state).lowest) == np.float32(0.9)


@pytest.mark.parametrize("fields", [{}, {"ema": 0.9}, {"multipliers": {"encoder/*": 0.5}}, {"momentum": 0.9}])
def test_updates_are_those_of_the_rate_that_it_has_now(fields):
    """After two validations without progress, SGD of rate 0.5 is SGD of rate 0.125, whatever is around it."""
    specs = toys.cloze("encoder").specs
    params = init(specs, jax.random.key(0))
    gradient = {name: {leaf: jnp.ones_like(x) for leaf, x in tree.items()} for name, tree in params.items()}
    falling = optimizers.build(dataclasses.replace(settings(), **fields), specs, 10)
    state = falling.init(params)
    for loss in (1.0, 1.0, 2.0):
        state = plateau.after_validation(state, loss, optimizers.Rule(0.5, 0.0))
    constant = optimizers.build(dataclasses.replace(
        settings(), learning_rate=0.125, schedule=ScheduleConfig("constant"), **fields), specs, 10)
    expected, _ = constant.update(gradient, constant.init(params), params)
    got, state = falling.update(gradient, state, params)
    for name, tree in expected.items():
        for leaf, x in tree.items():
            np.testing.assert_array_equal(got[name][leaf], x)
    assert plateau.scale(state) == 0.25


def test_other_optimizers_have_no_such_state():
    assert plateau.find(optax.adam(0.1).init({"x": jnp.ones(2)})) is None
    assert optimizers.validation_rule(adamw.Config("adamw")) is None


@pytest.mark.slow
def test_a_run_logs_its_rate_and_ends_below_the_final_one(tmp_path, monkeypatch):
    """Validated at steps 0, 2, 4, ...; the rate is below 0.3 of its peak after step 6."""
    losses(monkeypatch, [9.0, 5.0, 6.0, 7.0])
    recorder = run(tmp_path, staged(final=0.3), validate=2, log_every=1)
    rates = {step: values["learning_rate"] for step, split, values in recorder.lines if split == "train"}
    assert rates == {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.25, 6: 0.25}
    assert Checkpoints(tmp_path).steps() == [2, 6]  # the best and the last


def test_a_run_that_has_ended_early_does_not_continue(tmp_path, monkeypatch):
    losses(monkeypatch, [9.0, 9.0, 9.0])
    run(tmp_path, staged(final=0.3), validate=2, log_every=3)
    assert run(tmp_path, staged(final=0.3), resumed=4, validate=2).lines == []


def test_the_last_metrics_are_logged_where_a_run_ends_early(tmp_path, monkeypatch):
    losses(monkeypatch, [9.0, 9.0, 9.0])
    recorder = run(tmp_path, staged(final=0.3), validate=2, log_every=3)
    assert recorder.steps("train") == [3, 4]


def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, monkeypatch):
    """The rate has fallen before the checkpoint, and falls again after it."""
    last = resumed(monkeypatch, tmp_path, staged, [9.0, 8.0, 8.5, 7.0, 7.5, 6.0, 7.2, 7.1, 5.0, 5.5, 4.0])
    assert plateau.scale(last.opt_state) == 0.5 ** 5
