"""What pages of pretraining share: choices, another network, data or optimizer, and the size tiny."""

import pytest

from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment import page_files
from lmrep.experiment.pretraining import CORPORA, choices
from lmrep.models import MODELS, PRESETS, pretrained_models
from lmrep.objectives import OBJECTIVES
from lmrep.optimizers import SKIP


def page(name, argument=""):
    return loading.load_module(page_files.find(name)).get_config(argument)


def test_the_first_size_is_the_default_and_gives_its_recipe():
    config = page("bert")
    assert (config.name, config.steps, config.batch_size, config.length) == ("bert_base", 1_000_000, 256, 128)
    assert [stage["length"] for stage in config.stages] == [None, 512]
    assert page("bert", "size=large").model.layers == 24


@pytest.mark.parametrize("name", pretrained_models())
def test_model_is_a_preset_or_a_network(name):
    """A network without a preset has its own defaults, the tokenizer's vocabulary and positions for every stage."""
    context = {"bilstm": "objective=bidirectional,format=sentence_stream",
               **dict.fromkeys(("encoder_decoder", "seq2seq_lstm"), "objective=span_corruption,format=stream")}.get(
                   name, "objective=causal,format=stream")
    for argument in (f"model={name},{context}", f"model={name},{context},size=tiny"):
        experiment = experiments.parse(page("bert", argument))
        assert experiment.model["name"] == name and experiment.model["vocab"] == 0
    assert page("bert", f"model={name},data=files").tokenizer.vocab_size == PRESETS["bert_base"].config.vocab
    assert page("bert", "model=bert_mini,size=large").model.width == 256


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_tiny_is_small_for_every_objective(objective):
    network = {"bidirectional": "model=elmo_original,format=sentence_stream", "permutation":
               "model=xlnet_base,format=stream_pair",
               "span_corruption": "model=t5_small,format=packed"}.get(objective, "format=packed")
    config = page("bert", f"size=tiny,objective={objective},{network},optimizer=lamb")
    width = 64 if objective == "bidirectional" else 128
    assert (config.steps, config.batch_size, config.model.layers, config.model.width) == (400, 32, 2, width)
    assert max(stage.length for stage in experiments.resolve_stages(experiments.parse(config))) == 64
    assert config.optimizer.schedule.warmup_fraction == 0.1 and config.optimizer.learning_rate == 1e-2


@pytest.mark.parametrize("data", CORPORA)
def test_the_small_corpus_gets_small_batches_and_vocabularies_and_samples(data):
    config = page("albert", f"data={data}")
    assert config.data.corpus == CORPORA[data]
    assert (config.batch_size, config.tokenizer.vocab_size) == (
        (256, 8000) if data == "python_docs" else (4096, 30000))
    assert config.samples == (("The [MASK] of a list is an integer.",) if data == "python_docs" else ())


def test_other_optimizer_has_the_page_s_rate_or_its_own():
    own = page("bert", "optimizer=adafactor").optimizer
    assert own.learning_rate == 0.01 and own.schedule.warmup == 10_000
    of_page = page("spanbert", "optimizer=adafactor").optimizer
    assert of_page.learning_rate == 1e-4 and of_page.schedule.warmup == 0
    assert of_page.schedule.warmup_fraction == 10_000 / 2_400_000
    assert page("bert", "optimizer=lamb").optimizer.learning_rate == 1.76e-3


def test_a_network_without_norms_or_biases_keeps_the_recipe():
    """The objective's head has biases and norms of its own."""
    assert page("bert", "model=lstm").optimizer.decay_skip == page("bert").optimizer.decay_skip == SKIP


def test_a_tiny_network_with_a_misspelt_field_is_refused_by_its_file(monkeypatch):
    monkeypatch.setitem(MODELS, "lstm", MODELS["lstm"]._replace(tiny={"widht": 8}))
    with pytest.raises(UserError, match=r"network 'lstm' \(.*lstm.py\): its row names the field 'widht'"):
        page("bert", "model=lstm,size=tiny")


def test_another_network_keeps_the_objective_of_the_page():
    page_s = page("bert", "size=mini").objective
    assert page("bert", "model=roberta_base").objective == page("bert", "model=albert_base").objective == page_s


def test_unknown_choice_is_refused():
    with pytest.raises(UserError, match="has no choice 'sise'; did you mean 'size'"):
        page("bert", "sise=base")
    with pytest.raises(UserError, match=r"model is 'lstn'; expected one of .*did you mean 'lstm'"):
        page("bert", "model=lstn")
    with pytest.raises(UserError, match=r"objective is 'masked'; expected one of causal"):
        page("lstm_lm", "objective=masked")


@pytest.mark.parametrize(("sizes", "objective", "format", "problem"), [
    ({"base": "gpt9"}, "causal", "stream", "'gpt9' as a preset"),
    ({"base": "gpt"}, "causl", "stream", "'causl' as an objective, which does not exist; did you mean 'causal'"),
    ({"base": "gpt"}, "causal", ("stream", "packd"), "'packd' as a format")])
def test_a_page_that_names_something_unknown_is_refused_by_its_file(sizes, objective, format, problem, tmp_path):
    (tmp_path / "page.py").write_text(
        "from lmrep.experiment.pretraining import choices\n"
        f"get_config = lambda argument: choices(argument, {sizes}, {objective!r}, {format!r}, 'gpt')\n")
    with pytest.raises(UserError) as refused:
        loading.load(tmp_path / "page.py")
    assert str(refused.value).startswith(f"{tmp_path}/page.py: its `choices` name ") and problem in str(refused.value)


def test_a_page_has_choices_of_its_own():
    assert choices("mine=b", {"base": "bert_base"}, "masked", "packed", "bert", mine=("a", ("a", "b"))).mine == "b"
