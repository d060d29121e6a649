"""Runs compared with the published recipe that is closest to them."""

from pathlib import Path

import pytest

from lmrep.analysis.report import recipes, run_data
from lmrep.config import loading
from lmrep.experiment import config as experiments
from lmrep.models import PRESETS
from lmrep.optimizers import warmup_steps


def published(argument, page="bert", **changes):
    config = loading.load(f"experiments/{page}.py", ",".join(filter(None, (argument, "data=files"))))
    config.data.files = "*.txt"
    config.update_from_flattened_dict(changes)
    experiment = experiments.parse(config)
    plans = experiments.resolve_stages(experiment)
    return run_data.RunData(Path(), "", experiment, plans, (), (), (), (), 0, None, None, ())


def test_every_preset_has_a_recipe():
    """But the Transformer and CoVe's network, which learned to translate, and DeBERTa v2, which has no page."""
    assert recipes.recipes().keys() == PRESETS.keys() - {
        "transformer_base", "transformer_big", "cove", "deberta_v2_xlarge", "deberta_v2_xxlarge"}


@pytest.mark.parametrize("preset", recipes.recipes())
def test_pages_differ_from_their_papers_only_in_the_corpus(preset):
    recipe = recipes.recipes()[preset]
    run = published(f"size={recipe.size}", recipe.page.removesuffix(".py"))
    found = recipes.compare(run)
    assert (found.preset, found.page, found.paper) == (preset, recipe.page, recipe.paper.authors)
    assert [name for name, *_ in found.differing] == ["data.corpus", *recipe.paper.published]
    assert len(found.same) + len(recipe.paper.published) > (25 if "optimizer" in recipe.paper.unpublished else 40)
    published_batch = {"batch_size"} - {*recipe.paper.published, *recipe.paper.unpublished}
    assert {"objective.name", "format.name", "length", "model.layers", *published_batch} <= {*found.same}
    schedule, steps = run.experiment.optimizer.schedule, run.experiment.steps
    assert schedule.warmup or warmup_steps(schedule, steps) == round(schedule.warmup_fraction * steps)


@pytest.mark.parametrize(("argument", "page", "preset"), [
    ("size=tiny", "gpt2", "gpt2"), ("size=tiny", "gpt", "gpt"), ("size=tiny", "electra", "electra_small"),
    ("size=tiny", "albert", "albert_base"),
    ("size=tiny", "spanbert", "spanbert_base"), ("size=bert_tiny,objective=causal", "bert", "bert_tiny"),
    ("size=bert_tiny,objective=replaced_token", "bert", "bert_tiny"), ("", "quickstart", "bert_tiny")])
def test_small_network_is_compared_with_its_own_family(argument, page, preset):
    assert recipes.compare(published(argument, page)).preset == preset


def test_unpublished_settings_are_not_compared():
    found = recipes.compare(published("size=small", "gpt2", **{"optimizer.learning_rate": 1.0, "batch_size": 8}))
    assert [name for name, *_ in found.differing] == ["data.corpus", "batch_size"]


def test_left_to_right_ablation_differs_in_the_objective():
    """Whose output layer has no transform before it."""
    found = recipes.compare(published("size=small,objective=causal"))
    assert [name for name, *_ in found.differing] == ["data.corpus", "objective.name", "objective.head"]


def test_network_without_published_recipes_is_not_compared():
    assert recipes.compare(published("size=tiny", "lstm_lm")) is None


@pytest.mark.parametrize(("field", "value", "shown"), [
    ("objective.whole_word", True, "objective.whole_word"), ("model.norm", "pre", "model.norm"),
    ("optimizer.clip", 0.5, "optimizer.clip"), ("batch_size", 512, "batch_size"),
    ("optimizer.schedule.warmup_fraction", 0.02, "warm-up steps")])
def test_changed_field_is_marked(field, value, shown):
    found = recipes.compare(published("size=small", **{field: value}))
    assert [name for name, *_ in found.differing] == ["data.corpus", shown] and all(row[3] for row in found.differing)


def test_every_preset_is_closest_to_itself():
    for name, recipe in recipes.recipes().items():
        preset = PRESETS[name]
        same = recipes.closest(preset.config, recipe.objective, preset.lowercase)
        assert name in same and all(PRESETS[other].config == preset.config for other in same)
