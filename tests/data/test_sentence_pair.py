"""Pairs of single sentences: which sentences are paired, and how often."""

import numpy as np
import pytest

from lmrep.data.formats import plan, sentence_pair
from lmrep.data.formats.sentence_pair import SentencePair, sample
from tests import chance

PASSES = 40


def pairs(store, capacity=1000, passes=PASSES):
    """The numbers of the sentences A and B, and the label, of each pair of all passes."""
    documents = range(len(store.documents) - 1)
    tables = [sample(store.sentences, store.documents, capacity, (3, pass_), documents) for pass_ in range(passes)]
    starts, labels = (np.concatenate(each) for each in zip(*((spans.starts, spans.columns["pair_label"])
                                                             for spans in tables), strict=True))
    a, b = np.searchsorted(store.sentences, starts.reshape(-1, 2)).T
    return a, b, labels


def documents_of(store):
    return np.repeat(np.arange(len(store.documents) - 1), np.diff(store.documents))


def random_b_p(store, a, b, labels):
    """p-value: random second sentences come uniformly from the other documents, and uniformly within each."""
    own, other = documents_of(store)[a], documents_of(store)[b]
    random = labels == 1
    count = len(store.documents) - 1
    expected = np.zeros((count, count))
    for document in range(count):
        expected[document] = (own[random] == document).sum() / (count - 1)
        expected[document, document] = 0
    table = np.zeros((count, count))
    np.add.at(table, (own[random], other[random]), 1)
    within = [chance.uniform(np.bincount(b[random & (other == d)] - store.documents[d],
                                         minlength=store.documents[d + 1] - store.documents[d]))
              for d in range(count)]
    across = [chance.fits(counts, probabilities) for counts, probabilities in zip(table, expected, strict=True)]
    return chance.least([*across, *within])


def labels_p(labels):
    return chance.rates(labels.sum(), len(labels), 0.5)


def test_every_sentence_with_a_next_one_is_a_once_per_pass_and_half_are_paired_with_it(random_store):
    store = random_store(0, 40)
    a, b, labels = pairs(store)
    last = np.isin(np.arange(len(store.sentences) - 1), store.documents[1:] - 1)
    expected = np.tile(np.flatnonzero(~last), PASSES)
    np.testing.assert_array_equal(a, expected)
    np.testing.assert_array_equal(b[labels == 0], a[labels == 0] + 1)
    assert (documents_of(store)[a] == documents_of(store)[b])[labels == 0].all()
    assert (documents_of(store)[a] != documents_of(store)[b])[labels == 1].all()
    assert labels_p(labels) > chance.REJECT
    halves = labels.reshape(PASSES, -1)
    assert chance.independent(halves[0::2], halves[1::2]) > chance.REJECT  # passes are independent
    assert chance.independent(halves[:, :-1], halves[:, 1:]) > chance.REJECT


def test_random_second_sentences_are_uniform_over_documents_and_sentences(random_store):
    store = random_store(0, 8)
    assert random_b_p(store, *pairs(store, passes=400)) > chance.REJECT


def test_biased_labels_and_sentences_are_rejected(random_store):
    store = random_store(0, 8)
    a, b, labels = pairs(store, passes=400)
    uneven = np.where(np.arange(len(labels)) % 20 == 0, 1, labels)  # 52.5 % random
    assert labels_p(uneven) < chance.REJECT
    owner = documents_of(store)
    any_sentence = np.random.default_rng(0).integers(0, len(owner), len(b))  # long documents are more frequent
    other = owner[any_sentence] != owner[a]
    assert random_b_p(store, a[other], any_sentence[other], labels[other]) < chance.REJECT


def test_in_a_corpus_of_one_document_random_sentences_come_from_it(make_store):
    store = make_store([[3, 4, 5, 6]])
    _, b, labels = pairs(store)
    assert set(b[labels == 1]) == {0, 1, 2, 3}


@pytest.mark.parametrize(("lengths", "capacity", "expected"), [
    ((5, 5), 10, (5, 5)), ((9, 2), 10, (8, 2)), ((2, 9), 10, (2, 8)), ((9, 9), 10, (5, 5)), ((9, 9), 9, (4, 5)),
    ((6, 9), 10, (5, 5)), ((1, 40), 5, (1, 4))])
def test_the_longer_sentence_of_a_pair_is_truncated(lengths, capacity, expected, make_store):
    store = make_store([list(lengths)])
    for pass_ in range(20):
        table = sample(store.sentences, store.documents, capacity, (0, pass_), range(1))
        if table.columns["pair_label"][0] == 0:
            assert table.starts.tolist() == [0, lengths[0]] and tuple(table.lengths) == expected
            return
    raise AssertionError("no real pair in twenty passes")


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_do_not_change_the_table(chunk, random_store, monkeypatch, tmp_path):
    store = random_store(1, 20)
    expected = plan("sentence_pair", SentencePair(duplicates=2), store, 24, 0)
    monkeypatch.setattr("lmrep.data.formats.sentence_pair.CHUNK", chunk)
    for cache in (None, tmp_path):
        pair_plan = plan("sentence_pair", SentencePair(duplicates=2), store, 24, 0, cache)
        for one, other in zip(expected.spans[:3], pair_plan.spans[:3], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(expected.spans.columns["pair_label"], pair_plan.spans.columns["pair_label"])


def test_documents_of_one_sentence_make_no_pair_and_progress_continues(make_store, monkeypatch):
    monkeypatch.setattr(sentence_pair, "CHUNK", 1)
    store, seen = make_store([[3], [3, 4], [5]]), []
    pairs = plan("sentence_pair", SentencePair(2), store, 24, 0, progress=lambda *work: seen.append(work))
    assert pairs.examples == 2 and seen[-1] == (2 * store.tokens, 2 * store.tokens)
