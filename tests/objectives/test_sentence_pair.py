"""The question about two sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.objectives import sentence_pair
from tests import reference
from tests.objectives.toys import model, objective, prepare

D = 12
PARAMS = reference.random_params(sentence_pair.specs(model()), seed=13)
FIRST = np.random.default_rng(0).normal(size=(4, D)).astype(np.float32)
BATCH = {"segment_ids": np.array([[1, 1, 1, 0, 0], [0] * 5, [1] * 5, [1, 1, 0, 0, 0]]),
         "pair_label": np.array([1, 0, 0, 1], np.int32)}
BATCH |= sentence_pair.weights(BATCH)


def by_hand(params, first):
    pooled = np.tanh(reference.linear(params["pooler"], first))
    return reference.linear(params["classifier"], pooled)


def test_counts_a_pooler_and_a_classifier_of_two():
    assert P.count(sentence_pair.specs(model())) == D * D + D + 2 * D + 2


def test_scores_equal_their_definition():
    y = sentence_pair.logits(PARAMS, FIRST)
    np.testing.assert_allclose(y, by_hand(*reference.float64((PARAMS, FIRST))), atol=1e-5)
    assert sentence_pair.logits(PARAMS, jnp.asarray(FIRST, jnp.bfloat16)).dtype == jnp.float32


def test_rows_with_content_count_alike():
    np.testing.assert_allclose(BATCH["pair_weights"], [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)


def test_loss_is_the_mean_over_pairs():
    logs = log_softmax(by_hand(*reference.float64((PARAMS, FIRST))), axis=-1)
    rows = [0, 2, 3]
    nats = -logs[rows, BATCH["pair_label"][rows]]
    total, metrics = jax.jit(sentence_pair.loss)(PARAMS, FIRST, BATCH)
    assert total == pytest.approx(nats.mean(), rel=1e-5)
    assert metrics["pair_loss"] == (pytest.approx(nats.sum(), rel=1e-5), 3)
    assert metrics["pair_accuracy"] == ((logs.argmax(-1) == BATCH["pair_label"])[rows].sum(), 3)


def test_parts_add_up():
    loss = jax.jit(sentence_pair.loss)
    whole = loss(PARAMS, FIRST, BATCH)
    parts = [loss(PARAMS, FIRST[i::2], {name: x[i::2] for name, x in BATCH.items()}) for i in (0, 1)]
    summed = jax.tree.map(lambda a, b: a + b, *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), summed, whole)


def test_labels_pull_the_scores_their_way():
    """Label 1 means that the second score should be high."""
    given = BATCH | {"pair_label": np.ones(4, int)}
    slope = jax.jit(jax.grad(lambda params: sentence_pair.loss(params, FIRST, given)[0]))(PARAMS)["classifier"]["bias"]
    assert slope[1] < 0 < slope[0]


def test_the_masked_objective_asks_it_where_told_to():
    tokens = np.full((4, 5), 9, np.int32)
    given = BATCH | {"tokens": tokens, "example": np.arange(4)}
    given.pop("pair_weights")
    assert "pair_weights" not in prepare(objective(), given)
    np.testing.assert_allclose(prepare(objective(sentence_pair=True), given)["pair_weights"], BATCH["pair_weights"])
    assert "pair" in objective(sentence_pair=True).specs["objective"]
    assert "pair" not in objective().specs["objective"]
