"""Distillation: its losses in closed form, its masks, and what reaches the teacher."""

import dataclasses
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.params import flatten
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import PRESETS, transformer
from lmrep.models.transformer import Config as Network
from lmrep.objectives import OBJECTIVES, causal, distillation, masked, teaching
from lmrep.objectives import causal_distillation as causal_objective
from lmrep.objectives.base import Carry, FrozenPart, Keys
from lmrep.objectives.distillation import Config
from tests import reference
from tests.cases import slow_after

V, B, T, D = 40, 8, 16, 16
SPECIALS = {role: i for i, role in enumerate(("pad", "unk", "cls", "sep", "mask"))}
COUNTS = np.array([0, 3, 50, 50, 0, *(1 + (np.arange(V - 5) % 7) ** 4)])
VOCABULARY = Vocabulary(V, SPECIALS, np.ones(V, bool), COUNTS)
SIZES = Network(vocab=V, width=D, heads=2, mlp=32, max_length=T, token_types=0, dropout=0.0, attention_dropout=0.0)
STUDENT = transformer.build(dataclasses.replace(SIZES, layers=1))
TEACHING = transformer.build(dataclasses.replace(SIZES, layers=1, token_types=2))


def teacher(model=TEACHING, objective=masked, seed=7):
    """A frozen part with random values."""
    built = objective.build(objective.Config(), model, VOCABULARY)
    values = flatten(reference.random_params(built.specs, seed))
    return FrozenPart("teacher", "runs/teacher", built.specs, [], model, built, objective.Config(), values)


def batch(b=B, t=T, seed=0):
    """Sequences of different lengths; the last is empty."""
    rng = np.random.default_rng(seed)
    tokens, lengths = rng.integers(5, V, (b, t)), rng.integers(t // 2, t + 1, b)
    lengths[-1] = 0
    tokens[:, 0] = SPECIALS["cls"]
    real = np.arange(t) < lengths[:, None]
    return {"tokens": np.where(real, tokens, 0).astype(np.int32), "segment_ids": real.astype(np.int32),
            "example": np.where(lengths, np.arange(b), -1).astype(np.int32)}


def keys(b=B, seed=0):
    return Keys(jax.random.split(jax.random.key(seed), b), jax.random.key(seed + 1))


def built(part=None, module=distillation, model=STUDENT, **fields):
    return module.build(module.Config(**fields), model, VOCABULARY, *([{"teacher": part}] if part else []))


def parameters(objective, part, seed=1):
    frozen = {"frozen": {"teacher": P.unflatten(dict(part.values))}} if part else {}
    return reference.random_params(objective.specs, seed) | frozen


def logits(params, tokens, segments, model):
    """(hidden, logits) at all positions, float64."""
    prepared = {"tokens": tokens, "segment_ids": segments}

    @jax.jit
    def run(params):
        hidden = distillation.mlm_head.encode(params, prepared, tokens, model)
        head = params["objective"]["masked"]
        x = distillation.mlm_head.transform(head, hidden, model)
        return hidden, x @ params["encoder"]["embedding"]["token"].T + head["bias"]

    hidden, y = run(params)
    return np.asarray(hidden, np.float64), np.asarray(y, np.float64)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# Losses


@pytest.mark.parametrize(("alphas", "draw", "restrict"), slow_after(1, [
    ((5.0, 2.0, 1.0, 0.3), "sequence", False), ((5.0, 0.0, 0.0, 0.3), "batch", True)]))
def test_the_loss_in_closed_form(alphas, draw, restrict):
    ce, mlm, cos, mse = alphas
    part = teacher()
    objective = built(part, alpha_ce=ce, alpha_mlm=mlm, alpha_cos=cos, alpha_mse=mse, temperature=3.0,
                      restrict_ce_to_mask=restrict, draw=draw)
    params, given = parameters(objective, part), batch()
    prepared = jax.jit(objective.prepare)(keys(), given)
    total, (metrics, _) = jax.jit(lambda p: objective.loss(p, prepared, None, Carry()))(params)

    inputs, real = np.asarray(prepared["inputs"]), given["segment_ids"] > 0
    hs, zs = logits(params, inputs, given["segment_ids"], STUDENT)
    ht, zt = logits(params["frozen"]["teacher"], inputs, given["segment_ids"], TEACHING)
    chosen = np.zeros((B, T), bool)
    for i, j, weight in zip(np.repeat(np.arange(B), prepared["predicted"].shape[1]),
                            np.asarray(prepared["predicted"]).ravel(), np.asarray(prepared["weights"]).ravel(),
                            strict=True):
        chosen[i, j] |= weight > 0
    assert chosen.any() and not (chosen & ~real).any()
    nll = -np.log(np.take_along_axis(softmax(zs), given["tokens"][..., None], -1)[..., 0])
    p, q = softmax(zt / 3.0), softmax(zs / 3.0)
    selected = chosen if restrict else real
    expected = {"mlm_loss": nll[chosen].mean(), "distillation_loss": 9 * (p * np.log(p / q)).sum(-1)[selected].mean(),
                "mse_loss": np.square(zs - zt).sum(-1)[selected].mean(),
                "constant_mse_loss": np.square(zt).sum(-1)[selected].mean(),
                "constant_distillation_loss": 9 * (p * np.log(p / softmax(np.log1p(COUNTS) / 3.0))).sum(-1)[
                    selected].mean(),
                "cosine_loss": (1 - (hs * ht).sum(-1) / np.linalg.norm(hs, axis=-1) / np.linalg.norm(ht, axis=-1))[
                    real].mean()}
    weights = {"mlm_loss": mlm, "distillation_loss": ce, "cosine_loss": cos, "mse_loss": mse}
    assert float(total) == pytest.approx(sum(weights[name] * expected[name] for name in weights), rel=1e-4)
    for name, value in expected.items():
        assert (name in metrics) == bool(weights[name.removeprefix("constant_")] or name == "mlm_loss")
        if name in metrics:
            assert float(metrics[name][0] / metrics[name][1]) == pytest.approx(value, rel=1e-4)
    assert sum(weight * metrics[name][0] / metrics[name][1] for name, weight in objective.terms.items()) == \
        pytest.approx(float(total), rel=1e-5)


def test_a_student_equal_to_its_teacher_has_no_loss_from_it():
    part = teacher(STUDENT)
    objective = built(part, alpha_mlm=0.0, alpha_mse=1.0)
    params = P.unflatten(dict(part.values)) | {"frozen": {"teacher": P.unflatten(dict(part.values))}}
    prepared = jax.jit(objective.prepare)(keys(), batch())
    total, _ = jax.jit(lambda p: objective.loss(p, prepared, None, Carry()))(params)
    assert abs(float(total)) < 1e-4


@pytest.mark.slow
def test_the_loss_in_chunks_is_the_loss_at_once(monkeypatch):
    part = teacher()
    objective = built(part)
    params, prepared = parameters(objective, part), jax.jit(objective.prepare)(keys(), batch())

    def value(params):
        return objective.loss(params, prepared, None, Carry())[0]

    expected = jax.jit(jax.value_and_grad(value))(params)
    monkeypatch.setattr(distillation.teaching.lm_head, "CHUNK_LOGITS", 100)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
                 jax.jit(jax.value_and_grad(lambda params: value(params)))(params), expected)


