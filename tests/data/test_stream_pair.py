"""Windows of a stream with pairs, against the released algorithm in plain Python."""

import itertools

import numpy as np
import pytest

from lmrep.data.formats import plan
from lmrep.data.formats.stream_pair import CUT, RANDOM, START, StreamPair
from lmrep.data.loader import batches
from lmrep.data.order import uniform
from tests.data.conftest import SPECIALS

SEP, CLS = SPECIALS["sep"], SPECIALS["cls"]
END = SEP  # of documents: the tests' store has no token of its own for it


def make(store, length=24, seed=0, **fields):
    return plan("stream_pair", StreamPair(**fields), store, length, seed)


def stream_of(store):
    """(tokens, sentence numbers) of the stream; the end of a document is a sentence of its own."""
    tokens, numbers = [], []
    for first, last in itertools.pairwise(store.documents.tolist()):
        sentences = [store.stream[store.sentences[i] : store.sentences[i + 1]].tolist() for i in range(first, last)]
        for sentence in [*sentences, [END]]:
            number = numbers[-1] + 1 if numbers else 0
            tokens += sentence
            numbers += [number] * len(sentence)
    return tokens, numbers


def split_texts(data, sentence, begin, total, random, cut, place):
    """(A, B, whether B is random): XLNet's split of a pair that begins at `begin`, with given random numbers."""
    end = begin + 1
    cuts = []
    while end < len(data):
        if sentence[end] != sentence[end - 1]:
            if end - begin >= total:
                break
            cuts.append(end)
        end += 1
    if not cuts or random < 0.5:
        a_end = cuts[int(cut * len(cuts))] if cuts else end
        size = max(1, total - (a_end - begin))
        b_begin = int(place * (len(data) - size + 1))
        b_end = b_begin + size
        while b_begin > 0 and sentence[b_begin - 1] == sentence[b_begin]:
            b_begin -= 1
        while b_end < len(data) and sentence[b_end - 1] == sentence[b_end]:
            b_end += 1
        is_random = True
    else:
        a_end = b_begin = cuts[int(cut * len(cuts))]
        b_end, is_random = end, False
    while a_end - begin + b_end - b_begin > total:
        if a_end - begin > b_end - b_begin:
            a_end -= 1
        else:
            b_end -= 1
    return data[begin:a_end], data[b_begin:b_end], is_random


@pytest.mark.parametrize(("seed", "length", "reuse"), [(1, 25, 7), (3, 12, 0), (4, 64, 50)])
def test_examples_are_those_of_the_released_algorithm(seed, length, reuse, random_store):
    made = make(random_store(seed, 40, tokens=(4, 30)[seed % 2]), length, seed, reuse=reuse, duplicates=2)
    advance, rows = reuse or length // 2, made.rows
    forward = stream_of(made.store)
    streams = [forward, tuple(each[::-1] for each in forward)]
    assert rows == len([w for w in range(len(forward[0])) if w * advance + length - 3 < len(forward[0])])
    assert made.examples == 4 * rows and made.evaluation_examples == rows
    numbers = np.arange(made.examples)
    batch, draws = made.gather(numbers), [uniform((seed, use), numbers) for use in (RANDOM, CUT, START)]
    for e in numbers:
        data, sentence = streams[e // rows % 2]
        begin = e % rows * advance
        a, b, is_random = split_texts(data, sentence, begin + advance, length - advance - 3, *(u[e] for u in draws))
        kept = data[begin : begin + advance]
        assert batch["tokens"][e].tolist() == [*kept, *a, SEP, *b, SEP, CLS]
        assert batch["token_type_ids"][e].tolist() == [0] * (len(kept) + len(a) + 1) + [1] * (len(b) + 1) + [2]
        assert batch["pair_label"][e] == is_random and batch["reversed"][e] == e // rows % 2
    assert batch["segment_ids"].all() and (batch["positions"] == np.arange(length)).all()
    assert {0, 1} == set(batch["pair_label"].tolist())


def test_half_of_the_pairs_are_random_where_sentences_are_short(make_store):
    made = make(make_store([[3] * 40] * 60), 64, bidirectional=False)
    labels = made.gather(np.arange(made.examples))["pair_label"]
    assert made.examples > 200 and abs(labels.mean() - 0.5) < 0.1


@pytest.mark.parametrize("bidirectional", [True, False])
def test_examples_continue_after_the_reused_tokens(bidirectional, random_store):
    made = make(random_store(5, 20), 20, reuse=8, bidirectional=bidirectional)
    tokens, _ = stream_of(made.store)
    steps = 2 * made.rows // 3
    found = list(batches(made, batch_size=6, indices=np.arange(6), seed=0, first_step=0, last_step=steps))
    assert found[0]["reset"].all()
    resets = 0
    for before, after in itertools.pairwise(found):
        expected = [0] * 3 + [1] * 3 if bidirectional else [0] * 6
        np.testing.assert_array_equal(before["reversed"], expected * (before["example"] >= 0))
        for i in np.flatnonzero((after["reset"] == 0) & (after["example"] >= 0)):
            data = tokens[::-1] if after["reversed"][i] else tokens
            at = next(p for p in range(0, len(data), 8) if data[p : p + 8] == before["tokens"][i, :8].tolist())
            assert after["tokens"][i, :8].tolist() == data[at + 8 : at + 16]
        resets += after["reset"].sum()
    assert 0 < resets < 6 * (2 + 2 * steps // (made.rows // (3 if bidirectional else 6)))


def test_a_text_that_is_shorter_than_an_example_is_padded(make_store):
    made = make(make_store([[3, 2]]), 24, bidirectional=False)
    batch = made.gather(np.array([0, -1]))
    real = batch["segment_ids"][0] > 0
    assert batch["tokens"][0, :6].tolist() == [5, 6, 7, 8, 9, END] and made.rows == 1
    assert batch["tokens"][0][real][-1] == CLS and (batch["tokens"][0][~real] == SPECIALS["pad"]).all()
    assert (batch["tokens"][1] == SPECIALS["pad"]).all() and not batch["segment_ids"][1].any()


def test_a_token_for_the_end_of_documents_is_used(make_store):
    specials = SPECIALS | {"mask": 4, "eod": 1}
    batch = make(make_store([[4], [5]], specials), 12, bidirectional=False).gather(np.array([0]))
    assert batch["tokens"][0, :6].tolist() == [5, 6, 7, 8, 1, 9]
