"""Beam search, against all texts of a small language."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from lmrep.models import decoding
from lmrep.models.decoding import Search
from tests import chance

slow = pytest.mark.slow
V, END, START, N = 4, 3, 0, 4  # the tokens of a text are 0, 1 and 2


def tables(seed):
    """A Markov chain for each of three examples, float32 [3, v, v]; ends are improbable at first."""
    draws = np.random.default_rng(seed).normal(size=(3, V, V)).astype(np.float32)
    return draws - np.eye(V, dtype=np.float32)[END]


def generate(table, search, tokens=N, examples=None, skip=None):
    return program(search, tokens)(table, examples and np.array(examples), skip and np.array(skip))


@cache
def program(search, tokens):
    def decode(last, cache):
        rows = jnp.take_along_axis(cache["table"], last[..., None], 1)[:, 0]
        return rows[:, None], {"table": cache["table"], "count": cache["count"] + 1}

    def start_cache(table, number):
        return {"table": jnp.repeat(table, number // len(table), 0), "count": jnp.int32(0)}

    return jax.jit(lambda table, examples, skip: decoding.generate(
        decode, partial(start_cache, table), len(table), tokens, search, start=START, end=END, pad=9,
        examples=examples, skip=skip))


def log_p(table, text):
    rows = log_softmax(table, -1)
    return float(sum(rows[a, b] for a, b in zip((START, *text), text, strict=False)))


def texts(tokens=N):
    """All texts: those that end, and those that are cut."""
    inner = range(END)
    for length in range(tokens):
        yield from ((*some, END) for some in itertools.product(inner, repeat=length))
    yield from itertools.product(inner, repeat=tokens)


@pytest.mark.parametrize("seed", range(2))
def test_one_beam_is_greedy_search(seed):
    found = generate(tables(seed), Search(beams=1))
    for i, table in enumerate(np.asarray(tables(seed))):
        expected, last = [], START
        while len(expected) < N and END not in expected:
            last = int(table[last].argmax())
            expected.append(last)
        assert found.tokens[i].tolist() == expected + [9] * (N - len(expected))
        assert found.lengths[i] == len(expected)


@pytest.mark.parametrize("penalty, length_penalty", [
    ("gnmt", 0.6), pytest.param("power", 1.0, marks=slow)])
def test_with_many_beams_the_best_of_all_texts_is_found(penalty, length_penalty):
    search = Search(beams=V ** (N - 1), length_penalty=length_penalty, penalty=penalty)
    found = generate(tables(0), search)
    for i, table in enumerate(tables(0)):
        scores = {text: log_p(table, text) / float(decoding.penalty(jnp.int32(len(text)), search)) for text in texts()}
        best = max(scores, key=scores.get)
        np.testing.assert_allclose(found.scores[i], scores[best], rtol=1e-5)
        assert found.tokens[i, : found.lengths[i]].tolist() == list(best)


def test_more_beams_never_change_the_score_of_a_text():
    for beams in (1, 2, 3):
        found = generate(tables(1), Search(beams=beams, length_penalty=1.0))
        for i, table in enumerate(tables(1)):
            text = found.tokens[i, : found.lengths[i]].tolist()
            np.testing.assert_allclose(found.scores[i], log_p(table, text) / len(text), rtol=1e-5)


def test_examples_do_not_depend_on_each_other():
    every = generate(tables(2), Search(beams=2))
    for i in range(3):
        one = generate(tables(2)[i : i + 1], Search(beams=2))
        np.testing.assert_array_equal(one.tokens[0], every.tokens[i])


@pytest.mark.parametrize("search", [
    Search(beams=2), pytest.param(Search(temperature=1.0, samples=2), marks=slow)], ids=str)
def test_nothing_is_generated_for_examples_that_are_skipped(search):
    every, found = generate(tables(2), search), generate(tables(2), search, skip=[False, True, False])
    skipped = np.repeat([False, True, False], search.samples)
    np.testing.assert_array_equal(found.tokens[~skipped], every.tokens[~skipped])
    np.testing.assert_array_equal(found.scores[~skipped], every.scores[~skipped])
    assert (found.tokens[skipped] == 9).all() and np.isfinite(found.scores).all() and not found.lengths[skipped].any()


def test_penalties_are_those_of_the_papers():
    lengths = jnp.array([1, 7])
    np.testing.assert_allclose(decoding.penalty(lengths, Search(length_penalty=2.0)), [1, 49])
    np.testing.assert_allclose(decoding.penalty(lengths, Search(length_penalty=0.6, penalty="gnmt")), [1, 2**0.6])


@pytest.mark.parametrize(("v", "k"), [(1024, 7), (300, 3)])
def test_the_largest_values_are_those_of_jax(v, k):
    """With many ties."""
    x = np.random.default_rng(0).integers(-20, 20, (6, v)).astype(np.float32)
    x[0], x[1, 5:] = 0, -np.inf
    found, expected = jax.jit(lambda x: (decoding.top_k(x, k), tuple(jax.lax.top_k(x, k))))(x)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# Drawn texts


def draws(table, tokens=N, examples=None, **fields):
    search = Search(**{"temperature": 1.0} | fields)
    return generate(table, search, tokens, examples)


@pytest.mark.parametrize("fields", [
    {"temperature": 3.0, "top_k": 1}, pytest.param({"temperature": 1.0, "top_p": 1e-6}, marks=slow)], ids=str)
def test_draws_among_one_token_are_greedy_search(fields):
    expected, found = generate(tables(0), Search()), draws(tables(0), samples=3, **fields)
    np.testing.assert_array_equal(found.tokens, np.repeat(expected.tokens, 3, 0))
    np.testing.assert_allclose(found.scores, np.repeat(expected.scores, 3), rtol=1e-5)


@pytest.mark.parametrize("fields", [
    {"temperature": 0.5, "top_k": 3}, pytest.param({}, marks=slow)], ids=str)
def test_texts_are_drawn_as_often_as_their_probabilities_say(fields):
    """The probability of a text is the product of those of its tokens, up to its end or the last token."""
    n, limits = 3000, {"temperature": 1.0, "top_k": 0} | fields
    logits = np.asarray(tables(0)[0], np.float64) / limits["temperature"]
    if limits["top_k"]:
        logits[logits < np.sort(logits)[:, -limits["top_k"], None]] = -np.inf
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = {text: np.prod([p[a, b] for a, b in zip((START, *text), text, strict=False)]) for text in texts(3)}
    assert sum(expected.values()) == pytest.approx(1)
    found = draws(tables(0)[:1], 3, samples=n, **fields)
    drawn = [tuple(own[:length]) for own, length in zip(found.tokens.tolist(), found.lengths.tolist(), strict=True)]
    counts = [drawn.count(text) for text in expected]
    assert sum(counts) == n
    assert chance.fits(counts, [*expected.values()]) > chance.REJECT
    assert chance.fits(counts, np.roll([*expected.values()], 1)) < chance.REJECT  # the probabilities of other texts
    for i in range(0, n, 500):
        np.testing.assert_allclose(found.scores[i], log_p(tables(0)[0], drawn[i]) / len(drawn[i]), rtol=1e-4)


@pytest.mark.slow
def test_the_draws_of_an_example_depend_on_the_seed_and_on_its_index_alone():
    every = draws(tables(2), samples=4, seed=7).tokens.reshape(3, 4, N)
    for i in range(3):
        alone = draws(tables(2)[i : i + 1], examples=[i], samples=4, seed=7)
        np.testing.assert_array_equal(alone.tokens, every[i])
        one = draws(tables(2)[i : i + 1], examples=[i], seed=7)
        np.testing.assert_array_equal(one.tokens[0], every[i, 0])
    same = draws(jnp.repeat(tables(2)[:1], 40, 0), seed=7)
    other = draws(jnp.repeat(tables(2)[:1], 40, 0), seed=8)
    assert len({tuple(text) for text in same.tokens.tolist()}) > 5
    assert not np.array_equal(same.tokens, other.tokens)
