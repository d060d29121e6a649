"""Losses and gradients of tasks in closed form, from what the network predicts for the same examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from lmrep.models.base import model_inputs
from lmrep.tasks import conditioned_ends
from tests.tasks.examples import build, result, right, step


def outputs(name):
    return result(name)[1].arrays


def fields(name):
    return [record.fields for record in build(name).records]


def check(name, loss, bias=None):
    """The loss of a training step, and the gradient of the output layer's bias."""
    gradient, metrics = step(name)
    np.testing.assert_allclose(metrics["loss"], [loss, 1], rtol=1e-5)
    if bias is not None:
        found = gradient["objective"][build(name).objective.name]["out"]["bias"]
        np.testing.assert_allclose(found, bias, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["classification", "word_in_context"])
def test_cross_entropy_of_classes(name):
    logs, labels = np.stack(outputs(name)["log_probabilities"]), build(name).config.labels
    gold = [labels.index(each["label"]) for each in fields(name)]
    check(name, -logs[np.arange(len(gold)), gold].mean(), (np.exp(logs) - np.eye(len(labels))[gold]).mean(0))


def test_cross_entropy_of_tags_is_a_mean_over_words():
    logs, labels = outputs("tagging")["log_probabilities"], build("tagging").config.labels
    logs = np.concatenate([own[1:-1] for own in logs])  # of one token for each word, between special ones
    gold = [labels.index(tag) for each in fields("tagging") for tag in each["tags"]]
    check("tagging", -logs[np.arange(len(gold)), gold].mean(), (np.exp(logs) - np.eye(len(labels))[gold]).mean(0))


def test_binary_cross_entropy_is_a_mean_over_labels_and_texts():
    y, labels = np.stack(outputs("multilabel")["logits"]).astype(np.float64), build("multilabel").config.labels
    true = np.array([[label in each["labels"] for label in labels] for each in fields("multilabel")])
    check("multilabel", np.logaddexp(0, np.where(true, -y, y)).mean(),
          (1 / (1 + np.exp(-y)) - true).mean(0) / len(labels))


def test_squared_error():
    """-1 is a number here, with which columns of integers are filled elsewhere."""
    value = np.concatenate(outputs("regression")["value"], axis=None)
    labels = np.array([float(each["label"]) for each in fields("regression")])
    assert value.shape == labels.shape and -1 in labels
    check("regression", np.mean((value - labels) ** 2), [np.mean(2 * (value - labels))])


def test_cross_entropy_of_choices_is_among_those_that_an_example_has():
    own = fields("multiple_choice")
    table = np.reshape(outputs("multiple_choice")["log_probability"], (len(own), -1))
    present = np.arange(table.shape[1]) < [[len(each["choices"])] for each in own]
    np.testing.assert_allclose(np.where(present, np.exp(table), 0).sum(1), 1, rtol=1e-5)
    assert not np.exp(table)[~present].any() and not present.all()
    check("multiple_choice", -table[np.arange(len(own)), [int(each["label"]) for each in own]].mean())


def test_senses_are_among_the_candidates_of_their_lemma():
    logs, c = np.stack(outputs("word_senses")["log_probabilities"]), build("word_senses").config
    candidates = {line.split()[0]: line.split()[1:] for line in c.candidates}
    np.testing.assert_allclose(np.exp(logs).sum(-1), 1, rtol=1e-5)
    gold = [candidates[f"{each['lemma']}#N"].index(each["senses"][0]) for each in fields("word_senses")]
    check("word_senses", -logs[np.arange(len(gold)), gold].mean())


def test_cross_entropy_of_spans_is_the_mean_of_start_and_end():
    """Over the positions of the unit itself."""
    targets = right(build("span_extraction")).arrays
    check("span_extraction", np.mean([np.log(np.exp(y).sum()) - y[target.argmax()] for name in ("start", "end")
                                      for y, target in zip(outputs("span_extraction")[name], targets[name],
                                                           strict=True)]))


def test_conditioned_ends_are_among_the_context_and_no_answer():
    """One question at a time: the start, the end given the right start, and the classifier of no answer."""
    task = build("conditioned ends")
    head, losses = task.params["objective"]["span_extraction"], []
    batch = task.examples().gather(np.arange(len(task.records)))

    @jax.jit
    def scores(x, at):
        starts = conditioned_ends.start_logits(head, x)
        return starts, conditioned_ends.end_logits(head, x, x[jnp.arange(len(x)), at][:, None],
                                                   jnp.zeros(x.shape[:2], int), task.model.head_style.eps)

    x = np.asarray(jax.jit(lambda: task.model.encode(task.params["encoder"], model_inputs(task.model, batch)).hidden)())
    targets = right(build("span_extraction")).arrays
    first, last = (np.array([each.argmax() for each in targets[name]]) for name in ("start", "end"))
    starts, ends = map(np.asarray, scores(x, first))
    for i, each in enumerate(fields("conditioned ends")):
        before = len(each["question"].split()) + 2
        allowed = [0, *range(before, before + len(each["context"].split()))]
        pair = [logsumexp(y[i, allowed]) - y[i, at[i]] for y, at in ((starts, first), (ends, last))]
        weights = np.exp(starts[i, allowed] - logsumexp(starts[i, allowed]))
        logit = float(conditioned_ends.no_answer_logits(head, weights @ x[i, allowed], x[i, 0]))
        losses.append(np.mean(pair) + conditioned_ends.WEIGHT * np.logaddexp(0, -logit if first[i] == 0 else logit))
    check("conditioned ends", np.mean(losses))
