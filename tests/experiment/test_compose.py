"""Choices of experiment files, and the pages that come with the package."""

import re

import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment import page_files
from lmrep.experiment.compose import CORPORA, choose, compose
from lmrep.experiment.recipes import RECIPES
from lmrep.models import PRESETS, pretrained_models
from lmrep.objectives import OBJECTIVES
from tests import small

SIZES = {"base": "bert_base", "large": "bert_large"}


def composed(argument="", sizes=SIZES, **own):
    return compose(choose(argument, sizes, **own))


def test_every_preset_has_a_recipe():
    """But the Transformer and CoVe's network, which learned to translate."""
    assert RECIPES.keys() == PRESETS.keys() - {"transformer_base", "transformer_big", "cove"}


def test_the_first_size_is_the_default_and_gives_its_recipe():
    config = composed()
    assert (config.name, config.steps, config.batch_size, config.length) == ("bert_base", 1_000_000, 256, 128)
    assert [stage["length"] for stage in config.stages] == [None, 512]
    assert composed("size=large").model.layers == 24


@pytest.mark.parametrize("name", pretrained_models())
def test_model_is_a_preset_or_a_network(name):
    """A network without a preset has its own defaults, the tokenizer's vocabulary and positions for every stage."""
    context = {"bilstm": "objective=bidirectional,format=sentence_stream",
               **dict.fromkeys(("encoder_decoder", "seq2seq_lstm"), "objective=span_corruption,format=stream")}.get(
                   name, "objective=causal,format=stream")
    for argument in (f"model={name},{context}", f"model={name},{context},size=tiny"):
        experiment = experiments.parse(composed(argument))
        assert experiment.model["name"] == name and experiment.model["vocab"] == 0
    assert composed(f"model={name},data=files").tokenizer.vocab_size == PRESETS["bert_base"].config.vocab
    assert composed("model=bert_mini,size=large").model.width == 256


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tiny_is_small_for_every_objective(objective):
    network = {"bidirectional": "model=elmo_original,format=sentence_stream", "permutation":
               "model=xlnet_base,format=stream_pair",
               "span_corruption": "model=t5_small,format=packed"}.get(objective, "format=packed")
    config = composed(f"size=tiny,objective={objective},{network},optimizer=lamb")
    width = 64 if objective == "bidirectional" else 128
    assert (config.steps, config.batch_size, config.model.layers, config.model.width) == (400, 32, 2, width)
    assert max(stage.length for stage in experiments.resolve_stages(experiments.parse(config))) == 64
    assert config.optimizer.schedule.warmup_fraction == 0.1 and config.optimizer.learning_rate == 1e-2


def test_published_warmup_is_a_fraction_of_the_steps():
    for recipe in RECIPES.values():
        assert int(recipe.warmup / recipe.steps * recipe.steps) == recipe.warmup


@pytest.mark.parametrize("data", CORPORA)
def test_the_small_corpus_gets_small_batches_and_vocabularies_and_samples(data):
    config = composed(f"data={data}", {"base": "albert_base"})
    assert config.data.corpus == CORPORA[data]
    assert (config.batch_size, config.tokenizer.vocab_size) == (
        (256, 8000) if data == "python_docs" else (4096, 30000))
    assert config.samples == (("The [MASK] of a list is an integer.",) if data == "python_docs" else ())


def test_other_optimizer_has_the_recipe_s_rate_or_its_own():
    own = compose(choose("optimizer=adafactor", SIZES), own_rates=True).optimizer
    assert own.learning_rate == 0.01 and own.schedule.warmup == 10_000
    default = compose(choose("optimizer=adafactor", SIZES)).optimizer
    assert default.learning_rate == 1e-4 and default.schedule.warmup == 0 and default.schedule.warmup_fraction == 0.01
    assert compose(choose("optimizer=lamb", SIZES), own_rates=True).optimizer.learning_rate == 1.76e-3


def test_unknown_choice_is_refused():
    with pytest.raises(UserError, match="has no choice 'sise'; did you mean 'size'"):
        choose("sise=base", SIZES)
    with pytest.raises(UserError, match=r"model is 'lstn'; expected one of .*did you mean 'lstm'"):
        choose("model=lstn", SIZES)
    assert choose("own=b", SIZES, own=("a", ("a", "b"))).own == "b"


# Pages of the package


def test_pages_are_found_by_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = page_files.installed()
    assert {"bert.py", "quickstart.py"} <= pages.keys() and not any("ablations" in name for name in pages)
    for name in ("bert", "bert.py", "experiments/bert.py"):
        assert page_files.find(name) == pages["bert.py"]
    (tmp_path / "bert.py").write_text("")
    assert str(page_files.find("bert.py")) == "bert.py"
    assert str(page_files.find("nothing.py")) == "nothing.py"


def test_pages_are_listed_described_and_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = small.command("pages")
    assert listed.code == 0
    assert re.search(r"^bert\.py +BERT \(Devlin et al\., 2019\): masked", listed.out, re.MULTILINE)
    assert "Cost: " in small.command("pages", "bert").out
    copied = small.command("pages", "bert.py", "--copy")
    assert copied.code == 0 and (tmp_path / "bert.py").read_text() == page_files.installed()["bert.py"].read_text()
    assert small.command("pages", "bert.py", "--copy").code == 2
    assert small.command("pages", "bart").code == 2 and small.command("pages", "--copy").code == 2


@pytest.mark.parametrize("page", page_files.installed())
def test_every_page_states_its_cost_and_what_to_expect(page):
    text = page_files.docstring(page_files.installed()[page])
    assert "Expected" in text and ("Cost: " in text or "does not state the cost" in text)
