"""ALBERT's masks of up to three words together, against its published procedure.

Statistical tests reject at p < 1e-4 with fixed seeds; each check is shown to reject a planted error.
"""

from collections import Counter

import jax
import numpy as np
import pytest

from lmrep.objectives import masking
from tests.chance import REJECT, fits, independent
from tests.objectives.toys import MASK, V, batch, example, objective, prepare

EXAMPLES = 20_000
ALBERT = {"ngram": 3}
# 15 tokens and a rate of .33 give 5 targets. The words of the second text follow those of the first, as in the script.
EXAMPLE = example(16, ([5, 20, 6, 21, 22, 7], [8, 9, 23, 10, 11, 12]))
WORDS = [(1, 2), (3, 4, 5), (6,), (8,), (9, 10), (11,), (12,), (13,)]
SEGMENTS = [0] * 8


def sets(prepared):
    used = prepared["weights"] > 0
    return Counter(tuple(sorted(positions[mask])) for positions, mask in zip(prepared["predicted"], used, strict=True))


def exact(words, capacity, segments, weights=(1, 1 / 2, 1 / 3), shorten=True, overlap=False):
    """{set of positions: probability}: words in random order, each the first of a run of words of a length drawn for
    it, shortened until it fits, skipped where it overlaps. The errors: none is shortened; runs may overlap."""
    weights = np.array(weights) / sum(weights)
    states, final = {(frozenset(), frozenset()): 1.0}, Counter()  # words tried, words taken
    for _ in words:
        next_states = Counter()
        for (tried, taken), probability in states.items():
            length = sum(len(words[i]) for i in taken)
            remaining = [i for i in range(len(words)) if i not in tried]
            for i in remaining:
                for n, weight in enumerate(weights, 1):
                    run = [j for j in range(i, min(i + n, len(words))) if segments[j] == segments[i]]
                    while shorten and run and length + sum(len(words[j]) for j in run) > capacity:
                        run.pop()
                    fit = run and length + sum(len(words[j]) for j in run) <= capacity
                    if not fit or (taken & set(run) and not overlap):
                        run = []
                    next_states[tried | {i}, taken | set(run)] += probability / len(remaining) * weight
        states = next_states
    for (_, taken), probability in states.items():
        final[tuple(sorted(sum((words[i] for i in taken), ())))] += probability
    assert sum(final.values()) == pytest.approx(1)
    return final


def p_sets(observed, expected):
    """Rare sets count together."""
    if set(observed) - set(expected):
        return 0.0
    rare = [positions for positions, probability in expected.items() if probability * EXAMPLES < 5]
    frequent = [positions for positions in expected if positions not in set(rare)]
    counts = [*(observed[positions] for positions in frequent), sum(observed[positions] for positions in rare)]
    return fits(counts, [*(expected[chosen] for chosen in frequent), sum(expected[chosen] for chosen in rare)])


@pytest.fixture(scope="module")
def prepared():
    return prepare(objective(rate=0.33, **ALBERT), batch([EXAMPLE] * EXAMPLES))


def test_ngrams_are_chosen_as_published(prepared):
    counts = sets(prepared)
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS)) > REJECT
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS, weights=(1, 1, 1))) < REJECT
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS, weights=(1 / 3, 1 / 2, 1))) < REJECT  # longer ones favoured
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS, weights=(1,))) < REJECT  # single words
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS, shorten=False)) < REJECT
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS, overlap=True)) < REJECT
    assert p_sets(counts, exact(WORDS, 4, SEGMENTS)) == 0


@pytest.mark.slow
def test_the_maximum_length_is_a_field():
    counts = sets(prepare(objective(rate=0.33, ngram=2), batch([EXAMPLE] * EXAMPLES)))
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS, weights=(1, 1 / 2))) > REJECT
    assert p_sets(counts, exact(WORDS, 5, SEGMENTS)) < REJECT


@pytest.mark.slow
def test_an_ngram_ends_with_its_packed_segment():
    packed = example(16, ([5, 20, 6],), ([7, 8, 21],), ([9, 10],))  # 14 tokens have 5 targets
    words, segments = [(1, 2), (3,), (6,), (7, 8), (11,), (12,)], [1, 1, 2, 2, 3, 3]
    counts = sets(prepare(objective(rate=0.33, **ALBERT), batch([packed] * EXAMPLES)))
    assert p_sets(counts, exact(words, 5, segments)) > REJECT
    assert p_sets(counts, exact(words, 5, [1] * 6)) < REJECT


def test_lengths_have_the_published_mean():
    """18 / 11 words on average."""
    weights = 1 / np.arange(1, 4)
    assert (weights * np.arange(1, 4)).sum() / weights.sum() == pytest.approx(18 / 11)
    drawn = np.asarray(masking.sample_index(jax.random.bits(jax.random.key(1), (100_000,)), weights))
    assert fits(np.bincount(drawn), weights) > REJECT and fits(np.bincount(drawn), [0.56, 0.27, 0.17]) < REJECT


def test_unigrams_are_whole_words():
    whole_word, unigrams = (prepare(objective(rate=0.33, **fields), batch([EXAMPLE] * 50)) for fields in
                   ({"whole_word": True}, {"ngram": 1}))
    for name in whole_word:
        np.testing.assert_array_equal(whole_word[name], unigrams[name])


def test_each_token_is_replaced_independently(prepared):
    target_mask = prepared["weights"] > 0
    shown = np.take_along_axis(prepared["inputs"], prepared["predicted"], 1)
    actions = np.where(shown == MASK, 0, np.where(shown == prepared["targets"], 1, 2))
    by_chance = 0.1 / V  # a random word may be any
    expected = [0.8 + by_chance, 0.1 + by_chance, 0.1 - 2 * by_chance]
    assert fits(np.bincount(actions[target_mask], minlength=3), expected) > REJECT
    assert fits(np.bincount(actions[target_mask], minlength=3), [0.82, 0.09, 0.09]) < REJECT
    both = target_mask[:, :2].all(1)
    first, second = actions[both, 0], actions[both, 1]
    assert independent(first, second) > REJECT
    assert independent(first, np.where(np.arange(len(first)) % 4 == 0, first, second)) < REJECT


@pytest.mark.slow
def test_as_many_are_predicted_as_the_rule_gives():
    rng = np.random.default_rng(0)
    tokens = np.where(rng.random((300, 128)) < 0.25, 20, 5)
    raw = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "example": np.arange(300)}
    count = (prepare(objective(**ALBERT), raw)["weights"] > 0).sum(1)
    assert count.max() == round(0.15 * 128) == 19 and count.mean() / 128 > 0.145
    capped = (prepare(objective(**ALBERT, max_predictions=5), raw)["weights"] > 0).sum(1)  # as the released command
    assert capped.max() == 5 and capped.mean() > 4.8
    empty = prepare(objective(**ALBERT), batch([example(16), example(16, ([], [])), example(16, ([5],))]))
    assert (empty["weights"] > 0).sum(1).tolist() == [0, 0, 1]
