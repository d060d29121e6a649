"""Optimizers against hand-written NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep import optimizers
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, abstract, stacked
from lmrep.optimizers import adafactor, adamw, lion, muon, sgd
from lmrep.optimizers.schedules import DecayConfig
from tests.optimizers.updates import CONSTANT, STEPS, numpy_of, train, values

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
    schedule = DecayConfig("linear", warmup=2, decay_from="start")

    def reference(name, step, w, g, slot):
        m, v = bert_moments(slot, g)
        update = m / (np.sqrt(v) + 1e-6) + (0.01 * w if name != "bias" else 0)
        return w - 0.1 * (step / 2 if step < 2 else 1 - step / 100) * update

    config = adamw.Config("adamw", learning_rate=0.1, decay_skip=("*bias",), schedule=schedule)
    check_against(reference, config, steps=4)


def test_elmo_adagrad_divides_by_the_root_of_the_sum_of_squares_and_clips_the_scaled_gradient():
    def reference(name, step, w, g, slot):
        slot["v"] = (slot["v"] if step else 1.0) + g**2
        return w - 0.2 * g / np.sqrt(slot["v"])

    config = optimizers.recipe("elmo")
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

    check_against(reference, adamw.Config(
        "adamw", learning_rate=0.1, betas=(0.9, 0.98), bias_correction=True, clip=0.0, schedule=CONSTANT))


def test_stable_adamw_divides_the_rate_of_a_tensor_by_the_rms_of_its_scaled_gradient():
    """As optimi's, with debiased decay rates. Not all rates are clipped, and not none."""
    clipped = []

    def reference(name, step, w, g, slot):
        t = step + 1
        beta1, beta2 = (beta * (1 - beta**step) / (1 - beta**t) for beta in (0.9, 0.98))
        slot["m"] += (1 - beta1) * (g - slot["m"])
        slot["v"] = beta2 * slot["v"] + (1 - beta2) * g**2
        rms = np.sqrt(np.mean(g**2 / np.maximum(slot["v"], 1e-12)))
        clipped.append(rms > 1)
        rate = 0.1 / max(1, rms)
        return w * (1 - rate * (0.3 if name != "bias" else 0)) - rate * slot["m"] / (np.sqrt(slot["v"]) + 1e-6)

    config = dataclasses.replace(optimizers.recipe("stable_adamw"), learning_rate=0.1, weight_decay=0.3,
                                 schedule=CONSTANT)
    check_against(reference, config, steps=20)
    assert 0 < sum(clipped) < len(clipped)


def test_lion_takes_the_sign_of_one_momentum_and_keeps_another():
    def reference(name, step, w, g, slot):
        update, slot["m"] = np.sign(0.9 * slot["m"] + 0.1 * g), 0.99 * slot["m"] + 0.01 * g
        return w - 0.1 * (update + 0.01 * w)

    check_against(reference, lion.Config("lion", learning_rate=0.1, clip=0.0, schedule=CONSTANT), steps=20)


@pytest.mark.parametrize(("scale", "factor"), [("shape", 1.5**0.5), ("rms", 0.2 * 6**0.5)])
def test_muon_orthogonalizes_matrices_and_has_adam_for_the_rest(scale, factor):
    """As the released code: nesterov, five iterations, the kernel here transposed."""
    def reference(name, step, w, g, slot):
        if name == "bias":
            m, v = bert_moments(slot, g, 0.9, 0.95)
            return w - 0.1 * 0.5 * m / (1 - 0.9 ** (step + 1)) / (np.sqrt(v / (1 - 0.95 ** (step + 1))) + 1e-10)
        slot["m"] += 0.05 * (g - slot["m"])
        x = (0.95 * slot["m"] + 0.05 * g).T  # [outputs, inputs], more rows than columns
        x = x.T / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return w - 0.1 * (factor * x + 0.01 * w)

    config = dataclasses.replace(optimizers.recipe("muon"), learning_rate=0.1, schedule=CONSTANT, adam_rate=0.5,
                                 update_scale=scale, matrices=("kernel",))
    check_against(reference, config, steps=20)


def test_muon_refuses_some_layers_of_a_stack():
    specs = {"encoder": {"layers": stacked({"kernel": SPECS["kernel"]}, 3)}}
    with pytest.raises(UserError, match=r"optimizer\.matrices matches encoder/layers/kernel in some layers of a"):
        optimizers.build(muon.Config("muon", matrices=("*/layers/1/*",)), specs, 10)


def test_lamb_trusts_the_norms_but_not_where_decay_is_skipped():
    def reference(name, step, w, g, slot):
        m, v = bert_moments(slot, g)
        update = m / (np.sqrt(v) + 1e-6)
        if name == "bias":
            return w - 0.1 * update
        update = update + 0.01 * w
        return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(update) * update

    check_against(reference, adamw.Config("lamb", learning_rate=0.1, decay_skip=("bias",), schedule=CONSTANT))


def test_lamb_ratio_is_one_where_a_norm_is_zero():
    config = adamw.Config("lamb", learning_rate=0.1, clip=0.0, schedule=CONSTANT)
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

    check_against(reference, adafactor.Config(
        "adafactor", learning_rate=0.1, weight_decay=0.0, clip=0.0, factor_from=factor_from, schedule=CONSTANT))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd(momentum):
    def reference(name, step, w, g, slot):
        slot["m"] = momentum * slot["m"] + g
        return w - 0.1 * (slot["m"] + 0.01 * w)

    check_against(reference, sgd.Config("sgd", learning_rate=0.1, momentum=momentum, clip=0.5, schedule=CONSTANT))


def test_a_small_gradient_is_not_clipped():
    small = values(SPECS, 1, scale=1e-5)
    config = sgd.Config("sgd", learning_rate=0.1, schedule=CONSTANT)
    clipped, free = (train(dataclasses.replace(config, clip=c), SPECS, values(SPECS, 0), [small])[0] for c in (1, 0))
    jax.tree.map(np.testing.assert_array_equal, clipped, free)


def test_schedule_is_the_rate_that_build_uses():
    config = sgd.Config("sgd", learning_rate=0.1, weight_decay=0.0, clip=0.0, schedule=DecayConfig("linear", warmup=2))
    ones = jax.tree.map(lambda s: jnp.ones(s.shape), abstract(SPECS))
    history, _ = train(config, SPECS, jax.tree.map(jnp.zeros_like, ones), [ones] * 4)
    rates = [float(optimizers.schedule(config, 100)(step)) for step in range(4)]
    np.testing.assert_allclose([h["bias"][0] for h in history], -np.cumsum(rates), rtol=1e-6)
