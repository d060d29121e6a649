"""The stream: every token once and in order, an end of text after each document, examples that continue each other."""

import numpy as np
import pytest

from lmrep.core.errors import RunFault
from lmrep.data.formats import plan
from lmrep.data.formats.stream import Stream
from lmrep.data.loader import batches, evaluation_batches
from lmrep.data.order import contiguous_numbers

EOS = 3


def stream_of(store):
    """The stream, one document at a time: each followed by an end of text."""
    parts = []
    for first, last in zip(store.documents[:-1], store.documents[1:], strict=True):
        parts += [store.stream[store.sentences[first] : store.sentences[last]], [EOS]]
    return np.concatenate(parts)


STORES = [(0, 2), (1, 7), (2, 64)]


@pytest.mark.parametrize(("seed", "length"), STORES)
def test_examples_are_consecutive_tokens_of_the_stream(seed, length, random_store):
    store = random_store(seed, 25, tokens=12)
    stream_plan = plan("stream", Stream(), store, length, 0)
    batch = stream_plan.gather(np.arange(stream_plan.examples))
    tokens, expected = batch["tokens"].ravel(), stream_of(store)
    assert stream_plan.examples == -(-len(expected) // length)
    np.testing.assert_array_equal(tokens[: len(expected)], expected)
    segments = batch["segment_ids"].ravel()
    assert (segments[: len(expected)] == 1).all() and (segments[len(expected) :] == 0).all()
    positions = np.tile(np.arange(length), stream_plan.examples)[: len(expected)]
    np.testing.assert_array_equal(batch["positions"].ravel()[: len(expected)], positions)
    assert (batch["reset"] == 1).all()  # shuffled examples do not continue each other
    assert stream_plan.statistics()["padding"] == pytest.approx(1 - len(expected) / tokens.size, abs=1e-12)


def test_a_document_that_fills_its_example_leaves_the_end_of_text_to_the_next(make_store):
    stream_plan = plan("stream", Stream(), make_store([[4], [2], [3]]), 4, 0)
    batch = stream_plan.gather(np.arange(stream_plan.examples))
    assert batch["tokens"].tolist() == [[5, 6, 7, 8], [3, 9, 10, 3], [11, 12, 13, 3]]
    stream_plan = plan("stream", Stream(), make_store([[4]]), 4, 0)
    assert stream_plan.gather(np.arange(2))["tokens"].tolist() == [[5, 6, 7, 8], [3, 0, 0, 0]]


@pytest.mark.parametrize(("seed", "length"), STORES)
def test_isolated_documents_are_segments_with_their_own_positions(seed, length, random_store):
    store = random_store(seed, 25, tokens=12)
    joined, isolated = (plan("stream", Stream(order="contiguous", isolate=isolate), store, length, 0)
                        for isolate in (False, True))
    numbers = np.arange(isolated.examples)
    one, other = joined.gather(numbers), isolated.gather(numbers)
    np.testing.assert_array_equal(one["tokens"], other["tokens"])
    after_end = np.concatenate([[True], (other["tokens"].ravel() == EOS)[:-1]]).reshape(other["tokens"].shape)
    for example in range(isolated.examples):
        real = other["segment_ids"][example] > 0
        begins = after_end[example] & real
        expected = np.cumsum(begins) + (not begins[0])
        np.testing.assert_array_equal(other["segment_ids"][example][real], expected[real])
        begun = np.maximum.accumulate(np.where(begins, np.arange(length), 0))
        np.testing.assert_array_equal(other["positions"][example][real], (np.arange(length) - begun)[real])
        assert other["reset"][example] == begins[0]
    assert not one["reset"].any()


# --- The token that follows an example ---


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(("seed", "length"), STORES)
def test_following_is_the_next_token_of_the_text(seed, length, isolate, random_store):
    store = random_store(seed, 25, tokens=12)
    stream_plan = plan("stream", Stream(order="contiguous", isolate=isolate, duplicates=2), store, length, 0)
    following = stream_plan.gather(np.array([*range(stream_plan.examples), -1]))["following"]
    text = np.append(stream_of(store), -1)
    ends = np.minimum(np.arange(1, stream_plan.rows + 1) * length, len(text) - 1)
    expected = np.where(isolate & (text[ends - 1] == EOS), -1, text[ends])  # isolated documents have no next one
    np.testing.assert_array_equal(following, [*expected, *expected, -1])


def test_a_following_id_outside_of_the_vocabulary_is_refused(random_store):
    stream_plan = plan("stream", Stream(order="contiguous"), random_store(2, 20), 16, 0)
    first = stream_plan.spans.starts[stream_plan.spans.offsets[1]]
    stream_plan.store.stream[first] = 10**6
    with pytest.raises(RunFault, match=r"example 0 of the plan has ids from \d+ to 1000000; expected 0 to"):
        list(evaluation_batches(stream_plan, batch_size=1, indices=np.arange(1), limit=1))


# --- The order of contiguous examples ---


ORDERS = [(1, 1, 0), (5, 8, 3), (8, 8, 0), (9, 8, 3), (100, 1, 0), (1000, 16, 3)]  # examples, batch size, seed


@pytest.mark.parametrize(("n", "batch_size", "seed"), ORDERS)
def test_a_walk_shows_each_example_once(n, batch_size, seed):
    steps = -(-n // batch_size)
    walks = contiguous_numbers(n, 2, batch_size, np.arange(4 * steps * batch_size), seed).reshape(4, steps, batch_size)
    for walk, numbers in enumerate(walks):
        shown = numbers[numbers >= 0]
        assert sorted(shown) == list(range(walk % 2 * n, (walk % 2 + 1) * n))
        assert (numbers[:-1] >= 0).all() or batch_size > n  # only the last step is incomplete


@pytest.mark.parametrize(("n", "batch_size", "seed"), ORDERS)
def test_an_index_continues_its_example_but_for_one_wrap_in_a_walk(n, batch_size, seed):
    steps = -(-n // batch_size)
    walks = contiguous_numbers(n, 1, batch_size, np.arange(3 * steps * batch_size), seed).reshape(3, steps, batch_size)
    for walk in walks:
        for numbers in walk.T:
            shown = numbers[numbers >= 0]
            assert (np.diff(shown) != 1).sum() <= 1 and (np.diff(np.sort(shown)) == 1).all()


def test_walks_combine_other_examples_in_their_batches():
    n, batch_size = 1000, 10
    walks = contiguous_numbers(n, 1, batch_size, np.arange(20 * n), 0).reshape(20, -1, batch_size)
    together = [{frozenset(numbers.tolist()) for numbers in walk} for walk in walks]
    assert not set.intersection(*together[:2]) and len(set.union(*together)) > 19 * n // batch_size
    other_seed = contiguous_numbers(n, 1, batch_size, np.arange(n), 1)
    assert (other_seed != walks[0].ravel()).mean() > 0.9
    starts = walks[:, 0, :] % (n // batch_size)
    assert len(np.unique(starts)) > 60  # of 100, in 200 draws


# --- Batches ---


def run_of(stream_plan, batch_size, first=0, last=60, indices=None, seed=4):
    indices = np.arange(batch_size) if indices is None else np.array(indices)
    return list(batches(stream_plan, batch_size=batch_size, indices=indices, seed=seed, first_step=first,
                        last_step=last))


def assert_reset_where_interrupted(run, stream_plan, length):
    """Follows the positions of the stream: an example continues if it starts where the one before it ended."""
    text = stream_of(stream_plan.store)
    previous_end = np.full(len(run[0]["example"]), -1)
    for batch in run:
        shown = batch["example"] >= 0
        begin = batch["example"] % stream_plan.rows * length
        np.testing.assert_array_equal(batch["tokens"][shown, 0], text[begin[shown]])
        np.testing.assert_array_equal(batch["reset"], shown & (begin != previous_end))
        previous_end = np.where(shown, begin + length, -1)


@pytest.mark.parametrize("duplicates", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_reset_is_one_exactly_where_an_example_continues_none(batch_size, duplicates, random_store):
    stream_plan = plan("stream", Stream(order="contiguous", duplicates=duplicates), random_store(2, 20), 16, 0)
    run = run_of(stream_plan, batch_size, last=5 * -(-stream_plan.rows // batch_size))
    assert_reset_where_interrupted(run, stream_plan, 16)
    resets = sum(int(batch["reset"].sum()) for batch in run)
    assert 0 < resets <= 2 * 5 * batch_size


def test_a_wrong_order_is_rejected(random_store, monkeypatch):
    """Planted error: example r of a batch continues example r - 1 of the same batch, and `reset` does not show it."""
    monkeypatch.setattr("lmrep.data.formats.plans.contiguous_numbers", lambda n, _, size, at, seed: at % n)
    stream_plan = plan("stream", Stream(order="contiguous"), random_store(2, 20), 16, 0)
    monkeypatch.setattr("lmrep.data.formats.plans.Plan.continues", lambda plan, previous, numbers: previous >= 0)
    with pytest.raises(AssertionError):
        assert_reset_where_interrupted(run_of(stream_plan, 3), stream_plan, 16)


@pytest.mark.parametrize("limit", [None, 7])
def test_evaluation_shows_contiguous_chunks_from_their_start(limit, random_store):
    stream_plan = plan("stream", Stream(order="contiguous"), random_store(2, 20), 16, 0)
    count = limit or stream_plan.examples
    run = list(evaluation_batches(stream_plan, batch_size=3, indices=np.arange(3), limit=limit))
    examples = np.array([batch["example"] for batch in run]).T.ravel()
    assert examples[examples >= 0].tolist() == list(range(count))
    assert [batch["reset"].any() for batch in run] == [True] + [False] * (len(run) - 1)
    assert_reset_where_interrupted(run, stream_plan, 16)
