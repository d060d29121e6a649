"""Optimizers against hand-written NumPy, and properties of stacks, patterns, multipliers and layouts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, abstract, flatten, map_paths, stacked, unflatten
from lmrep.core.sharding import make_mesh, shardings
from lmrep.layers import linear
from lmrep.layers.stack import Execution
from lmrep.models import MODELS
from lmrep.training import optimizers, schedules
from lmrep.training.optimizers import Config

LAYERS, STEPS = 8, 3
CONSTANT = schedules.Config("constant")
LAYER = {
    "mlp": {"kernel": ParamSpec((4, 6), ("embed", "mlp")), "bias": ParamSpec((6,), ("mlp",))},
    "norm": {"scale": ParamSpec((4,), (None,))},
}
TOKEN = {"token": ParamSpec((10, 4), ("vocab", "embed"))}
STACKED = {"encoder": {"embedding": TOKEN, "layers": stacked(LAYER, LAYERS)}}
UNSTACKED = {"encoder": {"embedding": TOKEN, "layers": {str(i): LAYER for i in range(LAYERS)}}}
CONFIGS = {
    "adamw": Config(decay_skip=("*/bias", "*norm/*", "*/layers/2/*")),
    "adamw_corrected": Config(betas=(0.9, 0.98), bias_correction=True, clip=0.0),
    "lamb": Config("lamb", decay_skip=("*/bias", "*norm/*", "*/layers/2/*"), weight_decay=0.1),
    "adafactor": Config("adafactor", factor_from=4),
    "adafactor_unfactored": Config("adafactor", parameter_scale=False),
    "adagrad": Config("adagrad"),
    "sgd": Config("sgd", momentum=0.9),
}
every = pytest.mark.parametrize("config", [
    dataclasses.replace(c, learning_rate=0.1, schedule=CONSTANT) for c in CONFIGS.values()], ids=CONFIGS)


def values(specs, seed, scale=1.0):
    """Random arrays, of very different size from layer to layer and tensor to tensor."""
    def draw(path, spec):
        rng = np.random.default_rng([seed, *path.encode()])
        sizes = np.logspace(-2, 2, spec.shape[0]).reshape(-1, *[1] * (len(spec.shape) - 1))
        return jnp.asarray(scale * sizes * rng.normal(size=spec.shape), jnp.float32)
    return map_paths(draw, specs)


def unstack(tree):
    """A tree as STACKED in the shape of UNSTACKED."""
    leaves = {}
    for path, x in flatten(tree).items():
        head, stack, tail = path.partition("/layers/")
        leaves.update({f"{head}/layers/{i}/{tail}": x[i] for i in range(LAYERS)} if stack else {path: x})
    return unflatten(leaves)


def train(config, specs, params, gradients):
    """Parameters after each update, and the last state."""
    optimizer = optimizers.build(config, specs, 100)
    state, history = optimizer.init(params), []
    update = jax.jit(optimizer.update)
    for grads in gradients:
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return history, state


def numpy_of(history):
    return [{path: np.asarray(x) for path, x in flatten(p).items()} for p in history]


# --- closed forms -----------------------------------------------------------------------------------------------


SPECS = {"kernel": ParamSpec((4, 6), (None, None)), "bias": ParamSpec((6,), (None,))}


def check_against(reference, config, steps=STEPS, rtol=1e-5):
    """`reference(name, step, w, g, slots) -> w` in float64 must give the parameters that `config` does."""
    params, gradients = values(SPECS, 0), [values(SPECS, i) for i in range(1, steps + 1)]
    history, _ = train(config, SPECS, params, gradients)
    w = {k: np.asarray(x, np.float64) for k, x in params.items()}
    slots = {k: {"m": np.zeros(x.shape), "v": np.zeros(x.shape)} for k, x in w.items()}
    for step, (got, grads) in enumerate(zip(numpy_of(history), gradients, strict=True)):
        g = {k: np.asarray(x, np.float64) for k, x in grads.items()}
        if config.clip:
            norm = np.sqrt(sum((x**2).sum() for x in g.values()))
            assert norm > config.clip  # or clipping is not tested
            g = {k: x * config.clip / norm for k, x in g.items()}
        w = {k: reference(k, step, w[k], g[k], slots[k]) for k in w}
        for k in w:
            np.testing.assert_allclose(got[k], w[k], rtol=rtol, atol=1e-6)


def bert_moments(slot, g, beta1=0.9, beta2=0.999):
    slot["m"] = beta1 * slot["m"] + (1 - beta1) * g
    slot["v"] = beta2 * slot["v"] + (1 - beta2) * g**2
    return slot["m"], slot["v"]


def test_bert_adam_weight_decay():
    """No bias correction; decay inside the rate, not on biases; clip 1.0; rate 0 at the first step of warm-up."""
    schedule = schedules.Config("linear", warmup=2, decay_from="start")

    def reference(name, step, w, g, slot):
        m, v = bert_moments(slot, g)
        update = m / (np.sqrt(v) + 1e-6) + (0.01 * w if name != "bias" else 0)
        return w - 0.1 * (step / 2 if step < 2 else 1 - step / 100) * update

    check_against(reference, Config(learning_rate=0.1, decay_skip=("*bias",), schedule=schedule), steps=4)


def test_elmo_adagrad_divides_by_the_root_of_the_sum_of_squares_and_clips_the_scaled_gradient():
    def reference(name, step, w, g, slot):
        slot["v"] = (slot["v"] if step else 1.0) + g**2
        return w - 0.2 * g / np.sqrt(slot["v"])

    config = optimizers.RECIPES["elmo"]
    check_against(reference, dataclasses.replace(config, clip=3.0))
    params, gradients = values(SPECS, 0), [values(SPECS, 1, scale=1e-3)]
    (after,), _ = train(config, SPECS, params, gradients)  # not clipped
    for name, g in gradients[0].items():
        expected = params[name] - 0.2 * 20 * g / np.sqrt(1 + (20 * g) ** 2)
        np.testing.assert_allclose(after[name], expected, rtol=1e-5, atol=1e-7)


def test_roberta_adamw_is_bias_corrected_decays_everything_and_does_not_clip():
    def reference(name, step, w, g, slot):
        m, v = bert_moments(slot, g, 0.9, 0.98)
        corrected = m / (1 - 0.9 ** (step + 1)) / (np.sqrt(v / (1 - 0.98 ** (step + 1))) + 1e-6)
        return w - 0.1 * (corrected + 0.01 * w)

    check_against(reference, Config(learning_rate=0.1, betas=(0.9, 0.98), bias_correction=True, clip=0.0,
                                    schedule=CONSTANT))


def test_lamb_trusts_the_norms_but_not_where_decay_is_skipped():
    def reference(name, step, w, g, slot):
        m, v = bert_moments(slot, g)
        update = m / (np.sqrt(v) + 1e-6)
        if name == "bias":
            return w - 0.1 * update
        update = update + 0.01 * w
        return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(update) * update

    check_against(reference, Config("lamb", learning_rate=0.1, decay_skip=("bias",), schedule=CONSTANT))


def test_lamb_ratio_is_one_where_a_norm_is_zero():
    config = Config("lamb", learning_rate=0.1, clip=0.0, schedule=CONSTANT)
    zero, gradient = jax.tree.map(jnp.zeros_like, values(SPECS, 0)), values(SPECS, 1)
    moved = train(config, SPECS, zero, [gradient])[0][0]
    adam = train(dataclasses.replace(config, name="adamw"), SPECS, zero, [gradient])[0][0]
    jax.tree.map(np.testing.assert_array_equal, moved, adam)
    still = train(dataclasses.replace(config, weight_decay=0.0), SPECS, values(SPECS, 0), [zero])[0][0]
    jax.tree.map(np.testing.assert_array_equal, still, values(SPECS, 0))


@pytest.mark.parametrize("factor_from", [4, 5])
def test_t5_adafactor(factor_from):
    """Shazeer and Stern's algorithms 4 (factored) and 5; the kernel is 4 by 6."""
    def reference(name, step, w, g, slot):
        beta, square = 1 - (step + 1.0) ** -0.8, g**2 + 1e-30
        if name == "kernel" and factor_from <= 4:
            slot["r"] = beta * slot.get("r", 0) + (1 - beta) * square.sum(1)
            slot["c"] = beta * slot.get("c", 0) + (1 - beta) * square.sum(0)
            v = np.outer(slot["r"], slot["c"]) / slot["r"].sum()
        else:
            slot["v"] = v = beta * slot["v"] + (1 - beta) * square
        update = g / np.sqrt(v)
        update = update / max(1, np.sqrt(np.mean(update**2)))
        return w - 0.1 * max(1e-3, np.sqrt(np.mean(w**2))) * update

    check_against(reference, Config("adafactor", learning_rate=0.1, weight_decay=0.0, clip=0.0,
                                    factor_from=factor_from, schedule=CONSTANT))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd(momentum):
    def reference(name, step, w, g, slot):
        slot["m"] = momentum * slot["m"] + g
        return w - 0.1 * (slot["m"] + 0.01 * w)

    check_against(reference, Config("sgd", learning_rate=0.1, momentum=momentum, clip=0.5, schedule=CONSTANT))


