"""ELECTRA: which tokens are hidden, what stands in their place, what is asked, and where gradients flow."""

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

V, T, B = 41, 20, 4
NETWORK = transformer.Config(vocab=V, width=32, embedding=8, layers=2, heads=4, mlp=64, max_length=T, activation="gelu",
                             dropout=0.0, attention_dropout=0.0)
VOCABULARY = Vocabulary(V, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, np.ones(V, bool), np.ones(V, int))
RNG = np.random.default_rng(0)


def texts(rows, t=T, shortest=6):
    """Rows of [CLS] words [SEP] and padding."""
    tokens, segments = np.zeros((rows, t), np.int32), np.zeros((rows, t), np.int32)
    for row in range(rows):
        n = t - row % (t - shortest)
        tokens[row, :n] = [2, *RNG.integers(5, V, n - 2), 3]
        segments[row, :n] = 1
    return {"tokens": tokens, "segment_ids": segments, "example": np.arange(rows, dtype=np.int32)}


BATCH = texts(B)


def asked(**fields):
    c = electra.Config(**fields)
    objective = electra.build(c, transformer.build(NETWORK), VOCABULARY)
    return c, objective, reference.random_params(objective.specs, seed=4)


def question(objective, batch=BATCH, seed=0):
    rows = len(batch["tokens"])
    return jax.jit(objective.prepare)(Keys(jax.random.split(jax.random.key(seed), rows), jax.random.key(1)), batch)


# --- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "encoder", "both", "generator", "joint"), [
    ("electra_small", 13_483_008, 13_549_057, 4_620_026, 14_196_219),
    ("electra_base", 108_891_648, 109_483_009, 33_740_602, 119_386_427),
    ("electra_large", 334_092_288, 335_142_913, 51_295_290, 354_655_291),
    ("electra_small_plus", 13_483_008, 13_549_057, None, 23_122_875),
])
def test_parameters_are_counted_to_the_unit(name, encoder, both, generator, joint):
    from lmrep.models import PRESETS

    config, share = PRESETS[name].config, {"electra_base": 0.33333, "electra_small_plus": 1.0}.get(name, 0.25)
    c, model = electra.Config(generator=share), transformer.build(config)
    vocabulary = Vocabulary(config.vocab, VOCABULARY.specials, np.ones(config.vocab, bool), np.ones(config.vocab, int))
    specs = electra.build(c, model, vocabulary).specs
    own = specs["objective"]
    assert P.count(specs["encoder"]) == encoder == PRESETS[name].encoder
    assert P.count({**specs, "objective": own["discriminator"]}) == both
    assert P.count(specs) == joint == PRESETS[name].pretraining
    if generator:
        whole = electra.generator_params({"encoder": specs["encoder"], "objective": own}, c)
        assert P.count({"encoder": whole, "head": own["generator_head"]}) == generator


# --- what is hidden -------------------------------------------------------------------------------------------------


def test_as_many_are_hidden_as_the_released_code_hides():
    batch = texts(400, t=40)
    _, objective, _ = asked()
    found = question(objective, batch)
    real = (batch["segment_ids"] > 0).sum(1)
    most = int((0.15 + 0.005) * 40)
    assert found["predicted"].shape == (400, most)
    drawn = (np.asarray(found["weights"]) > 0).sum(1)
    assert drawn.tolist() == [max(1, min(most, round(0.15 * n))) for n in real.tolist()]
    specials = np.isin(np.take_along_axis(batch["tokens"], np.asarray(found["predicted"]), 1), [0, 2, 3, 4])
    assert not specials[np.asarray(found["weights"]) > 0].any()
    assert float(found["weights"].sum()) == pytest.approx(1)


