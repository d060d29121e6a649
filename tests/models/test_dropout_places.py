"""Where a Transformer drops: after the embedding norm, on attention probabilities, on the output of each block before
it is added, and inside the feed-forward block by `mlp_dropout` alone.

The networks here are built so that the masks can be read off their layers: every dense layer has a kernel of zeros or
the identity, and a bias that identifies the block.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers.attention import AttentionMask
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.models.transformer import Config
from tests import reference
from tests.chance import REJECT, independent, least, rates

B, T, D, L, H = 16, 32, 32, 2, 8
RATE = 0.25
SEGMENTS = jnp.broadcast_to(jnp.arange(1, T + 1), (B, T))  # every position attends to itself alone
INPUTS = Inputs(tokens=jnp.arange(B * T).reshape(B, T) % 7, attention_mask=AttentionMask(SEGMENTS))
KEYS = jax.random.key(3), jax.random.key(4)


def layers(attention_out, mlp_out, **rates):
    """key -> layers [l + 1, b, t, d] of a pre-norm network whose attention blocks give the value `attention_out`
    everywhere and whose feed-forward blocks give `mlp_out`, both through the identity."""
    c = Config(vocab=7, width=D, layers=L, heads=H, mlp=D, max_length=T, norm="pre", activation="relu", token_types=0,
               positions="none", **{"dropout": 0.0, "attention_dropout": 0.0, "mlp_dropout": 0.0} | rates)
    model = transformer.build(c)
    params = reference.random_params(model.specs)
    zero, one = np.zeros((L, D, D), np.float32), np.stack([np.eye(D, dtype=np.float32)] * L)

    def through(value):
        return {"kernel": zero, "bias": np.full((L, D), value, np.float32)}, {"kernel": one, "bias": zero[0, :L]}

    attention, mlp = params["layers"]["attention"], params["layers"]["mlp"]
    attention["value"], attention["output"] = through(attention_out)
    mlp["in"], mlp["out"] = through(mlp_out)
    return jax.jit(lambda key: model.encode(params, INPUTS, key, layers=True).layers)


@pytest.fixture(scope="module")
def masks():
    """{where dropout acts: True where kept} under one key, and the same under another."""
    masks = ({}, {})
    kept = 1 / (1 - RATE)
    network = layers(1.0, 10.0, dropout=RATE)
    plain = np.asarray(network(None))
    for out, key in zip(masks, KEYS, strict=True):
        x = np.asarray(network(key))
        out["embedding"] = x[0] != 0
        np.testing.assert_allclose(x[0], np.where(out["embedding"], plain[0] * kept, 0), rtol=1e-5)
        for i in range(L):
            added = x[i + 1] - x[i]
            mlp = added > 5
            attention = added - 10 * kept * mlp > 0.5
            np.testing.assert_allclose(added, kept * (1.0 * attention + 10.0 * mlp), atol=1e-4)
            out |= {f"{i} attention output": attention, f"{i} mlp output": mlp}
    for field, values in (("attention_dropout", (1.0, 0.0)), ("mlp_dropout", (0.0, 1.0))):
        network = layers(*values, **{field: RATE})
        for out, key in zip(masks, KEYS, strict=True):
            x = np.asarray(network(key))
            np.testing.assert_array_equal(x[0], plain[0])
            for i in range(L):
                added = x[i + 1] - x[i]
                np.testing.assert_allclose(added, np.where(added > 0.5, kept, 0), atol=1e-5)
                out[f"{i} {field}"] = added > 0.5
    return masks


def test_rates(masks):
    for mask in masks:
        heads = {name: kept[..., :: D // H] if "attention_dropout" in name else kept for name, kept in mask.items()}
        assert least(rates(kept.sum(), kept.size, 1 - RATE) for kept in heads.values()) > REJECT


def test_a_head_drops_a_probability_for_its_full_width(masks):
    for i in range(L):
        kept = masks[0][f"{i} attention_dropout"].reshape(B, T, H, D // H)
        assert (kept == kept[..., :1]).all()


def test_blocks_layers_and_keys_have_independent_masks(masks):
    """Chi-square at p < 1e-4 for all pairs together; heads count once."""
    kept_everywhere = [kept[..., :: D // H] for by_position in masks for kept in by_position.values()]
    assert len(kept_everywhere) == 2 * (1 + 4 * L)
    assert least(independent(a, b) for a, b in itertools.combinations(kept_everywhere, 2)) > REJECT
    planted = [*kept_everywhere, np.where(np.arange(H) == 0, kept_everywhere[0], kept_everywhere[3])]
    assert least(independent(a, b) for a, b in itertools.combinations(planted, 2)) < REJECT