def test_a_small_gradient_is_not_clipped():
    small = values(SPECS, 1, scale=1e-5)
    config = Config("sgd", learning_rate=0.1, schedule=CONSTANT)
    clipped, free = (train(dataclasses.replace(config, clip=c), SPECS, values(SPECS, 0), [small])[0] for c in (1, 0))
    jax.tree.map(np.testing.assert_array_equal, clipped, free)


def test_schedule_is_the_rate_that_build_uses():
    config = Config("sgd", learning_rate=0.1, weight_decay=0.0, clip=0.0, schedule=schedules.Config(warmup=2))
    ones = jax.tree.map(lambda s: jnp.ones(s.shape), abstract(SPECS))
    history, _ = train(config, SPECS, jax.tree.map(jnp.zeros_like, ones), [ones] * 4)
    rates = [float(optimizers.schedule(config, 100)(step)) for step in range(4)]
    np.testing.assert_allclose([h["bias"][0] for h in history], -np.cumsum(rates), rtol=1e-6)


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
    masks = optimizers.matches(("*/layers/2-4/mlp/kernel", "*/layers/7/*", "*token"), STACKED)
    assert np.flatnonzero(masks[kernel]).tolist() == [2, 3, 4, 7]
    assert np.flatnonzero(masks[bias]).tolist() == [7]
    assert masks[token].shape == () and masks[token]
    all_layers = optimizers.matches(("encoder/layers/mlp/*",), STACKED)
    assert all_layers[kernel].all() and all_layers[bias].all() and not all_layers["encoder/layers/norm/scale"].any()
    assert not any(hit.any() for hit in optimizers.matches((), STACKED).values())