def test_positions_are_drawn_with_replacement_and_uniformly():
    batch = {name: np.repeat(value[:1], 4000, 0) for name, value in texts(1).items()}
    _, objective, _ = asked(rate=0.3)
    found = question(objective, batch)
    places = np.asarray(found["predicted"])  # 6 of 18 each
    assert (np.asarray(found["weights"]) > 0).all()
    assert chance.uniform(np.bincount(places.ravel(), minlength=T)[1:-1]) > chance.REJECT
    twice = sum(len(set(row)) < len(row) for row in places.tolist())
    rate = 1 - np.prod(1 - np.arange(6) / 18)
    assert chance.rates([twice], 4000, rate) > chance.REJECT and chance.rates([twice], 4000, 0.0) < chance.REJECT
    _, without, _ = asked(rate=0.3, with_replacement=False)
    places = np.asarray(question(without, batch)["predicted"])
    assert all(len(set(row)) == len(row) for row in places.tolist())


@pytest.mark.parametrize("fields", [{}, {"mask": 0.8, "keep": 0.1, "random": 0.1}])
def test_what_the_generator_sees_of_them(fields):
    batch = {name: np.repeat(value[:1], 6000, 0) for name, value in texts(1).items()}
    c, objective, _ = asked(**fields)
    found = question(objective, batch)
    inputs, tokens = np.asarray(found["inputs"]), batch["tokens"]
    places = np.asarray(found["predicted"])
    single = np.array([[list(row).count(p) == 1 for p in row] for row in places])  # a place drawn twice has two chances
    shown, own = (np.take_along_axis(x, places, 1)[single] for x in (inputs, tokens))
    counts = [(shown == 4).sum(), (shown == own).sum(), ((shown != 4) & (shown != own)).sum()]
    luck = c.random / V  # a random word may be [MASK], or the text's own
    assert chance.fits(counts, [c.mask + luck, c.keep + luck, c.random - 2 * luck]) > chance.REJECT
    assert chance.fits(counts, [0.7, 0.2, 0.1]) < chance.REJECT
    untouched = np.ones(inputs.shape, bool)
    np.put_along_axis(untouched, places, False, 1)
    assert (inputs == tokens)[untouched].all()


# --- what stands in their place ---------------------------------------------------------------------------------------


def test_the_generator_s_words_have_its_distribution():
    rng = np.random.default_rng(1)
    table, x = rng.normal(size=(7, 3)).astype(np.float32), rng.normal(size=(1, 1, 3)).astype(np.float32)
    bias = rng.normal(size=7).astype(np.float32)
    n = 40_000
    seeds = jax.random.bits(jax.random.key(3), (1, n))
    for temperature in (1.0, 2.5):
        _, _, words = lm_head.cross_entropy_and_sample(
            {"bias": bias}, table, jnp.repeat(x, n, 1), jnp.zeros((1, n), jnp.int32), seeds, temperature)
        scores = (x[0, 0].astype(np.float64) @ table.T + bias) / temperature
        found, shares = np.bincount(np.asarray(words)[0], minlength=7), np.exp(log_softmax(scores))
        assert chance.fits(found, shares) > chance.REJECT
        assert chance.fits(found, np.exp(log_softmax(scores * 1.2))) < chance.REJECT


def test_a_token_that_the_generator_guessed_counts_as_the_text_s_own():
    _, objective, params = asked()
    found = question(objective)
    table = params["encoder"]["embedding"]["token"]
    words = jnp.where(jnp.arange(found["predicted"].shape[1]) % 2, found["targets"], (found["targets"] + 1) % V)
    shown = np.asarray(electra.replace(found, words))
    hidden = np.zeros(shown.shape, bool)
    for b, m in zip(*np.nonzero(np.asarray(found["weights"])), strict=True):
        hidden[b, found["predicted"][b, m]] = True
    assert (shown == BATCH["tokens"])[~hidden].all() and (shown != BATCH["tokens"]).any() and table is not None


def test_a_position_drawn_twice_has_one_word():
    c, objective, params = asked(rate=0.6)
    found = question(objective)
    generator = transformer.build(NETWORK).make_generator(0.25)
    _, _, words = jax.jit(lambda p: electra.generate(p, found, None, c, generator))(params)
    for places, drawn in zip(np.asarray(found["predicted"]), np.asarray(words), strict=True):
        assert all(len(set(drawn[places == place])) == 1 for place in set(places))


