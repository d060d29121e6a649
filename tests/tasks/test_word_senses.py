"""Word senses: candidates, loss and mean vectors against NumPy, the published scorer, and runs."""

import json
import random

import jax
import numpy as np
import pytest

import lmrep
from lmrep.analysis.report import results as reported
from lmrep.core.errors import UserError
from lmrep.core.params import flatten
from lmrep.data.records.word_in_context import nth_word
from lmrep.experiment.fine_tuning import compose_known
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.objectives.base import FrozenPart, Keys
from lmrep.tasks import frozen_features, word_senses
from tests.tasks import tiny

LAST = frozen_features.Config(layers="last", dropout=0.0)


def example(text, at, lemma, pos, *senses):
    return {"text": text, "span": nth_word(text, at), "lemma": lemma, "pos": pos, "senses": [*senses]}


ROWS = [example("cat dog bird", 0, "cat", "N", "cat.pet"), example("tree cat", 1, "cat", "N", "cat.pet"),
        example("stone cat dog", 1, "cat", "N", "cat.wild", "cat.pet"), example("cat mouse", 0, "cat", "V", "cat.move"),
        example("dog stone", 0, "dog", "N", "dog.pet"), example("mouse dog", 1, "dog", "N", "dog.wild"),
        example("fish", 0, "fish", "N", "fish.food")]


def test_candidates_are_those_of_the_lemma_by_frequency():
    inventory_lines = word_senses.lines(tiny.as_records(ROWS))
    assert inventory_lines == ("cat#N cat.pet cat.wild", "cat#V cat.move", "dog#N dog.pet dog.wild", "fish#N fish.food")
    labels = ("cat.move", "cat.pet", "cat.wild", "dog.pet", "dog.wild", "fish.food")
    found = word_senses.inventory_of(inventory_lines, labels)
    for lemma, pos, expected in (("cat", "N", [1, 2]), ("cat", "A", [1]), ("cat", None, [1, 2, 0]), ("tree", "N", [])):
        fields = {"lemma": lemma} | ({"pos": pos} if pos else {})
        assert word_senses.candidates(found, tiny.as_records([fields])[0]) == expected
    assert word_senses.name_of(tiny.as_records([{"lemma": "ice cream", "pos": "N"}])[0]) == "ice_cream#N"


def test_metrics_are_those_of_the_published_scorer():
    """An answer is right if it is one of the keys; a word without an answer counts for recall alone; of several answers
    each has its share."""
    gold, predicted = [["a", "b"], ["a"], ["c"], ["d"]], [["b"], ["x"], [], ["d", "x"]]
    for name, expected in (("precision", 1.5 / 3), ("recall", 1.5 / 4), ("f1", 2 * 0.5 * 0.375 / 0.875)):
        metric = TASK_METRICS[f"sense_{name}"]
        assert metric.function(gold, predicted) == pytest.approx(expected)
        assert metric.figure(metric.sums(gold, predicted).sum(0)) == pytest.approx(expected)
    assert TASK_METRICS["sense_f1"].function([["a"]], [[]]) == 0


@pytest.mark.slow
def test_the_loss_is_that_of_the_right_senses_together_among_the_candidates():
    task = tiny.Tiny("word_senses", ROWS)
    unknown = tiny.as_records([example("tree", 0, "tree", "N", "tree.plant"), example("dog", 0, "dog", "N", "dog.new"),
                               {"text": "dog", "span": [0, 3], "lemma": "dog"}])
    store = task.examples([*task.records, *unknown])
    found = np.stack(task.outputs(store)["log_probabilities"])
    candidates, right = store.units.columns["candidates"], store.units.columns["right"] == 1
    own = found[: len(ROWS)]
    np.testing.assert_allclose(np.exp(own).sum(-1), 1, rtol=1e-5)
    assert np.all(own[candidates[: len(ROWS)] < 0] < -1e29) and candidates[len(ROWS)].max() == -1
    expected = -np.log((np.exp(own) * right[: len(ROWS)]).sum(-1)).mean()
    loss, gradient = task.loss(store.gather(np.r_[np.arange(store.examples), -1]))
    assert loss == pytest.approx(expected, rel=1e-5)
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(gradient))
    result = task.score()
    assert result.metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert result.metrics["first_sense_f1"] == pytest.approx(6 / 7)


