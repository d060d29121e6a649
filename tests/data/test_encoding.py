"""Special tokens and token types around texts and pairs of texts, truncation and windows."""

import itertools

import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import truncate_pair
from lmrep.data.records.encoding import assemble, input_layout, windows

PAD, CLS, SEP, A, B = range(5)
ROLES = {"pad": PAD, "cls": CLS, "sep": SEP}


def layout(one_separator=True, context="both", cls_last=False):
    return input_layout(Vocabulary(5, ROLES, None, np.zeros(5, int)), context, one_separator, cls_last=cls_last)


@pytest.mark.parametrize("found, single, pair, types", [
    (layout(), [CLS, A, A, SEP], [CLS, A, A, SEP, B, SEP], [0, 0, 0, 0, 1, 1]),  # BERT
    (layout(one_separator=False), [CLS, A, A, SEP], [CLS, A, A, SEP, SEP, B, SEP], [0, 0, 0, 0, 0, 1, 1]),  # RoBERTa
    (layout(cls_last=True), [A, A, SEP, CLS], [A, A, SEP, B, SEP, CLS], [0, 0, 0, 1, 1, 2]),  # XLNet
    (layout(context="left", cls_last=True), [CLS, A, A, SEP], [CLS, A, A, SEP, B, SEP], [0, 0, 0, 0, 1, 1]),
])
def test_special_tokens_are_those_of_published_systems(found, single, pair, types):
    a, b = np.array([A, A]), np.array([B])
    one, two = assemble(found, a), assemble(found, a, b, words=[np.array([0, 1]), np.array([2])])
    assert one.ids.tolist() == single and two.ids.tolist() == pair and two.types.tolist() == types
    assert one.types.tolist() == [0] * (len(single) - 1) + [2 * found.cls_last]
    for unit in (one, two):
        assert len(unit.ids) == 2 + (unit.second >= 0) + found.special(unit.second >= 0)
    assert two.words.tolist() == [{A: 0, B: 2}.get(i, -1) + (at == two.first + 1) for at, i in enumerate(pair)]


def test_the_longer_text_of_a_pair_loses_its_last_tokens_one_at_a_time():
    for a, b, capacity in itertools.product(range(9), range(9), range(2, 12)):
        kept = [a, b]
        while sum(kept) > capacity:
            kept[kept[0] <= kept[1]] -= 1  # of the second where they are equal
        assert truncate_pair(a, b, capacity) == tuple(kept)


def test_windows_begin_a_stride_apart_and_the_last_one_ends_with_the_text():
    for length, capacity, stride in itertools.product(range(1, 30), (3, 8), (1, 3)):
        found = windows(length, capacity, stride)
        assert [start for start, _ in found] == [i * stride for i in range(len(found))]
        assert all(end == min(start + capacity, length) for start, end in found)
        assert found[-1][1] == length and all(end < length for _, end in found[:-1])
