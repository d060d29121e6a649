"""What holds for every row of `TASKS`: sums over microbatches and meshes, packed and separate examples, keys, labels
and metrics."""

import dataclasses

import jax
import numpy as np
import pytest

from lmrep.layers import dropout
from lmrep.metrics import COMMON
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS
from tests.cases import slow_after
from tests.tasks import examples
from tests.tasks.examples import build, result, step
from tests.tasks.losses import CLOSED_FORMS

QUICK = ("classification", "tagging", "span_extraction", "multiple_choice", "text_to_text")  # the others are like them
CASES = sorted(examples.CASES, key=lambda name: QUICK.index(name) if name in QUICK else len(QUICK))
every_case = pytest.mark.parametrize("name", slow_after(len(QUICK), CASES))
LABELLED = [name for name in examples.EXAMPLES if "labels" in TASKS[name].objective.config.__dataclass_fields__]


def test_every_task_has_examples():
    assert examples.EXAMPLES.keys() == TASKS.keys()


@every_case
def test_packed_examples_in_microbatches_on_a_mesh_have_the_loss_of_separate_ones(name):
    """It is the mean that predictions have, of the examples with targets alone, and that of a closed form."""
    gradient, metrics = step(name)
    assert metrics["loss"][0] == pytest.approx(result(name)[0].metrics["loss"], rel=1e-5)
    assert metrics.keys() - {*COMMON, "targets"} <= build(name).task.objective.metrics.keys()
    assert any(np.any(value) for value in jax.tree.leaves(gradient))
    if name in CLOSED_FORMS:
        loss, bias = CLOSED_FORMS[name](name)
        np.testing.assert_allclose(metrics["loss"], [loss, 1], rtol=1e-5)
        if bias is not None:
            found = gradient["objective"][build(name).objective.name]["out"]["bias"]
            np.testing.assert_allclose(found, bias, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", slow_after(1, ["classification", "text_to_text", "conditioned ends", "crf"]))
def test_packed_examples_in_microbatches_on_a_mesh_have_the_gradient_of_separate_ones(name):
    gradient, metrics = step(name, False, (1, 1, 1), 1)
    other, measured = step(name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), other, gradient)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), measured, metrics)


def close(found, expected):
    """Whether two results have the same predictions and metrics."""
    pairs = zip(jax.tree.leaves([found.predictions, found.metrics]),
                jax.tree.leaves([expected.predictions, expected.metrics]), strict=True)
    return all(x == (pytest.approx(y, rel=1e-4, abs=1e-5) if isinstance(y, float) else y) for x, y in pairs)


@pytest.mark.parametrize("name", slow_after(3, [
    name for name in CASES if examples.CASES[name][0] not in ("multiple_choice", "text_to_text")]))
def test_packed_examples_have_the_predictions_of_separate_ones(name):
    assert build(name, packed=True).examples().slots > 1
    assert close(result(name, packed=True)[0], result(name)[0])


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("classification", "text_to_text", "frozen features") else pytest.mark.slow)
    for name in examples.CASES])
def test_dropout_repeats_by_its_key_and_uses_no_key_twice(name, monkeypatch):
    task, seen, mask = build(name, dropout=0.3), [], dropout._hash
    store = task.examples()
    batch = task.objective.prepare(Keys(None, None), store.gather(np.arange(store.examples)))

    def recorded(key, numbers):
        jax.debug.callback(lambda data: seen.append(data.tobytes()), jax.random.key_data(key))
        return mask(key, numbers)

    monkeypatch.setattr(dropout, "_hash", recorded)
    loss = jax.jit(lambda key: task.objective.loss(task.params, batch, key, Carry())[0])
    with jax.debug_key_reuse(True):  # of JAX's own generator
        first = float(loss(jax.random.key(1)))
        jax.effects_barrier()
        assert seen and len(seen) == len({*seen})
        again, other = (float(loss(jax.random.key(seed))) for seed in (1, 2))
    assert first == again != other


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_right_answers_have_the_best_metrics(name):
    """Columns of outputs are those of the config's labels, in their order."""
    task = build(name)
    found = task.task.score(task.config, task.records, task.encode()[0], examples.right(task))
    best = task.task.best or task.config.metrics[0]
    assert found.metrics.keys() - {"loss"} <= task.task.objective.metrics.keys()
    if name == "regression":
        best, perfect = "mean_squared_error", 0
    else:
        perfect = {"bleu": 100}.get(best, 1)
    assert found.metrics[best] == pytest.approx(perfect, abs=1e-6) and found.metrics["loss"] < 1e-3
    for record, prediction in zip(task.records, found.predictions, strict=True):
        compared = task.task.compare(task.config, record, prediction)
        assert compared.loss < 1e-3 and all(gold == predicted for gold, predicted in compared.classes)


@pytest.mark.parametrize("name", LABELLED)
def test_labels_are_sorted_whatever_the_order_of_the_examples(name):
    task = build(name)
    fresh = dataclasses.replace(task.config, labels=())
    assert list(task.config.labels) == sorted(task.config.labels, key=lambda label: (label != "O", label))
    for records in (task.records[::-1], task.records[2:] + task.records[:2]):
        assert task.task.resolve(fresh, records).labels == task.config.labels
