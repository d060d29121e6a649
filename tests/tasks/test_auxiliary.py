"""A language model beside a task."""

import jax
import numpy as np
import pytest

from lmrep.objectives import causal
from lmrep.objectives.base import Carry, Keys
from tests.tasks import tiny

LEFT = {"context": "left", "dense": False}
TEXTS = [{"text": "cat dog bird", "text2": "tree stone", "label": "a"}, {"text": "fish", "label": "b"},
         {"text": "horse mouse tree stone cat", "label": "a"}, {"text": "dog dog", "text2": "cat", "label": "b"}]
CHOICES = [{"text": "cat dog", "choices": ["bird", "tree stone fish"], "label": "1"},
           {"text": "mouse", "choices": ["cat", "horse"], "label": "0"}]
WORDS = [{"text": "cat dog bird", "text2": "tree dog", "span": [4, 7], "span2": [5, 8], "label": "T"},
         {"text": "fish", "text2": "fish horse", "span": [0, 4], "span2": [0, 4], "label": "F"}]
CASES = (("classification", TEXTS), ("regression", [{**example, "label": str(i)} for i, example in enumerate(TEXTS)]),
         ("multiple_choice", CHOICES), ("word_in_context", WORDS))


def total(task, model, records, **options):
    """The loss of a batch, with the parameters that the network has without the language model."""
    own = tiny.Tiny(task, records, model=model, **options)
    store = own.examples()
    batch = own.objective.prepare(Keys(None, None), store.gather(np.r_[np.arange(store.examples), -1]))
    loss, (metrics, _) = jax.jit(own.objective.loss)(own.params, batch, None, Carry())
    return own, float(loss), metrics


def mean_loss(own):
    """The mean over units of the mean loss of their next tokens."""
    store, model = own.examples(), own.model
    batch = {name: values.reshape(-1, values.shape[-1]) for name, values in store.gather(
        np.arange(store.examples)).items() if name in ("tokens", "segment_ids", "token_type_ids")}

    @jax.jit
    def logs_of(params):
        hidden = causal.encode(params, batch, model, causal.Config()).hidden
        return jax.nn.log_softmax(causal.next_token_logits(params, hidden, model=model, c=causal.Config()))

    logs, values = np.asarray(logs_of(own.params)), []
    for row, tokens, segments in zip(logs, batch["tokens"], batch["segment_ids"], strict=True):
        own_tokens = tokens[segments > 0]
        values += [-np.mean([row[i, token] for i, token in enumerate(own_tokens[1:])])] if len(own_tokens) else []
    return float(np.mean(values))


@pytest.mark.parametrize(("task", "records"), [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow)
                                               for case in CASES[1:])], ids=[task for task, _ in CASES])
def test_the_loss_grows_by_the_weighted_mean_of_the_units(task, records):
    _, alone, _ = total(task, "transformer", records, **LEFT)
    own, loss, metrics = total(task, "transformer", records, auxiliary=0.5, **LEFT)
    np.testing.assert_allclose(loss - alone, 0.5 * mean_loss(own), rtol=1e-4)
    assert metrics["lm_loss"][1] == sum(own.examples().units.lengths - 1)


def test_packed_units_do_not_predict_each_other():
    _, single, _ = total("classification", "transformer", TEXTS, auxiliary=0.5, **LEFT)
    _, packed, _ = total("classification", "transformer", TEXTS, auxiliary=0.5, form={"packed": True}, **LEFT)
    np.testing.assert_allclose(packed, single, rtol=1e-5)
