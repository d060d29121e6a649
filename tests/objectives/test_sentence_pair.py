"""Classification of sentence pairs."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.objectives import sentence_pair
from tests import reference, small
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


def test_parameters_are_a_pooler_and_a_classifier_of_two():
    assert P.count(sentence_pair.specs(model())) == D * D + D + 2 * D + 2


def test_logits_equal_their_definition():
    y = sentence_pair.logits(PARAMS, FIRST)
    np.testing.assert_allclose(y, by_hand(*reference.float64((PARAMS, FIRST))), atol=1e-5)
    assert sentence_pair.logits(PARAMS, jnp.asarray(FIRST, jnp.bfloat16)).dtype == jnp.float32


def test_examples_with_content_have_equal_weights():
    np.testing.assert_allclose(BATCH["pair_weights"], [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)


def test_loss_is_the_mean_over_pairs():
    log_probabilities = log_softmax(by_hand(*reference.float64((PARAMS, FIRST))), axis=-1)
    examples = [0, 2, 3]
    nll = -log_probabilities[examples, BATCH["pair_label"][examples]]
    total, metrics = jax.jit(sentence_pair.loss)(PARAMS, FIRST, BATCH)
    assert total == pytest.approx(nll.mean(), rel=1e-5)
    assert metrics["pair_loss"] == (pytest.approx(nll.sum(), rel=1e-5), 3)
    assert metrics["pair_accuracy"] == ((log_probabilities.argmax(-1) == BATCH["pair_label"])[examples].sum(), 3)


def test_gradients_have_the_sign_of_the_label():
    """Label 1 means that the second logit should be high."""
    batch = BATCH | {"pair_label": np.ones(4, int)}
    gradients = jax.jit(jax.grad(lambda params: sentence_pair.loss(params, FIRST, batch)[0]))(PARAMS)
    gradient = gradients["classifier"]["bias"]
    assert gradient[1] < 0 < gradient[0]


def test_the_masked_objective_has_it_where_configured():
    tokens = np.full((4, 5), 9, np.int32)
    batch = BATCH | {"tokens": tokens, "example": np.arange(4)}
    batch.pop("pair_weights")
    plain, paired = prepare(objective(), batch), prepare(objective(sentence_pair=True), batch)
    assert "pair_weights" not in plain
    np.testing.assert_allclose(paired.pop("pair_weights"), BATCH["pair_weights"])
    jax.tree.map(np.testing.assert_array_equal, plain, paired)  # the same tokens are masked
    assert "pair" in objective(sentence_pair=True).specs["objective"]
    assert "pair" not in objective().specs["objective"]


@pytest.mark.parametrize(("form", "refused"), [("segment_pair", True), ("packed", False)])
def test_pairs_of_one_class_are_refused_before_training(form, refused, tmp_path):
    """Documents of one sentence have no next one."""
    (tmp_path / "texts").mkdir()
    for i in range(80):
        (tmp_path / "texts" / f"{i}.txt").write_text(f"The cat {i} sees the dog {i * i}.\n")
    c = small.config(tmp_path / "texts", "masked", form)
    c.objective.sentence_pair, c.batch_size = refused, 4
    experiment = experiments.parse(c)
    data = build.prepare_data(experiment, tmp_path / "data")
    expected = pytest.raises(UserError, match="'segment_pair' that were looked at have label 1")
    with expected if refused else nullcontext():
        build.stages(data, tmp_path / "data")
