"""GPT's dropout of the embedding tables: which entries are dropped, that lookup and output drop the same, that others
are scaled, that nothing is dropped without a key, and its gradient."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import dropout
from lmrep.layers.attention import AttentionMask
from lmrep.models import PRESETS, transformer
from lmrep.models.base import Inputs
from lmrep.objectives import causal
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
    """The parameters, with blocks whose output is 0 under any dropout."""
    for block, name in (("attention", "output"), ("mlp", "out")):
        params["layers"][block][name] = jax.tree.map(np.zeros_like, params["layers"][block][name])
    return params


@pytest.fixture(scope="module")
def setup():
    return build(causal, causal.Config())


def build(objective_module, config):
    """(model, objective, parameters, a batch)."""
    model = transformer.build(C)
    objective = objective_module.build(config, model, VOCABULARY)
    params = reference.random_params(objective.specs)
    batch = jax.jit(objective.prepare)(Keys(jax.random.split(KEY, B), KEY), {
        "tokens": jnp.asarray(TOKENS), "segment_ids": jnp.ones((B, T), jnp.int32), "example": jnp.arange(B)})
    return model, objective, {**params, "encoder": silent(params["encoder"])}, batch


def embedded(model, params, key, tokens=TOKENS):
    """The embedding output [b, t, d]."""
    inputs = Inputs(tokens=jnp.asarray(tokens), attention_mask=AttentionMask(jnp.ones_like(tokens), causal=True))
    return np.asarray(jax.jit(lambda p, k: model.encode(p, inputs, k, layers=True).layers[0])(params, key))


def test_looked_up_vectors_are_those_of_the_dropped_table():
    table = jnp.asarray(np.random.default_rng(1).normal(size=(V, D)), jnp.float32)
    np.testing.assert_array_equal(dropout.apply_to_rows(KEY, table[TOKENS], TOKENS, RATE),
                                  dropout.apply(KEY, table, RATE)[TOKENS])
    assert dropout.apply_to_rows(None, table, TOKENS, RATE) is table is dropout.apply_to_rows(KEY, table, TOKENS, 0.0)


def test_lookup_and_output_drop_the_same_entries_and_scale_the_others(setup):
    model, _, params, _ = setup
    params = params["encoder"]
    table, dropped = params["embedding"]["token"], np.asarray(model.output.table(params, KEY))
    kept = dropped != 0
    np.testing.assert_allclose(dropped, np.where(kept, table / (1 - RATE), 0), rtol=1e-6)
    positions = embedded(model, params, KEY) - dropped[TOKENS]  # the same in each example
    np.testing.assert_allclose(positions, np.broadcast_to(positions[:1], positions.shape), atol=1e-6)
    position = params["embedding"]["position"]
    kept_positions = np.abs(positions[0]) > 1e-5
    np.testing.assert_allclose(positions[0], np.where(kept_positions, position / (1 - RATE), 0), atol=1e-5)
    other = np.asarray(model.output.table(params, jax.random.key(6))) != 0
    p_values = [rates(mask.sum(), mask.size, 1 - RATE) for mask in (kept, kept_positions, other)]
    assert least([*p_values, independent(kept, other), independent(kept[:T], kept_positions)]) > REJECT


def test_without_a_key_nothing_is_dropped(setup):
    model, _, params, _ = setup
    tables = params["encoder"]["embedding"]
    assert model.output.table(params["encoder"]) is tables["token"]
    np.testing.assert_allclose(embedded(model, params["encoder"], None), tables["token"][TOKENS] + tables["position"],
                               atol=1e-6)


def test_without_table_dropout_the_sum_is_dropped_and_the_table_is_not(setup):
    _, _, params, _ = setup
    model = transformer.build(replace(C, table_dropout=False))
    assert model.output.table(params["encoder"], KEY) is params["encoder"]["embedding"]["token"]
    x = embedded(model, params["encoder"], KEY)
    assert rates((x != 0).sum(), x.size, 1 - RATE) > REJECT
    assert [name for name, preset in PRESETS.items() if getattr(preset.config, "table_dropout", False)] == ["gpt"]


@pytest.mark.slow
def test_the_loss_is_that_of_the_dropped_tables_and_only_kept_entries_have_gradients(setup):
    model, objective, params, batch = setup
    kept = np.asarray(model.output.table(params["encoder"], KEY)) != 0

    def loss(params, key):
        return objective.loss(params, batch, key, Carry())[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(params, KEY)
    embeddings = embedded(model, params["encoder"], KEY)
    dropped_tables = {"token": np.asarray(model.output.table(params["encoder"], KEY))}
    dropped_tables["position"] = (embeddings - dropped_tables["token"][TOKENS])[0]
    dropped_params = {**params, "encoder": {**params["encoder"], "embedding": dropped_tables}}
    plain, expected = jax.jit(jax.value_and_grad(lambda p: loss(p, None)))(dropped_params)
    assert float(value) == pytest.approx(float(plain), rel=1e-5)
    computed = grads["encoder"]["embedding"]["token"]
    np.testing.assert_allclose(computed, np.where(kept, expected["encoder"]["embedding"]["token"] / (1 - RATE), 0),
                               atol=1e-6)
    assert not computed[~kept].any() and computed[kept].all()


