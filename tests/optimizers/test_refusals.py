"""What optimizers and schedules refuse before the first step, and the field that messages name."""

import pytest

from lmrep import optimizers
from lmrep.core.errors import UserError
from lmrep.optimizers import adamw, nt_asgd, plateau
from lmrep.optimizers.schedules import DecayConfig, SlantedTriangularConfig
from tests.optimizers.updates import STACKED


def optimizer(**fields):
    return lambda: optimizers.build(adamw.Config("adamw", **fields), STACKED, 100)


def schedule(**fields):
    return lambda: optimizers.check(adamw.Config("adamw", schedule=DecayConfig("linear", **fields)), 100)


def settings(**fields):
    return lambda: optimizers.read_config(fields)


REFUSALS = {  # what is called -> what the message names
    "decay is skipped where nothing is": (
        optimizer(decay_skip=("*/biases",)), ("optimizer.decay_skip", "*/biases", "encoder/embedding/token")),
    "a multiplier of a layer that is missing": (
        optimizer(multipliers={"*/layers/8/*": 0.5}), ("optimizer.multipliers", "*/layers/8/*")),
    "a multiplier of layers that are partly missing": (
        optimizer(multipliers={"*/layers/1-4/*": 0.5}), ("optimizer.multipliers", "*/layers/4/*")),
    "decay is skipped in layers in the wrong order": (
        optimizer(decay_skip=("*/layers/5-2/*",)), ("optimizer.decay_skip", "*/layers/5-2/*")),
    "one beta": (optimizer(betas=(0.9,)), ("betas", "two")),
    "more steps of warm-up than steps": (
        schedule(warmup=101), ("warmup", "101", "100")),
    "warm-up twice": (schedule(warmup=10, warmup_fraction=0.1),
                      ("warmup=10", "warmup_fraction=0.1")),
    "a warm-up of a slanted triangle": (lambda: optimizers.check(adamw.Config("adamw", schedule=SlantedTriangularConfig(
        "slanted_triangular", warmup=10)), 100), ("slanted_triangular", "cut_fraction", "optimizer.schedule.warmup")),
    "a stage but the last that ends early": (lambda: optimizers.check(adamw.Config(
        "adamw", schedule=plateau.Config("plateau", final=0.1)), 100, last=False), ("last stage",)),
    "another stage that ends early": (lambda: optimizers.check(nt_asgd.Config(
        "nt_asgd", averages="always"), 100, last=False), ("last stage", "optimizer.averages=triggered")),
    "a setting of another optimizer": (settings(name="sgd", betas=(0.9, 0.99)), (
        "optimizer 'sgd' has no field 'betas'; it has name, learning_rate, ", "momentum")),
    "a setting of another schedule": (settings(schedule={"name": "cosine", "factor": 0.1}), (
        "optimizer.schedule 'cosine' has no field 'factor'; it has name, warmup, ", "final")),
    "an optimizer that is unknown": (settings(name="adamww"), ("optimizer.name", "did you mean 'adamw'")),
    "a schedule that is unknown": (
        settings(schedule={"name": "cosin"}), ("optimizer.schedule.name", "did you mean 'cosine'")),
    "settings that are no table": (lambda: optimizers.read_config("adamw"), ("optimizer", "expected a mapping")),
    "a schedule that is no table": (settings(schedule="linear"), ("optimizer.schedule", "expected a mapping")),
}


@pytest.mark.parametrize(("act", "names"), REFUSALS.values(), ids=REFUSALS)
def test_it_is_refused(act, names):
    with pytest.raises(UserError) as refused:
        act()
    assert all(name in str(refused.value) for name in names), refused.value


def test_a_fraction_of_the_steps_is_rounded_down():
    assert optimizers.warmup_steps(DecayConfig("linear", warmup_fraction=0.06), 33112) == 1986
