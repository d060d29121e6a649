"""The checked record of a config: reading, stages, meshes, sizes, and which choices fit together."""

import dataclasses
import json
import time

import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment.config import check_mesh, default_config, parse, resolve_stages
from lmrep.experiment.record import MeshConfig, parse_mesh
from lmrep.models import PRESETS
from lmrep.optimizers import recipe, recipe_rows
from tests import small


@pytest.fixture
def config(tmp_path):
    return small.config(tmp_path)


def refused(config, message, **fields):
    config.unlock()
    config.update_from_flattened_dict(fields)
    with pytest.raises(UserError, match=message) as error:
        check_mesh(parse(config), 8)
    assert str(error.value).count("\n") <= 1


# Reading


def test_config_spells_out_every_field_and_reads_back_as_itself():
    """Nothing is decided by fields that a config lacks."""
    for preset in PRESETS:
        for optimizer in recipe_rows():
            own = {"elmo": ("bidirectional", "sentence_stream"),
                   **dict.fromkeys(("transformer_xl", "awd_lstm"), ("causal", "stream")),
                   **dict.fromkeys(("t5", "transformer", "cove"), ("span_corruption", "stream"))}
            config = default_config(preset, *own.get(PRESETS[preset].family, ("masked", "segment_pair")), optimizer)
            config.tokenizer.name = PRESETS[preset].tokenizer
            config.steps = 20_000  # more than the longest warm-up
            record = parse(config)
            assert experiments.model_config(record.model) == PRESETS[preset].config
            assert record.optimizer == recipe(optimizer)
            assert record.format.keys() == resolve_stages(record)[0].format.__dict__.keys() | {"name"}
            assert record.objective.keys() == resolve_stages(record)[0].objective.__dict__.keys() | {"name"}


def test_record_survives_json(config):
    """As config.json keeps it."""
    record = parse(config)
    assert parse(json.loads(json.dumps(dataclasses.asdict(record)))) == record


@pytest.mark.parametrize(("preset", "message"), [("bert_bas", "model is 'bert_bas'.*did you mean 'bert_base'")])
def test_unknown_preset_is_refused(preset, message):
    with pytest.raises(UserError, match=message):
        default_config(preset, "masked", "packed")


@pytest.mark.parametrize(("field", "value", "message"), [
    ("steps", 0, "config.steps is 0; expected at least 1"),
    ("steps", -5, "expected at least 1"),
    ("steps", "many", "config.steps is 'many'; expected a whole number"),
    ("steps", 1.5, "config.steps is 1.5; expected a whole number"),
    ("steps", True, "config.steps is True; expected a whole number"),
    ("seed", -1, "config.seed is -1; expected at least 0"),
    ("optimizer.learning_rate", float("nan"), "learning_rate is nan; expected a finite number"),
    ("optimizer.learning_rate", float("inf"), "learning_rate is inf; expected a finite number"),
    ("optimizer.learning_rate", -1.0, "learning_rate is -1.0; expected above 0"),
    ("optimizer.learning_rate", "fast", "learning_rate is 'fast'; expected a number"),
    ("optimizer.weight_decay", -0.1, "weight_decay is -0.1; expected at least 0"),
    ("optimizer.betas", (0.9, 1.0), r"betas is \(0.9, 1.0\); expected below 1"),
    ("optimizer.schedule.warmup", 13, "warmup is 13, more than the 12 steps of the run"),
    ("optimizer.schedule.name", "linnear", "did you mean 'linear'"),
    ("model.dropout", 1.0, "config.model.dropout is 1.0; expected below 1"),
    ("model.layers", 0, "config.model.layers is 0; expected at least 1"),
    ("model.heads", 5, "model.width is 32, which model.heads=5 does not divide; for example, set heads to 4"),
    ("objective.rate", 0.0, "config.objective.rate is 0.0; expected above 0"),
    ("objective.sentence_pair", True, "needs pair_label, which format 'packed' does not give; .*segment_pair"),
    ("length", 33, "length is 33, and the model has positions for 32"),
    ("microbatches", 3, "batch_size is 16, which 3 microbatches do not divide"),
    ("data.validation", float("nan"), "validation is nan; expected a finite number"),
    ("execution.dtype", "float16", "dtype is 'float16'; expected one of float32, bfloat16"),
    ("mesh.data", 3, "data x fsdp = 3 does not divide; make batch_size a multiple of 3"),
    ("mesh.tensor", 8, "has 4 heads, which mesh.tensor=8 does not divide; .*1, 2, 4"),
    ("mesh.sequence", 3, "length is 32, which mesh.sequence=3 does not divide; make it a multiple of 3"),
])
def test_invalid_value_is_refused(config, field, value, message):
    config.unlock()
    node = config
    *path, name = field.split(".")
    for key in path:
        node = node[key]
    with node.ignore_type():
        node[name] = value
    refused(config, message)