@pytest.mark.parametrize("pattern", ["*/biases", ".*/bias", "encoder/layer/*",
                                     "*/layers/8/*", "*/layers/5-8/*", "*/layers/5-2/*"])
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    for field in (dict(decay_skip=(pattern,)), dict(multipliers={pattern: 0.5})):
        with pytest.raises(UserError, match=r"matches no parameter.*encoder/embedding/token") as error:
            optimizers.build(Config(**field), STACKED, 100)
        assert f"optimizer.{next(iter(field))}" in str(error.value)


def test_the_patterns_of_recipes_may_match_nothing():
    specs = {"encoder": {"kernel": ParamSpec((2, 2), (None, None))}}
    assert optimizers.matches(optimizers.SKIP, specs, optional=optimizers.SKIP) == {"encoder/kernel": False}
    for recipe in optimizers.RECIPES.values():
        optimizers.build(recipe, specs, 100_000)


def test_multipliers_of_several_patterns_multiply():
    factors = optimizers.multipliers({"*layers*": 0.5, "*/layers/0/*": 0.5, "*/bias": 4.0}, STACKED)
    np.testing.assert_array_equal(factors["encoder/layers/mlp/bias"], [1.0] + [2.0] * (LAYERS - 1))
    np.testing.assert_array_equal(factors["encoder/layers/mlp/kernel"], [0.25] + [0.5] * (LAYERS - 1))
    np.testing.assert_array_equal(factors["encoder/embedding/token"], 1.0)


