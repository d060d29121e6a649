"""What XLNet predicts and in which order, against its released algorithm in plain NumPy."""

from functools import cache, partial

import jax
import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary
from lmrep.objectives import factorization
from lmrep.objectives.factorization import Config
from tests import chance
from tests.cases import slow_after
from tests.objectives.toys import CLS, PAD, SEP, SPECIALS, V

STARTS = np.arange(V) % 3 != 0
STARTS[:5] = True
VOCABULARY = Vocabulary(V, SPECIALS, STARTS, np.ones(V, np.int64))
LENGTH = 512


def examples(number, length=LENGTH, seed=0, padding=0):
    """(tokens, segment_ids, reversed) of examples with two separators and a classifier in their second part."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, V, (number, length)).astype(np.int32)
    tokens[:, -1], tokens[:, -2] = CLS, SEP
    tokens[np.arange(number), rng.integers(length // 2, length - 2, number)] = SEP
    segments = np.ones((number, length), np.int32)
    if padding:
        tokens[::2, -padding:], segments[::2, -padding:] = PAD, 0
    return tokens, segments, (rng.random(number) < 0.5).astype(np.int32)


@cache
def sampler(c):
    return jax.jit(jax.vmap(partial(factorization.sample, c=c, vocabulary=VOCABULARY)))


def drawn(c, texts, seed=1):
    """The sample of each example, and the random bits that it is made of."""
    keys = jax.random.split(jax.random.key(seed), len(texts[0]))
    found = {name: np.asarray(x) for name, x in sampler(c)(keys, *texts).items()}
    return found, np.asarray(jax.vmap(lambda key: jax.random.bits(key, (4, texts[0].shape[1])))(keys))


def fraction(bits):
    return (bits >> 8) * 2.0**-24


# The released algorithm


def choose(starts, n_draws, before_draws, fill, goal, c):
    """The chosen tokens of a part, whose tokens are in the order of the text; random numbers in [0, 1) are given."""
    length, chosen, position, number = len(starts), np.zeros(len(starts), bool), 0, 0
    below = np.cumsum(1 / np.arange(1, c.max_span + 1))
    below /= below[-1]
    for u, v in zip(n_draws, before_draws, strict=True):
        if not c.spans or position >= length or number >= goal:
            break
        n = min(1 + int(np.searchsorted(below, u, side="right")), goal - number)
        around = int(n * (c.context or c.k))
        before = int(v * around)
        begin = position + before
        while begin < length and not starts[begin]:
            begin += 1
        if begin >= length:
            break
        end, words = begin + 1, 1
        while end < length:
            if starts[end if c.span_unit == "words" else begin]:  # the released code looks at the begin
                words += 1
                if words > n:
                    break
            end += 1
        if end >= length:
            break
        end = min(end, begin + goal - number)
        chosen[begin:end] = True
        number += end - begin
        position = end + around - before
    for i in np.argsort(np.where(chosen, 2.0, fill), kind="stable")[: max(0, goal - number)]:
        chosen[i] = True
    return chosen


def local_perm(tokens, chosen, index):
    """(perm_mask, target mask) of one part: perm_mask[i, j] is 1 where i may not attend to j."""
    functional = (tokens == SEP) | (tokens == CLS)
    ordinary = ~chosen & ~functional
    rev_index = np.where(ordinary, -1, index)
    targets = ~ordinary & ~functional
    self_rev_index = np.where(targets, rev_index, rev_index + 1)
    return (self_rev_index[:, None] <= rev_index[None, :]) & ~ordinary[None, :], targets


def reference(tokens, reverse, bits, c, first):
    """(perm_mask [t, t], target mask [t]) of an example without padding."""
    t = len(tokens)
    total = int(t / c.k)
    goals = total - total * (t - first) // t, total * (t - first) // t
    mask, targets = np.zeros((t, t), bool), np.zeros(t, bool)
    mask[:first, first:] = True
    for part, goal in zip((slice(0, first), slice(first, t)), goals, strict=True):
        own = tokens[part]
        n, before, fill = (fraction(bits[i, part]) for i in range(3))
        n = bits[0, part] * 2.0**-32
        seg = own[::-1] if reverse else own
        chosen = choose(STARTS[seg], n, before, fill, goal, c)
        chosen = chosen[::-1] if reverse else chosen
        size = min(c.block or len(own), len(own))
        order = np.argsort(np.argsort(bits[3, part][:size]))
        index = np.arange(len(own)).reshape(-1, size)[:, order].reshape(-1)
        mask[part, part], targets[part] = local_perm(own, chosen, index)
    return mask, targets


CASES = slow_after(1, [Config(reuse=128, block=128), Config(span_unit="words", context=5.0, max_span=3), Config(),
                       Config(spans=False), Config(k=1.5, max_span=9, block=64)])


@pytest.mark.parametrize("c", CASES, ids=str)
def test_masks_and_targets_are_those_of_the_released_algorithm(c):
    texts = examples(16)
    found, bits = drawn(c, texts)
    first = LENGTH // 2 if c.reuse < 0 else c.reuse
    for i in range(16):
        expected, targets = reference(texts[0][i], texts[2][i], bits[i], c, first)
        hidden = ~(found["revealed"][i][None, :] < found["sees"][i][:, None])
        np.testing.assert_array_equal(hidden, expected)
        np.testing.assert_array_equal(found["predicted"][i][found["target_mask"][i]], np.flatnonzero(targets))
        np.testing.assert_array_equal(found["targets"][i], texts[0][i][found["predicted"][i]])


def test_no_token_of_the_first_part_sees_the_second():
    """Not even a functional token whose place is the last of its part."""
    tokens, *others = examples(60, 12)
    tokens[:, 3] = SEP
    found, _ = drawn(Config(), (tokens, *others))
    assert (found["revealed"][:, None, 6:] >= found["sees"][:, :6, None]).all()
    assert (found["revealed"][:, 3] == 5).any()


@pytest.mark.slow
def test_one_of_k_tokens_is_chosen_in_each_half():
    """85 of 512 by K = 6: 43 in the first half, 42 in the second. The functional tokens are among the chosen ones."""
    assert [factorization.max_predictions(Config(k=k), 512) for k in (6, 7)] == [85, 73]
    texts = examples(600, seed=4)
    found, _ = drawn(Config(), texts)
    targets = np.zeros_like(texts[0], bool)
    np.put_along_axis(targets, found["predicted"], found["target_mask"], 1)
    assert (targets[:, :256].sum(1) == 43).all()
    second = targets[:, 256:].sum(1)
    assert (second <= 42).all() and (second >= 39).all() and 41 < second.mean() < 42
    assert not targets[(texts[0] == SEP) | (texts[0] == CLS)].any()


@pytest.mark.slow
def test_lengths_and_starts_of_spans():
    """The first span of a part has n tokens with a probability proportional to 1 / n, and starts at a word within the
    first 6 n tokens, or at the next one after them."""
    tokens, segments, _ = examples(3000, 256, seed=5)
    tokens = np.where(tokens < 5, 5, tokens)
    found, _ = drawn(Config(k=20.0, context=6.0), (tokens, segments, np.zeros(3000, np.int32)))
    assert found["target_mask"].all()  # few are predicted, so that spans are not filled up with single tokens
    lengths = []
    for text, predicted in zip(tokens, found["predicted"], strict=True):
        begin, n = predicted[0], np.argmax(np.diff(predicted) > 1) + 1
        lengths.append(n)
        assert STARTS[text[begin]] and not STARTS[text[6 * n : begin]].any()
    counts = np.bincount(lengths, minlength=6)[1:]
    assert chance.fits(counts, 1 / np.arange(1, 6)) > chance.REJECT
    assert chance.uniform(counts) < chance.REJECT  # a planted error


def test_every_order_of_the_chosen_tokens_is_equally_likely():
    c, texts = Config(k=4.0, spans=False, reuse=0), examples(1, 12, seed=6)
    texts = tuple(np.repeat(x, 6000, 0) for x in (np.full((1, 12), 7, np.int32), texts[1], np.zeros(1, np.int32)))
    found, _ = drawn(c, texts)
    order = np.argsort(np.take_along_axis(found["revealed"], found["predicted"], 1), axis=1)
    counts = np.unique(order @ np.array([9, 3, 1]), return_counts=True)[1]
    assert len(counts) == 6 and chance.uniform(counts) > chance.REJECT
    assert chance.uniform(counts + np.array([250, 0, 0, 0, 0, 0])) < chance.REJECT  # a planted error
    for position in range(12):
        hits = (found["predicted"] == position).any(1).sum()
        assert chance.rates(hits, 6000, 1 / 4) > chance.REJECT


@pytest.mark.parametrize("c", slow_after(1, [Config(), Config(spans=False), Config(span_unit="words")]), ids=str)
def test_padding_is_neither_chosen_nor_counted(c):
    texts = examples(60, 60, padding=23)
    found, _ = drawn(c, texts)
    for i in range(60):
        used = found["predicted"][i][found["target_mask"][i]]
        assert texts[1][i][used].all() and len(used) <= (10, 6)[i % 2 == 0] and len(used) >= (7, 3)[i % 2 == 0]
    empty, _ = drawn(c, (texts[0], np.zeros_like(texts[1]), texts[2]))
    assert not empty["target_mask"].any()


def test_given_orders_are_as_their_names_say():
    tokens = np.zeros((1, 4), np.int32)
    order = factorization.left_to_right(tokens)
    np.testing.assert_array_equal(order.revealed[0][None] < order.sees[0][:, None], np.tri(4, k=-1, dtype=bool))
    hidden = np.array([[False, True, False, True]])
    order = factorization.all_but(hidden)
    seen = np.asarray(order.revealed[0][None] < order.sees[0][:, None])
    np.testing.assert_array_equal(seen, np.tile(~hidden, (4, 1)))