@pytest.mark.parametrize(("section", "name", "message"), [
    ("", "stepz", "config has no field 'stepz'; did you mean 'steps'"),
    ("model", "layer", "config.model has no field 'layer'; did you mean 'layers'"),
    ("objective", "masks", "config.objective has no field 'masks'; did you mean 'mask'"),
    ("format", "duplicate", "config.format has no field 'duplicate'; did you mean 'duplicates'"),
    ("optimizer.schedule", "warm_up", "schedule 'linear' has no field 'warm_up'; did you mean 'warmup'"),
])
def test_unknown_field_is_refused(config, section, name, message):
    config.unlock()
    node = config
    for key in filter(None, section.split(".")):
        node = node[key]
    node[name] = 1
    refused(config, message)


# Stages


def staged(config, *stages, steps=100):
    config.unlock()
    config.steps, config.stages = steps, stages
    return resolve_stages(parse(config))


def test_one_stage_is_the_experiment(config):
    [plan] = staged(config)
    assert (plan.steps, plan.length, plan.batch_size, plan.microbatches) == (100, 32, 16, 1)
    assert plan.optimizer == parse(config).optimizer


def test_stages_divide_the_steps_and_change_the_fields_that_they_name(config):
    first, second, third = staged(
        config, {"name": "short", "fraction": 0.333, "length": 16, "batch_size": 64, "microbatches": 2},
        {"name": "other", "fraction": 0.333, "format": {"duplicates": 3}, "objective": {"rate": 0.3}},
        {"name": "slow", "fraction": 0.334, "optimizer": {"learning_rate": 1e-5, "schedule": {"final": 0.1}}})
    assert (first.steps, second.steps, third.steps) == (33, 34, 33)
    assert (first.length, first.batch_size, first.microbatches) == (16, 64, 2)
    assert (second.length, second.batch_size, second.format.duplicates, second.objective.rate) == (32, 16, 3, 0.3)
    assert (second.objective.mask, third.objective.rate, third.format.duplicates) == (0.8, 0.15, 1)
    assert (third.optimizer.learning_rate, third.optimizer.schedule.final) == (1e-5, 0.1)
    assert third.optimizer.schedule.decay_from == second.optimizer.schedule.decay_from == "start"


def test_stage_with_another_format_has_that_format_s_defaults(config):
    [plan, _] = staged(config, {"name": "a", "fraction": 0.5, "format": {"name": "segment_pair", "pairs": "sop"}},
                       {"name": "b", "fraction": 0.5})
    assert plan.format_name == "segment_pair" and (plan.format.pairs, plan.format.duplicates) == ("sop", 10)


@pytest.mark.parametrize(("stages", "steps", "message"), [
    ([{"fraction": 0.5}, {"fraction": 0.4}], 100, "fractions 0.5, 0.4; they must add to 1"),
    ([{"fraction": 0.5}, {"fraction": 0.5}], 1, "too few for 2 stages of fractions 0.5, 0.5"),
    ([{"fraction": 0.9}, {"fraction": 0.1, "length": 64}], 100, "length is 64, and the model has positions for 32"),
    ([{"fraction": 0.9}, {"fraction": 0.1, "lenght": 16}], 100, "config.stages.1 has no field 'lenght'"),
    ([{"fraction": 0.9}, {"fraction": 0.1, "objective": {"raet": 0.1}}], 100, "stages.1.objective has no field 'raet'"),
    ([{"fraction": 0.9}, {"fraction": 0.1, "batch_size": 6, "microbatches": 4}], 100,
     "which 4 microbatches do not divide"),
    ([{"fraction": 0.0}, {"fraction": 1.0}], 100, "config.stages.0.fraction is 0.0; expected above 0"),
])
def test_invalid_stages_are_refused(config, stages, steps, message):
    with pytest.raises(UserError, match=message):
        staged(config, *stages, steps=steps)


# Meshes


@pytest.mark.parametrize(("text", "sizes"), [
    ("data", (-1, 1, 1, 1)), ("fsdp", (1, -1, 1, 1)), ("2x2x2", (2, 2, 2, 1)), ("1x1x4", (1, 1, 4, 1)),
    ("2x1x1x4", (2, 1, 1, 4))])
def test_mesh_is_parsed(text, sizes):
    assert parse_mesh(text) == dict(zip(("data", "fsdp", "tensor", "sequence"), sizes, strict=True))


@pytest.mark.parametrize(("section", "value", "message"), [
    ("model", {"layers": 2}, r"config\.model\.name is None; expected one of awd_lstm, .*transformer_xl$"),
    ("checkpoint", {"best": ""}, r"config\.checkpoint\.best is empty; expected a metric of the objective")])
def test_a_network_and_a_metric_have_names(config, section, value, message):
    with pytest.raises(UserError, match=message):
        parse(config.to_dict() | {section: value})


