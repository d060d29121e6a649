"""Losses of tasks, and gradients of their output layer's bias, in closed form from what the network predicts for the
same examples one by one."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from lmrep.models.base import model_inputs
from lmrep.tasks import conditioned_ends
from tests.tasks.examples import build, result, right


def outputs(name):
    return result(name)[1]


def fields(name):
    return [record.fields for record in build(name).records]


def classes(name):
    """Cross-entropy."""
    logs, labels = np.stack(outputs(name)["log_probabilities"]), build(name).config.labels
    return cross_entropy(logs, [labels.index(each["label"]) for each in fields(name)])


def cross_entropy(logs, gold):
    return -logs[np.arange(len(gold)), gold].mean(), (np.exp(logs) - np.eye(logs.shape[1])[gold]).mean(0)


def tags(name):
    """Cross-entropy is a mean over words."""
    labels = build(name).config.labels
    logs = np.concatenate([own[1:-1] for own in outputs(name)["log_probabilities"]])  # one token for each word
    return cross_entropy(logs, [labels.index(tag) for each in fields(name) for tag in each["tags"]])


def multilabel(name):
    """Binary cross-entropy is a mean over labels and texts."""
    y, labels = np.stack(outputs(name)["logits"]).astype(np.float64), build(name).config.labels
    true = np.array([[label in each["labels"] for label in labels] for each in fields(name)])
    return np.logaddexp(0, np.where(true, -y, y)).mean(), (1 / (1 + np.exp(-y)) - true).mean(0) / len(labels)


def regression(name):
    """The squared error. -1 is a number here, with which columns of integers are filled elsewhere."""
    value = np.concatenate(outputs(name)["value"], axis=None)
    labels = np.array([float(each["label"]) for each in fields(name)])
    assert value.shape == labels.shape and -1 in labels
    return np.mean((value - labels) ** 2), [np.mean(2 * (value - labels))]


def choices(name):
    """Cross-entropy among the choices that an example has."""
    own = fields(name)
    table = np.reshape(outputs(name)["log_probability"], (len(own), -1))
    present = np.arange(table.shape[1]) < [[len(each["choices"])] for each in own]
    np.testing.assert_allclose(np.where(present, np.exp(table), 0).sum(1), 1, rtol=1e-5)
    assert not np.exp(table)[~present].any() and not present.all()
    return cross_entropy(table, [int(each["label"]) for each in own])[0], None


def senses(name):
    """Cross-entropy among the candidates of a lemma."""
    logs, c = np.stack(outputs(name)["log_probabilities"]), build(name).config
    candidates = {line.split()[0]: line.split()[1:] for line in c.candidates}
    np.testing.assert_allclose(np.exp(logs).sum(-1), 1, rtol=1e-5)
    gold = [candidates[f"{each['lemma']}#N"].index(each["senses"][0]) for each in fields(name)]
    return cross_entropy(logs, gold)[0], None


def spans(name):
    """The mean of the cross-entropies of start and end, over the positions of the unit itself."""
    targets = right(build(name))
    return np.mean([np.log(np.exp(y).sum()) - y[target.argmax()] for side in ("start", "end")
                    for y, target in zip(outputs(name)[side], targets[side], strict=True)]), None


def conditioned(name):
    """One question at a time: the start, the end given the right start, and the classifier of no answer. Starts and
    ends are among the context and no answer."""
    task = build(name)
    head, losses = task.params["objective"]["span_extraction"], []
    batch = task.examples().gather(np.arange(len(task.records)))
    targets = right(task)
    first, last = (np.array([each.argmax() for each in targets[side]]) for side in ("start", "end"))

    @jax.jit
    def scores():
        x = task.model.encode(task.params["encoder"], model_inputs(task.model, batch)).hidden
        return x, conditioned_ends.start_logits(head, x), conditioned_ends.end_logits(
            head, x, x[jnp.arange(len(x)), first][:, None], jnp.zeros(x.shape[:2], int), task.model.head_style.eps)

    x, starts, ends = map(np.asarray, scores())
    weights, chosen = np.zeros_like(starts), []
    for i, each in enumerate(fields(name)):
        before = len(each["question"].split()) + 2
        chosen.append([0, *range(before, before + len(each["context"].split()))])
        weights[i, chosen[i]] = np.exp(starts[i, chosen[i]] - logsumexp(starts[i, chosen[i]]))
    logits = jax.jit(conditioned_ends.no_answer_logits)(head, np.einsum("bt,btd->bd", weights, x), x[:, 0])
    for i, logit in enumerate(np.asarray(logits)):
        pair = [logsumexp(y[i, chosen[i]]) - y[i, at[i]] for y, at in ((starts, first), (ends, last))]
        losses.append(np.mean(pair) + conditioned_ends.WEIGHT * np.logaddexp(0, -logit if first[i] == 0 else logit))
    return np.mean(losses), None


# Cases of `examples.CASES` -> a function from the name to (the loss, the gradient of the bias or None).
CLOSED_FORMS = {"classification": classes, "word_in_context": classes, "tagging": tags, "multilabel": multilabel,
                "regression": regression, "multiple_choice": choices, "word_senses": senses,
                "span_extraction": spans, "conditioned ends": conditioned}
