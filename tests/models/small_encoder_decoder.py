"""Small encoder-decoders of the published designs, and their inputs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.layers.attention import AttentionMask
from lmrep.models import encoder_decoder
from lmrep.models.base import Inputs
from tests import reference

V, B, T, S = 31, 3, 7, 9
T5 = encoder_decoder.Config(vocab=V, width=12, layers=1, decoder_layers=2, heads=2, head_width=5, mlp=20, buckets=8,
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
