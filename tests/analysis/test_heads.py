"""Importance of attention heads, removal in its order, and runs without some heads."""

import itertools
import json
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lmrep
from lmrep.analysis import head_importance, heads, pruning, report
from lmrep.analysis.report import page
from lmrep.core.errors import UserError
from lmrep.core.params import count
from lmrep.data import loader
from lmrep.experiment import build
from lmrep.experiment.config import stage_at
from lmrep.layers import attention
from lmrep.models import transformer
from lmrep.objectives.base import Carry
from lmrep.training.step import prepare_keys
from tests import runs, small
from tests.tasks import tiny

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A copy of the shared classifier, of one layer with two heads, and its data."""
    home = tmp_path_factory.mktemp("heads")
    for name in ("train", "dev"):
        shutil.copy(runs.folder("classification") / f"{name}.jsonl", home)
    runs.copy("classification", home / "run")
    return home


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "run")


@pytest.fixture(scope="module")
def masked():
    """The shared masked language model, of two layers with four heads."""
    return lmrep.load(runs.folder("masked") / "run")


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A classifier of two layers."""
    home = tmp_path_factory.mktemp("deep")
    for name, seed in (("train", 0), ("dev", 1)):
        tiny.write(home / f"{name}.jsonl", runs.labelled_texts(80, seed))
    lmrep.train(tiny.config("classification", home / "train.jsonl", home / "dev.jsonl", epochs=1.0, model__layers=2),
                home / "run")
    return home


def contexts_and_gradients(objective, monkeypatch):
    """A function of (params, batch, its number): the number of masked tokens, and for each layer the context vectors
    [b, t, h, k] and the gradients of the sum of the masked tokens' losses by them."""
    apply, contexts, shifts = attention.apply, [], []

    def shifted(own, x, attend, h, **options):
        def run_attend(*arguments, **more):
            output, weights = attend(*arguments, **more)
            contexts.append(output)
            return output + (shifts[len(contexts) - 1] if shifts else 0), weights
        return apply(own, x, run_attend, h, **options)

    def loss(given, params, prepared):
        contexts.clear()
        shifts[:] = given
        value = objective.loss(params, prepared, None, Carry())[0] * (prepared["weights"] > 0).sum()
        return value, list(contexts)

    @jax.jit
    def both(params, batch, number):
        prepared = objective.prepare(prepare_keys(objective, batch, 0, number), batch)
        with monkeypatch.context() as patch:
            patch.setattr(transformer.attention_layer, "apply", shifted)
            _, known = loss([], params, prepared)
            gradients, _ = jax.grad(loss, has_aux=True)([jnp.zeros(each.shape) for each in known], params, prepared)
        return (prepared["weights"] > 0).sum(), [*zip(known, gradients, strict=True)]

    return both


def test_importance_is_the_sum_of_absolute_products_of_context_and_gradient(masked, monkeypatch):
    """By tokens, of the context vectors themselves; the last layer is computed at the masked tokens alone."""
    stage, data_dir = stage_at(masked.experiment, masked.step), runs.folder("masked") / "data"
    prepared = build.existing(masked.experiment, data_dir)
    plan = build.plan(stage, prepared.splits["train"], 0, data_dir, once=True)
    batches = [loader.gather(plan, np.arange(first, first + 4)) for first in (0, 4)]
    make = partial(build.objective, stage, vocabulary=prepared.tokenizer.vocabulary)
    objective, step = make(masked.model), head_importance.importance_step(make, masked.model, 0)
    found = head_importance.importance(step, masked.params, batches, np.ones((2, 4), np.float32), normalize=False)
    both = contexts_and_gradients(objective, monkeypatch)
    total, positions, tokens = np.zeros((2, 4)), 0, sum((batch["segment_ids"] > 0).sum() for batch in batches)
    for number, batch in enumerate(batches):
        count, layers = jax.device_get(both(masked.params, batch, np.int32(number)))
        positions += count
        for layer, (context, gradient) in enumerate(layers):
            total[layer] += np.abs((context * gradient).sum(-1)).sum((0, 1))
    np.testing.assert_allclose(found, total / [[tokens], [positions]], rtol=1e-4)
    normalized = head_importance.importance(step, masked.params, batches, np.ones((2, 4), np.float32))
    np.testing.assert_allclose(normalized, found / np.linalg.norm(found, axis=1, keepdims=True), rtol=1e-5)
    closed = head_importance.importance(step, masked.params, batches, np.array([[1, 0, 1, 1]] * 2, np.float32))
    assert np.all(closed[:, 1] == 0) and np.all(closed[:, [0, 2, 3]] > 0)


@pytest.mark.slow
def test_command_measures_every_head_and_the_report_shows_them(home):
    answer = small.command("heads", f"--workdir={home}/run", "--random=2", "--examples=40")
    assert answer.code == 0, answer.err
    result = json.loads((home / "run/heads.json").read_text())
    evaluated = json.loads((home / "run/results.json").read_text())["evaluations"][0]["metrics"]["accuracy"]
    assert result["base"] == pytest.approx(evaluated) and f"{evaluated:.4f} with all 2 heads" in answer.out
    assert [point["removed"] for point in result["curve"]] == [0, 1, 2] and len(result["random"]) == 2
    scores = {tuple(map(tuple, point["heads"])): point["score"] for point in result["curve"]}
    importance = np.array(result["importance"])
    first = next(removed for removed in scores if len(removed) == 1)[0]
    assert importance[first] == importance.min() and scores[(first,)] == result["ablation"][first[0]][first[1]]
    # Two heads a layer: one alone is the layer without the other.
    assert [own[::-1] for own in result["single"]] == result["ablation"]
    for title in ("Importance", "Without one head: change of accuracy", "random order, mean of 2"):
        assert title in answer.out
    assert pruning.least_important(lmrep.load(home / "run"), 0.5, examples=40) == {0: [first[1]]}
    shown = report.write([home / "run"], data_dir=home).read_text()
    assert shown.count("<title>layer ") == 2 and "accuracy by removed heads" in shown and "<polyline" in shown