# --- the loss ---------------------------------------------------------------------------------------------------------


def parts(c, objective, params, batch):
    """(found, generator nats [b, m], words, hidden of the encoder [b, t, d]) by the functions that are tested above."""
    model = transformer.build(NETWORK)

    @jax.jit
    def f(params, batch):
        nats, _, words = electra.generate(params, batch, None, c, model.make_generator(c.generator))
        shown = electra.replace(batch, words)
        return nats, shown, mlm_head.encode(params, batch, shown, model)

    return [np.asarray(x) for x in f(params, batch)]


@pytest.mark.parametrize("variant", electra.VARIANTS)
def test_the_loss_is_that_of_the_paper(kind):
    c, objective, params = asked(variant=kind, generator_weight=0.7, weight=11.0)
    batch = question(objective)
    total, (metrics, _) = jax.jit(lambda p: objective.loss(p, batch, None, Carry()))(params)
    nats, shown, hidden = parts(c, objective, params, batch)
    weights, real = np.asarray(batch["weights"]), BATCH["segment_ids"] > 0
    expected = 0.7 * (nats * weights).sum()
    replaced = shown != BATCH["tokens"]
    p = reference.float64(params)["objective"]
    gelu = reference.ACTIVATIONS["gelu"]
    if kind in ("electra", "electra_15"):
        own = p["discriminator"]
        y = reference.linear(own["out"], gelu(reference.linear(own["transform"], hidden)))[..., 0]
        each = -np.where(replaced, np.log(expit(y)), np.log(expit(-y)))
        over = real.copy()
        if kind == "electra_15":
            over[:] = False
            for b, m in zip(*np.nonzero(weights), strict=True):
                over[b, batch["predicted"][b, m]] = True
        expected += 11.0 * each[over].mean()
        assert float(metrics["discriminator_loss"][1]) == over.sum()
        right = ((y > 0) == replaced) & over
        assert int(metrics["replaced_accuracy"][0]) == (right & replaced).sum()
        assert int(metrics["original_accuracy"][0]) == (right & ~replaced).sum()
    else:
        x = gelu(reference.linear(p["masked"]["transform"], hidden))
        x = reference.layer_norm(p["masked"]["norm"], x, NETWORK.norm_eps)
        table = np.asarray(params["encoder"]["embedding"]["token"], np.float64)
        logs = log_softmax(x @ table.T + p["masked"]["bias"], -1)
        own = np.take_along_axis(logs, BATCH["tokens"][..., None], -1)[..., 0]
        if kind == "replace_mlm":
            asked_ = np.take_along_axis(own, np.asarray(batch["predicted"]), 1)
            expected += -(asked_ * weights).sum()
        else:
            gate = expit(reference.linear(p["copy"], hidden)[..., 0])
            each = -np.log(gate * ~replaced + (1 - gate) * np.exp(own))
            expected += each[real].mean()
    assert float(total) == pytest.approx(expected, rel=2e-5)
    assert int(metrics["replaced_fraction"][0]) == (replaced & real).sum()


def test_no_gradient_passes_through_the_choice_and_shared_tables_get_both():
    _, objective, params = asked()
    batch = question(objective)

    @jax.jit
    def gradient(params, generator_weight, weight):
        _, objective, _ = asked(generator_weight=generator_weight, weight=weight)
        return jax.grad(lambda p: objective.loss(p, batch, None, Carry())[0])(params)

    only_encoder, only_generator, both = (
        P.flatten(gradient(params, *weights)) for weights in ((0.0, 50.0), (1.0, 0.0), (1.0, 50.0)))
    for path, g in only_encoder.items():  # what the encoder is asked moves nothing of the generator's own
        assert np.any(g) != path.startswith("objective/generator"), path
    for path, g in only_generator.items():
        shared = path.startswith(("encoder/embedding/", "encoder/embedding_norm/"))
        assert np.any(g) == (shared or path.startswith("objective/generator")), path
    for path, g in both.items():
        np.testing.assert_allclose(g, only_encoder[path] + only_generator[path], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("tie", "own"), [("all", set()), ("tokens", {"position", "token_type"}),
                                          ("none", {"token", "position", "token_type"})])
