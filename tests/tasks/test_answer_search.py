"""The best spans over windows, and the threshold of no answer, against exhaustive search."""

import itertools

import numpy as np
import pytest

from lmrep.metrics import scripts
from lmrep.tasks.answers import best_spans, max_context, search, tune_threshold


def exhaustive(start, end, windows, usable, max_tokens):
    """{(first, last): score} of all spans, with the rule of BERT's code for the window of each first token."""
    found = {}
    for i, (begin, stop) in enumerate(windows):
        for first, last in itertools.product(range(begin, stop), repeat=2):
            context = [min(first - b, e - 1 - first) + 0.01 * (e - b) if b <= first < e else -1 for b, e in windows]
            if context.index(max(context)) == i and first <= last < first + max_tokens and usable[[first, last]].all():
                found[first, last] = start[i][first - begin] + end[i][last - begin]
    return found


@pytest.mark.parametrize("windows", [[(0, 9)], [(0, 8), (3, 11), (6, 13)], [(0, 5), (5, 6)]])
def test_the_best_spans_are_those_of_an_exhaustive_search(windows):
    draw, tokens = np.random.default_rng(0), windows[-1][1]
    usable = draw.random(tokens) > 0.2
    start, end = ([draw.normal(size=stop - begin) for begin, stop in windows] for _ in range(2))
    for max_tokens, n in ((1, 3), (4, 20), (50, 7)):
        expected = exhaustive(start, end, windows, usable, max_tokens)
        found = search(start, end, np.array(windows), usable, max_tokens, n)
        order = sorted(expected, key=expected.get, reverse=True)[:n]
        assert list(zip(found.first.tolist(), found.last.tolist(), strict=True)) == order
        np.testing.assert_allclose(found.scores, [expected[span] for span in order])


def test_a_span_is_not_limited_to_the_best_starts_and_ends():
    start, end = np.array([9.0, 0, 5, 0]), np.array([0.0, 0, -9, 5])
    found = best_spans(start, end, 2, 1)  # the best start cannot be with the best end
    assert (found.first[0], found.last[0], found.scores[0]) == (2, 3, 10)


def test_a_token_belongs_to_the_window_with_most_context_and_of_equal_ones_to_the_first():
    assert max_context(np.array([(0, 6), (4, 10)])).tolist() == [0] * 5 + [1] * 5
    assert max_context(np.array([(0, 5), (2, 7)])).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert max_context(np.array([(0, 4), (1, 7)])).tolist() == [0, 0, 1, 1, 1, 1, 1]  # the longer of two


def test_the_threshold_is_the_best_of_all():
    draw = np.random.default_rng(1)
    for n in (1, 2, 7, 40):
        odds, answer, empty = draw.normal(3, 2, n).round(1), draw.random(n), (draw.random(n) < 0.5).astype(float)

        def total(threshold, odds=odds, answer=answer, empty=empty):
            return np.where(odds > threshold, empty, answer).sum()

        best = max(total(t) for t in (odds.min() - 1, *odds))
        found = tune_threshold(odds, answer, empty)
        assert total(found) == pytest.approx(best)
        assert (found == 0) == (total(0) == pytest.approx(best))  # 0 where it is as good as any
        assert not np.isclose(odds, found, atol=0.01).any() or found == 0  # rounding of logits changes no answer


def test_the_threshold_is_that_of_the_official_script():
    draw = np.random.default_rng(2)
    odds, answer, answerable = draw.normal(-3, 2, 50), draw.random(50), draw.random(50) < 0.7
    answer = np.where(answerable, answer, 0)
    best, at = scripts.best_threshold(answer, odds, answerable, np.ones(50, bool))
    found = tune_threshold(odds, answer, (~answerable).astype(float))
    assert found != 0
    assert 100 * np.where(odds > found, ~answerable, answer).mean() == pytest.approx(best)
    assert ((odds > found) == (odds > at)).all()


def test_no_question_is_answered_where_every_answer_is_wrong():
    odds = np.array([-5.0, -2.0, -2.0])
    assert tune_threshold(odds, np.zeros(3), np.ones(3)) < -5
    assert tune_threshold(odds, np.ones(3), np.zeros(3)) == 0
    assert tune_threshold(-odds, np.ones(3), np.zeros(3)) > 5
    assert tune_threshold(odds, np.array([1.0, 1, 0]), np.array([0.0, 0, 1])) in (0, -3.5)  # equal odds stay together
