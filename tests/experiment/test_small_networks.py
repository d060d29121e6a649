"""The numbers that a config gets for the size of its network: `recipe=auto` of tasks, and `budget` of pretraining."""

import dataclasses

import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment import resolve, small_networks
from lmrep.experiment.fine_tuning import compose_task, recipe_fields
from lmrep.experiment.record import UNKNOWN_STEPS
from lmrep.experiment.small_networks import EPOCHS, TABLE, UPDATES
from lmrep.interop.checkpoint_config import config_of, load_config
from lmrep.models import MODELS
from tests.contract import alternating


def task(argument, *overrides):
    return experiments.parse(resolve.resolve(compose_task(argument, "classification"), overrides))


def pretraining(*overrides, argument="size=mini"):
    return experiments.parse(load_config("bert.py", argument, overrides))


@pytest.mark.parametrize(("preset", "row"), [("bert_tiny", 0), ("bert_mini", 1), ("bert_medium", 2)])
def test_the_default_of_tasks_follows_the_width(preset, row):
    experiment = task(f"model={preset}")
    assert experiment.optimizer.learning_rate == TABLE[row].scratch_rate
    assert (experiment.batch_size, experiment.epochs) == (TABLE[row].task_batch, 0.0)
    described = small_networks.describe(dataclasses.replace(experiment, steps=10))
    assert "random parameters" in described and described.endswith(f"batches of {experiment.batch_size}, 10 steps")


def test_a_network_without_dropout_may_have_a_budget(monkeypatch):
    monkeypatch.setitem(MODELS, "alternating", alternating.DEFINITION._replace(dropout_fields=("dropout",)))
    config = experiments.default_config("alternating", "masked", "packed")
    config.budget = "10m"
    assert "model.dropout" not in small_networks.fields(config)


def test_wide_networks_and_named_recipes_have_the_numbers_of_papers():
    for argument in ("model=bert_base", "model=bert_tiny,recipe=bert"):
        experiment, paper = task(argument), recipe_fields("bert")
        assert experiment.optimizer.learning_rate == paper["optimizer.learning_rate"]
        assert (experiment.batch_size, experiment.epochs) == (paper["batch_size"], paper["epochs"])


def test_flags_take_precedence():
    experiment = task("size=tiny", ("epochs", "2"), ("optimizer.learning_rate", "0.5"))
    assert (experiment.epochs, experiment.optimizer.learning_rate) == (2.0, 0.5)
    assert experiment.batch_size == TABLE[0].task_batch
    budgeted = pretraining(("budget", "10m"), ("batch_size", "8"), ("evaluation.every", "7"))
    assert (budgeted.batch_size, budgeted.evaluation.every, budgeted.checkpoint.every) == (8, 7, UNKNOWN_STEPS)


def test_numbers_that_a_page_sets_itself_stay():
    config = compose_task("size=tiny", "classification")
    config.optimizer.learning_rate = 0.02
    experiment = experiments.parse(resolve.resolve(config))
    assert (experiment.optimizer.learning_rate, experiment.batch_size) == (0.02, TABLE[0].task_batch)


def test_a_config_in_memory_is_taken_as_it_is_but_for_a_budget():
    config = compose_task("model=bert_tiny", "classification")
    experiment = experiments.parse(config_of(config, {"epochs": 3.0}))
    assert (experiment.optimizer.learning_rate, experiment.epochs) == (3e-5, 3.0)
    assert small_networks.describe(experiment) == ""
    config = load_config("bert.py", "size=mini")
    config.budget = "10m"
    assert experiments.parse(config_of(config)).steps == UNKNOWN_STEPS
    config.stages = ()
    assert experiments.parse(config_of(config, {"steps": 7})).steps == 7


def test_epochs_are_bounded():
    assert small_networks.epochs(UPDATES) == EPOCHS[0]
    assert small_networks.epochs(1) == EPOCHS[1]
    assert small_networks.epochs(UPDATES // 10) == 10


def test_a_budget_changes_the_numbers_of_a_page():
    page, experiment = pretraining(), pretraining(("budget", "1h30m"))
    assert (page.budget, page.steps) == ("", 1_000_000)
    assert (experiment.steps, experiment.stages) == (UNKNOWN_STEPS, ())
    assert experiment.model["dropout"] == experiment.model["attention_dropout"] == 0
    assert experiment.model["init_stddev"] == pytest.approx(256**-0.5)
    assert "model.dropout" not in small_networks.fields(load_config("bert.py", "size=base", [("budget", "10m")]))


@pytest.mark.parametrize(("overrides", "message"), [
    ([("budget", "10")], "config.budget is '10'; expected a time such as 20m"),
    ([("budget", "0m")], "expected a time"),
    ([("budget", "10m"), ("steps", "5")], "give the time or the number of steps"),
])
def test_a_budget_that_cannot_be_is_refused(overrides, message):
    with pytest.raises(UserError, match=message):
        pretraining(*overrides)


def test_a_budget_is_for_one_stage():
    config = load_config("bert.py", "size=mini")
    config.budget = "10m"
    with pytest.raises(UserError, match="there are 2 stages; it is for runs of one stage"):
        experiments.parse(config)


def test_tasks_have_no_budget():
    with pytest.raises(UserError, match="which is for pretraining"):
        task("size=tiny", ("budget", "10m"))