@pytest.mark.slow
def test_the_nearest_mean_vector_is_that_of_numpy():
    """The means are those of the training examples whatever the batches, and the first sense answers where there is
    none."""
    encoder = tiny.Tiny("classification", [{"text": "cat", "label": "a"}, {"text": "dog", "label": "b"}])
    part = FrozenPart("features", "runs/bert", encoder.objective.specs, encoder.tokenizer.tokens, encoder.model,
                      encoder.objective, encoder.config, flatten(jax.device_get(encoder.params)))
    task = tiny.Tiny("word_senses", ROWS, "none", network="nearest", features=LAST, frozen={"features": part})
    store, carry, losses = task.examples(), task.objective.carry(1), []
    step = jax.jit(task.objective.loss)
    for numbers in np.r_[np.arange(len(ROWS)), -1].reshape(-1, 2):
        batch = task.objective.prepare(Keys(None, None), store.gather(numbers, 8))
        value, (_, carry) = step(task.params, batch, jax.random.key(0), carry)
        losses.append(float(value))
    assert losses[0] == 0 and all(np.isfinite(losses))
    batch = store.gather(np.arange(len(ROWS)), 8)
    x = np.asarray(frozen_features.encode(LAST, part, task.params["frozen"]["features"]["encoder"], batch))[0]
    x = np.stack([row[np.flatnonzero(mark == 1)].mean(0) for row, mark in zip(x, batch["target_word"], strict=True)])
    members = [[i for i, row in enumerate(ROWS) if label in row["senses"]] for label in task.config.labels]
    np.testing.assert_array_equal(carry.shared["counts"], [len(each) for each in members])
    means = np.stack([x[each].mean(0) for each in members])
    np.testing.assert_allclose(carry.shared["sums"] / carry.shared["counts"][:, None], means, rtol=1e-4, atol=1e-5)
    cosine = (x @ means.T) / np.linalg.norm(x, axis=-1)[:, None] / np.linalg.norm(means, axis=-1)
    untrained, trained = ({**task.params, "shared": each.shared} for each in (task.objective.carry(1), carry))
    candidates = batch["candidates"][:, 0]
    expected = np.where(candidates < 0, -9, np.take_along_axis(cosine, np.maximum(candidates, 0), -1)).argmax(-1)
    for params, best in ((trained, expected), (untrained, np.zeros(len(ROWS)))):
        found = task.predict(params, batch)["units"]["log_probabilities"]
        np.testing.assert_array_equal(np.asarray(found)[:, 0].argmax(-1), best)
    with pytest.raises(UserError, match="mean vectors of senses are missing"):
        task.objective.predict(task.params, batch)


def corpus(path, count, seed):
    """Files of the published form. A cat is a pet beside one of the first four words; zebras have no training data."""
    draw, xml, keys = random.Random(seed), [], []
    for i in range(count):
        beside = draw.choice(tiny.WORDS[1:])
        lemma, sense = ("zebra", "zebra%1") if path.name == "dev.data.xml" and i % 10 == 0 else (
            "cat", "cat%1" if beside in tiny.WORDS[:4] else "cat%2")
        words = [f'<instance id="s{i}" lemma="{lemma}" pos="NOUN">cat</instance>', f'<wf lemma="x">{beside}</wf>']
        xml.append(f"<sentence>{''.join(words[:: draw.choice([1, -1])])}</sentence>\n")
        keys.append(f"s{i} {sense}\n")
    path.write_text(f"<corpus><text>\n{''.join(xml)}</text></corpus>\n")
    path.with_name(path.name.replace("data.xml", "gold.key.txt")).write_text("".join(keys))
    return path


@pytest.mark.slow
def test_a_classifier_and_its_vectors_learn_on_several_devices(tmp_path):
    train, dev = corpus(tmp_path / "train.data.xml", 200, 0), corpus(tmp_path / "dev.data.xml", 40, 1)
    lmrep.train(tiny.config("word_senses", train, dev, "mesh=2x2x2", epochs=4.0), tmp_path / "run")
    config = compose_known(f"network=nearest,mesh=8x1x1,features={tmp_path / 'run'}", "word_senses")
    config.data.update({"train": str(train), "validation": str(dev)})
    config.update_from_flattened_dict({"epochs": 2.0, "log.tensorboard": False, "log.report": False, "length": 32})
    lmrep.train(config, tmp_path / "nearest")
    for name in ("run", "nearest"):
        [results] = json.loads((tmp_path / name / "results.json").read_text())["evaluations"]
        assert results["metrics"]["sense_precision"] > 0.9 > 0.8 > results["metrics"]["first_sense_f1"]
        assert results["metrics"]["sense_recall"] == pytest.approx(0.9 * results["metrics"]["sense_precision"])
        lines = (tmp_path / name / "predictions" / "validation.txt").read_text().splitlines()
        assert len(lines) == 36 and "s1 cat%" in lines[0]
        run, notes = lmrep.load(tmp_path / name), []
        shown = reported.read(tmp_path / name, run.experiment, [], notes)
        assert shown.examples == 40 and not notes and any(predicted == "no answer" for *_, predicted in shown.worst)
        one = {"text": "cat dog", "span": [0, 3], "lemma": "cat"}
        found = run.predict([one, "cat\tNOUN\t0\tcat dog", json.dumps(one), "zebra\tNOUN\t0\tcat dog"])
        assert [each["sense"] for each in found] == ["cat%1"] * 3 + [None]
