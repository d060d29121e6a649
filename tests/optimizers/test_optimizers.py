"""Properties of optimizers: stacks, patterns, multipliers, layouts and averages."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

from lmrep import optimizers
from lmrep.core.params import ParamSpec, abstract, flatten, map_paths
from lmrep.core.sharding import make_mesh, shardings
from lmrep.layers import linear
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.optimizers import ScheduleConfig, adamw, parameters, sgd
from lmrep.optimizers.base import SKIP, parameter_path
from tests.optimizers.updates import (
    CONSTANT,
    LAYERS,
    STACKED,
    STEPS,
    UNSTACKED,
    every,
    numpy_of,
    train,
    unstack,
    values,
)

# --- stacks -----------------------------------------------------------------------------------------------------


@every
def test_a_stacked_update_equals_the_unstacked_one(config):
    config = dataclasses.replace(config, multipliers={"*/layers/1-3/*": 0.5, "*/layers/3/mlp/*": 0.0})
    params, gradients = values(STACKED, 0), [values(STACKED, i) for i in range(1, STEPS + 1)]
    together, _ = train(config, STACKED, params, gradients)
    apart, _ = train(config, UNSTACKED, unstack(params), [unstack(g) for g in gradients])
    for a, b in zip(numpy_of(map(unstack, together)), numpy_of(apart), strict=True):
        for path in b:
            np.testing.assert_allclose(a[path], b[path], rtol=1e-5, atol=1e-7, err_msg=path)


# --- patterns ---------------------------------------------------------------------------------------------------


def test_patterns_address_parameters_layers_and_ranges_of_layers():
    kernel, bias, token = "encoder/layers/mlp/kernel", "encoder/layers/mlp/bias", "encoder/embedding/token"
    masks = parameters.matches(("*/layers/0-1/mlp/kernel", "*/layers/3/*", "*token"), STACKED)
    assert np.flatnonzero(masks[kernel]).tolist() == [0, 1, 3]
    assert np.flatnonzero(masks[bias]).tolist() == [3]
    assert masks[token].shape == () and masks[token]
    all_layers = parameters.matches(("encoder/layers/mlp/*",), STACKED)
    assert all_layers[kernel].all() and all_layers[bias].all() and not all_layers["encoder/layers/norm/scale"].any()
    assert not any(hit.any() for hit in parameters.matches((), STACKED).values())


def test_the_patterns_of_recipes_may_match_nothing():
    specs = {"encoder": {"kernel": ParamSpec((2, 2), (None, None))}}
    assert parameters.matches(SKIP, specs, optional=SKIP) == {"encoder/kernel": False}
    for recipe in map(optimizers.recipe, optimizers.recipe_rows()):
        optimizers.build(recipe, specs, 100_000)


def test_multipliers_of_several_patterns_multiply():
    factors = parameters.multipliers({"*layers*": 0.5, "*/layers/0/*": 0.5, "*/bias": 4.0}, STACKED)
    np.testing.assert_array_equal(factors["encoder/layers/mlp/bias"], [1.0] + [2.0] * (LAYERS - 1))
    np.testing.assert_array_equal(factors["encoder/layers/mlp/kernel"], [0.25] + [0.5] * (LAYERS - 1))
    np.testing.assert_array_equal(factors["encoder/embedding/token"], 1.0)


def test_a_multiplier_scales_the_update():
    config = adamw.Config("adamw", learning_rate=0.1, schedule=CONSTANT)
    params, gradient = values(STACKED, 0), [values(STACKED, 1)]
    plain = numpy_of(train(config, STACKED, params, gradient)[0])[0]
    scaled = numpy_of(train(dataclasses.replace(config, multipliers={"*/layers/1/*": 0.25}),
                            STACKED, params, gradient)[0])[0]
    for path, start in numpy_of([params])[0].items():
        factor = np.where(np.arange(LAYERS) == 1, 0.25, 1.0).reshape(-1, *[1] * (start.ndim - 1))
        factor = factor if "layers" in path else 1.0
        np.testing.assert_allclose(scaled[path] - start, factor * (plain[path] - start), rtol=1e-4, atol=1e-5)


def state_by_parameter(state):
    """{(place in the state, parameter's path): leaf} of what belongs to a parameter."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    owned = {jax.tree_util.keystr(keys): (parameter_path(keys, flatten(STACKED)), np.asarray(x)) for keys, x in leaves}
    return {key: (path, x) for key, (path, x) in owned.items() if path}


@every
def test_multiplier_zero_changes_no_bit_and_does_not_affect_other_parameters(config):
    """Parameter and moments stay, even under a gradient of NaN; -0.0 stays -0.0; the others move as if it were not."""
    frozen = dataclasses.replace(config, multipliers={"*embedding*": 0.0, "*/layers/1/*": 0.0})
    params = values(STACKED, 0)
    for value in jax.tree.leaves(params):
        value[1, ..., 0] = -0.0
    moments = train(config, STACKED, params, [values(STACKED, 1)])[1]

    @jax.jit
    def one_more(gradient):
        updates, state = optimizers.build(frozen, STACKED, 100).update(gradient, moments, params)
        return optax.apply_updates(params, updates), state

    gradient = values(STACKED, 2)

    def replaced(value):
        """The gradient with this value where nothing moves."""
        return map_paths(lambda path, g: np.where(
            "layers" in path and np.arange(len(g)).reshape(-1, *[1] * (g.ndim - 1)) != 1, g, np.float32(value)),
            gradient)

    poisoned, quiet = replaced(np.nan), replaced(0)
    after, state = one_more(poisoned)
    for path, old in flatten(params).items():
        new, row = np.asarray(flatten(after)[path]), 1 if "layers" in path else ...
        assert new[row].tobytes() == np.asarray(old)[row].tobytes(), path
    before, now = state_by_parameter(moments), state_by_parameter(state)
    assert before.keys() == now.keys() and (before or not any(map(np.ndim, jax.tree.leaves(moments))))
    for key, (path, old) in before.items():
        layer = 1 if "layers" in path else ...
        assert now[key][1][layer].tobytes() == old[layer].tobytes(), key
    jax.tree.map(np.testing.assert_array_equal, after, one_more(quiet)[0])
    kernels = [np.asarray(tree["encoder"]["layers"]["mlp"]["kernel"]) for tree in (params, after)]
    moved = (kernels[0] != kernels[1]).any(axis=(1, 2))
    assert moved.tolist() == [True, False] + [True] * (LAYERS - 2)


# --- config and layout ------------------------------------------------------------------------------------------


@every
def test_moments_have_the_layout_of_their_parameters(config):
    """And those of a stack have the size of those of its layers."""
    mesh = make_mesh()
    optimizer = optimizers.build(config, STACKED, 100)
    layouts = optimizers.state_shardings(optimizer, STACKED, mesh)
    state = jax.jit(optimizer.init, out_shardings=layouts)(values(STACKED, 0))  # the trees fit
    parameters, specs = flatten(shardings(STACKED, mesh)), flatten(STACKED)
    for (keys, layout), leaf in zip(jax.tree_util.tree_leaves_with_path(layouts), jax.tree.leaves(state), strict=True):
        path = parameter_path(keys, specs)
        if path and leaf.shape == specs[path].shape:
            assert layout == parameters[path]
        else:
            assert layout.is_fully_replicated and leaf.ndim <= 2

    def size(specs):
        state = jax.eval_shape(optimizers.build(config, specs, 100).init, abstract(specs))
        return sum(x.size for keys, x in jax.tree_util.tree_leaves_with_path(state) if parameter_path(
            keys, flatten(specs)))

    assert size(STACKED) == size(UNSTACKED)


# --- averages ---------------------------------------------------------------------------------------------------


@every
def test_averages_are_of_the_parameters_after_each_update_and_change_none(config):
    """Adam's own bias correction, written out: a decayed sum from zero over 1 - decay^t. What does not move is itself
    its average; a stack's averages are its layers'."""
    config = dataclasses.replace(config, multipliers={"*/layers/1/*": 0.0})
    averaging = dataclasses.replace(config, ema=0.7)
    start, gradients = values(STACKED, 0), [values(STACKED, i) for i in range(1, 5)]
    history, _ = train(config, STACKED, start, gradients)
    again, state = train(averaging, STACKED, start, gradients)
    jax.tree.map(np.testing.assert_array_equal, again, history)
    weights = np.array([0.3 * 0.7 ** (4 - t) for t in range(1, 5)]) / (1 - 0.7**4)
    average = flatten(optimizers.averaged(history[-1], state))
    assert weights.sum() == pytest.approx(1)
    for path, value in average.items():
        expected = sum(w * np.asarray(flatten(p)[path], np.float64) for w, p in zip(weights, history, strict=True))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=path)
        if "layers" in path:
            np.testing.assert_array_equal(value[1], flatten(start)[path][1])
    layouts = optimizers.state_shardings(optimizers.build(averaging, STACKED, 100), STACKED, make_mesh())
    assert layouts.average == shardings(STACKED, make_mesh())


@every
@pytest.mark.parametrize("changes", [{}, {"ema": 0.7, "multipliers": {"*/layers/2/*": 2.0}}], ids=["", "averages"])
def test_the_factor_of_a_step_is_one_of_its_learning_rate(config, changes):
    """A batch may have one. A factor of two changes no digit, in parameters, moments and averages."""
    config = dataclasses.replace(config, **changes)
    start, gradients = values(STACKED, 0), [values(STACKED, i) for i in range(1, STEPS + 1)]
    scaled = train(config, STACKED, start, gradients, rate_factor=np.float32(2))
    twice = train(dataclasses.replace(config, learning_rate=2 * config.learning_rate), STACKED, start, gradients)
    jax.tree.map(np.testing.assert_array_equal, scaled, twice)


def test_before_the_first_update_the_parameters_are_their_averages():
    """They may have been replaced since the optimizer was made, by those that a run starts from."""
    config = adamw.Config("adamw", ema=0.9)
    state = optimizers.build(config, STACKED, 100).init(values(STACKED, 0))
    params = values(STACKED, 1)
    assert optimizers.averaged(params, state) is params
    history, state = train(config, STACKED, params, [values(STACKED, 2)])
    jax.tree.map(np.testing.assert_array_equal, optimizers.averaged(params, state), history[0])
    plain = optimizers.build(adamw.Config("adamw"), STACKED, 100).init(params)
    assert optimizers.averaged(params, plain) is params


def test_layer_decay_follows_depth():
    """n layers, layer i: decay^(n + 1 - i); embeddings decay^(n + 2); the head 1 (ELECTRA's code)."""
    model = MODELS["transformer"]
    config = dataclasses.replace(model.config(), vocab=11, layers=3, width=8, heads=2, mlp=8)
    specs = {"encoder": model.build(config, Execution(), "model").specs,
             "objective": {"classification": linear.specs(8, 2, (None, None))}}
    factors = parameters.layer_factors(0.8, specs)
    np.testing.assert_allclose(factors["encoder/layers/mlp/in/kernel"], [0.8**4, 0.8**3, 0.8**2], rtol=1e-6)
    np.testing.assert_allclose(factors["encoder/embedding/token"], 0.8**5, rtol=1e-6)
    assert factors["objective/classification/kernel"] == 1
    assert all((factor == 1).all() for factor in parameters.layer_factors(1.0, specs).values())


def test_layer_decay_of_gradients_spares_what_is_in_no_layer():
    """n layers, layer i: decay^(n - 1 - i) times the clipped gradient (XLNet's code); nothing else is scaled."""
    model = MODELS["transformer"]
    config = dataclasses.replace(model.config(), vocab=11, layers=3, width=8, heads=2, mlp=8)
    specs = {"encoder": model.build(config, Execution(), "model").specs,
             "objective": {"classification": linear.specs(8, 2, (None, None))}}
    factors = parameters.gradient_factors(0.75, specs)
    np.testing.assert_allclose(factors["encoder/layers/mlp/in/kernel"], [0.75**2, 0.75, 1], rtol=1e-6)
    assert factors["encoder/embedding/token"] == factors["objective/classification/kernel"] == 1
    rule = sgd.Config("sgd", learning_rate=1.0, weight_decay=0.0, clip=1.0, layer_decay=0.5,
                           layer_decay_of="gradient", schedule=ScheduleConfig("constant"))
    params, grads = values(specs, 1), values(specs, 2)
    optimizer = optimizers.build(rule, specs, 10)
    updates = flatten(jax.jit(lambda: optimizer.update(grads, optimizer.init(params), params)[0])())
    factor = 1 / max(1.0, np.sqrt(sum(np.sum(x.astype(np.float64) ** 2) for x in jax.tree.leaves(grads))))
    for path, scale in parameters.gradient_factors(0.5, specs).items():
        expected = -factor * np.asarray(flatten(grads)[path])
        np.testing.assert_allclose(
            updates[path], expected * scale.reshape(scale.shape + (1,) * (expected.ndim - scale.ndim)), rtol=1e-5)
