"""Packing: every token once, segments of one document each, little padding."""

import numpy as np
import pytest

from lmrep.data.formats import plan
from lmrep.data.formats.base import split_texts
from lmrep.data.formats.packed import Packed, best_fit, pack


def test_documents_are_split_into_full_chunks_and_a_remainder(make_store):
    packed_plan = plan("packed", Packed(), make_store([[25], [8], [3]]), 10, 0)
    assert sorted(packed_plan.spans.lengths.tolist()) == [1, 3, 8, 8, 8, 8]
    assert packed_plan.examples == 5  # the remainders, 1 and 3 tokens, are in one example


def pack_documents(bounds, length):
    """Packs documents, given by their first tokens, with two special tokens around each chunk."""
    return pack(split_texts(bounds, length - 2), length, special=2)


def padding_fraction(spans, length):
    examples = len(spans.offsets) - 1
    return 1 - (spans.lengths.sum() + 2 * len(spans.lengths)) / (examples * length)


@pytest.mark.parametrize("length", [128, 512])
def test_padding_is_under_two_percent(length):
    sizes = np.random.default_rng(0).lognormal(6, 1, 3000).astype(np.int64)  # like encyclopedia articles
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    assert padding_fraction(pack_documents(bounds, length), length) < 0.02


@pytest.mark.parametrize("seed", range(3))
def test_best_fit_matches_a_search_of_all_bins(seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(5, 40))
    sizes = rng.integers(3, length + 1, 200)
    open_bins = []
    expected = []  # bins with equal space are equivalent: compare the space that each item found
    for size in sizes:
        fitting = [space for space in open_bins if space >= size]
        expected.append(min(fitting, default=length))
        if fitting:
            open_bins.remove(min(fitting))
        open_bins.append(expected[-1] - size)
    space_before, left = [], {}
    for bin_, size in zip(best_fit(sizes, length).tolist(), sizes, strict=True):
        space_before.append(left.get(bin_, length))
        left[bin_] = space_before[-1] - size
    assert space_before == expected
    assert min(left.values()) >= 0


def test_empty_documents_are_skipped():
    spans = pack_documents(np.array([0, 0, 5, 5, 9]), 8)
    np.testing.assert_array_equal(spans.starts, [0, 5])
    np.testing.assert_array_equal(spans.lengths, [5, 4])


def test_examples_follow_the_order_of_the_corpus(random_store):
    spans = plan("packed", Packed(), random_store(0, 50), 16, 0).spans
    firsts = spans.starts[spans.offsets[:-1]]
    max_lengths = [spans.lengths[a:b].max() for a, b in zip(spans.offsets[:-1], spans.offsets[1:], strict=True)]
    full = firsts[np.array(max_lengths) == 14]
    assert (np.diff(full) > 0).all()
