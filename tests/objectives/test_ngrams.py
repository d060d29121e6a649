"""ALBERT's masks of up to three words together, against its published procedure.

Statistical tests reject at p < 1e-4 with fixed seeds; each check is shown to reject a planted error.
"""

from collections import Counter

import jax
import numpy as np
import pytest

from lmrep.objectives import masked, masking
from tests.chance import REJECT, fits, independent
from tests.objectives.toys import MASK, V, batch, objective, prepare, row

ROWS = 20_000
ALBERT = masked.RULES["albert"]
# 15 tokens and a rate of .33 ask for 5. The words of the second text go on after those of the first, as in the script.
ROW = row(16, ([5, 20, 6, 21, 22, 7], [8, 9, 23, 10, 11, 12]))
WORDS = [(1, 2), (3, 4, 5), (6,), (8,), (9, 10), (11,), (12,), (13,)]
SEGMENTS = [0] * 8


def sets(found):
    return Counter(tuple(sorted(places[counts])) for places, counts in zip(found["predicted"], found["weights"] > 0,
                                                                           strict=True))


def exact(words, room, segments, shares=(1, 1 / 2, 1 / 3), shorten=True, overlap=False):
    """{set of positions: probability}: words in random order, each the first of a run of words of a length drawn for
    it, shortened until it fits, skipped where it overlaps. The errors: none is shortened; runs may overlap."""
    shares = np.array(shares) / sum(shares)
    states, final = {(frozenset(), frozenset()): 1.0}, Counter()  # words tried, words taken
    for _ in words:
        following = Counter()
        for (tried, taken), odds in states.items():
            number = sum(len(words[i]) for i in taken)
            left = [i for i in range(len(words)) if i not in tried]
            for i in left:
                for n, share in enumerate(shares, 1):
                    run = [j for j in range(i, min(i + n, len(words))) if segments[j] == segments[i]]
                    while shorten and run and number + sum(len(words[j]) for j in run) > room:
                        run.pop()
                    fit = run and number + sum(len(words[j]) for j in run) <= room
                    if not fit or (taken & set(run) and not overlap):
                        run = []
                    following[tried | {i}, taken | set(run)] += odds / len(left) * share
        states = following
    for (_, taken), odds in states.items():
        final[tuple(sorted(sum((words[i] for i in taken), ())))] += odds
    assert sum(final.values()) == pytest.approx(1)
    return final


def p_sets(seen, expected):
    """Rare sets count together."""
    if set(seen) - set(expected):
        return 0.0
    rare = [places for places, odds in expected.items() if odds * ROWS < 5]
    frequent = [places for places in expected if places not in set(rare)]
    counts = [*(seen[places] for places in frequent), sum(seen[places] for places in rare)]
    return fits(counts, [*(expected[places] for places in frequent), sum(expected[places] for places in rare)])


@pytest.fixture(scope="module")
def found():
    return prepare(objective(rate=0.33, **ALBERT), batch([ROW] * ROWS))


def test_runs_of_words_are_asked_for_as_published(found):
    seen = sets(found)
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS)) > REJECT
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS, shares=(1, 1, 1))) < REJECT
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS, shares=(1 / 3, 1 / 2, 1))) < REJECT  # longer ones favoured
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS, shares=(1,))) < REJECT  # single words
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS, shorten=False)) < REJECT
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS, overlap=True)) < REJECT
    assert p_sets(seen, exact(WORDS, 4, SEGMENTS)) == 0


def test_pairs_of_words_are_a_field():
    seen = sets(prepare(objective(rate=0.33, ngram=2), batch([ROW] * ROWS)))
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS, shares=(1, 1 / 2))) > REJECT
    assert p_sets(seen, exact(WORDS, 5, SEGMENTS)) < REJECT


def test_a_run_ends_with_its_packed_segment():
    line = row(16, ([5, 20, 6],), ([7, 8, 21],), ([9, 10],))  # 14 tokens ask for 5
    words, segments = [(1, 2), (3,), (6,), (7, 8), (11,), (12,)], [1, 1, 2, 2, 3, 3]
    seen = sets(prepare(objective(rate=0.33, **ALBERT), batch([line] * ROWS)))
    assert p_sets(seen, exact(words, 5, segments)) > REJECT
    assert p_sets(seen, exact(words, 5, [1] * 6)) < REJECT


def test_lengths_favour_short_runs():
    """18 / 11 words on average."""
    shares = 1 / np.arange(1, 4)
    assert (shares * np.arange(1, 4)).sum() / shares.sum() == pytest.approx(18 / 11)
    drawn = np.asarray(masking.sample_index(jax.random.bits(jax.random.key(1), (100_000,)), shares))
    assert fits(np.bincount(drawn), shares) > REJECT and fits(np.bincount(drawn), [0.56, 0.27, 0.17]) < REJECT


def test_one_word_runs_are_whole_words():
    whole, ones = (prepare(objective(rate=0.33, **fields), batch([ROW] * 50)) for fields in
                   ({"whole_word": True}, {"ngram": 1}))
    for name in whole:
        np.testing.assert_array_equal(whole[name], ones[name])


def test_each_piece_draws_on_its_own(found):
    asked = found["weights"] > 0
    shown = np.take_along_axis(found["inputs"], found["predicted"], 1)
    seen = np.where(shown == MASK, 0, np.where(shown == found["targets"], 1, 2))
    luck = 0.1 / V  # a random word may be any
    expected = [0.8 + luck, 0.1 + luck, 0.1 - 2 * luck]
    assert fits(np.bincount(seen[asked], minlength=3), expected) > REJECT
    assert fits(np.bincount(seen[asked], minlength=3), [0.82, 0.09, 0.09]) < REJECT
    both = asked[:, :2].all(1)
    first, second = seen[both, 0], seen[both, 1]
    assert independent(first, second) > REJECT
    assert independent(first, np.where(np.arange(len(first)) % 4 == 0, first, second)) < REJECT


def test_as_many_are_asked_for_as_the_rule_says():
    rng = np.random.default_rng(0)
    tokens = np.where(rng.random((300, 128)) < 0.25, 20, 5)
    given = {"tokens": tokens, "segment_ids": np.ones_like(tokens), "example": np.arange(300)}
    number = (prepare(objective(**ALBERT), given)["weights"] > 0).sum(1)
    assert number.max() == round(0.15 * 128) == 19 and number.mean() / 128 > 0.145
    capped = (prepare(objective(**ALBERT, max_predictions=5), given)["weights"] > 0).sum(1)  # as the released command
    assert capped.max() == 5 and capped.mean() > 4.8
    empty = prepare(objective(**ALBERT), batch([row(16), row(16, ([], [])), row(16, ([5],))]))
    assert (empty["weights"] > 0).sum(1).tolist() == [0, 0, 1]
