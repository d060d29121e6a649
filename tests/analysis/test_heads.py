"""Importance of attention heads, removal in its order, and runs without some heads."""

import itertools
import json
import random
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.analysis import head_importance, heads, pruning
from lmrep.core.errors import UserError
from lmrep.core.params import count
from lmrep.data import records
from lmrep.experiment import build
from lmrep.experiment.config import stage_at
from lmrep.experiment.task_data import tokenized
from lmrep.inference import labelled
from lmrep.layers import attention
from lmrep.models import transformer
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS
from tests import small
from tests.tasks import tiny


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A classifier of two layers, trained until it needs its heads."""
    home = tmp_path_factory.mktemp("heads")
    for name, seed in (("train", 0), ("dev", 1)):
        draw, records = random.Random(seed), []
        for _ in range(80):
            words, label = tiny.sentence(draw, 3).split(), draw.randrange(2)
            words.insert(draw.randrange(4), ("bad", "good")[label])
            records.append({"text": " ".join(words), "label": ("neg", "pos")[label]})
        tiny.write(home / f"{name}.jsonl", records)
    config = tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", epochs=4.0, model__layers=2)
    lmrep.train(config, home / "run")
    return home


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "run")


def contexts_and_gradients(objective, params, prepared, monkeypatch):
    """For each layer the context vectors [b, t, h, k] and the gradients of the sum of the examples' losses by them."""
    apply, contexts, shifts = attention.apply, [], []

    def shifted(own, x, attend, h, **options):
        def run_attend(*arguments, **more):
            output, weights = attend(*arguments, **more)
            contexts.append(output)
            return output + (shifts[len(contexts) - 1] if shifts else 0), weights
        return apply(own, x, run_attend, h, **options)

    def loss(given):
        contexts.clear()
        shifts[:] = given
        value = objective.loss(params, prepared, None, Carry())[0] * (prepared["weights"] > 0).sum()
        return value, list(contexts)

    with monkeypatch.context() as patch:
        patch.setattr(transformer.attention_layer, "apply", shifted)
        _, known = loss([])
        gradients, _ = jax.grad(loss, has_aux=True)([jnp.zeros(each.shape) for each in known])
    return [*zip(map(np.asarray, known), map(np.asarray, gradients), strict=True)]


def test_importance_is_the_sum_of_absolute_products_of_context_and_gradient(run, monkeypatch):
    """By tokens, of the context vectors themselves; the last layer is computed at the first token alone."""
    stage, task = stage_at(run.experiment, run.step), TASKS["classification"]
    own = records.read(run.experiment.data, "train", (*task.fields, *task.targets))[:30]
    batches = [*labelled.batches(tokenized(run.experiment, run.model, run.tokenizer, own, "x"))]
    make = partial(build.objective, stage, vocabulary=run.tokenizer.vocabulary)
    step = head_importance.importance_step(make, run.model, 0)
    found = head_importance.importance(step, run.params, batches, np.ones((2, 2), np.float32), normalize=False)
    total, tokens = np.zeros((2, 2)), sum((batch["segment_ids"] > 0).sum() for batch in batches)
    for batch in batches:
        prepared = run.objective.prepare(Keys(None, None), batch)
        for layer, (context, gradient) in enumerate(
                contexts_and_gradients(run.objective, run.params, prepared, monkeypatch)):
            total[layer] += np.abs((context * gradient).sum(-1)).sum((0, 1))
    np.testing.assert_allclose(found, total / [[tokens], [30]], rtol=1e-4)
    normalized = head_importance.importance(step, run.params, batches, np.ones((2, 2), np.float32))
    np.testing.assert_allclose(normalized, found / np.linalg.norm(found, axis=1, keepdims=True), rtol=1e-5)


def test_closed_heads_have_no_importance(run):
    own = head_importance.gated(run, 30, split="")
    found = own.importance(np.array([[1, 0], [1, 1]], np.float32))
    assert found[0, 1] == 0 and np.all(found[[0, 1, 1], [0, 0, 1]] > 0)


def test_command_measures_every_head(home):
    answer = small.command("heads", f"--workdir={home}/run", "--random=2", "--examples=40")
    assert answer.code == 0, answer.err
    result = json.loads((home / "run/heads.json").read_text())
    evaluated = lmrep.evaluate(home / "run")["accuracy"]
    assert result["base"] == pytest.approx(evaluated) and f"{evaluated:.4f} with all 4 heads" in answer.out
    assert [point["removed"] for point in result["curve"]] == [0, 1, 2, 3, 4] and len(result["random"]) == 2
    scores = {tuple(map(tuple, point["heads"])): point["score"] for point in result["curve"]}
    importance = np.array(result["importance"])
    first = next(removed for removed in scores if len(removed) == 1)[0]
    assert importance[first] == importance.min() and scores[(first,)] == result["ablation"][first[0]][first[1]]
    # Two heads a layer: one alone is the layer without the other.
    assert [own[::-1] for own in result["single"]] == result["ablation"]
    for title in ("Importance", "Without one head: change of accuracy", "random order, mean of 2"):
        assert title in answer.out


def test_report_shows_the_heads(home):
    if not (home / "run/heads.json").exists():
        small.command("heads", f"--workdir={home}/run", "--examples=40")
    answer = small.command("report", str(home / "run"))
    assert answer.code == 0, answer.err
    page = (home / "run/report.html").read_text()
    assert page.count("<title>layer ") == 4 and "accuracy by removed heads" in page and "<polyline" in page