@pytest.mark.parametrize("module", slow_after(1, [distillation, causal_objective]))
def test_no_gradient_reaches_the_teacher(module):
    part = teacher(objective=causal if module is causal_objective else masked)
    objective = built(part, module, alpha_mse=0.1)
    params, prepared = parameters(objective, part), jax.jit(objective.prepare)(keys(), batch())
    grads = jax.jit(jax.grad(lambda params: objective.loss(params, prepared, None, Carry())[0]))(params)
    assert all(not np.asarray(g).any() for g in jax.tree.leaves(grads.pop("frozen")))
    assert all(np.asarray(g).any() for path, g in flatten(grads).items() if "key/bias" not in path)


@pytest.mark.parametrize("module", [distillation, causal_objective])
@pytest.mark.slow
def test_the_student_has_dropout_and_the_teacher_none(module):
    noisy = transformer.build(dataclasses.replace(SIZES, layers=1, token_types=2, dropout=0.3, attention_dropout=0.3))
    part = teacher(noisy, causal if module is causal_objective else masked)
    with_dropout = transformer.build(dataclasses.replace(SIZES, layers=1, dropout=0.3))
    for student, differs in ((STUDENT, False), (with_dropout, True)):
        objective = built(part, module, student)
        params, prepared = parameters(objective, part), jax.jit(objective.prepare)(keys(), batch())
        loss = jax.jit(lambda key, params=params, prepared=prepared, objective=objective: objective.loss(
            params, prepared, key, Carry())[0])
        assert len({float(loss(jax.random.key(seed))) for seed in range(3)}) == (3 if differs else 1)


def test_the_causal_loss_in_closed_form():
    part = teacher(objective=causal)
    objective = built(part, causal_objective, alpha_mse=0.2)
    params, given = parameters(objective, part), batch()
    prepared = jax.jit(objective.prepare)(keys(), given)
    total, (metrics, _) = jax.jit(lambda p: objective.loss(p, prepared, None, Carry()))(params)

    def of(params, model):
        hidden = jax.jit(lambda p: causal.encode(p, given, model, causal.Config()).hidden)(params)
        y = hidden @ params["encoder"]["embedding"]["token"].T
        return np.asarray(hidden, np.float64), np.asarray(y, np.float64)

    (hs, zs), (ht, zt) = of(params, STUDENT), of(params["frozen"]["teacher"], TEACHING)
    real = given["segment_ids"] > 0
    followed = real & np.pad(real[:, 1:], ((0, 0), (0, 1)))
    nll = -np.log(np.take_along_axis(softmax(zs[:, :-1]), given["tokens"][:, 1:, None], -1)[..., 0])
    p, q = softmax(zt / 2), softmax(zs / 2)
    cosine = (hs * ht).sum(-1) / np.linalg.norm(hs, axis=-1) / np.linalg.norm(ht, axis=-1)
    expected = (2 * nll[followed[:, :-1]].mean() + 5 * 4 * (p * np.log(p / q)).sum(-1)[real].mean()
                + (1 - cosine)[real].mean() + 0.2 * np.square(zs - zt).sum(-1)[real].mean())
    assert float(total) == pytest.approx(expected, rel=1e-4)
    assert metrics["lm_loss"][1] == followed.sum()


