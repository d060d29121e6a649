"""An optimizer and a schedule that lmrep does not know are a file and a row each: pages, fields, stages, meshes, plans
and resumed runs have them. `test_plugins.py` trains with them."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep import optimizers
from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, abstract, map_paths
from lmrep.core.sharding import make_mesh, shardings
from lmrep.experiment import config as experiments
from lmrep.experiment import fields
from lmrep.experiment.page_files import installed
from lmrep.experiment.resolve import apply_overrides
from lmrep.layers import stack
from lmrep.optimizers import OPTIMIZERS, SCHEDULES, ScheduleConfig, ScheduleDef, adamw
from lmrep.optimizers.base import OptimizerDef
from lmrep.optimizers.parameters import is_stacked
from lmrep.optimizers.schedules import DecayConfig
from tests.contract import muon, test_contract
from tests.contract import objectives as toys
from tests.optimizers import updates


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "muon", muon.DEFINITION)
    monkeypatch.setitem(SCHEDULES, "stable", muon.STABLE)


def built(specs, **changes):
    return optimizers.build(dataclasses.replace(optimizers.recipe("muon"), **changes), specs, test_contract.STEPS)


@functools.cache
def stages(microbatches=1):
    objective = toys.cloze("encoder")
    return [dataclasses.replace(test_contract.stage(objective, microbatches),
                                optimizer=built(objective.specs, learning_rate=0.1))]


def test_a_page_has_it_as_a_choice_and_a_sweep_its_fields():
    config = apply_overrides(loading.load(installed()["bert.py"], "size=tiny,optimizer=muon"),
                             [("optimizer.newton_steps", "2")])
    assert (config.optimizer.name, config.optimizer.newton_steps, config.optimizer.momentum) == ("muon", 2, 0.9)
    record = experiments.parse(config).optimizer
    assert isinstance(record, muon.Config) and isinstance(record.schedule, muon.StableConfig)
    experiment = experiments.parse(json.loads(json.dumps(config.to_dict())))  # as config.json keeps it
    assert experiment.optimizer == record == experiments.resolve_stages(experiment)[0].optimizer
    with pytest.raises(UserError, match="newton_steps is 0; expected at least 1"):
        experiments.parse(apply_overrides(config, [("optimizer.newton_steps", "0")]))
    with pytest.raises(UserError, match="optimizer 'muon' has no field 'newton_step'; did you mean 'newton_steps'"):
        optimizers.read_config({"name": "muon", "newton_step": 1})


def test_its_settings_are_listed():
    listed = {field.path: field for field in fields.list_fields(None)}
    assert "muon" in listed["optimizer.name"].bounds.choices
    assert "stable" in listed["optimizer.schedule.name"].bounds.choices
    assert listed["optimizer.newton_steps"].choice == "optimizer muon"
    assert listed["optimizer.schedule.decay_fraction"].choice == "optimizer.schedule stable"
    config = loading.load(installed()["bert.py"], "size=tiny,optimizer=muon")
    assert {field.path: field.value for field in fields.list_fields(config.to_dict())}["optimizer.newton_steps"] == 3
    other = {field.path for field in fields.list_fields(loading.load(installed()["bert.py"], "size=tiny").to_dict())}
    assert "optimizer.newton_steps" not in other and "optimizer.betas" in other


@pytest.mark.parametrize("page", ["bert.py", "t5.py", "elmo.py", "lstm_lm.py"])
def test_overrides_choose_it_on_any_page_and_set_its_fields_in_any_order(page):
    base = loading.load(installed()[page], "size=tiny")
    config = apply_overrides(base, [
        ("optimizer.newton_steps", "2"), ("optimizer.schedule.decay_fraction", "0.5"),
        ("optimizer.schedule.name", "stable"), ("optimizer.name", "muon"), ("optimizer.momentum", "0.8")])
    assert {*config.optimizer} == {field.name for field in dataclasses.fields(muon.Config)}
    chosen = experiments.parse(config).optimizer
    assert (chosen.newton_steps, chosen.momentum, chosen.schedule.decay_fraction) == (2, 0.8, 0.5)
    assert chosen.learning_rate == base.optimizer.learning_rate
    with pytest.raises(UserError, match=r"config.optimizer 'muon' has no field 'betas'; it has .*newton_steps"):
        apply_overrides(base, [("optimizer.betas", "0.9,0.99"), ("optimizer.name", "muon")])


def test_a_record_with_settings_of_other_optimizers_and_schedules_is_read():
    """As config.json of versions in which all optimizers had all settings."""
    config = loading.load(installed()["bert.py"], "size=tiny").to_dict()
    expected = experiments.parse(config)
    config["optimizer"] |= {"momentum": 0.0, "accumulator": 1.0, "factor_from": 128, "newton_steps": 3}
    config["optimizer"]["schedule"] |= {"power": 1.0, "factor": 0.5}
    assert experiments.parse(config) == expected
    config["optimizer"]["momentun"] = 0.0
    with pytest.raises(UserError, match="optimizer 'adamw' has no field 'momentun'"):
        experiments.parse(config)


def test_a_stage_may_change_to_it_and_back():
    """The settings that both have stay."""
    first = adamw.Config("adamw", weight_decay=0.3, schedule=DecayConfig("linear", warmup=3))
    second = optimizers.read_changes(
        first, {"name": "muon", "newton_steps": 2, "schedule": {"name": "stable", "decay_fraction": 0.5}}, "stage")
    assert (second.newton_steps, second.weight_decay, second.schedule.warmup) == (2, 0.3, 3)
    assert second.schedule.decay_fraction == 0.5
    assert optimizers.read_changes(second, {"name": "adamw", "schedule": {"name": "linear"}}, "stage") == first


def test_its_state_is_laid_out_as_the_parameters():
    specs = {"encoder": {"kernel": ParamSpec((8, 4), ("embed", "mlp"))}}
    mesh = make_mesh(2, 2, 2)
    layouts = jax.tree.leaves(optimizers.state_shardings(built(specs), specs, mesh))
    assert shardings(specs, mesh)["encoder"]["kernel"] in layouts
    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(built(specs).init, abstract(specs)))]
    assert sum(sizes) == 8 * 4 + 1  # the momentum, and the count of steps


def test_a_stack_is_updated_layer_by_layer():
    params, gradients = updates.values(updates.STACKED, 0), [updates.values(updates.STACKED, i) for i in (1, 2)]
    config = dataclasses.replace(optimizers.recipe("muon"), learning_rate=0.1)
    together, _ = updates.train(config, updates.STACKED, params, gradients)
    apart, _ = updates.train(config, updates.UNSTACKED, updates.unstack(params), [*map(updates.unstack, gradients)])
    for a, b in zip(updates.numpy_of(map(updates.unstack, together)), updates.numpy_of(apart), strict=True):
        for path in b:
            np.testing.assert_allclose(a[path], b[path], rtol=1e-4, atol=1e-5, err_msg=path)


def test_a_run_resumes_exactly_and_does_not_depend_on_the_mesh(tmp_path):
    state, expected = test_contract.train(stages(), tmp_path / "whole")
    losses = test_contract.losses(expected)
    assert losses[-1] < losses[0]
    with pytest.raises(test_contract.Killed):
        test_contract.train(stages(), tmp_path / "killed", killed_after=4)
    resumed, lines = test_contract.train(stages(), tmp_path / "killed")
    assert lines == expected
    jax.tree.map(np.testing.assert_array_equal, resumed, state)
    _, lines = test_contract.train(stages(2), tmp_path / "mesh", (2, 2, 2))
    np.testing.assert_allclose(test_contract.losses(lines), losses, rtol=1e-4)


# --- contracts --------------------------------------------------------------------------------------------------


def test_the_rows_have_few_fields():
    assert len(OptimizerDef._fields) <= 8 and len(ScheduleDef._fields) <= 8


def test_the_recipes_of_all_rows_have_different_names():
    names = [name for row in OPTIMIZERS.values() for name in row.recipes]
    assert len(names) == len(set(names)) and optimizers.DEFAULT_RECIPE in names


def rule(init=lambda params: (), update=lambda grads, state, params: (grads, state)):
    return lambda config, specs: optax.GradientTransformation(init, update)


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


BROKEN = {
    "an update of another shape": (rule(update=lambda g, state, params: (first(g), state)), "updates are"),
    "an update of another structure": (rule(update=lambda g, state, params: (g["encoder"], state)), "updates are"),
    "a state that changes its type": (
        rule(lambda p: jnp.int32(0), lambda g, state, p: (g, state + 0.5)), "int32[]"),
    "a state that grows": (
        rule(lambda p: p, lambda g, state, p: (g, {"more": state})), "update makes the state"),
    "a state that belongs to no parameter": (rule(lambda p: jnp.zeros(3)), "belongs to no parameter"),
    "a field that is missing": (lambda config, specs: optax.trace(config.momentun), "AttributeError"),
    "no transformation": (lambda config, specs: None, "correct this component"),
    "a recipe with a field that is missing": ({"momentun": 0.9}, "did you mean 'momentum'"),
}


@pytest.mark.parametrize(("direction", "problem"), BROKEN.values(), ids=BROKEN)
def test_an_optimizer_that_breaks_its_contract_is_named(direction, problem, monkeypatch):
    if isinstance(direction, dict):
        direction, recipe = muon.direction, direction
    else:
        recipe = {}
    monkeypatch.setitem(OPTIMIZERS, "muon", muon.DEFINITION._replace(direction=direction, recipes={"muon": recipe}))
    with pytest.raises(UserError) as refused:
        optimizers.build(optimizers.recipe("muon"), updates.STACKED, 10)
    file = muon.__file__ if direction is muon.direction else __file__
    assert f"optimizer 'muon' ({file})" in str(refused.value) and problem in str(refused.value)


@pytest.mark.parametrize(("decay", "problem"), [
    (lambda config, *_: lambda step: jnp.full(2, 0.1), "float32[2]"),
    (lambda config, *_: lambda step: step, "int32[]"),
    (lambda config, *_: lambda step: None, "correct this component"),
    (lambda config, *_: lambda step: config.hold, "'hold'")], ids=["a vector", "a whole number", "nothing", "a field"])
def test_a_schedule_that_breaks_its_contract_is_named(decay, problem, monkeypatch):
    monkeypatch.setitem(SCHEDULES, "stable", ScheduleDef(decay))
    with pytest.raises(UserError) as refused:
        optimizers.schedule(adamw.Config("adamw", schedule=ScheduleConfig("stable")), 10)
    assert f"schedule 'stable' ({__file__})" in str(refused.value) and problem in str(refused.value)


def test_the_rate_is_the_peak_until_the_last_steps():
    config = adamw.Config("adamw", learning_rate=2.0, schedule=muon.StableConfig("stable", warmup=2))
    rate = optimizers.schedule(config, 10)
    np.testing.assert_allclose([rate(step) for step in range(11)], [0, 1, 2, 2, 2, 2, 2, 2, 2, 1, 0])


def test_each_layer_in_a_partition_updates_its_parameters_as_alone():
    layer = {"kernel": ParamSpec((8, 4), ("embed", "mlp")), "bias": ParamSpec((4,), ("mlp",))}
    specs = {"layers": stack.specs(layer, 2), "token": ParamSpec((6, 8), ("vocab", "embed"))}
    rule = muon.direction(muon.Config("muon", momentum=0.9), specs)
    parts = optax.partition({"muon": rule, "adam": optax.scale_by_adam()}, map_paths(
        lambda path, spec: "muon" if len(spec.shape) == 2 + is_stacked(spec) and "vocab" not in spec.axes else "adam",
        specs))
    grads, params = updates.values(specs, 1), updates.values(specs, 0)
    whole, adam, split = (each.update(grads, each.init(params), params)[0]
                          for each in (rule, optax.scale_by_adam(), parts))
    np.testing.assert_array_equal(split["layers"]["kernel"], whole["layers"]["kernel"])
    np.testing.assert_array_equal(split["layers"]["bias"], adam["layers"]["bias"])
    np.testing.assert_array_equal(split["token"], adam["token"])


def test_optax_partitions_are_laid_out_and_frozen_with_their_parameters(monkeypatch):
    """A rule of two, as published implementations of Muon are."""
    def direction(config, specs):
        rules = {"matrix": optax.trace(0.9), "other": optax.scale_by_adam()}
        return optax.partition(rules, lambda params: jax.tree.map(
            lambda x: "matrix" if x.ndim == 2 else "other", params))

    monkeypatch.setitem(OPTIMIZERS, "muon", muon.DEFINITION._replace(direction=direction))
    specs = {"encoder": {"kernel": ParamSpec((8, 4), ("embed", "mlp")), "bias": ParamSpec((4,), ("mlp",))}}
    frozen = built(specs, multipliers={"*kernel": 0.0})
    params = updates.values(specs, 0)
    state = frozen.update(updates.values(specs, 1), frozen.init(params), params)[1]
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 2]
    assert len(moments) == 1 and not moments[0].any()
    layouts = optimizers.state_shardings(frozen, specs, make_mesh(2, 2, 2))
    matrices = [layout for layout, leaf in zip(jax.tree.leaves(layouts), jax.tree.leaves(state), strict=True)
                if leaf.ndim == 2]
    assert matrices == [shardings(specs, make_mesh(2, 2, 2))["encoder"]["kernel"]]
