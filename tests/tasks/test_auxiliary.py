"""A language model beside a task."""

import jax
import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.objectives import causal
from lmrep.objectives.base import Carry, Keys
from tests.tasks import tiny

LEFT = {"context": "left", "dense": False}
TEXTS = [{"text": "cat dog bird", "text2": "tree stone", "label": "a"}, {"text": "fish", "label": "b"},
         {"text": "horse mouse tree stone cat", "label": "a"}, {"text": "dog dog", "text2": "cat", "label": "b"}]
CHOICES = [{"text": "cat dog", "choices": ["bird", "tree stone fish"], "label": "1"},
           {"text": "mouse", "choices": ["cat", "horse"], "label": "0"}]
CASES = (("classification", TEXTS), ("regression", [{**example, "label": str(i)} for i, example in enumerate(TEXTS)]),
         ("multiple_choice", CHOICES))


def total(task, model, records, **options):
    """The loss of a batch, with the parameters that the network has without the language model."""
    own = tiny.Tiny(task, records, model=model, **options)
    store = own.examples()
    batch = own.objective.prepare(Keys(None, None), store.gather(np.r_[np.arange(store.examples), -1]))
    loss, (metrics, _) = jax.jit(own.objective.loss)(own.params, batch, None, Carry())
    return own, float(loss), metrics


def mean_loss(own):
    """The mean over units of the mean loss of their next tokens, one unit at a time."""
    values, model, units = [], own.model, own.examples().units
    for start, end in zip(units.offsets[:-1], units.offsets[1:], strict=True):
        tokens = units.tokens[None, start:end]
        batch = {"tokens": tokens, "segment_ids": np.ones_like(tokens),
                 "token_type_ids": units.token_types[None, start:end].astype(np.int32)}
        hidden = causal.encode(own.params, batch, model, causal.Config()).hidden
        logs = jax.nn.log_softmax(causal.next_token_logits(own.params, hidden, model=model, c=causal.Config()))
        values.append(-np.mean([logs[0, i, token] for i, token in enumerate(tokens[0, 1:])]))
    return float(np.mean(values))


@pytest.mark.parametrize(("task", "records"), CASES, ids=[task for task, _ in CASES])
def test_the_loss_grows_by_the_weighted_mean_of_the_units(task, records):
    _, alone, _ = total(task, "transformer", records, **LEFT)
    own, loss, metrics = total(task, "transformer", records, auxiliary=0.5, **LEFT)
    np.testing.assert_allclose(loss - alone, 0.5 * mean_loss(own), rtol=1e-4)
    assert metrics["lm_loss"][1] == sum(own.examples().units.lengths - 1)


def test_packed_units_do_not_predict_each_other():
    _, single, _ = total("classification", "transformer", TEXTS, auxiliary=0.5, **LEFT)
    _, packed, _ = total("classification", "transformer", TEXTS, auxiliary=0.5, form={"packed": True}, **LEFT)
    np.testing.assert_allclose(packed, single, rtol=1e-5)


def test_a_network_that_reads_both_sides_is_refused():
    with pytest.raises(UserError, match="a language model reads from left to right"):
        tiny.Tiny("classification", TEXTS, auxiliary=0.5)
