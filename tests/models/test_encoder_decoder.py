"""The encoder-decoder against a reference that sums over queries and keys one at a time, and its properties."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.layers import attention as attention_layer
from lmrep.layers.attention import AttentionMask, KVCache
from lmrep.layers.stack import Execution
from lmrep.models import encoder_decoder, lstm, model_inputs, transformer
from lmrep.models.base import Inputs
from tests import reference
from tests.layers.test_relative_bias import bucket

V, B, T, S = 31, 3, 7, 9
T5 = encoder_decoder.Config(vocab=V, width=12, layers=2, decoder_layers=3, heads=2, head_width=5, mlp=20, buckets=8,
                            max_distance=6)
VASWANI = replace(T5, head_width=0, positions="sinusoidal", max_length=10, norm="post", rms_norm=False, mlp_bias=True,
                  scaled_attention=True, scaled_embedding=True, scaled_output=False, shared_dropout=False,
                  init="uniform", embedding_stddev=0.0, decoder_layers=0)
CONFIGS = {
    "t5": T5, "t5_1_1": replace(T5, gated=True, activation="gelu_tanh", tied="embeddings"), "vaswani": VASWANI,
    "learned": replace(VASWANI, positions="learned", attention_bias=True, norm="pre", tied="output"),
    "none": replace(T5, positions="none", tied="none", rms_norm=False),
}
RNG = np.random.default_rng(0)
TOKENS, SOURCE = (RNG.integers(0, V, (B, n)).astype(np.int32) for n in (T, S))
SEGMENTS = np.array([[1] * T, [1] * 4 + [0] * 3, [1, 1, 2, 2, 2, 3, 0]], np.int32)
SOURCE_SEGMENTS = np.array([[1] * S, [1] * 6 + [0] * 3, [1, 1, 1, 2, 2, 3, 3, 3, 0]], np.int32)


def positions_of(segments):
    """From 0 in each segment."""
    return np.array([[int((row[:i] == row[i]).sum()) for i in range(len(row))] for row in segments], np.int32)


def network(config, seed=1, **changes):
    model = encoder_decoder.build(config, **changes)
    return model, reference.random_params(model.specs, seed)


def make_inputs(tokens=TOKENS, source=SOURCE, segments=SEGMENTS, source_segments=SOURCE_SEGMENTS):
    return Inputs(jnp.asarray(tokens), positions=positions_of(segments),
                  attention_mask=AttentionMask(jnp.asarray(segments), causal=True), source=Inputs(
                      jnp.asarray(source), positions=positions_of(source_segments),
                      attention_mask=AttentionMask(jnp.asarray(source_segments))))


def encode(model, params, inputs=None, key=None, **options):
    return jax.jit(lambda p, x, key: model.encode(p, x, key, **options))(
        params, make_inputs() if inputs is None else inputs, key)


def close(computed, expected, atol=2e-5):
    np.testing.assert_allclose(computed, expected, rtol=0, atol=atol)


REAL, SOURCE_REAL = SEGMENTS > 0, SOURCE_SEGMENTS > 0


# --- the equations


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def normalize(p, x, eps):
    return reference.layer_norm(p, x, eps) if "bias" in p else (
        x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * p["scale"])


def attend(p, c, x, source, visible, bias=None):
    """x [t, d], source [s, d], visible (i, j) -> bool, bias [h, t, s] -> ([t, d], probabilities [h, t, s])."""
    query, key, value = linear(p["query"], x), linear(p["key"], source), linear(p["value"], source)
    mixed, probabilities = np.zeros((len(x), c.heads * c.k)), np.zeros((c.heads, len(x), len(source)))
    for h in range(c.heads):
        part = slice(h * c.k, (h + 1) * c.k)
        for i in range(len(x)):
            seen = [j for j in range(len(source)) if visible(i, j)]
            if not seen:  # padding
                continue
            logits = np.array([query[i, part] @ key[j, part] / (np.sqrt(c.k) if c.scaled_attention else 1)
                               + (0 if bias is None else bias[h, i, j]) for j in seen])
            weights = np.exp(logits - logits.max())
            probabilities[h, i, seen] = weights / weights.sum()
            mixed[i, part] = probabilities[h, i] @ value[:, part]
    return linear(p["output"], mixed), probabilities


def run_stack(p, c, name, table, tokens, segments, encoded=None, source_segments=None):
    """One example: (the embedding output and every layer, the result, the probabilities of self-attention, and of
    attention to the source)."""
    own, causal, positions = p[name], name == "decoder", positions_of(segments[None])[0]
    x = table[tokens] * (np.sqrt(c.width) if c.scaled_embedding else 1)
    if c.positions == "sinusoidal":
        x = x + reference.sinusoids(c.max_length, c.width)[positions]
    if c.positions == "learned":
        x = x + own["position"][positions]
    bias, n = None, len(tokens)
    if c.positions == "relative":
        bias = np.array([[own["relative"]["table"][bucket(i - j, c.buckets, c.max_distance, not causal)]
                          for j in range(n)] for i in range(n)]).transpose(2, 0, 1)
    visible = lambda i, j: segments[i] == segments[j] and (j <= i or not causal)  # noqa: E731
    outputs, probabilities, cross = [x], [], []
    for number in range(c.depth[name]):
        layer = jax.tree.map(lambda leaf: leaf[number], own["layers"])  # noqa: B023

        def block(name, x, f, layer=layer):
            norm = lambda y: normalize(layer[f"{name}_norm"], y, c.norm_eps)  # noqa: E731
            return x + f(norm(x)) if c.norm == "pre" else norm(x + f(x))

        def self_attention(y, layer=layer):
            y, found = attend(layer["attention"], c, y, y, visible, bias)
            probabilities.append(found)
            return y

        def feed_forward(y, layer=layer):
            p, activation = layer["mlp"], reference.ACTIVATIONS[c.activation]
            hidden = activation(linear(p["gate"], y)) * linear(p["up"], y) if c.gated else activation(
                linear(p["in"], y))
            return linear(p["out"], hidden)

        def cross_attention(y, layer=layer):
            y, found = attend(layer["cross_attention"], c, y, encoded, lambda i, j: segments[i] == source_segments[j])
            cross.append(found)
            return y

        x = block("attention", x, self_attention)
        if causal:
            x = block("cross_attention", x, cross_attention)
        x = block("mlp", x, feed_forward)
        outputs.append(x)
    return outputs, normalize(own["final_norm"], x, c.norm_eps) if c.norm == "pre" else x, probabilities, cross


def expected_encoding(c, params):
    """(the encoder's output [b, s, d] and probabilities [b][l], (layers [b][l + 1], hidden [b], probabilities of
    self-attention and of attention to the source [b][l]) of the decoder)."""
    p = reference.float64(params)
    source_table = p.get("source_embedding", p["embedding"])["token"]
    _, encoded, weights, _ = zip(*(run_stack(p, c, "encoder", source_table, SOURCE[b], SOURCE_SEGMENTS[b])
                                   for b in range(B)), strict=True)
    return np.stack(encoded), np.stack(weights), [np.array(each) for each in zip(*(run_stack(
        p, c, "decoder", p["embedding"]["token"], TOKENS[b], SEGMENTS[b], encoded[b], SOURCE_SEGMENTS[b])
        for b in range(B)), strict=True)]


@pytest.mark.parametrize("name", CONFIGS)
def test_outputs_equal_the_published_equations(name):
    c = CONFIGS[name]
    model, params = network(c)
    source, source_weights, (layers, hidden, probabilities, cross) = expected_encoding(c, params)
    encoded = encode(model, params, layers=True, attention=True)
    close(np.array(encoded.layers).swapaxes(0, 1)[:, 0], layers[:, 0])
    for b in range(B):
        close(np.array(encoded.layers)[:, b, REAL[b]], layers[b][:, REAL[b]])
        close(encoded.hidden[b, REAL[b]], hidden[b][REAL[b]])
        close(np.array(encoded.attention)[:, b][:, :, REAL[b]], probabilities[b][:, :, REAL[b]])
        close(np.array(encoded.cross_attention)[:, b][:, :, REAL[b]], cross[b][:, :, REAL[b]])
        close(np.array(encoded.source_attention)[:, b][:, :, SOURCE_REAL[b]], source_weights[b][:, :, SOURCE_REAL[b]])
    at = np.array([[1, 0], [3, 0], [2, 4]], np.int32)
    close(encode(model, params, at=at).hidden, np.take_along_axis(hidden, at[..., None], 1))
    alone = encode(model, params, make_inputs().source, attention=True)
    close(np.asarray(alone.hidden)[SOURCE_REAL], source[SOURCE_REAL])
    close(alone.attention, encoded.source_attention)
    assert alone.cross_attention is None and alone.source_attention is None


def test_attention_of_the_lecture():
    """Softmax(X X^T / 2) X of three vectors, to its printed digits; and of the third vector over the two others.

    There, three of four printed columns are the float64 result to their eight digits. The third, 0.34643646, is not:
    from the printed vectors it is 0.34643551, also in decimal arithmetic of 40 digits. The difference is 31 times the
    spacing of float32 numbers there, so that this number or the vectors are printed with an error.
    """
    vectors = np.array([[.31436922, .66969307, .270804, .72023504], [.87180132, .27637445, .43091667, .34138704],
                        [.20292054, .6345131, .01058343, .22846636]])
    printed = [[.4614, .5320, .2451, .4514], [.5017, .5062, .2618, .4368], [.4549, .5332, .2364, .4388]]
    x = jnp.asarray(vectors, jnp.float32)[None, :, None]
    output, _ = attention_layer.dense(jnp.ones((1, 3, 3), bool))(x, KVCache(x, x))
    assert np.abs(output[0, :, 0] - np.array(printed)).max() <= 5.01e-5
    weights = np.exp(vectors[2] @ vectors[:2].T / 2)
    exact = weights @ vectors[:2] / weights.sum()
    others = jnp.array([[[True, True, False]]])
    output, _ = attention_layer.dense(others)(x[:, 2:], KVCache(x, x))
    close(output[0, 0, 0], exact, atol=1e-7)
    difference = np.abs(exact - [.57768027, .48390338, .34643646, .54128076])
    assert difference[[0, 1, 3]].max() < 1e-8 and 9.4e-7 < difference[2] < 9.5e-7


# --- properties


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
