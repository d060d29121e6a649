"""ELECTRA: which tokens are masked, what replaces them, what is predicted, and where gradients flow."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from lmrep.core import params as P
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import lm_head
from lmrep.models import transformer
from lmrep.objectives import mlm_head
from lmrep.objectives import replaced_token as electra
from lmrep.objectives.base import Carry, Keys
from tests import chance, reference
from tests.cases import slow_after

V, T, B = 41, 20, 4
NETWORK = transformer.Config(vocab=V, width=32, embedding=8, layers=1, heads=4, mlp=64, max_length=T, activation="gelu",
                             dropout=0.0, attention_dropout=0.0)
VOCABULARY = Vocabulary(V, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, np.ones(V, bool), np.ones(V, int))
RNG = np.random.default_rng(0)


VARIANTS = slow_after(1, electra.VARIANTS)


def texts(batch_size, t=T, min_length=6):
    """Examples of [CLS] words [SEP] and padding."""
    tokens, segments = np.zeros((batch_size, t), np.int32), np.zeros((batch_size, t), np.int32)
    for row in range(batch_size):
        n = t - row % (t - min_length)
        tokens[row, :n] = [2, *RNG.integers(5, V, n - 2), 3]
        segments[row, :n] = 1
    return {"tokens": tokens, "segment_ids": segments, "example": np.arange(batch_size, dtype=np.int32)}


BATCH = texts(B)


@cache
def build(**fields):
    c = electra.Config(**fields)
    objective = electra.build(c, transformer.build(NETWORK), VOCABULARY)
    return c, objective, reference.random_params(objective.specs, seed=4)


def prepare(objective, batch=BATCH, seed=0):
    batch_size = len(batch["tokens"])
    keys = Keys(jax.random.split(jax.random.key(seed), batch_size), jax.random.key(1))
    return jax.jit(objective.prepare)(keys, batch)


# --- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "encoder", "both", "generator", "joint"), [
    ("electra_small", 13_483_008, 13_549_057, 4_620_026, 14_196_219),
    ("electra_base", 108_891_648, 109_483_009, 33_740_602, 119_386_427),
    ("electra_large", 334_092_288, 335_142_913, 51_295_290, 354_655_291),
    ("electra_small_plus", 13_483_008, 13_549_057, None, 23_122_875),
])
def test_parameters_are_counted_to_the_unit(name, encoder, both, generator, joint):
    from lmrep.models import PRESETS

    config, fraction = PRESETS[name].config, {"electra_base": 0.33333, "electra_small_plus": 1.0}.get(name, 0.25)
    c, model = electra.Config(generator=fraction), transformer.build(config)
    vocabulary = Vocabulary(config.vocab, VOCABULARY.specials, np.ones(config.vocab, bool), np.ones(config.vocab, int))
    specs = electra.build(c, model, vocabulary).specs
    own = specs["objective"]
    assert P.count(specs["encoder"]) == encoder == PRESETS[name].encoder
    assert P.count({**specs, "objective": own["discriminator"]}) == both
    assert P.count(specs) == joint == PRESETS[name].pretraining
    if generator:
        full = electra.generator_as_masked_lm({"encoder": specs["encoder"], "objective": own}, c)["encoder"]
        assert P.count({"encoder": full, "head": own["generator_head"]}) == generator


# --- masking -------------------------------------------------------------------------------------------------


def test_as_many_are_masked_as_in_the_released_code():
    batch = texts(400, t=40)
    _, objective, _ = build()
    prepared = prepare(objective, batch)
    real = (batch["segment_ids"] > 0).sum(1)
    max_predictions = int((0.15 + 0.005) * 40)
    assert prepared["predicted"].shape == (400, max_predictions)
    sampled = (np.asarray(prepared["weights"]) > 0).sum(1)
    assert sampled.tolist() == [max(1, min(max_predictions, round(0.15 * n))) for n in real.tolist()]
    specials = np.isin(np.take_along_axis(batch["tokens"], np.asarray(prepared["predicted"]), 1), [0, 2, 3, 4])
    assert not specials[np.asarray(prepared["weights"]) > 0].any()
    assert float(prepared["weights"].sum()) == pytest.approx(1)


def test_positions_are_drawn_with_replacement_and_uniformly():
    batch = {name: np.repeat(value[:1], 4000, 0) for name, value in texts(1).items()}
    _, objective, _ = build(rate=0.3)
    prepared = prepare(objective, batch)
    positions = np.asarray(prepared["predicted"])  # 6 of 18 each
    assert (np.asarray(prepared["weights"]) > 0).all()
    assert chance.uniform(np.bincount(positions.ravel(), minlength=T)[1:-1]) > chance.REJECT
    repeated = sum(len(set(row)) < len(row) for row in positions.tolist())
    rate = 1 - np.prod(1 - np.arange(6) / 18)
    assert chance.rates([repeated], 4000, rate) > chance.REJECT and chance.rates([repeated], 4000, 0.0) < chance.REJECT
    _, without, _ = build(rate=0.3, with_replacement=False)
    positions = np.asarray(prepare(without, batch)["predicted"])
    assert all(len(set(row)) == len(row) for row in positions.tolist())


@pytest.mark.parametrize("fields", [{}, {"mask": 0.8, "keep": 0.1, "random": 0.1}])
def test_the_inputs_of_the_generator(fields):
    batch = {name: np.repeat(value[:1], 6000, 0) for name, value in texts(1).items()}
    c, objective, _ = build(**fields)
    prepared = prepare(objective, batch)
    inputs, tokens = np.asarray(prepared["inputs"]), batch["tokens"]
    positions = np.asarray(prepared["predicted"])
    # a position drawn twice has two chances
    drawn_once = np.array([[list(row).count(p) == 1 for p in row] for row in positions])
    shown, own = (np.take_along_axis(x, positions, 1)[drawn_once] for x in (inputs, tokens))
    counts = [(shown == 4).sum(), (shown == own).sum(), ((shown != 4) & (shown != own)).sum()]
    by_chance = c.random / V  # a random word may be [MASK], or the text's own
    assert chance.fits(counts, [c.mask + by_chance, c.keep + by_chance, c.random - 2 * by_chance]) > chance.REJECT
    assert chance.fits(counts, [0.7, 0.2, 0.1]) < chance.REJECT
    untouched = np.ones(inputs.shape, bool)
    np.put_along_axis(untouched, positions, False, 1)
    assert (inputs == tokens)[untouched].all()


# --- replacement ---------------------------------------------------------------------------------------


def test_sampled_tokens_have_the_generators_distribution():
    rng = np.random.default_rng(1)
    table, x = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=(1, 1, 3)).astype(np.float32)
    bias = rng.normal(size=7).astype(np.float32)
    n = 40_000
    seeds, sample = jax.random.bits(jax.random.key(3), (1, n)), jax.jit(
        lm_head.cross_entropy_and_sample, static_argnums=5)
    for temperature in (1.0, 2.5):
        _, _, words = sample({"bias": bias}, table, np.repeat(x, n, 1), np.zeros((1, n), np.int32), seeds, temperature)
        logits = (x[0, 0].astype(np.float64) @ table.T + bias) / temperature
        counts, expected = np.bincount(np.asarray(words)[0], minlength=7), np.exp(log_softmax(logits))
        assert chance.fits(counts, expected) > chance.REJECT
        assert chance.fits(counts, np.exp(log_softmax(logits * 1.2))) < chance.REJECT


def test_a_sampled_token_equal_to_the_original_is_not_replaced():
    _, objective, _ = build()
    prepared = prepare(objective)
    targets = prepared["targets"]
    words = jnp.where(jnp.arange(targets.shape[1]) % 2, targets, (targets + 1) % V)
    replaced_tokens = np.asarray(electra.replace(prepared, words))
    hidden = np.zeros(replaced_tokens.shape, bool)
    for b, m in zip(*np.nonzero(np.asarray(prepared["weights"])), strict=True):
        hidden[b, prepared["predicted"][b, m]] = True
    assert (replaced_tokens == BATCH["tokens"])[~hidden].all() and (replaced_tokens != BATCH["tokens"]).any()


@pytest.mark.slow
def test_a_position_drawn_twice_has_one_sampled_token():
    c, objective, params = build(rate=0.6)
    prepared = prepare(objective)
    generator = transformer.build(NETWORK).make_generator(0.25)
    _, _, words = jax.jit(lambda p: electra.generate(p, prepared, None, c, generator))(params)
    for positions, sampled in zip(np.asarray(prepared["predicted"]), np.asarray(words), strict=True):
        assert all(len(set(sampled[positions == position])) == 1 for position in set(positions))


# --- the loss ---------------------------------------------------------------------------------------------------------


def intermediate_values(c, objective, params, batch):
    """(found, generator nats [b, m], words, hidden of the encoder [b, t, d]) by the functions that are tested above."""
    model = transformer.build(NETWORK)

    @jax.jit
    def f(params, batch):
        nll, _, words = electra.generate(params, batch, None, c, model.make_generator(c.generator))
        replaced_tokens = electra.replace(batch, words)
        return nll, replaced_tokens, mlm_head.encode(params, batch, replaced_tokens, model)

    return [np.asarray(x) for x in f(params, batch)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_is_that_of_the_paper(variant):
    c, objective, params = build(variant=variant, generator_weight=0.7, weight=11.0)
    batch = prepare(objective)
    total, (metrics, _) = jax.jit(lambda p: objective.loss(p, batch, None, Carry()))(params)
    nll, replaced_tokens, hidden = intermediate_values(c, objective, params, batch)
    weights, real = np.asarray(batch["weights"]), BATCH["segment_ids"] > 0
    expected = 0.7 * (nll * weights).sum()
    replaced = replaced_tokens != BATCH["tokens"]
    p = reference.float64(params)["objective"]
    gelu = reference.ACTIVATIONS["gelu"]
    if variant in ("electra", "electra_15"):
        own = p["discriminator"]
        y = reference.linear(own["out"], gelu(reference.linear(own["transform"], hidden)))[..., 0]
        terms = -np.where(replaced, np.log(expit(y)), np.log(expit(-y)))
        classified = real.copy()
        if variant == "electra_15":
            classified[:] = False
            for b, m in zip(*np.nonzero(weights), strict=True):
                classified[b, batch["predicted"][b, m]] = True
        expected += 11.0 * terms[classified].mean()
        assert float(metrics["discriminator_loss"][1]) == classified.sum()
        correct = ((y > 0) == replaced) & classified
        assert int(metrics["replaced_accuracy"][0]) == (correct & replaced).sum()
        assert int(metrics["original_accuracy"][0]) == (correct & ~replaced).sum()
    else:
        x = gelu(reference.linear(p["masked"]["transform"], hidden))
        x = reference.layer_norm(p["masked"]["norm"], x, NETWORK.norm_eps)
        table = np.asarray(params["encoder"]["embedding"]["token"], np.float64)
        logs = log_softmax(x @ table.T + p["masked"]["bias"], -1)
        own = np.take_along_axis(logs, BATCH["tokens"][..., None], -1)[..., 0]
        if variant == "replace_mlm":
            target_log_probabilities = np.take_along_axis(own, np.asarray(batch["predicted"]), 1)
            expected += -(target_log_probabilities * weights).sum()
        else:
            gate = expit(reference.linear(p["copy"], hidden)[..., 0])
            terms = -np.log(gate * ~replaced + (1 - gate) * np.exp(own))
            expected += terms[real].mean()
    assert float(total) == pytest.approx(expected, rel=2e-5)
    assert int(metrics["replaced_fraction"][0]) == (replaced & real).sum()


def test_no_gradient_passes_through_the_samples_and_tied_tables_get_both():
    _, objective, params = build()
    batch = prepare(objective)

    @jax.jit
    def gradient(params, generator_weight, weight):
        c = electra.Config(generator_weight=generator_weight, weight=weight)
        objective = electra.build(c, transformer.build(NETWORK), VOCABULARY)
        return jax.grad(lambda p: objective.loss(p, batch, None, Carry())[0])(params)

    only_encoder, only_generator, both = (
        P.flatten(gradient(params, *weights)) for weights in ((0.0, 50.0), (1.0, 0.0), (1.0, 50.0)))
    for path, g in only_encoder.items():  # the encoder's loss has no gradient in the generator
        assert np.any(g) != path.startswith("objective/generator"), path
    for path, g in only_generator.items():
        shared = path.startswith(("encoder/embedding/", "encoder/embedding_norm/"))
        assert np.any(g) == (shared or path.startswith("objective/generator")), path
    for path, g in both.items():
        np.testing.assert_allclose(g, only_encoder[path] + only_generator[path], rtol=1e-3, atol=1e-5)


def test_disentangled_sharing_gives_each_table_the_gradient_of_its_network():
    """As without sharing, where the encoder's table is the sum of both. At the start they are equal."""
    _, separate, params = build(tie="none")
    model = transformer.build(replace(NETWORK, embedding_delta=True))
    shared = electra.build(electra.Config(tie="tokens"), model, VOCABULARY)
    token, delta, own = "encoder/embedding/token", "encoder/embedding/delta", "objective/generator/embedding/token"
    flat = P.flatten(params)
    tables = {token: flat[own], delta: flat[token] - flat[own]}
    given = {path: flat[path] for path in flat if path != own} | tables
    assert given.keys() == P.flatten(shared.specs).keys()
    batch = prepare(separate)
    (loss, _), gradients = jax.jit(jax.value_and_grad(
        lambda p: shared.loss(p, batch, None, Carry()), has_aux=True))(P.unflatten(given))
    (expected, _), theirs = jax.jit(jax.value_and_grad(
        lambda p: separate.loss(p, batch, None, Carry()), has_aux=True))(params)
    assert loss == pytest.approx(float(expected), rel=1e-5)
    gradients, theirs = P.flatten(gradients), P.flatten(theirs)
    theirs |= {token: theirs.pop(own), delta: theirs[token]}
    for path, g in gradients.items():
        np.testing.assert_allclose(g, theirs[path], rtol=1e-3, atol=1e-5, err_msg=path)
    start = P.flatten(P.init(shared.specs, jax.random.key(0)))
    assert not start[delta].any() and start[token].any()