def test_a_multiplier_scales_the_update():
    config = Config(learning_rate=0.1, schedule=CONSTANT)
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
    owned = {jax.tree_util.keystr(keys): (optimizers._parameter_path(keys), np.asarray(x)) for keys, x in leaves}
    return {key: (path, x) for key, (path, x) in owned.items() if path}


@every
def test_multiplier_zero_changes_no_bit_and_does_not_affect_other_parameters(config):
    """Parameter and moments stay, even under a gradient of NaN; -0.0 stays -0.0; the others move as if it were not."""
    frozen = dataclasses.replace(config, multipliers={"*embedding*": 0.0, "*/layers/1/*": 0.0})
    params = values(STACKED, 0)
    params = map_paths(lambda path, p: p.at[1, ..., 0].set(-0.0), params)
    moments = train(config, STACKED, params, [values(STACKED, 1)])[1]

    @jax.jit
    def one_more(gradient):
        updates, state = optimizers.build(frozen, STACKED, 100).update(gradient, moments, params)
        return optax.apply_updates(params, updates), state

    gradient = values(STACKED, 2)
    poisoned = map_paths(lambda path, g: g.at[1].set(jnp.nan) if "layers" in path else g * jnp.nan, gradient)
    quiet = map_paths(lambda path, g: g.at[1].set(0.0) if "layers" in path else g * 0.0, gradient)
    after, state = one_more(poisoned)
    for path, old in flatten(params).items():
        new, row = np.asarray(flatten(after)[path]), 1 if "layers" in path else ...
        assert new[row].tobytes() == np.asarray(old)[row].tobytes(), path
    before, now = state_by_parameter(moments), state_by_parameter(state)
    assert before.keys() == now.keys() and (before or config.name == "sgd")
    for key, (path, old) in before.items():
        layer = 1 if "layers" in path else ...
        assert now[key][1][layer].tobytes() == old[layer].tobytes(), key
    jax.tree.map(np.testing.assert_array_equal, after, one_more(quiet)[0])
    kernels = [np.asarray(tree["encoder"]["layers"]["mlp"]["kernel"]) for tree in (params, after)]
    moved = (kernels[0] != kernels[1]).any(axis=(1, 2))
    assert moved.tolist() == [True, False] + [True] * (LAYERS - 2)


# --- config and layout ------------------------------------------------------------------------------------------


def test_betas_must_be_two():
    with pytest.raises(UserError, match="expected two numbers"):
        optimizers.build(Config(betas=(0.9,)), SPECS, 100)


