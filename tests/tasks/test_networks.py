"""Networks between the encoder and the head: texts as single vectors."""

import jax
import numpy as np
import pytest

from lmrep.tasks.networks import BiLstm
from tests.tasks import tiny

TEXTS = [{"text": text, "label": label} for text, label in (
    ("cat dog bird", "good"), ("fish", "bad"), ("horse mouse tree stone cat", "good"), ("dog dog", "bad"))]
CHOICES = [{"text": "cat dog", "choices": ["bird", "fish tree", "stone"], "label": "1"},
           {"text": "mouse", "choices": ["dog cat tree", "fish"], "label": "0"}]
BILSTM = BiLstm(width=8, layers=2, dropout=0.0)


@pytest.mark.parametrize("network", ["linear", "bilstm"])
@pytest.mark.parametrize("pooling", ["position", "mean", "max", "attention"])
def test_the_vector_of_a_text_depends_on_that_text_alone(network, pooling):
    """Packing and the order of examples change no score, and every parameter of the network has a gradient."""
    one, packed = (tiny.Tiny("classification", TEXTS, form=form, network=network, pooling=pooling, bilstm=BILSTM)
                   for form in ({}, {"packed": True}))
    assert packed.examples().slots > 1
    expected = one.score(batch_size=1)
    for score in (one.score(), packed.score()):
        for a, b in zip(score.predictions, expected.predictions, strict=True):
            assert a["probabilities"] == pytest.approx(b["probabilities"], abs=1e-5)
    examples = one.examples()
    loss, gradient = one.loss(examples.gather(np.arange(4)))
    assert loss == pytest.approx(expected.metrics["loss"], rel=1e-5)
    assert bool(one.params["objective"]["classification"].get("network")) == (
        network == "bilstm" or pooling == "attention")
    if pooling != "position":  # at the first position, the state of the last forward layer is 0
        assert all(np.abs(value).max() > 0 for value in jax.tree.leaves(gradient["objective"]["classification"]))


@pytest.mark.parametrize("pooling", ["position", "mean", "max", "attention"])
def test_choices_are_read_each_by_itself(pooling):
    both = tiny.Tiny("multiple_choice", CHOICES, network="bilstm", pooling=pooling, bilstm=BILSTM)
    expected = both.score().predictions
    for record, prediction in zip(CHOICES, expected, strict=True):
        alone = tiny.Tiny("multiple_choice", [record], network="bilstm", pooling=pooling, bilstm=BILSTM)
        assert alone.score().predictions[0]["probabilities"] == pytest.approx(prediction["probabilities"], abs=1e-5)
