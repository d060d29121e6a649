"""Intervals of paired differences, and verdicts, against simulations and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from lmrep.claims.statistics import CONTRADICTED, ORDERING, REPRODUCED, UNRESOLVED, seeds_to_resolve, verdict
from lmrep.metrics.paired import Difference, difference


def test_interval_is_students_of_pairs():
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(2, 6))
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    found = difference(a, b)
    assert found.mean == pytest.approx((a - b).mean()) and [*found[1:]] == pytest.approx([*expected])


@pytest.mark.parametrize("comparisons", [1, 4])
def test_coverage(comparisons):
    """All intervals of a table together hold their differences in at least 95 % of tables; one, in about 95 %."""
    draw, tables, hold = np.random.default_rng(1), 2000, 0
    for values in draw.normal(size=(tables, comparisons, 2, 3)):
        hold += all((lambda d: d.low <= 0 <= d.high)(difference(a, b, comparisons)) for a, b in values)
    assert hold / tables >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / tables)
    assert comparisons > 1 or hold / tables <= 0.95 + 3 * math.sqrt(0.95 * 0.05 / tables)


@pytest.mark.parametrize(("found", "sign", "margin", "expected"), [
    ((2, 1, 3), 1, 0, REPRODUCED), ((-2, -3, -1), -1, 0, REPRODUCED), ((2, 1, 3), -1, 0, CONTRADICTED),
    ((2, -1, 5), 1, 0, ORDERING), ((2, -1, 5), -1, 0, UNRESOLVED), ((0, 0, 0), 1, 0, UNRESOLVED),
    ((-0.1, -0.4, 0.2), 1, 0.5, REPRODUCED), ((-2, -3, -1), 1, 0.5, CONTRADICTED), ((-0.1, -1, 1), 1, 0.5, ORDERING),
    ((2, math.nan, math.nan), 1, 0, UNRESOLVED)])
def test_verdicts(found, sign, margin, expected):
    assert verdict(Difference(*found), sign, margin) == expected


def test_seeds_to_resolve_leave_out_zero():
    """With as many differences of the same mean and deviation, the interval leaves out 0; one fewer do not."""
    values, others = [1.0, 2.0, 4.5], [0.5, 2.5, 3.0]
    n = seeds_to_resolve(values, others, 3)
    gaps = np.subtract(values, others)
    for count, resolved in ((n, True), (n - 1, False)):
        spread = np.linspace(-1, 1, count)
        sample = gaps.mean() + spread / spread.std(ddof=1) * gaps.std(ddof=1)
        assert (difference(sample, np.zeros(count), 3).low > 0) == resolved
    assert seeds_to_resolve([value + 0.5 for value in values], others, 3, boundary=0.5) == n
    assert seeds_to_resolve([1.0], [0.0]) is None and seeds_to_resolve([1.0, 2.0], [2.0, 1.0]) is None


def test_pairs_must_match():
    with pytest.raises(ValueError, match="shorter"):
        difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 1), (5, 1), (3, 4)])
def test_rows_of_one_distribution_are_told_apart_at_the_stated_rate(seeds, comparisons):
    """Of tables in which nothing differs, 5 % at most have a claim that is reproduced or contradicted; here within
    four standard errors of 2,000 tables."""
    draw, tables = np.random.default_rng(seeds), 2000
    noise = draw.normal(size=(tables, comparisons + 1, seeds)) + draw.normal(size=(tables, 1, seeds))
    resolved = sum(any(verdict(difference(row, table[0], comparisons), 1) in (REPRODUCED, CONTRADICTED)
                       for row in table[1:]) for table in noise)
    assert resolved / tables < 0.05 + 4 * math.sqrt(0.05 * 0.95 / tables)
