"""Dai and Le's (2015) classifier: the linear label gain, a head of another width, dropout of words, joint training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.core.errors import UserError
from lmrep.models.base import Context, model_inputs
from lmrep.objectives import sequence_autoencoder
from lmrep.objectives.base import Carry, EvaluationKeys, Keys
from tests import reference
from tests.tasks import tiny

RECORDS = [{"text": "cat dog bird tree", "label": "a"}, {"text": "fish", "label": "b"},
           {"text": "horse mouse tree stone cat dog dog", "label": "c"}, {"text": "dog dog", "label": "b"}]
LEFT = {"context": "left", "dense": False}


def build(model="lstm", **fields):
    return tiny.Tiny("classification", RECORDS, model=model, **LEFT | fields)


def batch_of(own):
    store = own.examples()
    return store.gather(np.r_[np.arange(store.examples), -1])


def hidden(own, batch, model=None):
    model = model or own.model
    return model.encode(own.params["encoder"], model_inputs(model, batch, conditions_on=Context.LEFT)).hidden


def gained(own):
    """The loss of linear gain from the states at all positions, sum(w * nll) / sum(w), and the weights."""
    batch, head = batch_of(own), reference.float64(own.params["objective"]["classification"]["out"])
    states, total, weights = hidden(own, batch), 0.0, []
    for row, record in enumerate(RECORDS):
        n = int((batch["segment_ids"][row] > 0).sum())
        logs = log_softmax(reference.linear(head, np.asarray(states[row, :n], np.float64)), axis=-1)
        w = np.arange(n) / (n - 1)
        total -= (w * logs[:, own.config.labels.index(record["label"])]).sum()
        weights.append(w)
    return total / np.concatenate(weights).sum(), weights


@pytest.mark.parametrize("form", [{}, {"packed": True}])
def test_every_position_predicts_the_label_with_its_weight(form):
    own = build(linear_gain=True, form=form)
    expected, weights = gained(build())
    loss, _ = own.loss(batch_of(own))
    assert loss == pytest.approx(expected, rel=1e-5)
    prepared = own.objective.prepare(Keys(None, None), batch_of(own))
    assert np.sort(prepared["weights"][prepared["weights"] > 0]) == pytest.approx(
        np.sort(np.concatenate([w[1:] for w in weights])) / sum(map(sum, weights)))


def test_the_last_position_alone_counts_on_validation_and_in_predictions():
    own, plain = build(linear_gain=True), build()
    batch = batch_of(own)
    found, expected = (jax.jit(each.objective.loss)(own.params, each.objective.prepare(
        EvaluationKeys(None, None), batch), None, Carry()) for each in (own, plain))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    for name, array in plain.predict(own.params, batch)["units"].items():
        np.testing.assert_array_equal(own.predict(own.params, batch)["units"][name], array)


def test_a_text_of_one_token_has_the_weight_1():
    own = build(linear_gain=True)
    batch = {"tokens": np.array([[5, 0, 0]]), "segment_ids": np.array([[1, 0, 0]]),
             **{name: np.zeros((1, 1), np.int32) for name in ("unit", "first", "last", "label")}}
    np.testing.assert_array_equal(own.objective.prepare(Keys(None, None), batch)["weights"], [[1, 0, 0]])


@pytest.mark.parametrize(("fields", "named"), [
    ({"context": "both"}, "context"), ({"pooling": "mean"}, "pooling"), ({"network": "bcn"}, "network")])
def test_a_label_that_not_every_position_can_predict_is_refused(fields, named):
    from lmrep.tasks import TASKS

    definition = TASKS["classification"].objective
    with pytest.raises(UserError, match=rf"linear_gain .*config\.objective\.{named} is"):
        definition.check(definition.config(**LEFT | {"linear_gain": True} | fields))


def test_the_dense_layer_has_a_width_of_its_own():
    own = build(dense=True, hidden=5, activation="relu")
    head = own.params["objective"]["classification"]
    assert head["dense"]["kernel"].shape == (16, 5) and head["out"]["kernel"].shape == (5, 3)
    batch = batch_of(own)
    states = np.take_along_axis(np.asarray(hidden(own, batch)), batch["last"][..., None], 1)[:4, 0]
    dense = np.maximum(reference.linear(head["dense"], states), 0)
    np.testing.assert_allclose(own.predict(own.params, batch)["units"]["log_probabilities"][:4, 0],
                               log_softmax(reference.linear(head["out"], dense), axis=-1), atol=1e-5)


@pytest.mark.parametrize("network", ["lstm", "awd_lstm"])
def test_whole_words_are_dropped_in_training_alone(network):
    """Their vectors are 0, and those of the others as they were: the loss is one that a table of zeros gives."""
    sizes = {"embedding": 16, "width": 16}
    own, plain = (build(network, sizes=sizes, word_dropout=rate) for rate in (0.4, 0.0))
    batch = own.objective.prepare(Keys(None, None), batch_of(own))
    loss = jax.jit(own.objective.loss)
    trained, evaluated = (float(loss(own.params, batch, key, Carry())[0]) for key in (jax.random.key(3), None))
    assert evaluated == float(jax.jit(plain.objective.loss)(own.params, batch, None, Carry())[0]) != trained
    seen = []

    def noted(params, inputs, key=None, **options):
        vectors = inputs.vectors and (lambda x: (seen.append((x, inputs.vectors(x))), seen[-1][1])[1])
        return own.model.encode(params, inputs._replace(vectors=vectors), key, **options)

    objective = own.task.objective.build(own.config, own.model._replace(encode=noted), own.tokenizer.vocabulary)
    objective.loss(own.params, batch, jax.random.key(3), Carry())
    (before, after), = seen
    dropped = np.asarray((after == 0).all(-1))
    assert 0.2 < dropped.mean() < 0.6
    np.testing.assert_array_equal(after, jnp.where(dropped[..., None], 0, before))


def test_words_of_a_network_that_does_not_allow_it_are_not_dropped():
    with pytest.raises(UserError, match=r"config.objective.word_dropout .*'tiny'.*lstm"):
        build("transformer", word_dropout=0.1)


def test_joint_training_adds_the_mean_over_texts_of_the_reconstruction_loss():
    own, alone = (build(auxiliary=weight, auxiliary_loss="sequence_autoencoder") for weight in (0.5, 0.0))
    batch = batch_of(own)
    loss, _ = own.loss(batch)
    autoencoder = sequence_autoencoder.build(sequence_autoencoder.Config(), own.model, own.tokenizer.vocabulary)
    nll = []
    for row in range(len(RECORDS)):
        one = {name: batch[name][row : row + 1] for name in ("tokens", "segment_ids")}
        nll.append(float(autoencoder.loss(own.params, autoencoder.prepare(Keys(None, None), one), None, Carry())[0]))
    shared = {**own.params, "objective": {"classification": own.params["objective"]["classification"]}}
    assert loss - alone.loss(batch, shared)[0] == pytest.approx(0.5 * np.mean(nll), rel=1e-4)
    prepared = own.objective.prepare(Keys(None, None), batch)
    metrics = jax.jit(own.objective.loss)(own.params, prepared, None, Carry())[1][0]
    assert metrics["reconstruction_loss"][1] == sum(own.examples().units.lengths)
