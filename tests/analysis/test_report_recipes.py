"""Runs compared with the published recipe that is closest to them."""

from pathlib import Path

import pytest

from lmrep.analysis.report import recipes, run_data
from lmrep.config import loading
from lmrep.experiment import config as experiments
from lmrep.experiment.recipes import RECIPES
from lmrep.models import PRESETS


def published(argument, page="bert", **changes):
    config = loading.load(f"experiments/{page}.py", ",".join(filter(None, (argument, "data=files"))))
    config.data.files = "*.txt"
    config.update_from_flattened_dict(changes)
    experiment = experiments.parse(config)
    plans = experiments.resolve_stages(experiment)
    return run_data.RunData(Path(), "", experiment, plans, (), (), (), (), 0, None, None, ())


@pytest.mark.parametrize("preset", RECIPES)
def test_default_experiments_differ_from_their_papers_only_in_the_corpus(preset):
    page = PRESETS[preset].family
    size = preset.removeprefix(page).removeprefix("_").removeprefix("wt103_")
    size = {"gpt": "base", "bert_tiny": "bert_tiny"}.get(preset, size or "small")
    found = recipes.compare(published(f"size={size}", page))
    assert found.preset == preset and found.paper == RECIPES[preset].authors
    rounded = ["batch_size"] * (RECIPES[preset].batch_size % 8 > 0)  # so that eight devices can split them
    assert [name for name, *_ in found.differing] == ["data.corpus", *rounded]
    assert len(found.same) > (25 if "optimizer" in RECIPES[preset].unpublished else 40)
    published_batch = {"batch_size"} - {*rounded, *RECIPES[preset].unpublished}
    assert {"objective.name", "format.name", "length", "model.layers", *published_batch} <= {*found.same}


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
    found = recipes.compare(published("size=small,objective=causal"))
    assert [name for name, *_ in found.differing] == ["data.corpus", "objective.name"]


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
    for name, recipe in RECIPES.items():
        preset = PRESETS[name]
        same = recipes.closest(preset.config, recipe.objective, preset.lowercase)
        assert name in same and all(PRESETS[other].config == preset.config for other in same)