@pytest.mark.parametrize("text", ["", "tensor", "2x2", "0x1x1", "-1x1x1", "2x2x2x2x2", "2x2x2x0", "2,2,2"])
def test_invalid_mesh_is_refused(text):
    with pytest.raises(UserError, match="expected data, fsdp, or sizes"):
        parse_mesh(text)


@pytest.mark.parametrize(("sizes", "expected"), [
    ((-1, 1, 1), (8, 1, 1)), ((1, -1, 2), (1, 4, 2)), ((2, 2, 2), (2, 2, 2)), ((1, 1, 4), (1, 1, 4)),
    ((-1, 1, 1, 4), (2, 1, 1, 4)), ((2, 2, 2, 1), (2, 2, 2))])
def test_mesh_axis_of_minus_1_takes_the_remaining_devices(sizes, expected):
    assert MeshConfig(*sizes).sizes(8) == expected


@pytest.mark.parametrize("sizes", [
    (16, 1, 1), (-1, -1, 1), (-1, 3, 1), (0, 1, 1), (-1, 16, 1), (2, 2, 2, 2), (-1, 1, 1, 3)])
def test_mesh_that_does_not_fit_the_devices_is_refused(sizes):
    with pytest.raises(UserError, match=r"there are 8 device\(s\)"):
        MeshConfig(*sizes).sizes(8)


@pytest.mark.parametrize(("format", "fields", "refused"), [
    ("packed", {}, True), ("doc_sentences", {}, True), ("doc_sentences", {"pack": False}, False),
    ("stream", {}, False), ("stream", {"isolate": True}, True), ("full_sentences", {}, False), ("lines", {}, False)])
def test_packed_texts_are_refused_for_a_network_without_an_attention_mask(format, fields, refused, monkeypatch):
    build = experiments.build_model
    monkeypatch.setattr(experiments, "build_model", lambda *args: build(*args)._replace(inputs=frozenset({"tokens"})))
    config = experiments.default_config("gpt", "causal", format)
    config.format.update(fields)
    if not refused:
        experiments.parse(config)
        return
    with pytest.raises(UserError, match=rf"format '{format}' puts several texts in an example, and network '\w+' takes "
                       r"no attention mask to keep them apart; formats that fit: .*full_sentences, stream, lines"):
        experiments.parse(config)


# Sizes


@pytest.mark.parametrize(("fields", "message"), [
    ({"model.layers": 10**9}, "the network's parameters would take .* check model.vocab, width, layers"),
    ({"model.width": 10**12, "model.heads": 1}, "the network's parameters would take .* TB, more than 1,000 times"),
    ({"model.vocab": 10**12}, "the network's parameters would take"),
    ({"model.max_length": 10**12}, "the network's parameters would take"),
    ({"model.positions": "sinusoidal", "length": 10**9, "model.max_length": 10**9, "execution.attention": "xla"},
     r"attention probabilities of one sequence of 1,000,000,000 tokens would take .* check length"),
    ({"batch_size": 10**13},
     "one array of hidden states, 10,000,000,000,000 x 32 x 32, would take .* check batch_size"),
])
def test_size_beyond_any_memory_is_refused_at_once(config, fields, message):
    config.data.files = "no such file"  # which is never looked for
    start = time.monotonic()
    refused(config, message, **fields)
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("attention", ["auto", "chunked"])
def test_attention_in_chunks_needs_no_memory_for_all_probabilities(config, attention, monkeypatch):
    monkeypatch.setattr(experiments, "host_memory", lambda: 10**9)
    config.update_from_flattened_dict({"model.positions": "sinusoidal", "length": 10**6, "model.max_length": 10**6,
                                       "batch_size": 1, "execution.attention": attention})
    parse(config)
    config.execution.attention = "xla"
    with pytest.raises(UserError, match=r"attention probabilities .*set execution\.attention=chunked"):
        parse(config)


def test_published_sizes_are_not_beyond_memory(monkeypatch):
    monkeypatch.setattr(experiments, "host_memory", lambda: 4 * 10**9)
    for preset in PRESETS:
        if not preset.startswith("elmo"):
            objectives = {"gpt": "causal", "gpt2": "causal", "transformer_xl": "causal", "awd_lstm": "causal",
                          "t5": "span_corruption", "transformer": "span_corruption", "cove": "span_corruption"}
            parse(default_config(preset, objectives.get(PRESETS[preset].family, "masked"), "packed"))


def test_a_network_that_reads_characters_needs_words_with_characters_that_nothing_replaces():
    config = default_config("elmo_small", "bidirectional", "sentence_stream")
    with pytest.raises(UserError, match=r"tokenizer 'wordpiece' does not give; set --config\.tokenizer\.name=elmo"):
        parse(config)
    config.tokenizer.name = "elmo"
    parse(config)
    masked = default_config("elmo_small", "masked", "packed")
    masked.tokenizer.name = "elmo"
    with pytest.raises(UserError, match=r"'masked' replaces words.*set --config\.model\.reads=words"):
        parse(masked)
    masked.model.reads = "words"
    parse(masked)
