"""GPT's dropout of the embedding tables: which entries are dropped, that lookup and output drop the same, that others
are scaled, that nothing is dropped without a key, and what of it the gradient sees."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core import sharding
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import dropout
from lmrep.layers.attention import AttentionMask
from lmrep.models import PRESETS, transformer
from lmrep.models.base import Inputs
from lmrep.objectives import causal, masked
from lmrep.objectives.base import Carry, Keys
from tests import reference
from tests.chance import REJECT, independent, least, rates

V, T, D, B, RATE = 48, 16, 32, 8, 0.25
C = transformer.Config(vocab=V, width=D, layers=1, heads=2, mlp=8, max_length=T, token_types=0, embedding_norm=False,
                       dropout=RATE, attention_dropout=0.0, table_dropout=True)
KEY = jax.random.key(5)
TOKENS = np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)
VOCABULARY = Vocabulary(V, {"sep": 1, "pad": 2, "mask": 3}, np.ones(V, bool), np.arange(V))


def silent(params):
    """The parameters, with blocks that give 0 whatever is dropped of them."""
    for block, name in (("attention", "output"), ("mlp", "out")):
        params["layers"][block][name] = jax.tree.map(np.zeros_like, params["layers"][block][name])
    return params


@pytest.fixture(scope="module")
def asked():
    return question(causal, causal.Config())


def question(kind, config):
    """(model, objective, parameters, a batch)."""
    model = transformer.build(C)
    objective = kind.build(config, model, VOCABULARY)
    params = reference.random_params(objective.specs)
    batch = objective.prepare(Keys(jax.random.split(KEY, B), KEY), {
        "tokens": jnp.asarray(TOKENS), "segment_ids": jnp.ones((B, T), jnp.int32), "example": jnp.arange(B)})
    return model, objective, {**params, "encoder": silent(params["encoder"])}, batch


def embedded(model, params, key, tokens=TOKENS):
    """The embedding output [b, t, d]."""
    given = Inputs(tokens=jnp.asarray(tokens), attention_mask=AttentionMask(jnp.ones_like(tokens), causal=True))
    return np.asarray(jax.jit(lambda p, k: model.encode(p, given, k, layers=True).layers[0])(params, key))


def test_rows_are_those_of_the_whole_table():
    table = jnp.asarray(np.random.default_rng(1).normal(size=(V, D)), jnp.float32)
    np.testing.assert_array_equal(dropout.apply_to_rows(KEY, table[TOKENS], TOKENS, RATE),
                                  dropout.apply(KEY, table, RATE)[TOKENS])
    assert dropout.apply_to_rows(None, table, TOKENS, RATE) is table is dropout.apply_to_rows(KEY, table, TOKENS, 0.0)


def test_lookup_and_output_drop_the_same_entries_and_scale_the_others(asked):
    model, _, params, _ = asked
    params = params["encoder"]
    table, thinned = params["embedding"]["token"], np.asarray(model.output_embedding(params, KEY))
    kept = thinned != 0
    np.testing.assert_allclose(thinned, np.where(kept, table / (1 - RATE), 0), rtol=1e-6)
    places = embedded(model, params, KEY) - thinned[TOKENS]  # what is left is of the positions, the same in each row
    np.testing.assert_allclose(places, np.broadcast_to(places[:1], places.shape), atol=1e-6)
    position = params["embedding"]["position"]
    kept_there = np.abs(places[0]) > 1e-5
    np.testing.assert_allclose(places[0], np.where(kept_there, position / (1 - RATE), 0), atol=1e-5)
    other = np.asarray(model.output_embedding(params, jax.random.key(6))) != 0
    p_values = [rates(mask.sum(), mask.size, 1 - RATE) for mask in (kept, kept_there, other)]
    assert least([*p_values, independent(kept, other), independent(kept[:T], kept_there)]) > REJECT


def test_without_a_key_nothing_is_dropped(asked):
    model, _, params, _ = asked
    tables = params["encoder"]["embedding"]
    assert model.output_embedding(params["encoder"]) is tables["token"]
    np.testing.assert_allclose(embedded(model, params["encoder"], None), tables["token"][TOKENS] + tables["position"],
                               atol=1e-6)


def test_elsewhere_the_sum_is_dropped_and_the_table_whole(asked):
    _, _, params, _ = asked
    model = transformer.build(replace(C, table_dropout=False))
    assert model.output_embedding(params["encoder"], KEY) is params["encoder"]["embedding"]["token"]
    x = embedded(model, params["encoder"], KEY)
    assert rates((x != 0).sum(), x.size, 1 - RATE) > REJECT
    assert [name for name, preset in PRESETS.items() if preset.config.table_dropout] == ["gpt"]


@pytest.mark.parametrize(("kind", "config"), [(causal, causal.Config()), (masked, masked.Config())])
def test_the_loss_is_that_of_the_thinned_tables_and_moves_what_is_kept_alone(kind, config):
    model, objective, params, batch = question(kind, config)
    kept = np.asarray(model.output_embedding(params["encoder"], KEY)) != 0

    def loss(params, key):
        return objective.loss(params, batch, key, Carry())[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(params, KEY)
    first = embedded(model, params["encoder"], KEY)
    thin = {"token": np.asarray(model.output_embedding(params["encoder"], KEY))}
    thin["position"] = (first - thin["token"][TOKENS])[0]
    same = {**params, "encoder": {**params["encoder"], "embedding": thin}}
    plain, expected = jax.jit(jax.value_and_grad(lambda p: loss(p, None)))(same)
    assert float(value) == pytest.approx(float(plain), rel=1e-5)
    found = grads["encoder"]["embedding"]["token"]
    np.testing.assert_allclose(found, np.where(kept, expected["encoder"]["embedding"]["token"] / (1 - RATE), 0),
                               atol=1e-6)
    assert not found[~kept].any() and found[kept].all()


def test_a_mesh_of_eight_devices_drops_the_same(asked):
    _, objective, params, batch = asked
    step = jax.value_and_grad(lambda p, batch: objective.loss(p, batch, KEY, Carry())[0])
    value, grads = jax.jit(step)(params, batch)
    mesh = sharding.make_mesh(2, 2, 2)
    with sharding.use_mesh(mesh):
        there = (jax.device_put(params, sharding.shardings(objective.specs, mesh)),
                 jax.device_put(batch, sharding.batch_sharding(mesh)))
        other, theirs = jax.jit(step)(*there)
    assert float(other) == pytest.approx(float(value), rel=1e-5)
    table, found = (np.asarray(P.flatten(each)["encoder/embedding/token"]) for each in (grads, theirs))
    np.testing.assert_allclose(found, table, atol=1e-6)
    np.testing.assert_array_equal(found == 0, table == 0)