def test_a_run_without_its_teacher_is_a_masked_language_model():
    objective = built()
    assert not objective.frozen and objective.terms == {"mlm_loss": 2.0}
    params, prepared = parameters(objective, None), jax.jit(objective.prepare)(keys(), batch())
    total, (metrics, _) = jax.jit(lambda p: objective.loss(p, prepared, None, Carry()))(params)
    assert float(total) == pytest.approx(2 * float(metrics["mlm_loss"][0] / metrics["mlm_loss"][1]), rel=1e-5)
    assert not metrics.keys() & teaching.METRICS.keys()
    assert OBJECTIVES["distillation"].parts(Config()) == ("teacher",)
    assert OBJECTIVES["distillation"].parts(Config(alpha_ce=0.0, alpha_cos=0.0)) == ()


def test_parameter_counts_of_distilbert():
    preset = PRESETS["distilbert_base"]
    model = transformer.build(preset.config)
    specs = distillation.build(Config(), model, Vocabulary(preset.config.vocab, SPECIALS, None, np.zeros(1))).specs
    assert P.count(model.specs) == 66_362_880
    assert P.count(specs) == 66_985_530


# Masks


def masks(c, given, rounds=1):
    drawn = [keys(len(given["tokens"]), seed) for seed in range(rounds)]
    run = jax.jit(jax.vmap(lambda keys: distillation.mask_batch(
        keys, given["tokens"], given["segment_ids"], c=c, vocabulary=VOCABULARY)))
    return list(zip(*jax.device_get(run(jax.tree.map(lambda *each: jnp.stack(each), *drawn))), strict=True))


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_a_batch_has_exactly_the_fraction_of_masks(rate):
    given = batch(32, 64)
    for _, chosen in masks(Config(draw="batch", rate=rate), given, 5):
        assert chosen.sum() == math.ceil(round(rate * (given["segment_ids"] > 0).sum(), 6))
        assert not (chosen & (given["tokens"] < 5)).any()


def test_sequences_have_the_same_expected_number_of_masks():
    given = batch(32, 64)
    lengths = (given["segment_ids"] > 0).sum(-1)
    counts = np.array([chosen.sum(-1) for _, chosen in masks(Config(), given, 200)])
    assert ((counts == np.floor(0.15 * lengths)) | (counts == np.floor(0.15 * lengths) + 1)).all()
    np.testing.assert_allclose(counts.mean(0), 0.15 * lengths, atol=0.15)


def test_the_masks_of_a_sequence_do_not_depend_on_the_others():
    given, other = batch(), batch(seed=1)
    mixed = {name: np.concatenate([given[name][:4], other[name][4:]]) for name in given}
    [(_, one)], [(_, two)] = masks(Config(), given), masks(Config(), mixed)
    np.testing.assert_array_equal(one[:4], two[:4])


@pytest.mark.parametrize("draw", ["sequence", "batch"])
def test_rare_tokens_are_masked_more_often(draw):
    """With one mask in a batch or a sequence, its token's frequency is the weight over the sum of weights."""
    tokens = np.tile(np.arange(5, 15, dtype=np.int32), (400, 1))
    given = {"tokens": tokens, "segment_ids": np.ones_like(tokens)}
    c = Config(draw=draw, rate=0.1)
    if draw == "batch":
        given = {name: value.reshape(1, -1)[:, :10] for name, value in given.items()}
    found = Counter()
    for _, chosen in masks(c, given, 400 if draw == "batch" else 1):
        found.update(given["tokens"][chosen].tolist())
    weights = np.maximum(COUNTS[5:15], 1) ** -0.7
    observed = np.array([found[token] for token in range(5, 15)]) / found.total()
    assert found.total() == 400
    assert np.abs(observed - weights / weights.sum()).max() < 4 * np.sqrt(0.25 / 400)


def test_what_replaces_masked_tokens():
    given = batch(64, 64)
    inputs, chosen = masks(Config(rate=0.9, smoothing=0.0), given)[0]
    np.testing.assert_array_equal(inputs[~chosen], given["tokens"][~chosen])
    shown, own = inputs[chosen], given["tokens"][chosen]
    assert abs((shown == SPECIALS["mask"]).mean() - (0.8 + 0.1 / V)) < 0.03
    assert abs((shown == own).mean() - (0.1 + 0.1 / V)) < 0.03


# Training
