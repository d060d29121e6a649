"""Schedules against the formulas of the papers and of their released code."""

import jax
import numpy as np
import pytest

from lmrep import optimizers
from lmrep.optimizers import SCHEDULES, adamw


def config(name, **fields):
    return SCHEDULES[name].config(name, **fields)


def rates(shape, steps, learning_rate=1.0, total=100):
    """Of arrays of one shape, so that few operations are compiled."""
    optimizer = adamw.Config("adamw", learning_rate=learning_rate, schedule=shape)
    return np.array(jax.vmap(optimizers.schedule(optimizer, total))(np.resize(steps, 128)))[: len(steps)]


def test_bert_decays_from_step_zero_and_drops_where_the_warmup_ends():
    peak, warmup, total = 1e-4, 10, 100
    steps = np.arange(total + 1)
    expected = np.where(steps < warmup, peak * steps / warmup, peak * (1 - steps / total))
    got = rates(config("linear", warmup=warmup, decay_from="start"), steps, peak, total)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-11)
    assert got[0] == 0 and got[warmup] == pytest.approx(0.9 * peak) and got[total] == 0


def test_electra_decays_while_it_warms_up():
    steps = np.arange(101)
    got = rates(config("linear", warmup=20, decay_from="both"), steps)
    np.testing.assert_allclose(got, np.minimum(1, steps / 20) * (1 - steps / 100), rtol=1e-5, atol=1e-7)
    steps = np.array([0, 5, 10, 40])
    np.testing.assert_array_equal(rates(config("inverse_sqrt", warmup=10, decay_from="both"), steps),
                                  rates(config("inverse_sqrt", warmup=10), steps))


def test_roberta_reaches_the_peak_and_then_decays_to_zero():
    steps = np.arange(101)
    expected = np.where(steps < 20, steps / 20, (100 - steps) / 80)
    got = rates(config("linear", warmup=20), steps)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)
    assert got[20] == 1 and got[100] == 0


def test_vaswani():
    d, warmup = 512, 4000
    steps = np.array([0, 1, 1999, 4000, 4001, 16000, 300000])
    with np.errstate(divide="ignore"):
        expected = d**-0.5 * np.minimum(steps**-0.5, steps * warmup**-1.5)
    got = rates(config("inverse_sqrt", warmup=warmup), steps, learning_rate=(d * warmup) ** -0.5, total=300000)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert got.max() == pytest.approx(6.99e-4, rel=1e-3)


def test_t5_is_constant_before_it_falls():
    steps = np.array([0, 1, 9999, 10000, 40000, 1000000])
    got = rates(config("inverse_sqrt", warmup=10000, warmup_from=1.0), steps, 0.01, 10**6)
    np.testing.assert_allclose(got, 1 / np.sqrt(np.maximum(steps, 10000)), rtol=1e-5)


def test_inverse_sqrt_ignores_where_other_decays_begin():
    steps = np.arange(50)
    np.testing.assert_array_equal(rates(config("inverse_sqrt", warmup=10, decay_from="start"), steps),
                                  rates(config("inverse_sqrt", warmup=10), steps))


@pytest.mark.parametrize("total", [100, 1000])
def test_slanted_triangular_is_the_formula_of_ulmfit(total):
    """Howard and Ruder (2018), equation 3."""
    peak, cut_frac, ratio = 0.01, 0.1, 32
    cut = np.floor(total * cut_frac)
    for start in range(0, total, 100):
        t = np.arange(start, start + 100)
        p = np.where(t < cut, t / cut, 1 - (t - cut) / (cut * (1 / cut_frac - 1)))
        got = rates(config("slanted_triangular"), t, peak, total)
        np.testing.assert_allclose(got, peak * (1 + p * (ratio - 1)) / ratio, rtol=2e-6)
    ends = np.array([0, cut, total, 2 * total])
    np.testing.assert_allclose(rates(config("slanted_triangular"), ends, peak, total),
                               peak * np.array([1 / 32, 1, 1 / 32, 1 / 32]), rtol=1e-6)


@pytest.mark.parametrize(("div", "cut_div"), [(32, 10), (8, 3), (8, 8)])
@pytest.mark.parametrize("total", [96, 120])
def test_slanted_triangular_is_the_released_code(div, cut_div, total):
    """CircularLR of fastai 0.7, `use_clr=(div, cut_div)`; at the end of 96 steps (32, 10) is below 1/32 there."""
    cut, expected = total // cut_div, []
    for t in range(total):
        pct = 1 - (t - cut) / (cut * (cut_div - 1)) if t > cut else t / cut
        expected.append((1 + max(pct, 0) * (div - 1)) / div)
    got = rates(config("slanted_triangular", ratio=div, cut_fraction=1 / cut_div), np.arange(total), total=total)
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_polynomial_and_cosine_end_at_the_final_fraction():
    steps = np.arange(10, 101)
    left = (100 - steps) / 90
    got = rates(config("polynomial", warmup=10, power=2.0, final=0.1), steps)
    np.testing.assert_allclose(got, 0.1 + 0.9 * left**2, rtol=1e-5)
    got = rates(config("cosine", warmup=10, final=0.1), steps)
    np.testing.assert_allclose(got, 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (1 - left))), rtol=1e-5)


@pytest.mark.parametrize(("shape", "fall"), [
    ("linear", lambda u: 1 - u), ("sqrt", lambda u: 1 - u**0.5), ("cosine", lambda u: 0.5 * (1 + np.cos(np.pi * u)))])
def test_warmup_stable_decay_falls_at_the_end(shape, fall):
    steps = np.arange(101)
    over = np.clip((steps - 82) / 18, 0, 1)  # a fifth of the 90 steps after the warm-up
    got = rates(config("warmup_stable_decay", warmup=10, cooldown_fraction=0.2, cooldown=shape, final=0.1), steps)
    np.testing.assert_allclose(got, np.where(steps < 10, steps / 10, 0.1 + 0.9 * fall(over)), rtol=1e-5, atol=1e-6)


def test_inverse_sqrt_with_a_cool_down_ends_at_zero():
    steps = np.arange(101)
    got = rates(config("inverse_sqrt", warmup=20, cooldown_fraction=0.25), steps)
    with np.errstate(divide="ignore"):
        expected = np.minimum(steps / 20, np.sqrt(20 / steps)) * np.clip((100 - steps) / 20, 0, 1)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_constant_after_warmup():
    np.testing.assert_allclose(rates(config("constant", warmup=4), [0, 1, 2, 4, 100]), [0, 0.25, 0.5, 1, 1])


@pytest.mark.parametrize("name", ["constant", "linear", "polynomial", "cosine", "inverse_sqrt",
                                  "warmup_stable_decay"])
@pytest.mark.parametrize("decay_from", ["warmup", "start", "both"])
def test_without_warmup_the_rate_starts_at_the_peak_and_stays_finite_after_the_end(name, decay_from):
    got = rates(config(name, decay_from=decay_from), [0, 50, 100, 150])
    assert got[0] == 1 and np.isfinite(got).all() and (got >= 0).all()
    if name != "inverse_sqrt":
        assert got[2] == got[3]


def test_warmup_may_take_all_steps():
    assert rates(config("cosine", warmup=100), [100]) == 1