def test_report_shows_heads_that_were_measured_without_a_curve():
    result = {"step": 1, "metric": "accuracy", "higher_is_better": True, "examples": {"train": 4, "validation": 4},
              "base": 0.5, "exact": False, "at_least": 0, "kept": [[0, 1]], "importance": [[0.25, 0.5]]}
    macros = page.environment().get_template("heads.html.j2").module
    for curve in ({}, {"curve": [], "random": []}):
        shown = macros.importance(result | curve)
        assert shown.count("<title>layer ") == 2 and "<polyline" not in shown


def test_a_pruned_run_is_the_run_without_these_heads(home, run, tmp_path):
    """And a second removal counts heads as the first did."""
    answer = small.command("prune", f"--workdir={home}/run", f"--output={tmp_path}/one", "--heads=0:0")
    assert answer.code == 0 and answer.out.startswith("removed 1 of 2 heads"), answer.err
    pruned = lmrep.load(tmp_path / "one")
    assert pruned.experiment.model["pruned_heads"] == "0:0" and pruned.model.heads.kept() == ((1,),)
    assert count(pruned.params) == count(run.params) - (4 * 16 * 8 + 3 * 8)
    gates = heads.gates_without([(0, 0)], run.model.heads.kept(), 2)
    assert lmrep.evaluate(tmp_path / "one")["accuracy"] == pytest.approx(head_importance.gated(run).score(gates))
    with pytest.raises(UserError, match=r"has no head 0:0 any more \(model.pruned_heads is 0:0\)"):
        pruning.prune(pruned, tmp_path / "three", {0: [0]})
    refused = small.command("convert", str(tmp_path / "one"), str(tmp_path / "out"), "--to=huggingface")
    assert refused.code == 2 and "published layouts have the same heads in every layer" in refused.err


@slow
def test_a_pruned_run_is_pruned_and_trained_further(deep, tmp_path):
    run = lmrep.load(deep / "run")
    pruning.prune(run, tmp_path / "one", {1: [0]})
    pruned = lmrep.load(tmp_path / "one")
    open_gates = heads.gates_without((), pruned.model.heads.kept(), 2)
    record = head_importance.gated(pruned, 30, split="").importance(open_gates)
    assert record[1, 0] == 0 and record[1, 1] > 0
    found = pruning.prune(pruned, tmp_path / "two", {0: [1]})
    assert found.pruned_heads == "0:1;1:0" and found.difference <= 1e-6
    config = tiny.config("classification", deep / "train.jsonl", deep / "dev.jsonl",
                         f"init={tmp_path}/one", epochs=1.0)
    outcome = lmrep.train(config, tmp_path / "further")
    assert outcome.steps == 5 and lmrep.load(tmp_path / "further").model.heads.kept() == ((0, 1), (1,))


@slow
def test_the_least_important_heads_are_removed(deep, tmp_path):
    run = lmrep.load(deep / "run")
    answer = small.command("prune", f"--workdir={deep}/run", f"--output={tmp_path}/out", "--fraction=0.5")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("removed 2 of 4 heads")
    own = head_importance.gated(run, split="").importance(np.ones((2, 2), np.float32))
    expected = heads.lowest(own, run.model.heads.kept(), 2, 1)
    kept = lmrep.load(tmp_path / "out").model.heads.kept()
    assert {(0, 0), (0, 1), (1, 0), (1, 1)} - set(heads.all_heads(kept)) == set(expected)


@slow
def test_layers_that_share_parameters_lose_the_same_heads(deep, tmp_path):
    """Those whose importance over all layers is the least."""
    config = tiny.config("classification", deep / "train.jsonl", epochs=1.0, model__layers=2, model__share="all")
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


@slow
def test_pretraining_runs_are_measured_by_their_loss(tmp_path):
    config = small.config(small.corpus(tmp_path / "texts", documents=20), "replaced_token")
    config.steps = 1
    config.model.update({"layers": 1, "width": 16, "heads": 2, "mlp": 32})
    workdir, data_dir = tmp_path / "run", tmp_path
    lmrep.train(config, workdir, data_dir=data_dir)
    own = head_importance.gated(lmrep.load(workdir), 8, 8, data_dir=data_dir)
    assert own.metric == "loss" and not own.higher_is_better
    loss = lmrep.evaluate(workdir, split="validation", examples=8, data_dir=data_dir)["loss"]
    gates = heads.gates_without((), own.run.model.heads.kept(), own.run.model.heads.number)
    assert own.score(gates) == pytest.approx(loss, rel=1e-6) and own.score(0 * gates) != pytest.approx(loss, rel=1e-6)
    found = own.importance(gates)
    assert found.shape == gates.shape and np.all(found > 0)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
