"""What follows from the equations of Transformer-XL and XLNet: memory, orders, distances; meshes and dtypes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import Execution
from lmrep.models import transformer_xl
from lmrep.models.base import Factorization, Inputs
from tests import programs
from tests.models.test_transformer_xl import TOKENS, TYPES, XL, XLNET, B, T, V, close, encode, network

slow = pytest.mark.slow
ONE_TEXT = np.ones((B, T), np.int32)
LONG = np.random.default_rng(5).integers(0, V, (B, 4 * T)).astype(np.int32)


def in_parts(model, params, **options):
    """(the hidden states of `LONG`, encoded in four parts with memory, the last carry)."""
    carry, hidden = None, []
    for start in range(0, 4 * T, T):
        found = encode(model, params, LONG[:, start : start + T], ONE_TEXT, carry=carry, **options)
        hidden.append(found.hidden)
        carry = found.carry
    return np.concatenate(hidden, 1), carry


# --- memory


@pytest.mark.parametrize("changed", [
    {"memory": 3 * T, "clamp": 4}, pytest.param({"memory": 2, "same_length": True}, marks=slow)], ids=str)
def test_a_text_in_parts_equals_the_whole_text(changed):
    """From left to right, where nothing that is attended to is forgotten: a memory of all parts before; or the same
    number of positions for each token, which remembers as many."""
    model, params = network(replace(XL, **changed))
    hidden, _ = in_parts(model, params)
    close(hidden, encode(model, params, LONG, np.ones_like(LONG)).hidden)


def test_a_shorter_memory_changes_only_what_would_attend_beyond_it():
    model, params = network(replace(XL, layers=1, memory=3))
    hidden, _ = in_parts(model, params)
    whole = np.asarray(encode(model, params, LONG, np.ones_like(LONG)).hidden)
    equal = np.isclose(hidden, whole, rtol=0, atol=2e-5).all((0, -1))
    assert equal[:T].all() and not equal[T:].any()


@pytest.mark.slow
def test_memory_holds_the_last_inputs_of_each_layer():
    model, params = network(replace(XL, memory=T + 3))
    _, carry = in_parts(model, params)
    whole = encode(network(replace(XL, memory=0))[0], params, LONG[:, :T], ONE_TEXT, layers=True)
    first = encode(model, params, LONG[:, :T], ONE_TEXT)
    for number in range(XL.layers):
        close(first.carry["layers"][str(number)][:, 3:], whole.layers[number])
    np.testing.assert_array_equal(first.carry["filled"], [[0] * 3 + [1] * T] * B)
    np.testing.assert_array_equal(carry["filled"], 1)
    table = np.asarray(params["embedding"]["token"]) * np.sqrt(XL.width)
    close(carry["layers"]["0"], table[LONG[:, -T - 3 :]])


def test_no_gradient_flows_into_memory():
    model, params = network(XL)
    mask = AttentionMask(jnp.asarray(ONE_TEXT), causal=True)

    def second(params, carry):
        return (model.encode(params, Inputs(LONG[:, T : 2 * T], attention_mask=mask, carry=carry)).hidden ** 2).sum()

    def both(params):
        return second(params, model.encode(params, Inputs(LONG[:, :T], attention_mask=mask)).carry)

    carry = encode(model, params, LONG[:, :T], ONE_TEXT).carry
    computed, expected = jax.jit(jax.grad(both))(params), jax.jit(jax.grad(second))(params, carry)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), computed, expected)


def test_a_text_that_ends_leaves_its_memory_behind():
    """The next example goes on with the last text alone."""
    model, params = network(replace(XL, memory=2 * T))
    ends = np.array([[1] * 4 + [2] * 3] * B, np.int32)
    earlier = encode(model, params, LONG[:, 2 * T : 3 * T], ONE_TEXT).carry
    carry = encode(model, params, LONG[:, :T], ends, carry=earlier).carry
    np.testing.assert_array_equal(carry["filled"], [[0] * (2 * T - 3) + [1] * 3] * B)
    after = encode(model, params, LONG[:, T : 2 * T], ONE_TEXT, carry=carry).hidden
    close(after, encode(model, params, LONG[:, 4 : 2 * T], np.ones_like(LONG[:, 4 : 2 * T])).hidden[:, 3:])


# --- distances


def test_distances_alone_matter():
    """Padding before a text changes nothing, nor does the place of a packed text."""
    model, params = network(XLNET)
    types = np.concatenate([np.ones((B, 3), np.int32), TYPES], 1)
    tokens = np.concatenate([np.full((B, 3), 5, np.int32), TOKENS], 1)
    alone = encode(model, params, segments=ONE_TEXT, token_type_ids=jnp.asarray(TYPES)).hidden
    for before in (0, 2):  # padding, another text
        segments = np.concatenate([np.full((B, 3), before, np.int32), ONE_TEXT], 1)
        found = encode(model, params, tokens, segments, token_type_ids=jnp.asarray(types))
        close(found.hidden[:, 3:], alone)


def test_reversed_examples_equal_the_text_in_its_own_order():
    model, params = network(replace(XLNET, memory=0))
    forward = encode(model, params, segments=ONE_TEXT, token_type_ids=jnp.asarray(TYPES)).hidden
    backward = encode(model, params, TOKENS[:, ::-1], ONE_TEXT, token_type_ids=jnp.asarray(TYPES[:, ::-1].copy()),
                      reversed=jnp.asarray([0, 1, 1], jnp.int32)).hidden
    close(backward[1:, ::-1], forward[1:])
    assert np.abs(backward[0, ::-1] - forward[0]).max() > 0.01


def test_token_types_matter_only_by_which_are_equal():
    model, params = network(replace(XLNET, memory=0))
    found = [encode(model, params, token_type_ids=jnp.asarray(types)).hidden for types in (TYPES, 7 - 2 * TYPES)]
    close(*found)


# --- orders


def embedding_gradients(model, params, at, own_stream, **options):
    """float[t]: how much the output at each position of `at` depends on the embedding of each token. All tokens of the
    example differ."""
    tokens = jnp.asarray(np.random.default_rng(2).permutation(V)[None, :T].astype(np.int32))
    inputs = Inputs(tokens, attention_mask=AttentionMask(jnp.ones((1, T), jnp.int32)), **options)

    def output(table):
        own = params | {"embedding": {"token": table}}
        if own_stream:
            return model.encode(own, inputs, at=jnp.asarray([at])).hidden[0]
        return model.encode(own, inputs, layers=True).layers[-1][0, jnp.asarray(at)]

    jacobian = jax.jit(jax.jacrev(output))(params["embedding"]["token"])  # [m, d, v, d]
    return np.abs(np.asarray(jacobian)).max((1, 3))[:, np.asarray(tokens[0])]


@slow
def test_each_stream_depends_on_its_part_of_the_order_alone():
    """Given tokens (-1) are known to all. The query stream does not know the token of its own position, nor those that
    follow in the order, whatever the number of layers; the content stream knows its own."""
    model, params = network(replace(XLNET, layers=2, memory=0))
    revealed = np.array([-1, 3, 0, -1, 2, 1, -1])
    factorization = Factorization(jnp.asarray(revealed)[None], jnp.maximum(jnp.asarray(revealed), 0)[None])
    at = [4, 2, 1, 5]
    known = revealed[None, :] < revealed[at][:, None]
    query = embedding_gradients(model, params, at, True, factorization=factorization)
    np.testing.assert_array_equal(query > 0, known)
    content = embedding_gradients(model, params, range(T), False, factorization=factorization)
    np.testing.assert_array_equal(
        content > 0, (revealed[None, :] < np.maximum(revealed, 0)[:, None]) | np.eye(T, dtype=bool))


def test_an_order_from_left_to_right_gives_a_causal_content_stream():
    model, params = network(replace(XLNET, memory=0))
    places = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
    ordered = encode(model, params, segments=ONE_TEXT, factorization=Factorization(places, places), layers=True)
    causal = encode(model, params, segments=ONE_TEXT, causal=True, layers=True)
    close(ordered.layers, causal.layers)


# --- programs


def test_memory_is_float32_under_bfloat16():
    model = transformer_xl.build(XLNET, Execution("bfloat16"))
    inputs = Inputs(TOKENS, attention_mask=AttentionMask(ONE_TEXT), carry=model.state.carry(B))
    found = jax.eval_shape(model.encode, P.abstract(model.specs), inputs)
    assert found.hidden.dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(found.carry["layers"])} == {jnp.dtype("float32")}


@pytest.mark.parametrize(("streams", "changed"), [
    (2, {"same_length": True, "clamp": 9}), pytest.param(1, {}, marks=slow)], ids=str)
def test_no_array_has_a_vector_for_each_pair(streams, changed):
    """The relative term is one product by distance, which is then shifted: [b, h, t, s + t] at most, in the backward
    pass too."""
    b, t, memory = 2, 40, 24
    c = replace(XLNET, width=96, heads=2, memory=memory, layers=1, **changed)
    model = transformer_xl.build(c)
    places = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32), (b, t))
    inputs = Inputs(jnp.zeros((b, t), jnp.int32), attention_mask=AttentionMask(jnp.ones((b, t), jnp.int32)),
                    token_type_ids=places, carry=model.state.carry(b),
                    factorization=Factorization(places, places) if streams == 2 else None)

    def loss(params):
        return model.encode(params, inputs, at=places[:, :30] if streams == 2 else None).hidden.sum()

    s = memory + t
    most = programs.largest(jax.grad(loss), P.abstract(model.specs))
    assert b * c.heads * t * s <= most <= 2 * b * c.heads * t * (s + t) < b * t * s * c.width
