"""Where a Transformer drops: after the embedding norm, on attention probabilities, on the output of each block before
it is added, and inside the feed-forward block by `mlp_dropout` alone.

The networks here are built so that the masks can be read off their layers: every map has a kernel of zeros or the
identity, and a bias that says which block a value came from.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers.attention import Visibility
from lmrep.layers.stack import Execution
from lmrep.models import transformer
from lmrep.models.base import Inputs
from lmrep.models.transformer import Config
from tests.chance import REJECT, independent, least, rates

B, T, D, L, H = 16, 32, 32, 2, 8
RATE = 0.25
SEGMENTS = jnp.broadcast_to(jnp.arange(1, T + 1), (B, T))  # every position sees itself alone
INPUTS = Inputs(tokens=jnp.arange(B * T).reshape(B, T) % 7, visibility=Visibility(SEGMENTS))
KEY = jax.random.key(3)


def layers(kind, attention_out, mlp_out, **changed):
    """layers [l + 1, b, t, d] without and with dropout, of a pre-norm network whose attention block gives value
    `attention_out` everywhere and whose feed-forward block gives `mlp_out`, both through the identity."""
    off = {"dropout": 0.0, "attention_dropout": 0.0, "mlp_dropout": 0.0}
    c = Config(vocab=7, width=D, layers=L, heads=H, mlp=D, length=T, norm="pre", activation="relu", token_types=0,
               positions="none", **off | {kind: RATE} | changed)
    model = transformer.build(c, Execution(scan=False))
    zero, one = jnp.zeros((L, D, D)), jnp.broadcast_to(jnp.eye(D), (L, D, D))
    params = P.init(model.specs, jax.random.key(0))

    def through(value):
        return {"kernel": zero, "bias": jnp.full((L, D), value)}, {"kernel": one, "bias": jnp.zeros((L, D))}

    attention, mlp = params["layers"]["attention"], params["layers"]["mlp"]
    attention["value"], attention["output"] = through(attention_out)
    mlp["in"], mlp["out"] = through(mlp_out)
    encode = jax.jit(lambda key: model.encode(params, INPUTS, key, layers=True).layers)
    return np.asarray(encode(None)), np.asarray(encode(KEY)), np.asarray(encode(jax.random.key(4)))


@pytest.fixture(scope="module")
def masks():
    """{place: True where kept}, and the same under another key."""
    found = ({}, {})
    kept = 1 / (1 - RATE)
    plain, *dropped = layers("dropout", 1.0, 10.0)
    for out, x in zip(found, dropped, strict=True):
        out["embedding"] = x[0] != 0
        np.testing.assert_allclose(x[0], np.where(out["embedding"], plain[0] * kept, 0), rtol=1e-5)
        for i in range(L):
            added = x[i + 1] - x[i]
            out[f"{i} attention output"], out[f"{i} mlp output"] = np.isclose(added % (10 * kept), kept, atol=0.1), added > 5
            expected = kept * (1.0 * out[f"{i} attention output"] + 10.0 * out[f"{i} mlp output"])
            np.testing.assert_allclose(added, expected, atol=1e-4)
    for kind, values in (("attention_dropout", (1.0, 0.0)), ("mlp_dropout", (0.0, 1.0))):
        plain, *dropped = layers(kind, *values)
        for out, x in zip(found, dropped, strict=True):
            np.testing.assert_array_equal(x[0], plain[0])
            for i in range(L):
                added = x[i + 1] - x[i]
                np.testing.assert_allclose(added, np.where(added > 0.5, kept, 0), atol=1e-5)
                out[f"{i} {kind}"] = added > 0.5
    return found


def test_rates(masks):
    for mask in masks:
        heads = {name: place[..., :: D // H] if "attention_dropout" in name else place for name, place in mask.items()}
        assert least(rates(place.sum(), place.size, 1 - RATE) for place in heads.values()) > REJECT


def test_a_head_drops_a_probability_as_a_whole(masks):
    for i in range(L):
        place = masks[0][f"{i} attention_dropout"].reshape(B, T, H, D // H)
        assert (place == place[..., :1]).all()


def test_places_layers_and_keys_draw_independently(masks):
    """Chi-square at p < 1e-4 for all pairs together; heads count once."""
    places = [place[..., :: D // H] for mask in masks for place in mask.values()]
    assert len(places) == 2 * (1 + 4 * L)
    assert least(independent(a, b) for a, b in itertools.combinations(places, 2)) > REJECT
    planted = [*places, np.where(np.arange(H) == 0, places[0], places[3])]
    assert least(independent(a, b) for a, b in itertools.combinations(planted, 2)) < REJECT


def test_published_rates_drop_everywhere_but_inside_the_feed_forward_block():
    plain, dropped, _ = layers("dropout", 0.0, 1.0, dropout=0.0, attention_dropout=0.1)
    np.testing.assert_array_equal(dropped, plain)  # nothing but attention's, whose values are zero
    assert (Config().dropout, Config().attention_dropout, Config().mlp_dropout) == (0.1, 0.1, 0.0)