@pytest.mark.parametrize(("tie", "own"), [
    ("tokens", {"position", "token_type"}), ("none", {"token", "position", "token_type"})])
@pytest.mark.slow
def test_tied_parameters_of_generator_and_encoder(tie, own):
    _, objective, params = build(tie=tie)
    specs = objective.specs["objective"]["generator"]
    assert set(specs.get("embedding", {})) == own and ("embedding_norm" in specs) == (tie != "all")
    total, _ = jax.jit(lambda p: objective.loss(p, prepare(objective), None, Carry()))(params)
    assert np.isfinite(total)


# --- predictions ------------------------------------------------------------------------------------------------


def token_probabilities(p, hidden, table):
    """Softmax over the vocabulary by a masked-LM head in float64, [b, t, v]."""
    x = reference.ACTIVATIONS["gelu"](reference.linear(p["transform"], np.asarray(hidden, np.float64)))
    x = reference.layer_norm(p["norm"], x, NETWORK.norm_eps)
    return softmax(x @ np.asarray(table, np.float64).T + p["bias"], -1)


def encode(params, model, tokens):
    return np.asarray(jax.jit(lambda p: mlm_head.encode({"encoder": p}, BATCH, tokens, model))(params))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_replaced_token_probability_is_that_of_the_encoder(variant):
    _, objective, params = build(variant=variant)
    predicted = np.asarray(jax.jit(objective.predict)(params, BATCH)["replaced"])
    hidden = encode(params["encoder"], transformer.build(NETWORK), BATCH["tokens"])
    p, gelu = reference.float64(params)["objective"], reference.ACTIVATIONS["gelu"]
    if "discriminator" in p:
        own = p["discriminator"]
        expected = expit(reference.linear(own["out"], gelu(reference.linear(own["transform"], hidden)))[..., 0])
    else:
        probability_of_token = token_probabilities(p["masked"], hidden, params["encoder"]["embedding"]["token"])
        probability_of_token = np.take_along_axis(probability_of_token, BATCH["tokens"][..., None], -1)[..., 0]
        gate = expit(reference.linear(p["copy"], hidden)[..., 0]) if "copy" in p else 0
        expected = 1 - (gate + (1 - gate) * probability_of_token)
    assert predicted.shape == BATCH["tokens"].shape and predicted.std() > 1e-3
    np.testing.assert_allclose(predicted, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_masks_are_filled_by_the_generator_or_by_an_encoder_that_predicts_tokens(variant):
    c, objective, params = build(variant=variant)
    tokens, positions = BATCH["tokens"].copy(), np.array([[2, 4], [1, 0], [3, 2], [4, 4]], np.int32)
    for row, each in enumerate(positions):
        tokens[row, each[each > 0]] = VOCABULARY.specials["mask"]
    predicted = jax.jit(objective.predict, static_argnames="k")(
        params, BATCH | {"tokens": tokens, "predicted": positions}, k=3)
    model = transformer.build(NETWORK)
    generator_params, p = electra.generator_as_masked_lm(params, c)["encoder"], reference.float64(params)["objective"]

    def at(x):
        return np.take_along_axis(x, positions[..., None], 1)

    table = params["encoder"]["embedding"]["token"]
    hidden = at(encode(generator_params, model.make_generator(c.generator), tokens))
    expected = token_probabilities(p["generator_head"], hidden, table)
    if variant in ("replace_mlm", "all_tokens_mlm"):
        replaced_tokens = tokens.copy()
        for row, each in enumerate(positions):
            replaced_tokens[row, each[each > 0]] = expected[row, each > 0].argmax(-1)  # only [MASK] is replaced
        hidden = at(encode(params["encoder"], model, replaced_tokens))
        expected = token_probabilities(p["masked"], hidden, table)
        if variant == "all_tokens_mlm":
            gate = expit(reference.linear(p["copy"], hidden))
            expected = gate * np.eye(V)[np.take_along_axis(replaced_tokens, positions, 1)] + (1 - gate) * expected
    order = np.argsort(-expected, -1)[..., :3]
    np.testing.assert_array_equal(predicted["words"], order)
    np.testing.assert_allclose(predicted["probabilities"], np.take_along_axis(expected, order, -1), rtol=0, atol=2e-5)


def test_the_loss_of_copying_all_tokens_but_a_constant_share():
    counts, tokens = np.array([0, 3, 1]), jnp.array([[1, 2, 1]])
    found = electra.copying_loss(tokens, jnp.array([[False, True, True]]), electra.Config(), counts)
    np.testing.assert_allclose(found, -np.log([[0.85, 0.15 / 4, 0.15 * 3 / 4]]), rtol=1e-6)