@every
def test_moments_have_the_layout_of_their_parameters(config):
    mesh = make_mesh()
    optimizer = optimizers.build(config, STACKED, 100)
    layouts = optimizers.state_shardings(optimizer, STACKED, mesh)
    state = jax.jit(optimizer.init, out_shardings=layouts)(values(STACKED, 0))  # the trees fit
    parameters, specs = flatten(shardings(STACKED, mesh)), flatten(STACKED)
    moments = 0
    for (keys, layout), leaf in zip(jax.tree_util.tree_leaves_with_path(layouts), jax.tree.leaves(state), strict=True):
        path = optimizers._parameter_path(keys)
        if path and leaf.shape == specs[path].shape:
            assert layout == parameters[path]
            moments += leaf.size
        else:
            assert layout.is_fully_replicated and leaf.ndim <= 2
    scalars = sum(np.prod(s.shape) for s in specs.values())
    factored = sum(np.prod(s.shape) for path, s in specs.items() if "bias" not in path and "norm" not in path)
    assert moments == {"adamw": 2 * scalars, "lamb": 2 * scalars, "sgd": scalars, "adagrad": scalars,
                       "adafactor": scalars - factored if config.factor_from <= 4 else scalars}[config.name]


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


def test_before_the_first_update_the_parameters_are_their_averages():
    """They may have been replaced since the optimizer was made, by those that a run starts from."""
    config = Config(ema=0.9)
    state = optimizers.build(config, STACKED, 100).init(values(STACKED, 0))
    params = values(STACKED, 1)
    assert optimizers.averaged(params, state) is params
    history, state = train(config, STACKED, params, [values(STACKED, 2)])
    jax.tree.map(np.testing.assert_array_equal, optimizers.averaged(params, state), history[0])
    plain = optimizers.build(Config(), STACKED, 100).init(params)
    assert optimizers.averaged(params, plain) is params


def test_layer_decay_follows_depth():
    """n layers, layer i: decay^(n + 1 - i); embeddings decay^(n + 2); the head 1 (ELECTRA's code)."""
    model = MODELS["transformer"]
    config = dataclasses.replace(model.config(), vocab=11, layers=3, width=8, heads=2, mlp=8)
    specs = {"encoder": model.build(config, Execution(), "model").specs,
             "objective": {"classification": linear.specs(8, 2, (None, None))}}
    factors = optimizers.layer_factors(0.8, specs)
    np.testing.assert_allclose(factors["encoder/layers/mlp/in/kernel"], [0.8**4, 0.8**3, 0.8**2], rtol=1e-6)
    np.testing.assert_allclose(factors["encoder/embedding/token"], 0.8**5, rtol=1e-6)
    assert factors["objective/classification/kernel"] == 1
    assert all((factor == 1).all() for factor in optimizers.layer_factors(1.0, specs).values())


def test_layer_decay_of_gradients_spares_what_is_in_no_layer():
    """n layers, layer i: decay^(n - 1 - i) times the clipped gradient (XLNet's code); nothing else is scaled."""
    model = MODELS["transformer"]
    config = dataclasses.replace(model.config(), vocab=11, layers=3, width=8, heads=2, mlp=8)
    specs = {"encoder": model.build(config, Execution(), "model").specs,
             "objective": {"classification": linear.specs(8, 2, (None, None))}}
    factors = optimizers.gradient_factors(0.75, specs)
    np.testing.assert_allclose(factors["encoder/layers/mlp/in/kernel"], [0.75**2, 0.75, 1], rtol=1e-6)
    assert factors["encoder/embedding/token"] == factors["objective/classification/kernel"] == 1
    rule = Config(name="sgd", learning_rate=1.0, weight_decay=0.0, clip=1.0, layer_decay=0.5, layer_decay_of="gradient",
                  schedule=schedules.Config("constant"))
    params, grads = values(specs, 1), values(specs, 2)
    optimizer = optimizers.build(rule, specs, 10)
    updates = flatten(optimizer.update(grads, optimizer.init(params), params)[0])
    factor = 1 / max(1.0, float(optax.tree.norm(grads)))
    for path, scale in optimizers.gradient_factors(0.5, specs).items():
        expected = -factor * np.asarray(flatten(grads)[path])
        np.testing.assert_allclose(
            updates[path], expected * scale.reshape(scale.shape + (1,) * (expected.ndim - scale.ndim)), rtol=1e-5)
