"""The properties of encoder-decoders, what they refuse, and their encoder alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import encoder_decoder, lstm, model_inputs, transformer
from lmrep.models.base import Inputs
from tests import reference
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
    VASWANI,
    B,
    T,
    V,
    close,
    encode,
    make_inputs,
    network,
    positions_of,
)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_decoder_is_causal_and_the_encoder_is_not(name):
    model, params = network(CONFIGS[name])
    ones = np.ones_like(SEGMENTS), np.ones_like(SOURCE_SEGMENTS)

    def hidden(tokens=TOKENS, source=SOURCE):
        return np.asarray(encode(model, params, make_inputs(tokens, source, *ones)).hidden)

    changed = TOKENS.copy()
    changed[:, 4] = (TOKENS[:, 4] + 1) % V
    difference = np.abs(hidden(changed) - hidden()).max((0, 2))
    assert (difference[:4] == 0).all() and (difference[4:] > 0).all()
    changed = SOURCE.copy()
    changed[:, -1] = (SOURCE[:, -1] + 1) % V
    assert (np.abs(hidden(source=changed) - hidden()).max((0, 2)) > 0).all()
    encoder = [np.asarray(encode(model, params, Inputs(jnp.asarray(x))).hidden) for x in (SOURCE, changed)]
    assert (np.abs(encoder[0] - encoder[1]).max((0, 2)) > 0).all()


@pytest.mark.parametrize("execution", [Execution(), Execution(scan=True, remat="full")])
def test_probabilities_add_to_1_over_the_tokens_of_the_same_text(execution):
    model, params = network(T5, execution=execution)
    encoded = encode(model, params, attention=True)
    for found, queries, keys, layers in (
            (encoded.attention, SEGMENTS, SEGMENTS, 3), (encoded.cross_attention, SEGMENTS, SOURCE_SEGMENTS, 3),
            (encoded.source_attention, SOURCE_SEGMENTS, SOURCE_SEGMENTS, 2)):
        found = np.asarray(found)
        assert found.shape == (layers, B, 2, queries.shape[1], keys.shape[1])
        own = (queries[:, :, None] == keys[:, None, :]) & (queries > 0)[:, :, None]
        np.testing.assert_allclose((found * own[:, None]).sum(-1)[:, :, 0][:, queries > 0], 1, atol=1e-6)
        assert (found * (~own & (queries > 0)[:, :, None])[:, None] == 0).all()
    assert (np.triu(np.asarray(encoded.attention)[:, 0], 1) == 0).all()
    assert (np.triu(np.asarray(encoded.source_attention)[:, 0], 1) > 0).any()


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_pairs_equal_separate_ones(name):
    model, params = network(CONFIGS[name])
    packed = np.asarray(encode(model, params).hidden)
    for segment in (1, 2, 3):
        own, source = SEGMENTS[2] == segment, SOURCE_SEGMENTS[2] == segment
        alone = encode(model, params, make_inputs(
            TOKENS[2:, own], SOURCE[2:, source], *(np.ones((1, x.sum()), np.int32) for x in (own, source))))
        close(packed[2, own], alone.hidden[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_decoding_with_a_cache_equals_encoding(name):
    model, params = network(CONFIGS[name])
    inputs = make_inputs(segments=np.ones_like(SEGMENTS), source_segments=np.minimum(SOURCE_SEGMENTS, 1))
    expected = encode(model, params, inputs).hidden
    cache = jax.jit(lambda p, source: model.start_cache(p, B, T + 1, source))(params, inputs.source)
    decode, computed = jax.jit(model.decode), []
    hidden, cache = decode(params, np.pad(TOKENS[:, :4], ((0, 0), (0, 2))), cache, jnp.int32(4))
    computed.append(hidden[:, :4])
    for t in range(4, T):
        hidden, cache = decode(params, TOKENS[:, t : t + 1], cache)
        computed.append(hidden)
    close(np.concatenate(computed, 1), expected)


def test_a_source_is_that_of_consecutive_texts():
    """Two texts for each of three sources, of which the second is padded."""
    model, params = network(T5)
    ones, sources = np.ones_like(SEGMENTS), np.minimum(SOURCE_SEGMENTS, 1)
    texts = RNG.integers(0, V, (2 * B, T)).astype(np.int32)
    cache, computed = model.start_cache(params, 2 * B, T, make_inputs(source_segments=sources).source), []
    for t in range(T):
        hidden, cache = model.decode(params, texts[:, t : t + 1], cache)
        computed.append(hidden[:, 0])
    for i in range(2):
        expected = encode(model, params, make_inputs(texts[i::2], segments=ones, source_segments=sources)).hidden
        close(np.stack(computed, 1)[i::2], expected)


@pytest.mark.parametrize("execution", [Execution(scan=True), Execution(scan=True, remat="dots"),
                                       Execution(remat="full")])
@pytest.mark.parametrize("name", ["t5_1_1", "vaswani"])
def test_execution_changes_neither_outputs_nor_gradients(name, execution):
    """With dropout."""
    def run(execution):
        model, params = network(CONFIGS[name], execution=execution)

        def loss(params):
            hidden = model.encode(params, make_inputs(), jax.random.key(0)).hidden
            return (hidden**2 * jnp.asarray(REAL)[..., None]).mean()

        return jax.jit(jax.value_and_grad(loss))(params)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), run(execution), run(Execution()))


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


def test_bfloat16_is_near_float32():
    model, params = network(T5, execution=Execution("bfloat16"))
    expected = encode(network(T5)[0], params).hidden
    computed = encode(model, params).hidden
    assert computed.dtype == jnp.bfloat16
    assert np.abs(np.asarray(computed, np.float32) - expected)[REAL].mean() < 0.05


@pytest.mark.parametrize("shared", [True, False])
def test_dropout_masks_are_shared_by_the_positions_of_a_text(shared):
    """With pre norm, dropout is the last operation of a stack."""
    c = replace(T5, dropout=0.5, attention_dropout=0.0, mlp_dropout=0.0, shared_dropout=shared)
    model, params = network(c)
    hidden = np.asarray(encode(model, params, key=jax.random.key(0)).hidden)
    dropped = hidden == 0
    assert 0.3 < dropped.mean() < 0.7
    assert (dropped == dropped[:, :1]).all() == shared and len({row.tobytes() for row in dropped[:, 0]}) > 1


def test_initial_values_are_those_of_t5():
    c = replace(T5, vocab=500, width=64, heads=4, head_width=32, mlp=256)
    drawn = P.flatten(P.init(encoder_decoder.specs(c), jax.random.key(0)))
    for path, expected in {
        "embedding/token": 1.0, "encoder/layers/attention/query/kernel": (64 * 32) ** -0.5,
        "decoder/layers/cross_attention/query/kernel": (64 * 32) ** -0.5,
        "encoder/layers/attention/key/kernel": 64**-0.5, "decoder/layers/attention/value/kernel": 64**-0.5,
        "decoder/layers/cross_attention/output/kernel": 128**-0.5, "encoder/layers/mlp/in/kernel": 64**-0.5,
        "decoder/layers/mlp/out/kernel": 256**-0.5,
    }.items():
        assert np.std(drawn[path]) == pytest.approx(expected, rel=0.03), path


@pytest.mark.parametrize(("tied", "tables"), [("all", 1), ("embeddings", 1), ("output", 2), ("none", 2)])
def test_tables_are_tied_as_configured(tied, tables):
    model = encoder_decoder.build(replace(T5, tied=tied))
    assert sum("token" in path for path in P.flatten(model.specs)) == tables
    assert (model.output_embedding is not None) == (tied in ("all", "output"))
    if model.output_embedding:
        params = reference.random_params(model.specs)
        close(model.output_embedding(params), params["embedding"]["token"] / np.sqrt(12))


# --- refusals


def test_inputs_are_made_of_a_batch_with_a_source():
    batch = {"tokens": TOKENS, "segment_ids": SEGMENTS, "positions": positions_of(SEGMENTS), "source_tokens": SOURCE,
             "source_segment_ids": SOURCE_SEGMENTS, "source_positions": positions_of(SOURCE_SEGMENTS)}
    model, params = network(T5)
    inputs = model_inputs(model, batch, context="source")
    close(encode(model, params, inputs).hidden, encode(model, params).hidden, atol=0)
    text = model_inputs(model, {"tokens": SOURCE, "segment_ids": SOURCE_SEGMENTS}, context="source")
    assert text.source is None and not text.attention_mask.causal
    for other in (transformer.build(transformer.Config(vocab=V, width=4, heads=1)), lstm.build(lstm.Config(vocab=V))):
        with pytest.raises(UserError, match="conditions on the tokens before a position and a source text"):
            model_inputs(other, batch, context="source")
        with pytest.raises(UserError, match="this batch has a second text"):
            model_inputs(other, batch, context="left")
    with pytest.raises(UserError, match="on the tokens on both sides"):
        model_inputs(model, {"tokens": SOURCE, "segment_ids": SOURCE_SEGMENTS})


def test_impossible_configs_and_inputs_are_refused():
    for changes, message in (({"head_width": 0, "heads": 5}, "heads=5 does not divide"),
                             ({"positions": "learned"}, "max_length is 0"),
                             ({"positions": "sinusoidal", "max_length": 8, "width": 11}, "even width"),
                             ({"buckets": 8, "max_distance": 4}, "a distance of more than half")):
        with pytest.raises(UserError, match=message):
            encoder_decoder.build(replace(T5, **changes))
    model, params = network(VASWANI)
    inputs = make_inputs()
    with pytest.raises(ValueError, match="causal=True"):
        model.encode(params, inputs._replace(attention_mask=AttentionMask(jnp.asarray(SEGMENTS))))
    with pytest.raises(ValueError, match="got token_type_ids"):
        model.encode(params, inputs._replace(token_type_ids=TOKENS))
    with pytest.raises(ValueError, match="got 12 tokens; the model takes 10 at most"):
        model.encode(params, Inputs(jnp.zeros((1, 12), jnp.int32)))
    with pytest.raises(ValueError, match="generates given a source text"):
        model.start_cache(params, 1, 4)


# --- the encoder alone


@pytest.mark.parametrize("name", CONFIGS)
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
    assert alone.context == {"both"} and alone.decode is None and alone.start_cache is None
    assert alone.sizes.matrices < both.sizes.matrices
    inputs = model_inputs(alone, {"tokens": SOURCE, "segment_ids": SOURCE_SEGMENTS})
    gradient = jax.grad(lambda tree: jnp.square(alone.encode(tree, inputs).hidden).sum())(P.unflatten(own))
    assert all(np.abs(value).max() > 0 for path, value in P.flatten(gradient).items() if "key/bias" not in path)


def test_the_encoder_alone_reads_no_source_and_has_a_tied_output_where_its_table_is_the_target_s():
    alone, params = network(replace(T5, stacks="encoder"))
    with pytest.raises(ValueError, match="got source too"):
        alone.encode(params, make_inputs())
    tied = {name: encoder_decoder.build(replace(T5, stacks="encoder", tied=name)).output_embedding is not None
            for name in ("all", "embeddings", "output", "none")}
    assert tied == {"all": True, "embeddings": False, "output": False, "none": False}


# --- both stacks on the same text


@pytest.mark.parametrize("name", CONFIGS)
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
    assert same.context == {"both"} and same.pooling == "last" and same.decode is None and same.start_cache is None