def test_what_generator_and_encoder_share(tie, own):
    _, objective, params = asked(tie=tie)
    found = objective.specs["objective"]["generator"]
    assert set(found.get("embedding", {})) == own and ("embedding_norm" in found) == (tie != "all")
    total, _ = jax.jit(lambda p: objective.loss(p, question(objective), None, Carry()))(params)
    assert np.isfinite(total)


# --- what it answers ------------------------------------------------------------------------------------------------


def words_of(p, hidden, table):
    """Softmax over the vocabulary by a masked-LM head in float64, [b, t, v]."""
    x = reference.ACTIVATIONS["gelu"](reference.linear(p["transform"], np.asarray(hidden, np.float64)))
    x = reference.layer_norm(p["norm"], x, NETWORK.norm_eps)
    return softmax(x @ np.asarray(table, np.float64).T + p["bias"], -1)


def hidden_of(params, model, tokens):
    return np.asarray(mlm_head.encode({"encoder": params}, BATCH, tokens, model))


@pytest.mark.parametrize("variant", electra.VARIANTS)
def test_what_it_doubts_has_the_probability_that_its_encoder_gives(kind):
    _, objective, params = asked(variant=kind)
    found = np.asarray(jax.jit(objective.predict)(params, BATCH)["replaced"])
    hidden = hidden_of(params["encoder"], transformer.build(NETWORK), BATCH["tokens"])
    p, gelu = reference.float64(params)["objective"], reference.ACTIVATIONS["gelu"]
    if "discriminator" in p:
        own = p["discriminator"]
        expected = expit(reference.linear(own["out"], gelu(reference.linear(own["transform"], hidden)))[..., 0])
    else:
        stands = words_of(p["masked"], hidden, params["encoder"]["embedding"]["token"])
        stands = np.take_along_axis(stands, BATCH["tokens"][..., None], -1)[..., 0]
        gate = expit(reference.linear(p["copy"], hidden)[..., 0]) if "copy" in p else 0
        expected = 1 - (gate + (1 - gate) * stands)
    assert found.shape == BATCH["tokens"].shape and found.std() > 1e-3
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("variant", electra.VARIANTS)
def test_masks_are_filled_by_the_generator_or_by_an_encoder_that_finds_words(kind):
    c, objective, params = asked(variant=kind)
    tokens, places = BATCH["tokens"].copy(), np.array([[2, 4], [1, 0], [3, 2], [4, 4]], np.int32)
    for row, each in enumerate(places):
        tokens[row, each[each > 0]] = VOCABULARY.specials["mask"]
    found = jax.jit(objective.predict, static_argnames="k")(
        params, BATCH | {"tokens": tokens, "predicted": places}, k=3)
    model = transformer.build(NETWORK)
    whole, p = electra.generator_params(params, c), reference.float64(params)["objective"]

    def at(x):
        return np.take_along_axis(x, places[..., None], 1)

    table = params["encoder"]["embedding"]["token"]
    expected = words_of(p["generator_head"], at(hidden_of(whole, model.make_generator(c.generator), tokens)), table)
    if kind in ("replace_mlm", "all_tokens_mlm"):
        shown = tokens.copy()
        for row, each in enumerate(places):
            shown[row, each[each > 0]] = expected[row, each > 0].argmax(-1)  # nothing is put where no mask stands
        hidden = at(hidden_of(params["encoder"], model, shown))
        expected = words_of(p["masked"], hidden, table)
        if kind == "all_tokens_mlm":
            gate = expit(reference.linear(p["copy"], hidden))
            expected = gate * np.eye(V)[np.take_along_axis(shown, places, 1)] + (1 - gate) * expected
    order = np.argsort(-expected, -1)[..., :3]
    np.testing.assert_array_equal(found["words"], order)
    np.testing.assert_allclose(found["probabilities"], np.take_along_axis(expected, order, -1), rtol=0, atol=2e-5)
