"""Masked next-token prediction beside causal language modelling: what each prediction sees, the shares of both, the
rates of the masks, and the scores of a model that was trained with both."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.objectives import causal, masked, masked_next_token
from lmrep.objectives.base import Carry, EvaluationKeys, Keys
from lmrep.training.step import evaluation_step, fewest_targets, prepare_keys
from tests.objectives import toys
from tests.objectives.toys import CLS, MASK, PAD, SEP, VOCABULARY
from tests.reference import random_params

B, T = 8, 16
RNG = np.random.default_rng(0)
TEXTS = [toys.example(T, ([*RNG.integers(5, 20, 5)],), ([*RNG.integers(5, 20, 3 + i % 3)],)) for i in range(B)]
BATCH = toys.batch(TEXTS)
KEYS = Keys(jax.random.split(jax.random.key(1), B), jax.random.key(2))


@functools.cache
def objective(**fields):
    return toys.jitted(masked_next_token.build(masked_next_token.Config(**fields), toys.model(), VOCABULARY))


@functools.cache
def params(stddev=0.2):
    return random_params(objective().specs, seed=3, stddev=stddev)


def prepared(step=0, keys=Keys, batch=BATCH, **fields):
    return jax.device_get(objective(**fields).prepare(keys(KEYS.per_example, KEYS.shared, jnp.int32(step)), batch))


def losses(batch, share=0.5, key=None):
    """The cross-entropy at each position [b, t] of a prepared batch of training, apart from its weights."""
    def total(weights):
        return objective(share=share).loss(params(), batch | {"weights": weights}, key, Carry())[0]

    return np.asarray(jax.jit(jax.jacobian(total))(batch["weights"]))


# What a prediction sees


def test_a_masked_token_is_predicted_before_it_from_both_sides_and_a_causal_one_from_the_left():
    """Replacing the input at any one position changes the losses that may depend on it, and no other."""
    batch = prepared(share=0.5, rate=0.4, mask=1, keep=0, random=0)
    segments, is_masked, at = batch["segment_ids"], batch["is_masked"], np.arange(T)
    before = losses(batch)
    assert (batch["inputs"][is_masked] == MASK).any() and (batch["inputs"][~is_masked] != MASK).all()
    for position in range(T - 3):
        inputs = batch["inputs"].copy()
        inputs[:, position] = np.where(inputs[:, position] == 6, 7, 6)
        changed = (np.abs(losses(batch | {"inputs": inputs}) - before) > 1e-7) & (segments > 0)
        sees = (segments == segments[:, position][:, None]) & (segments > 0) & (is_masked[:, None] | (at >= position))
        np.testing.assert_array_equal(changed, sees)


def test_the_token_that_is_predicted_is_no_input():
    """Another token under a mask, or after a causal position, changes the target and no input that it depends on."""
    batch = prepared(share=0.5, rate=0.4, mask=1, keep=0, random=0)
    used, at = batch["weights"] > 0, np.minimum(np.arange(T) + 1, T - 1)
    tokens, inputs = batch["tokens"][:, at], batch["inputs"][:, at]
    np.testing.assert_array_equal(batch["targets"][used], tokens[used])
    assert (inputs[used & batch["is_masked"][:, None]] == MASK).all()
    # a text that differs in masked tokens alone is the same input
    hidden = batch["inputs"] == MASK
    other = prepared(share=0.5, rate=0.4, mask=1, keep=0, random=0,
                     batch=BATCH | {"tokens": np.where(hidden, 9, BATCH["tokens"]).astype(np.int32)})
    np.testing.assert_array_equal(other["inputs"], batch["inputs"])


def test_special_tokens_padding_and_first_tokens_are_not_predicted_under_masks():
    batch = prepared(share=1.0, rate=1.0, mask_specials=True)
    targets = batch["tokens"][:, 1:][batch["weights"][:, :-1] > 0]
    assert CLS not in targets and PAD not in targets and SEP in targets  # [CLS] is the first of each segment
    targets = prepared(share=1.0, rate=1.0)
    targets = targets["tokens"][:, 1:][targets["weights"][:, :-1] > 0]
    assert not {CLS, SEP, PAD} & {*targets.tolist()}


# Shares


@pytest.mark.parametrize(("share", "b", "number"), [
    (0.5, 8, 4), (0.75, 8, 6), (0.9375, 16, 15), (0.9375, 8, 7), (0.1, 4, 1), (0.9375, 2, 1)])
def test_each_batch_has_the_share_of_masked_examples_in_other_rows_at_each_step(share, b, number):
    batch = {name: np.resize(x, (b, *x.shape[1:])) for name, x in BATCH.items()}
    keys = jax.random.split(jax.random.key(0), b)
    prepare = jax.jit(lambda step: objective(share=share).prepare(Keys(keys, keys[0], step), batch))
    steps = [jax.device_get(prepare(jnp.int32(step))) for step in range(b)]
    assert {int(each["is_masked"].sum()) for each in steps} == {number}
    assert set(sum(each["is_masked"].astype(int) for each in steps)) == {number}  # of each row in b steps
    for each in steps[:2]:
        of_masked = each["weights"][each["is_masked"]].sum()
        assert (of_masked, each["weights"].sum()) == pytest.approx((share, 1.0), rel=1e-5)


@pytest.mark.parametrize(("share", "kinds"), [(0.5, "-x-x-x-x"), (0.75, "-xxx-xxx"), (0.2, "----x----x")])
def test_steps_of_both_kinds_alternate(share, kinds):
    """In one program; all examples of a batch are of one kind, and their mean is the loss."""
    built = masked_next_token.build(masked_next_token.Config(share=share, mixing="steps"), toys.model(), VOCABULARY)

    @jax.jit
    def run(step):
        batch = built.prepare(prepare_keys(built, BATCH, 0, step), BATCH)
        total, (metrics, _) = built.loss(params(), batch, jax.random.key(0), Carry())
        return batch, total, metrics, fewest_targets(built, metrics)

    for step, kind in enumerate(kinds):
        batch, total, metrics, targets = jax.device_get(run(jnp.int32(step)))
        assert batch["is_masked"].tolist() == [kind == "x"] * B
        used, unused = ("mntp", "lm") if kind == "x" else ("lm", "mntp")
        mean = metrics[f"{used}_loss"].sum / metrics[f"{used}_loss"].count
        assert total == pytest.approx(mean, rel=1e-5) and metrics[f"{unused}_loss"] == (0, 0)
        assert targets == metrics[f"{used}_loss"].count == (batch["weights"] > 0).sum() > 0
        assert (batch["inputs"] == batch["tokens"]).all() or kind == "x"
    assert run._cache_size() == 1


def test_the_share_of_masked_steps_is_exact_at_any_step():
    for share, part, whole in ((0.5, 1, 2), (0.9375, 15, 16), (0.3, 3, 10), (1e-4, 1, 10_000), (0.9999, 9999, 10_000)):
        steps = jnp.arange(whole) + 2_000_000_000 // whole * whole + 3 - whole
        chosen = np.asarray(masked_next_token.is_masked_step(steps, share))
        assert chosen.sum() == part
        if part > 1:  # evenly: no two runs of a kind differ by more than one
            assert np.ptp(np.diff(np.flatnonzero(chosen))) <= 1


def test_a_batch_of_alternating_steps_without_targets_has_none():
    built = objective(share=0.5, mixing="steps", rate=0.4)
    empty = BATCH | {"segment_ids": np.zeros_like(BATCH["segment_ids"])}
    for step in (0, 1):
        batch = built.prepare(KEYS._replace(step=jnp.int32(step)), empty)
        assert fewest_targets(built, built.loss(params(), batch, None, Carry())[1][0]) == 0


def test_a_share_of_0_is_causal_language_modelling():
    plain = toys.jitted(causal.build(causal.Config(head="transform"), toys.model(), VOCABULARY))
    mine = objective(share=0.0)
    assert jax.tree.structure(mine.specs) == jax.tree.structure(plain.specs) and mine.terms == plain.terms
    results = []
    for each in (plain, mine):
        gradient = jax.jit(jax.grad(each.loss, has_aux=True))
        results.append(gradient(params(), each.prepare(KEYS, BATCH), jax.random.key(5), Carry()))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_a_share_of_1_trains_masked_examples_alone():
    batch = prepared(share=1.0, rate=0.4)
    total, (metrics, _) = jax.device_get(objective(share=1.0).loss(params(), batch, None, Carry()))
    assert {"mntp_loss", "mntp_accuracy", "most_frequent_accuracy"} == metrics.keys()
    assert total == pytest.approx(metrics["mntp_loss"][0] / metrics["mntp_loss"][1], rel=1e-5)
    assert objective(share=1.0).uses.next_token is None and "is_masked" not in batch


def test_the_loss_weighs_the_means_of_both_kinds():
    batch = prepared(share=0.75, rate=0.4)
    total, (metrics, _) = jax.device_get(objective(share=0.75).loss(params(), batch, None, Carry()))
    means = {name: value / count for name, (value, count) in metrics.items()}
    assert total == pytest.approx(0.75 * means["mntp_loss"] + 0.25 * means["lm_loss"], rel=1e-5)
    assert objective(share=0.75).terms == {"mntp_loss": 0.75, "lm_loss": 0.25}


def test_z_loss_is_added_in_training_alone():
    batch = prepared(share=0.5)
    plain, with_z = (objective(share=0.5, **fields) for fields in ({}, {"z_loss": 10.0}))
    key = jax.random.key(0)
    assert with_z.loss(params(), batch, None, Carry())[0] == plain.loss(params(), batch, None, Carry())[0]
    first, second = (each.loss(params(), batch, key, Carry()) for each in (plain, with_z))
    assert second[0] > first[0] + 1
    jax.tree.map(np.testing.assert_array_equal, first[1], second[1])  # the metrics


@pytest.mark.parametrize("built", [
    lambda z: masked.build(masked.Config(z_loss=z), toys.model(), VOCABULARY),
    lambda z: causal.build(causal.Config(z_loss=z, head="transform"), toys.model(), VOCABULARY)],
    ids=["masked", "causal"])
def test_z_loss_of_other_objectives(built):
    """It grows with its factor, in training alone, and leaves the cross-entropy as it is."""
    def total(z, key):
        each = toys.jitted(built(z))
        return jax.device_get(each.loss(random_params(each.specs, 3, 0.2), each.prepare(KEYS, BATCH), key, Carry()))

    (plain, metrics), (once, of_once), (twice, _) = (total(z, jax.random.key(0)) for z in (0.0, 0.01, 0.02))
    assert once - plain > 0.01 and twice - plain == pytest.approx(2 * (once - plain), rel=1e-3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), metrics, of_once)
    assert total(0.02, None)[0] == total(0.0, None)[0]


# Rates


FALLING = {"rate": 0.9, "final_rate": 0.3, "rate_steps": 6}


@pytest.mark.parametrize("build", [
    lambda **fields: toys.jitted(toys.objective(**fields)), lambda **fields: objective(share=1.0, **fields),
], ids=["masked", "masked_next_token"])
@pytest.mark.parametrize("count", ["round", "floor"])
def test_a_rate_falls_linearly_and_is_fixed_on_validation(build, count):
    long = toys.batch([toys.example(102, ([*RNG.integers(5, 20, 100)],)) for _ in range(B)])

    def number(step, keys=Keys, **fields):
        batch = build(count=count, **FALLING | fields).prepare(
            keys(KEYS.per_example, KEYS.shared, jnp.int32(step)), long)
        return (np.asarray(batch["weights"]) > 0).sum(1)

    for step, rate in ((0, 0.9), (2, 0.7), (3, 0.6), (6, 0.3), (1000, 0.3)):
        assert np.abs(number(step) - rate * 102).max() <= 1, step
    for fields, rate in (({}, 0.3), ({"evaluation_rate": 0.5}, 0.5)):
        first, later = (number(step, EvaluationKeys, **fields) for step in (0, 1000))
        np.testing.assert_array_equal(first, later)
        assert np.abs(first - rate * 102).max() <= 1


def test_a_rate_that_does_not_change_masks_as_before():
    """Bit for bit, at any step; a rate that has fallen masks as that rate, but for rounding."""
    plain, fell = (toys.objective(**fields) for fields in ({"rate": 0.3}, {"rate": 0.6, "final_rate": 0.3,
                                                                          "rate_steps": 5}))
    first, later, last = (jax.device_get(each.prepare(KEYS._replace(step=jnp.int32(step)), BATCH))
                          for each, step in ((plain, 0), (plain, 9), (fell, 9)))
    jax.tree.map(np.testing.assert_array_equal, first, later)
    np.testing.assert_array_equal(first["inputs"], last["inputs"])


@pytest.mark.parametrize(("fields", "named"), [
    ({"final_rate": 0.1}, r"rate_steps is 0"), ({"rate_steps": 5}, r"final_rate is 0"),
    ({"final_rate": 0.1, "rate_steps": 5, "masking": "static"}, "masking=static")])
@pytest.mark.parametrize("module", [masked, masked_next_token])
def test_fields_of_a_rate_that_do_not_fit_are_refused(module, fields, named):
    with pytest.raises(UserError, match=named):
        module.DEFINITION.check(module.Config(**fields))


def test_static_masks_are_refused():
    with pytest.raises(UserError, match=r"objective\.masking is static"):
        masked_next_token.DEFINITION.check(masked_next_token.Config(masking="static"))


def test_a_resumed_run_draws_what_the_step_says():
    """The prepared batch of a step is a function of the seed and the step, in a program that is compiled anew."""
    def at(step):
        built = masked_next_token.build(masked_next_token.Config(share=0.5, **FALLING), toys.model(), VOCABULARY)
        return jax.device_get(jax.jit(lambda step: built.prepare(prepare_keys(built, BATCH, 3, step), BATCH))(
            jnp.int32(step)))

    first, again, later = at(4), at(4), at(5)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert (first["inputs"] != later["inputs"]).any() and (first["is_masked"] != later["is_masked"]).any()


# Validation


def test_validation_predicts_every_example_in_both_ways_and_does_not_depend_on_the_step():
    first, later, by_steps = (prepared(step, EvaluationKeys, share=0.75, mixing=mixing, **FALLING)
                              for step, mixing in ((0, "examples"), (1000, "examples"), (1, "steps")))
    jax.tree.map(np.testing.assert_array_equal, first, later)
    jax.tree.map(np.testing.assert_array_equal, first, by_steps)
    assert (first["weights"].sum(1) > 0).all() and (first["causal_weights"].sum(1) > 0).all()
    metrics, _ = jax.jit(functools.partial(evaluation_step, objective=objective(share=0.75, **FALLING), seed=0))(
        params(), BATCH, Carry())
    plain = toys.jitted(causal.build(causal.Config(head="transform"), toys.model(), VOCABULARY))
    expected, _ = jax.jit(functools.partial(evaluation_step, objective=plain, seed=0))(params(), BATCH, Carry())
    np.testing.assert_allclose(metrics["lm_loss"], expected["lm_loss"], rtol=1e-5)


# Uses


IDS, WORDS = np.array([[CLS, 5, 20, 9, SEP]], np.int32), np.array([[-1, 0, 0, 1, -1]])


def scores(name, ids, words, share=0.5):
    found = objective(share=share).uses.scorings[name]
    views = found.views(ids, words)
    batch = {"tokens": views.tokens, "segment_ids": np.ones_like(views.tokens), "predicted": views.predicted,
             "targets": views.targets}
    return views, np.asarray(found.log_probabilities(params(), batch))


def test_scores_are_those_of_single_predictions():
    """Of masked tokens by `predict`, and of next tokens by `causal`."""
    views, by_mask = scores("pll", IDS, WORDS)
    assert views.predicted.tolist() == [[0], [1], [2]] and views.targets.tolist() == [[5], [20], [9]]
    for position, value in zip((1, 2, 3), by_mask[:, 0], strict=True):
        batch = {"tokens": np.where(np.arange(5) == position, MASK, IDS), "segment_ids": np.ones_like(IDS),
                 "predicted": np.array([[position]])}
        found = objective(share=0.5).predict(params(), batch, k=VOCABULARY.size)
        assert np.log(found["probabilities"][0, 0][found["words"][0, 0] == IDS[0, position]]) == pytest.approx(
            value, abs=1e-4)
    views, from_left = scores("log_probability", IDS, WORDS)
    assert views.predicted.tolist() == [[0, 1, 2]] and views.targets.tolist() == [[5, 20, 9]]
    plain = causal.build(causal.Config(head="transform"), toys.model(), VOCABULARY).uses.scorings["log_probability"]
    expected = plain.log_probabilities(params(), {
        "tokens": IDS, "segment_ids": np.ones_like(IDS), "predicted": views.predicted, "targets": views.targets})
    np.testing.assert_allclose(from_left, expected, rtol=1e-4)


def test_a_first_token_is_not_scored():
    ids, words = np.array([[5, 20, 9]], np.int32), np.array([[0, 0, 1]])
    for name, targets in (("pll", [[20], [9]]), ("log_probability", [[20, 9]])):
        views, values = scores(name, ids, words)
        assert views.targets.tolist() == targets and (views.predicted >= 0).all() and np.isfinite(values).all()


def test_a_score_that_was_not_trained_is_none():
    assert [*objective(share=0.0).uses.scorings] == ["log_probability"]
    assert [*objective(share=1.0).uses.scorings] == ["pll", "pll_word_l2r"]


def test_a_mask_that_is_the_first_token_is_refused(monkeypatch):
    capability = masked_next_token.DEFINITION.capabilities[0]
    monkeypatch.setattr(masked_next_token.prompts, "tokenize_masked", lambda *_: [np.array([MASK, 5])])
    run = SimpleNamespace(tokenizer=SimpleNamespace(vocabulary=VOCABULARY), model=toys.model(), special_tokens=([], []),
                          directory="runs/mine")
    with pytest.raises(UserError, match=r"'\[MASK\] cats' begins with a mask, and runs/mine"):
        capability.predict(run, ["[MASK] cats"], capability.options(), None)


def test_held_out_tokens_are_the_masked_ones():
    batch = prepared(share=0.5, rate=0.4, mask=1, keep=0, random=0)
    found = objective(share=0.5, rate=0.4, mask=1, keep=0, random=0).uses.held_out(batch)
    used = np.asarray(found.targets) >= 0
    at = np.take_along_axis(batch["inputs"], np.asarray(found.positions), 1)
    assert (at[used] == MASK).all() and used.sum() == (batch["inputs"] == MASK).sum()
    tokens = np.take_along_axis(batch["tokens"], np.asarray(found.positions), 1)
    np.testing.assert_array_equal(tokens[used], np.asarray(found.targets)[used])


def test_descriptions_show_both_kinds():
    class Names:
        def id_to_token(self, token):
            return {CLS: "[CLS]", SEP: "[SEP]", MASK: "[MASK]"}.get(token, f"w{token}")

    batch = prepared(share=0.5, rate=0.4, mask=1, keep=0, random=0)
    texts = objective(share=0.5).uses.describe(batch, Names())
    assert [text.startswith("[masked] ") for text in texts] == batch["is_masked"].tolist()
    assert all(("-> [MASK]}" in text) == is_masked for text, is_masked in zip(texts, batch["is_masked"], strict=True))


def test_a_network_that_reads_the_left_alone_is_refused_unless_the_share_is_0():
    network = toys.model()._replace(conditions_on=frozenset({"left"}))
    for share in (0.5, 1.0):
        with pytest.raises(UserError, match="masked_next_token"):
            masked_next_token.build(masked_next_token.Config(share=share), network, VOCABULARY)
    masked_next_token.build(masked_next_token.Config(share=0.0), network, VOCABULARY)
