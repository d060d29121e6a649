"""Packing: every token once, no document sees another, hardly any padding."""

import numpy as np
import pytest

from lmrep.data.formats import plan
from lmrep.data.formats.base import split_texts
from lmrep.data.formats.packed import Packed, best_fit, pack


def pieces_of(batch):
    """Every packed segment of a batch: its tokens between [CLS] and [SEP], and its positions."""
    for row in range(len(batch["example"])):
        for segment in range(1, batch["segment_ids"][row].max() + 1):
            inside = batch["segment_ids"][row] == segment
            yield batch["tokens"][row][inside], batch["positions"][row][inside]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [3, 17, 128])
def test_each_token_is_in_one_row_and_each_segment_in_one_document(seed, length, random_store):
    store = random_store(seed, documents=40)
    made = plan("packed", Packed(), store, length, seed)
    specials = store.vocabulary.specials
    document_starts = store.sentences[store.documents]
    seen = []
    for tokens, positions in pieces_of(made.gather(np.arange(made.examples))):
        assert tokens[0] == specials["cls"] and tokens[-1] == specials["sep"]
        np.testing.assert_array_equal(positions, np.arange(len(tokens)))
        places = tokens[1:-1] - store.stream[0]  # the store's tokens are their own places in the stream
        assert (np.diff(places) == 1).all()
        documents = np.searchsorted(document_starts, places, side="right")
        assert (documents == documents[0]).all()
        seen.extend(places.tolist())
    assert sorted(seen) == list(range(store.tokens))


def test_documents_are_cut_as_late_as_possible(make_store):
    made = plan("packed", Packed(), make_store([[25], [8], [3]]), 10, 0)
    assert sorted(made.spans.lengths.tolist()) == [1, 3, 8, 8, 8, 8]
    assert made.examples == 5  # the remainders, 1 and 3 tokens, share a row


def pack_documents(bounds, length):
    """Packs documents, given by their first tokens, with two special tokens around each chunk."""
    return pack(split_texts(bounds, length - 2), length, special=2)


def share_of_padding(spans, length):
    rows = len(spans.offsets) - 1
    return 1 - (spans.lengths.sum() + 2 * len(spans.lengths)) / (rows * length)


@pytest.mark.parametrize("length", [128, 512])
def test_padding_is_under_two_percent(length):
    sizes = np.random.default_rng(0).lognormal(6, 1, 3000).astype(np.int64)  # as encyclopedia articles are
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    assert share_of_padding(pack_documents(bounds, length), length) < 0.02


def test_without_best_fit_padding_is_over_two_percent(monkeypatch):
    monkeypatch.setattr("lmrep.data.formats.packed.best_fit", lambda sizes, length: np.arange(len(sizes)))
    sizes = np.random.default_rng(0).lognormal(6, 1, 3000).astype(np.int64)
    assert share_of_padding(pack_documents(np.concatenate([[0], np.cumsum(sizes)]), 128), 128) > 0.02


@pytest.mark.parametrize("seed", range(5))
def test_best_fit_equals_looking_at_every_row(seed):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(5, 40))
    sizes = rng.integers(3, length + 1, 200)
    rooms = []
    expected_rooms = []  # rows with equal room are alike: compare the room that each piece met
    for size in sizes:
        fitting = [room for room in rooms if room >= size]
        expected_rooms.append(min(fitting, default=length))
        if fitting:
            rooms.remove(min(fitting))
        rooms.append(expected_rooms[-1] - size)
    met, left = [], {}
    for row, size in zip(best_fit(sizes, length).tolist(), sizes, strict=True):
        met.append(left.get(row, length))
        left[row] = met[-1] - size
    assert met == expected_rooms
    assert min(left.values()) >= 0


def test_empty_documents_leave_no_row():
    spans = pack_documents(np.array([0, 0, 5, 5, 9]), 8)
    np.testing.assert_array_equal(spans.starts, [0, 5])
    np.testing.assert_array_equal(spans.lengths, [5, 4])


def test_rows_follow_the_corpus(random_store):
    spans = plan("packed", Packed(), random_store(0, 50), 16, 0).spans
    firsts = spans.starts[spans.offsets[:-1]]
    longest = [spans.lengths[a:b].max() for a, b in zip(spans.offsets[:-1], spans.offsets[1:], strict=True)]
    full = firsts[np.array(longest) == 14]
    assert (np.diff(full) > 0).all()


def test_duplicates_differ_in_their_number_alone(random_store):
    store = random_store(1, 20)
    once, thrice = plan("packed", Packed(), store, 32, 0), plan("packed", Packed(duplicates=3), store, 32, 0)
    assert thrice.examples == 3 * once.examples
    expected = once.gather(np.arange(once.examples))
    for turn in range(3):
        numbers = turn * once.examples + np.arange(once.examples)
        batch = thrice.gather(numbers)
        np.testing.assert_array_equal(batch.pop("example"), numbers)
        for field, array in batch.items():
            np.testing.assert_array_equal(array, expected[field])
