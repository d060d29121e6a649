"""What networks refuse: a change to a tiny network or to its inputs, and the field that the message must name."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep import models
from lmrep.config.record import read
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.layers.attention import AttentionMask
from lmrep.models import MODELS, model_inputs
from lmrep.models.base import Inputs, check_context, with_gates
from lmrep.models.decoding import Search, check

IDS = jnp.ones((2, 6), jnp.int32)
TEXT, SOURCE = Inputs(IDS), Inputs(IDS, source=Inputs(IDS))
CAUSAL, BOTH = AttentionMask(IDS, causal=True), AttentionMask(IDS)


def build(network, fields):
    config = read(MODELS[network].config, MODELS[network].tiny | {"vocab": 31} | fields, "model")
    MODELS[network].check(config)
    return models.build(config)


@pytest.mark.parametrize(("network", "fields", "named"), [
    ("transformer", {"heads": 5}, "model.heads=5"),
    ("transformer", {"positions": "sinusoidal", "embedding": 5}, "even width"),
    ("transformer", {"positions": "rotary", "width": 36, "heads": 4}, "width 9 is 9"),
    ("transformer", {"positions": "rotary", "rotary_fraction": 0.3}, "model.rotary_fraction=0.3"),
    ("transformer", {"position_buckets": 2}, "model.position_buckets is 2"),
    ("transformer", {"max_distance": 129}, "model.max_distance 129"),
    ("transformer", {"convolution": 2}, "model.convolution is 2"),
    ("transformer", {"convolution": 3, "norm": "pre"}, "model.norm pre"),
    ("transformer", {"mask_decoder": 2}, "expected disentangled positions"),
    ("transformer", {"first_norm": False}, "model.norm is post"),
    ("transformer", {"layer_weights": "convex"}, "model.norm post"),
    ("transformer", {"layer_weights": "dense", "convolution": 3}, "model.convolution 3"),
    ("transformer", {"attention_cap": 50.0, "positions": "disentangled"}, "model.attention_cap is 50"),
    ("transformer", {"attention_by_layer": True, "share": "all"}, "model.attention_by_layer"),
    ("transformer", {"pruned_heads": "1"}, "'1'"),
    ("transformer", {"pruned_heads": "1:"}, "'1:'"),
    ("transformer", {"pruned_heads": "2:0"}, "'2:0'"),
    ("transformer", {"pruned_heads": "0:4"}, "'0:4'"),
    ("transformer", {"pruned_heads": "0:0;0:1"}, "layer 0 twice"),
    ("transformer", {"pruned_heads": "1:0,1,2,3"}, "layer 1"),
    ("transformer", {"pruned_heads": "0:1", "share": "all"}, "model.share=all"),
    ("transformer_xl", {"heads": 5}, "model.heads=5"),
    ("transformer_xl", {"width": 9, "heads": 3}, "model.width is 9"),
    ("transformer_xl", {"same_length": True}, "model.memory"),
    ("transformer_xl", {"div": 2}, "model.div"),
    ("transformer_xl", {"cutoffs": (20, 10)}, "cutoffs is (20, 10)"),
    ("encoder_decoder", {"heads": 5}, "model.heads=5"),
    ("encoder_decoder", {"positions": "learned"}, "model.max_length"),
    ("encoder_decoder", {"positions": "sinusoidal", "max_length": 8, "width": 9, "heads": 3}, "model.width is 9"),
    ("encoder_decoder", {"buckets": 8, "max_distance": 4}, "model.max_distance"),
    ("lstm", {"layers": 4}, "model.layers"),
    ("lstm", {"cell": "gru"}, "model.cell"),
    ("lstm", {"heads": 2}, "'heads'"),
    ("bilstm", {"tied": True}, "model.reads"),
    ("bilstm", {"tied": True, "reads": "words", "shared": False}, "model.shared"),
    ("bilstm", {"filters": ()}, "model.filters"),
    ("seq2seq_lstm", {"width": 7}, "model.width"),
    ("seq2seq_lstm", {"attention": "none"}, "model.input_feeding"),
], ids=str)
def test_config_is_refused(network, fields, named):
    with pytest.raises(UserError, match=re.escape(named)):
        build(network, fields)


@pytest.mark.parametrize(("network", "fields", "inputs", "options", "named"), [
    ("transformer", {"token_types": 0}, TEXT._replace(token_type_ids=IDS, carry=IDS), {}, "token_type_ids, carry"),
    ("transformer", {"max_length": 5}, TEXT, {}, "got 6 tokens"),
    ("transformer", {}, TEXT, {"at": IDS, "layers": True}, "`layers`"),
    ("transformer_xl", {"max_length": 5}, TEXT, {}, "got 6 tokens"),
    ("transformer_xl", {}, TEXT._replace(attention_mask=BOTH), {}, "causal=True"),
    ("transformer_xl", {}, TEXT, {"at": IDS, "attention": True}, "`attention`"),
    ("encoder_decoder", {}, SOURCE._replace(attention_mask=BOTH), {}, "causal=True"),
    ("encoder_decoder", {}, TEXT._replace(attention_mask=CAUSAL), {}, "causal=False"),
    ("encoder_decoder", {}, SOURCE._replace(token_type_ids=IDS), {}, "token_type_ids"),
    ("encoder_decoder", {"max_length": 5}, TEXT, {}, "got 6 tokens"),
    ("encoder_decoder", {"stacks": "encoder"}, SOURCE, {}, "got source"),
    ("lstm", {}, TEXT._replace(attention_mask=BOTH), {}, "causal=True"),
    ("lstm", {}, TEXT._replace(positions=IDS), {}, "positions"),
    ("lstm", {}, TEXT._replace(gates=jnp.ones((1, 1))), {}, "gates"),
    ("lstm", {"max_length": 5}, TEXT, {}, "got 6 tokens"),
    ("lstm", {}, TEXT, {"attention": True}, "attention=True"),
    ("bilstm", {}, TEXT, {}, "Inputs.characters"),
    ("bilstm", {"reads": "words", "max_length": 5}, TEXT, {}, "got 6 tokens"),
    ("bilstm", {"reads": "words"}, TEXT, {"attention": True}, "attention=True"),
    ("seq2seq_lstm", {}, SOURCE._replace(attention_mask=BOTH), {}, "causal=True"),
    ("seq2seq_lstm", {}, TEXT._replace(attention_mask=CAUSAL), {}, "causal=False"),
    ("seq2seq_lstm", {"max_length": 5}, TEXT, {}, "got 6 tokens"),
    ("seq2seq_lstm", {"stacks": "encoder"}, SOURCE, {}, "got source"),
    ("seq2seq_lstm", {}, TEXT, {"attention": True}, "encoder has no attention"),
    ("seq2seq_lstm", {"attention": "none", "input_feeding": False}, SOURCE, {"attention": True}, "model.attention"),
    ("seq2seq_lstm", {}, SOURCE, {"layers": True}, "layers=True"),
])
def test_inputs_are_refused(network, fields, inputs, options, named):
    model = build(network, fields)
    with pytest.raises(ValueError, match=re.escape(named)):
        jax.eval_shape(lambda params: model.encode(params, inputs, **options), P.abstract(model.specs))


@pytest.mark.parametrize(("network", "fields", "length", "named"), [
    ("transformer", {"max_length": 5}, 6, "cache of 6 tokens"), ("encoder_decoder", {}, 4, "`source`"),
    ("seq2seq_lstm", {}, 4, "`source`")])
def test_cache_is_refused(network, fields, length, named):
    model = build(network, fields)
    with pytest.raises(ValueError, match=re.escape(named)):
        jax.eval_shape(lambda params: model.state.cache(params, 1, length), P.abstract(model.specs))


BATCH = {"tokens": np.ones((2, 3), np.int32), "segment_ids": np.ones((2, 3), np.int32)}
PAIRS = BATCH | {"source": BATCH}


@pytest.mark.parametrize(("network", "batch", "options", "named"), [
    ("lstm", BATCH, {}, "conditioned on: left"), ("transformer", BATCH, {"conditions_on": "source"}, "'transformer'"),
    ("transformer", PAIRS, {"conditions_on": "left"}, "model=encoder_decoder"),
    ("encoder_decoder", BATCH, {}, "conditioned on: source"),
    ("transformer", BATCH, {"carry": {"hidden": np.zeros((2, 4))}}, "no state"),
    ("bilstm", BATCH, {"tokens": BATCH["tokens"]}, "characters"),
])
def test_batch_is_refused(network, batch, options, named):
    with pytest.raises(UserError, match=re.escape(named)):
        model_inputs(build(network, {}), batch, **options)


@pytest.mark.parametrize("network", ["lstm", "encoder_decoder"])
def test_gates_are_refused(network):
    with pytest.raises(UserError, match=r"model\.name=transformer"):
        with_gates(build(network, {}), jnp.ones((1, 2)))


def test_context_is_refused():
    check_context(build("lstm", {}), "left", "objective 'causal'")
    with pytest.raises(UserError, match="objective 'masked'"):
        check_context(build("lstm", {}), "both", "objective 'masked'")


@pytest.mark.parametrize(("fields", "named"), [
    ({"top_k": 3}, "top_k is 3"), ({"samples": 2}, "samples is 2"), ({"temperature": 1.0, "beams": 4}, "beams is 4")])
def test_search_is_refused(fields, named):
    with pytest.raises(UserError, match=named):
        check(Search(**fields))
