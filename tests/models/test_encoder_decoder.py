"""Encoder-decoders: attention, sources, gradients, initial values and tables, and their encoder alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import encoder_decoder, model_inputs
from lmrep.models.base import Context
from tests import reference
from tests.cases import slow_after
from tests.models.small_encoder_decoder import (
    CONFIGS,
    REAL,
    RNG,
    SEGMENTS,
    SOURCE,
    SOURCE_REAL,
    SOURCE_SEGMENTS,
    T5,
    TOKENS,
    B,
    T,
    V,
    close,
    encode,
    make_inputs,
    network,
    positions_of,
)

slow = pytest.mark.slow


def test_probabilities_add_to_1_over_the_tokens_of_the_same_text():
    model, params = network(T5, execution=Execution(scan=True, remat="full"))
    encoded = encode(model, params, attention=True)
    for found, queries, keys, layers in (
            (encoded.attention, SEGMENTS, SEGMENTS, 2), (encoded.cross_attention, SEGMENTS, SOURCE_SEGMENTS, 2),
            (encoded.source_attention, SOURCE_SEGMENTS, SOURCE_SEGMENTS, 1)):
        found = np.asarray(found)
        assert found.shape == (layers, B, 2, queries.shape[1], keys.shape[1])
        own = (queries[:, :, None] == keys[:, None, :]) & (queries > 0)[:, :, None]
        np.testing.assert_allclose((found * own[:, None]).sum(-1)[:, :, 0][:, queries > 0], 1, atol=1e-6)
        assert (found * (~own & (queries > 0)[:, :, None])[:, None] == 0).all()
    assert (np.triu(np.asarray(encoded.attention)[:, 0], 1) == 0).all()
    assert (np.triu(np.asarray(encoded.source_attention)[:, 0], 1) > 0).any()


@pytest.mark.slow
def test_a_source_is_that_of_consecutive_texts():
    """Two texts for each of three sources, of which the second is padded."""
    model, params = network(T5)
    ones, sources = np.ones_like(SEGMENTS), np.minimum(SOURCE_SEGMENTS, 1)
    texts = RNG.integers(0, V, (2 * B, T)).astype(np.int32)
    source, computed, decode = make_inputs(source_segments=sources).source, [], jax.jit(model.state.decode)
    cache = jax.jit(lambda params: model.state.cache(params, 2 * B, T, source))(params)
    for t in range(T):
        hidden, cache = decode(params, texts[:, t : t + 1], cache)
        computed.append(hidden[:, 0])
    for i in range(2):
        expected = encode(model, params, make_inputs(texts[i::2], segments=ones, source_segments=sources)).hidden
        close(np.stack(computed, 1)[i::2], expected)


@pytest.mark.slow
def test_gradients_equal_finite_differences():
    model, params = network(replace(CONFIGS["t5_1_1"], positions="relative"))
    weights = RNG.normal(size=(B, T, 12)).astype(np.float32) * REAL[..., None]
    loss = jax.jit(lambda p: (model.encode(p, make_inputs()).hidden * weights).sum())
    gradient = P.flatten(jax.jit(jax.grad(loss))(params))
    for path, leaf in P.flatten(params).items():
        direction = RNG.normal(size=leaf.shape).astype(np.float32)
        step = 3e-3 / np.linalg.norm(direction)
        up, down = (float(loss(P.unflatten(P.flatten(params) | {path: leaf + sign * step * direction})))
                    for sign in (1, -1))
        np.testing.assert_allclose((up - down) / (2 * step), (gradient[path] * direction).sum(), rtol=2e-2, atol=0.1,
                                   err_msg=path)


@pytest.mark.parametrize("shared", slow_after(1, [True, False]))
def test_dropout_masks_are_shared_by_the_positions_of_a_text(shared):
    """With pre norm, dropout is the last operation of a stack."""
    c = replace(T5, decoder_layers=1, dropout=0.5, attention_dropout=0.0, mlp_dropout=0.0, shared_dropout=shared)
    model, params = network(c)
    hidden = np.asarray(encode(model, params, key=jax.random.key(0)).hidden)
    dropped = hidden == 0
    assert 0.3 < dropped.mean() < 0.7
    assert (dropped == dropped[:, :1]).all() == shared and len({row.tobytes() for row in dropped[:, 0]}) > 1


@pytest.mark.slow
def test_initial_values_are_those_of_t5():
    c = replace(T5, vocab=500, width=64, heads=4, head_width=32, mlp=256)
    specs = P.flatten(encoder_decoder.specs(c))
    for path, expected in {
        "embedding/token": 1.0, "encoder/layers/attention/query/kernel": (64 * 32) ** -0.5,
        "decoder/layers/cross_attention/query/kernel": (64 * 32) ** -0.5,
        "encoder/layers/attention/key/kernel": 64**-0.5, "decoder/layers/attention/value/kernel": 64**-0.5,
        "decoder/layers/cross_attention/output/kernel": 128**-0.5, "encoder/layers/mlp/in/kernel": 64**-0.5,
        "decoder/layers/mlp/out/kernel": 256**-0.5,
    }.items():
        drawn = P.init({path: specs[path]}, jax.random.key(0))[path]
        assert np.std(drawn) == pytest.approx(expected, rel=0.03), path


@pytest.mark.parametrize(("tied", "tables"), [("all", 1), ("embeddings", 1), ("output", 2), ("none", 2)])
def test_tables_are_tied_as_configured(tied, tables):
    model = encoder_decoder.build(replace(T5, tied=tied))
    assert sum("token" in path for path in P.flatten(model.specs)) == tables
    assert (model.output.table is not None) == (tied in ("all", "output"))
    if model.output.table:
        params = reference.random_params(model.specs)
        close(model.output.table(params), params["embedding"]["token"] / np.sqrt(12))


def test_inputs_are_made_of_a_batch_with_a_source():
    batch = {"tokens": TOKENS, "segment_ids": SEGMENTS, "positions": positions_of(SEGMENTS), "source": {
        "tokens": SOURCE, "segment_ids": SOURCE_SEGMENTS, "positions": positions_of(SOURCE_SEGMENTS)}}
    model, params = network(T5)
    inputs = model_inputs(model, batch, conditions_on=Context.SOURCE)
    close(encode(model, params, inputs).hidden, encode(model, params).hidden, atol=0)
    text = model_inputs(model, {"tokens": SOURCE, "segment_ids": SOURCE_SEGMENTS}, conditions_on=Context.SOURCE)
    assert text.source is None and not text.attention_mask.causal


# --- the encoder alone


@slow
@pytest.mark.parametrize("name", ["vaswani", "t5_1_1"])
def test_the_encoder_alone_has_the_paths_and_the_vectors_of_the_encoder(name):
    both, params = network(CONFIGS[name])
    alone = encoder_decoder.build(replace(CONFIGS[name], stacks="encoder"))
    own = {path: value for path, value in P.flatten(params).items() if path in P.flatten(alone.specs)}
    assert {path: spec.shape for path, spec in P.flatten(alone.specs).items()} == {
        path: value.shape for path, value in own.items()}
    assert not any("decoder" in path or "cross_attention" in path for path in own)
    inputs = make_inputs().source
    expected, found = (encode(model, tree, inputs, layers=True, attention=True)
                       for model, tree in ((both, params), (alone, P.unflatten(own))))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert alone.conditions_on == {Context.BOTH} and alone.state.decode is None and alone.state.cache is None
    assert alone.sizes.matrices < both.sizes.matrices
    inputs = model_inputs(alone, {"tokens": SOURCE, "segment_ids": SOURCE_SEGMENTS})
    gradient = jax.jit(jax.grad(lambda tree: jnp.square(alone.encode(tree, inputs).hidden).sum()))(P.unflatten(own))
    assert all(np.abs(value).max() > 0 for path, value in P.flatten(gradient).items() if "key/bias" not in path)


def test_the_encoder_alone_has_a_tied_output_where_its_table_is_the_targets():
    tied = {name: encoder_decoder.build(replace(T5, stacks="encoder", tied=name)).output.table is not None
            for name in ("all", "embeddings", "output", "none")}
    assert tied == {"all": True, "embeddings": False, "output": False, "none": False}


# --- both stacks on the same text


@pytest.mark.parametrize("name", slow_after(1, ["vaswani", "t5_1_1"]))
def test_the_decoder_of_the_same_text_reads_the_tokens_before_each_position(name):
    """In each of the packed texts."""
    both, params = network(CONFIGS[name])
    same = encoder_decoder.build(replace(CONFIGS[name], stacks="same_text"))
    assert P.flatten(same.specs).keys() == P.flatten(both.specs).keys()
    inputs = make_inputs().source
    before = np.zeros_like(SOURCE)
    for row, number in ((0, 1), (1, 1), (2, 1), (2, 2), (2, 3)):
        own, = np.nonzero(SOURCE_SEGMENTS[row] == number)
        before[row, own[1:]] = SOURCE[row, own[:-1]]
    mask = AttentionMask(inputs.attention_mask.segment_ids, causal=True)
    expected = encode(both, params, inputs._replace(tokens=before, attention_mask=mask, source=inputs)).hidden
    close(encode(same, params, inputs).hidden[SOURCE_REAL], expected[SOURCE_REAL], 0)
    assert same.conditions_on == {Context.BOTH} and same.head_style.pooling == "last"
    assert same.state.decode is None and same.state.cache is None
