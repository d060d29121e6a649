"""The stream: every token once and in order, a mark behind each document, rows that go on where they left off."""

import numpy as np
import pytest

from lmrep.data.formats.stream import Stream, plan
from lmrep.data.loader import batches, evaluation_batches


def whole(store):
    """The stream by hand: documents with a mark (3) behind each."""
    pieces = []
    for first, last in zip(store.documents[:-1], store.documents[1:], strict=True):
        pieces += [store.stream[store.sentences[first] : store.sentences[last]], [3]]
    return np.concatenate(pieces)


STORES = [(seed, length) for seed in range(4) for length in (2, 7, 64)]


@pytest.mark.parametrize(("seed", "length"), STORES)
def test_rows_are_the_stream_cut(seed, length, random_store):
    store = random_store(seed, 25, tokens=12)
    made = plan(Stream(), store, length, 0)
    batch = made.gather(np.arange(made.examples))
    tokens, expected = batch["tokens"].ravel(), whole(store)
    assert made.examples == -(-len(expected) // length)
    np.testing.assert_array_equal(tokens[: len(expected)], expected)
    real = batch["segment_ids"].ravel()
    assert (real[: len(expected)] == 1).all() and (real[len(expected) :] == 0).all()
    positions = np.tile(np.arange(length), made.examples)[: len(expected)]
    np.testing.assert_array_equal(batch["positions"].ravel()[: len(expected)], positions)
    assert (batch["reset"] == 1).all()  # each stands alone
    assert made.statistics()["padding"] == pytest.approx(1 - len(expected) / tokens.size, abs=1e-12)


def test_a_document_that_fills_its_row_leaves_the_mark_to_the_next(make_store):
    made = plan(Stream(), make_store([[4], [2], [3]]), 4, 0)
    batch = made.gather(np.arange(made.examples))
    assert batch["tokens"].tolist() == [[5, 6, 7, 8], [3, 9, 10, 3], [11, 12, 13, 3]]
    made = plan(Stream(), make_store([[4]]), 4, 0)
    assert made.gather(np.arange(2))["tokens"].tolist() == [[5, 6, 7, 8], [3, 0, 0, 0]]


@pytest.mark.parametrize(("seed", "length"), STORES)
def test_isolated_documents(seed, length, random_store):
    store = random_store(seed, 25, tokens=12)
    together, apart = (plan(Stream(order="rows", isolate=isolate), store, length, 0) for isolate in (False, True))
    numbers = np.arange(apart.examples)
    one, other = together.gather(numbers), apart.gather(numbers)
    np.testing.assert_array_equal(one["tokens"], other["tokens"])
    after_mark = np.concatenate([[True], (other["tokens"].ravel() == 3)[:-1]]).reshape(other["tokens"].shape)
    for row in range(apart.examples):
        real = other["segment_ids"][row] > 0
        begins = after_mark[row] & real
        expected = np.cumsum(begins) + (not begins[0])
        np.testing.assert_array_equal(other["segment_ids"][row][real], expected[real])
        begun = np.maximum.accumulate(np.where(begins, np.arange(length), 0))
        np.testing.assert_array_equal(other["positions"][row][real], (np.arange(length) - begun)[real])
        assert other["reset"][row] == begins[0]
    assert not one["reset"].any()


# --- Rows that continue ---


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_each_row_of_a_batch_continues_the_row_before(batch_size, random_store):
    store = random_store(2, 20)
    made = plan(Stream(order="rows"), store, 16, 0)
    steps = -(-made.examples // batch_size)
    assert steps * batch_size > made.examples or batch_size == 1  # the last part is short
    run = list(batches(made, batch_size=batch_size, rows=np.arange(batch_size), seed=0, first_step=0,
                       last_step=2 * steps))
    for walk in (run[:steps], run[steps:]):
        parts = [np.concatenate([batch["tokens"][row][batch["segment_ids"][row] > 0] for batch in walk])
                 for row in range(batch_size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole(store))
        for step, batch in enumerate(walk):
            shown = batch["example"] >= 0
            np.testing.assert_array_equal(batch["reset"], shown & (step == 0))
    np.testing.assert_array_equal(run[0]["example"], run[steps]["example"])


def test_duplicates_of_continuing_rows_have_numbers_of_their_own(random_store):
    made = plan(Stream(order="rows", duplicates=2), random_store(2, 20), 16, 0)
    n, steps = made.rows, -(-made.rows // 4)
    run = list(batches(made, batch_size=4, rows=np.arange(4), seed=0, first_step=0, last_step=3 * steps))
    examples = np.array([batch["example"] for batch in run]).reshape(3, -1)
    shown = [walk[walk >= 0] for walk in examples]
    assert sorted(shown[0]) == list(range(n)) and sorted(shown[1]) == list(range(n, 2 * n))
    np.testing.assert_array_equal(shown[0], shown[2])


@pytest.mark.parametrize("limit", [None, 7])
def test_evaluation_goes_on_row_by_row(limit, random_store):
    store = random_store(2, 20)
    made = plan(Stream(order="rows"), store, 16, 0)
    count = limit or made.examples
    run = list(evaluation_batches(made, batch_size=3, rows=np.arange(3), limit=limit))
    examples = np.array([batch["example"] for batch in run]).T.ravel()
    assert examples[examples >= 0].tolist() == list(range(count))
    assert [batch["reset"].any() for batch in run] == [True] + [False] * (len(run) - 1)


def test_hosts_and_resumed_runs_see_the_same_rows(random_store):
    made = plan(Stream(order="rows", isolate=True), random_store(2, 20), 16, 0)
    run = list(batches(made, batch_size=4, rows=np.arange(4), seed=0, first_step=0, last_step=30))
    part = batches(made, batch_size=4, rows=np.array([1, 3]), seed=9, first_step=11, last_step=30)
    for one, other in zip(run[11:], part, strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array[[1, 3]], other[name], err_msg=name)


def test_rows_dealt_in_turn_are_noticed(random_store, monkeypatch):
    """The error planted: row r of a batch shows what follows row r - 1, not what it showed before."""
    monkeypatch.setattr("lmrep.data.formats.base.continuing_numbers", lambda n, _, batch_size, rows: rows % n)
    with pytest.raises(AssertionError):
        test_each_row_of_a_batch_continues_the_row_before(3, random_store)