def test_a_score_without_heads_is_that_of_the_run_without_them(home, run, tmp_path):
    """The pruned run predicts, is evaluated, and trains on; a second removal counts heads as the first did."""
    own = head_importance.gated(run)
    small.command("prune", f"--workdir={home}/run", f"--output={tmp_path}/one", "--heads=1:0")
    pruned = lmrep.load(tmp_path / "one")
    assert pruned.experiment.model["pruned_heads"] == "1:0" and pruned.model.kept_heads() == ((0, 1), (1,))
    assert count(pruned.params) == count(run.params) - (4 * 16 * 8 + 3 * 8)
    gates = heads.gates_without([(1, 0)], run.model.kept_heads(), 2)
    assert lmrep.evaluate(tmp_path / "one")["accuracy"] == pytest.approx(own.score(gates))
    open_gates = heads.gates_without((), pruned.model.kept_heads(), 2)
    record = head_importance.gated(pruned, 30, split="").importance(open_gates)
    assert record[1, 0] == 0 and record[1, 1] > 0
    found = pruning.prune(pruned, tmp_path / "two", {0: [1]})
    assert found.pruned_heads == "0:1;1:0" and found.difference <= 1e-6
    config = tiny.config("classification", home / "train.jsonl", home / "dev.jsonl",
                         f"init={tmp_path}/one", epochs=1.0)
    outcome = lmrep.train(config, tmp_path / "further")
    assert outcome.steps == 5 and lmrep.load(tmp_path / "further").model.kept_heads() == ((0, 1), (1,))
    with pytest.raises(UserError, match=r"has no head 1:0 any more \(model.pruned_heads is 1:0\)"):
        pruning.prune(pruned, tmp_path / "three", {1: [0]})
    refused = small.command("convert", str(tmp_path / "one"), str(tmp_path / "out"), "--to=huggingface")
    assert refused.code == 2 and "published layouts have the same heads in every layer" in refused.err


def test_the_least_important_heads_are_removed(home, run, tmp_path):
    answer = small.command("prune", f"--workdir={home}/run", f"--output={tmp_path}/out", "--fraction=0.5")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("removed 2 of 4 heads")
    own = head_importance.gated(run, split="").importance(np.ones((2, 2), np.float32))
    expected = heads.lowest(own, run.model.kept_heads(), 2, 1)
    kept = lmrep.load(tmp_path / "out").model.kept_heads()
    assert {(0, 0), (0, 1), (1, 0), (1, 1)} - set(heads.all_heads(kept)) == set(expected)


def test_layers_that_share_parameters_lose_the_same_heads(home, tmp_path):
    """Those whose importance over all layers is the least."""
    config = tiny.config("classification", home / "train.jsonl", epochs=1.0, model__layers=2, model__share="all")
    lmrep.train(config, tmp_path / "run")
    run = lmrep.load(tmp_path / "run")
    importance = head_importance.gated(run, split="").importance(np.ones((2, 2), np.float32))
    least = int(importance.sum(0).argmin())
    assert pruning.least_important(run, 0.5, 0) == {0: [least], 1: [least]}
    found = pruning.prune(run, tmp_path / "out", {0: [least], 1: [least]})
    assert found.difference <= 1e-6 and lmrep.load(tmp_path / "out").predict(["cat good dog"])
    with pytest.raises(UserError, match="remove the same heads from every layer"):
        pruning.prune(run, tmp_path / "other", {0: [least]})


IMPORTANCE = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
KEPT = [(0, 1, 2), (0, 1, 2)]


def test_heads_are_removed_from_the_least_important_on():
    assert heads.lowest(IMPORTANCE, KEPT, 4) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert heads.lowest(IMPORTANCE, KEPT, 4, at_least=1) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(heads.lowest(IMPORTANCE, KEPT, 6, at_least=1)) == 4
    assert heads.lowest(IMPORTANCE, [(1,), (0, 2)], 2) == [(0, 1), (1, 0)]


def test_steps_of_pruning_remove_rounded_down_fractions_of_all_heads():
    kept = [tuple(range(12))] * 12
    scores = np.arange(144.0).reshape(12, 12)
    found = heads.removals(lambda removed: scores, kept)
    assert [len(removed) for removed in found] == [144 * percent // 100 for percent in range(0, 101, 5)]
    calls = []

    def exact(removed):  # the order turns round after each step
        calls.append(len(removed))
        return scores if len(calls) % 2 else -scores

    found = heads.removals(exact, kept, exact=True)
    assert calls == [len(removed) for removed in found[:-1]]
    assert all(set(a) < set(b) for a, b in itertools.pairwise(found))
    assert found[1][0] == (0, 0) and found[2][-1][0] == 11


@pytest.mark.parametrize(("objective", "format"), [("masked", "packed"), ("causal", "stream"),
                                                   ("replaced_token", "packed")])
def test_pretraining_runs_are_measured_by_their_loss(tmp_path, objective, format):
    config = small.config(small.corpus(tmp_path / "texts", documents=20), objective, format)
    config.steps = 2
    lmrep.train(config, tmp_path / "run", data_dir=tmp_path)
    own = head_importance.gated(lmrep.load(tmp_path / "run"), 8, 8, data_dir=tmp_path)
    assert own.metric == "loss" and not own.higher_is_better
    loss = lmrep.evaluate(tmp_path / "run", split="validation", examples=8, data_dir=tmp_path)["loss"]
    gates = heads.gates_without((), own.run.model.kept_heads(), own.run.model.heads)
    assert own.score(gates) == pytest.approx(loss, rel=1e-6) and own.score(0 * gates) != pytest.approx(loss, rel=1e-6)
    found = own.importance(gates)
    assert found.shape == gates.shape and np.all(found > 0)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
