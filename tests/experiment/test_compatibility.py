"""Which networks, objectives and formats fit together: by shapes, and by two steps of training."""

import dataclasses
import re
from functools import partial
from itertools import cycle

import jax
import numpy as np
import pytest

from lmrep import optimizers
from lmrep.core.params import flatten
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS, batch_struct
from lmrep.experiment import compatibility
from lmrep.models import MODELS, PRESETS
from lmrep.objectives import OBJECTIVES
from lmrep.training import state
from lmrep.training.step import train_step
from tests import small
from tests.reference import random_params

V = 64
SMALL = {
    "vocab": V, "width": 32, "layers": 1, "heads": 4, "head_width": 0, "mlp": 64, "max_length": 64,
    "dropout": 0.0, "attention_dropout": 0.0, "mlp_dropout": 0.0,
    "init": "normal", "init_stddev": 0.02, "position_stddev": 0.0, "project_init": "same", "residual_init": "same",
    "activation": "gelu", "norm_eps": 1e-12, "memory": 4,
}
SMALL_CHARACTERS = {"cell": 48, "filters": (8, 16), "highways": 1, "activation": "relu"}  # of networks that read them
VOCABULARY = Vocabulary(V, {role: i for i, role in enumerate(compatibility.ROLES)}, np.arange(V) % 3 > 0,
                        np.ones(V, int), sentinels=tuple(range(V - 1, V // 2, -1)))


# A preset of each kind of network; the step of the others is that of one of these, with other numbers.
KINDS = {"bert_tiny", "electra_small", "albert_base", "gpt2", "elmo_small", "xlnet_base", "transformer_xl_wt103_base",
         "transformer_xl_enwik8", "cove", "transformer_base", "t5_small"}
ENCODER_DECODERS = {name for name, preset in PRESETS.items() if preset.model in ("encoder_decoder", "seq2seq_lstm")}


def smallest(config):
    """A network that is trained in a moment, without dropout, and with default initial values."""
    narrow = {"embedding": 16} if getattr(config, "embedding", 0) else {}
    if getattr(config, "cutoffs", ()):
        narrow |= {"cutoffs": (16, 32), "div": 2, "tied_projections": "all"}
    known = {field.name for field in dataclasses.fields(config)}
    small = SMALL | (SMALL_CHARACTERS if "filters" in known else {})
    return dataclasses.replace(config, **{name: value for name, value in small.items() if name in known}, **narrow)


def shapes():
    """A preset of each network that differs from others in more than sizes."""
    presets = {smallest(preset.config): name for name, preset in reversed(PRESETS.items())}
    return [*reversed(presets.values())]


# By shapes


@pytest.mark.slow
def test_every_triple_fits_or_is_refused_for_a_known_reason(monkeypatch):
    assert compatibility.networks() == (*PRESETS, "lstm")
    for name in {*PRESETS} - KINDS:
        monkeypatch.delitem(PRESETS, name)
    found = list(compatibility.pairings())
    assert {p[:3] for p in found} == {(network, objective, form) for network in compatibility.networks()
                                      for objective in compatibility.objectives() for form in FORMATS}
    assert set(OBJECTIVES) < set(compatibility.objectives())
    # A bidirectional LSTM reads characters, which no objective may replace, and each direction its own side.
    elmo = {p[1:3] for p in found if p.preset.startswith("elmo") and not p.refused}
    assert elmo == {("bidirectional", "sentence_stream")} == {
        p[1:3] for p in found if p.objective == "bidirectional" and not p.refused}
    refused = {p[1:] for p in found if p.refused and p.preset in PRESETS
               and not p.preset.startswith(("elmo", "transformer_xl")) and p.preset not in ENCODER_DECODERS
               and p.objective not in ("bidirectional", "span_corruption") and (
                   p.preset.startswith("xlnet") or not p.objective.startswith("permutation"))}
    # An encoder-decoder reads a source, and no other network does.
    pairs = {p[1] for p in found if p.preset in ENCODER_DECODERS and not p.refused}
    assert pairs == {"span_corruption"} == {p.objective for p in found if p.objective == "span_corruption"} and {
        p.preset for p in found if p.objective == "span_corruption" and not p.refused} <= ENCODER_DECODERS
    for network in ("lstm", "awd_lstm", "transformer_xl_enwik8"):
        assert {p.objective for p in found if p.preset == network and not p.refused} == {
            "causal", "causal_distillation", "sequence_autoencoder"}
    # An adaptive softmax has no table for a teacher's logits.
    assert {p.objective for p in found if p.preset == "transformer_xl_wt103_base" and not p.refused} == {
        "causal", "sequence_autoencoder"}
    # There is no generator for XLNet's network.
    alone = {each for each in refused if each[0] == "replaced_token"}
    assert {each[1] for each in alone} == set(FORMATS) and all("cannot make" in each[2] for each in alone)
    refused -= alone
    # XLNet's alone has a query stream, and can be conditioned on an order.
    assert {p.preset[:5] for p in found if p.objective == "permutation" and not p.refused} == {"xlnet"}
    pairs = [name for name in compatibility.objectives() if name.endswith(" sentence_pair")]
    assert "masked sentence_pair" in pairs and refused == {
        (name, form, f"objective '{name.split()[0]}' as configured needs pair_label, which format '{form}' does not "
                     "give; formats that do: segment_pair, sentence_pair, stream_pair")
        for name in pairs for form in FORMATS if "pair" not in form}


@pytest.mark.slow
def test_the_command_prints_every_triple_and_why_some_are_refused():
    result = small.command("pairings", "bert_tiny")
    head, *lines = result.out.splitlines()
    assert result.code == 0 and head.split() == list(FORMATS)
    assert lines[0].split() == ["bert_tiny", "masked", *["fits"] * len(FORMATS)]
    assert lines[1].split()[:6] == ["bert_tiny", "masked", "sentence_pair", "[1]", "fits", "fits"]
    refusing = "the objective as configured needs pair_label, which the format does not give; formats that do: "
    reasons = [line for line in lines if line.startswith("[")]
    assert not any("network '" in line for line in reasons)
    assert result.out.count("[1]") > 2 and reasons[0] == f"[1] {refusing}segment_pair, sentence_pair, stream_pair"
    assert len(lines) == len(reasons) + len(compatibility.objectives())
    assert small.command("pairings", "bart").code == 2


@pytest.mark.parametrize(("change", "reason"), [
    ({"build": lambda *_: 1 / 0}, r"network 'lstm' \(.*lstm.py\): ZeroDivisionError"),
    ({"tiny": {"wdith": 3}}, "wdith"),
    ({"config": lambda: 1 / 0}, "ZeroDivisionError"),
])
def test_network_that_fails_is_a_row_with_its_reason(monkeypatch, change, reason):
    """And the others are listed too."""
    monkeypatch.setitem(MODELS, "lstm", MODELS["lstm"]._replace(**change))
    found = {compatibility.refusal("lstm", objective, "stream") for objective in ("causal", "masked")}
    assert any(re.search(reason, each) for each in found), found
    assert not compatibility.refusal("bert_tiny", "masked", "packed")


def test_format_without_a_needed_field_is_refused(monkeypatch):
    bare = FORMATS["packed"]._replace(fields=lambda config: ("tokens", "example"))
    monkeypatch.setitem(FORMATS, "bare", bare)
    reason = compatibility.refusal("bert_tiny", "masked", "bare")
    assert "needs segment_ids, which format 'bare' does not give" in reason


def test_fields_that_a_step_reads_are_found():
    """So that formats are traced together only where what they differ in is not read."""
    small_configs = {name: compatibility.tiny_config(MODELS["transformer"], PRESETS[name].config)
                     for name in ("bert_tiny", "gpt2")}
    given = (*compatibility.default_fields("stream"), "pair_label")
    common = {"tokens", "segment_ids", "positions"}
    assert compatibility.fields_read("transformer", small_configs["bert_tiny"], "masked sentence_pair", given) == {
        *common, "token_type_ids", "pair_label"}
    assert compatibility.fields_read("transformer", small_configs["gpt2"], "causal", given) == common


# By training


def triples():
    """(network, objective, format): every network, and every objective with the switches that it has.
    `pairings` traces the others; meshes have tests in `models` and `objectives`."""
    own = [name for name in shapes() if name in ENCODER_DECODERS]
    networks = [name for name in shapes() if not name.startswith(("elmo", "transformer_xl", "xlnet", "awd_lstm")) and (
        name not in own)]
    names = compatibility.objectives()
    objectives = [name for name in names if name.split()[0] not in ("bidirectional", "permutation", "span_corruption")
                  and f"{name} sentence_pair" not in names]
    for network, form in zip(own, ("stream", "packed", "segment_pair", "sentence_pair"), strict=True):
        yield network, "span_corruption", form
    yield "elmo_small", "bidirectional", "sentence_stream"
    yield "awd_lstm_ptb", "causal", "stream"
    yield "transformer_xl_wt103_base", "causal", "stream"
    yield "transformer_xl_enwik8", "causal", "packed"
    yield "xlnet_base", "permutation sentence_pair", "stream_pair"
    formats = {compatibility.default_fields(form): form for form in FORMATS}
    for i, (network, objective) in enumerate(zip(networks, cycle(objectives), strict=False)):
        name, fields = compatibility.parse_variant(objective)
        needed = set(OBJECTIVES[name].batch_fields(OBJECTIVES[name].config(**fields)))
        fitting = [form for given, form in formats.items() if needed <= set(given)]
        yield network, objective, fitting[i % len(fitting)]


def make_batch(fields, characters, seed):
    """A batch of `fields` with packed segments, two token types in each, and padding."""
    rng, b, t = np.random.default_rng(seed), 8, compatibility.LENGTH
    segments = np.ones((b, t), np.int32)
    segments[:, t // 2 :] += 1
    segments[::3, t - 5 :] = 0
    tokens = np.where(segments > 0, rng.integers(6, V, (b, t)), 0).astype(np.int32)
    batch = {"tokens": tokens, "segment_ids": segments, "positions": np.tile(np.arange(t, dtype=np.int32), (b, 1)),
             "token_type_ids": np.tile(np.arange(t, dtype=np.int32) // 4 % 2, (b, 1)),
             "example": np.arange(b, dtype=np.int32),
             "pair_label": np.arange(b, dtype=np.int32) % 2, "reset": np.zeros(b, np.int32),
             "reversed": np.arange(b, dtype=np.int32) % 2, "following": np.full(b, -1, np.int32),
             "characters": np.where(segments[..., None] > 0, rng.integers(1, 262, (b, t, 50)), 0).astype(np.int32)}
    struct = batch_struct(fields, characters, b=b, t=t)
    batch["backward"] = {name: batch[name] for name in struct.get("backward", ())}
    return {name: batch[name] for name in struct}


@pytest.mark.parametrize(("network", "objective", "form"), [
    pytest.param(*triple, marks=() if triple[0] == "bert_tiny" else pytest.mark.slow) for triple in triples()])
def test_two_steps_change_every_parameter(network, objective, form):
    name, fields = compatibility.parse_variant(objective)
    model = MODELS[PRESETS[network].model].build(smallest(PRESETS[network].config))
    built = OBJECTIVES[name].build(OBJECTIVES[name].config(**fields), model, VOCABULARY)
    settings = optimizers.adamw.Config("adamw", learning_rate=1e-3, weight_decay=0.0)
    optimizer = optimizers.build(settings, built.specs, 10)
    struct = jax.eval_shape(partial(state.create, built, optimizer, 8), 0)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), struct)  # of the optimizer; nothing is compiled
    now = start = zeros.replace(params=random_params(built.specs, stddev=0.1))
    step = jax.jit(partial(train_step, objective=built, optimizer=optimizer, seed=0))
    for number in range(2):
        now, metrics = step(now, make_batch(compatibility.default_fields(form), network.startswith("elmo"), number))
        assert np.isfinite(metrics["loss"][0])
    assert now.step == 2
    after = flatten(now.params)
    same = [path for path, old in flatten(start.params).items() if (old == np.asarray(after[path])).all()]
    # The softmax of attention does not depend on what is the same for all keys.
    assert all(path.endswith("attention/key/bias") for path in same), same
