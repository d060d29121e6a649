"""Segment pairs against BERT's and ALBERT's published procedures.

Statistical tests compare the plan's distribution with an exact one, or with a literal reference that handles sentences
as lists of tokens. They reject at p < 1e-4 with fixed seeds, and each is shown to reject a planted error.
"""

import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from lmrep.data.formats import plan
from lmrep.data.formats.segment_pair import SegmentPair, truncate

SPECIAL = 3  # [CLS] and two [SEP]
REJECT = 1e-4


# --- The reference: one document in one pass, as Python lists ---


def pairs_by_hand(documents, number, capacity, rng, label_type="nsp", short=0.1, mistake=None):
    """[(tokens of A, tokens of B, label)]; `mistake` is the name of an error to plant."""

    def draw_target():
        return rng.randint(2, capacity) if rng.random() < short else capacity

    document, pairs, chunk, size, target, i = documents[number], [], [], 0, draw_target(), 0
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if size >= target or i == len(document) - 1:
            middle = 1
            if len(chunk) > 1:
                middle = rng.randint(1, len(chunk) - (2 if mistake == "short A" and len(chunk) > 2 else 1))
            a, b, label = concatenate(chunk[:middle]), concatenate(chunk[middle:]), 0
            probability = 0.4 if mistake == "fewer random" else 0.5
            if len(chunk) == 1 or (label_type == "nsp" and rng.random() < probability):
                for _ in range(1 if mistake == "one try" else 10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != number:
                        break
                b, label = [], 1
                begin = 0 if mistake == "from the start" else rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][begin:]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                if mistake != "no step back":
                    i -= len(chunk) - middle
            elif label_type == "sop" and rng.random() < (0 if mistake == "never swapped" else 0.5):
                a, b, label = b, a, 1
            truncate_by_hand(a, b, target if mistake == "truncate to target" else capacity, rng, mistake)
            pairs.append((a, b, label))
            chunk, size = [], 0
            if mistake == "target per pair":
                target = draw_target()
        i += 1
    return pairs


def concatenate(sentences):
    return [token for sentence in sentences for token in sentence]


def truncate_by_hand(a, b, capacity, rng, mistake=None):
    while len(a) + len(b) > capacity:
        longer = a if len(a) > len(b) or (mistake == "ties from A" and len(a) == len(b)) else b
        if mistake != "truncate the end" and rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


# --- Observations: one per document and pass, since these are independent ---


def observe(pairs):
    """Features of the pairs [(A, B, label)] of one document pass; a token is its position in the store."""
    (a, b, label), (last_a, last_b, _) = pairs[0], pairs[-1]
    return {
        "how many": len(pairs),
        "labels": tuple(pair[2] for pair in pairs[:4]),
        "first A": (a[0], len(a)),
        "first B": (label, b[0], len(b)),
        "last A": (last_a[0], len(last_a)),
        "last B": (last_b[0], len(last_b)),
        "lengths": tuple((len(pair[0]) + len(pair[1])) for pair in pairs[:3]),
    }


def agreement(ones, others):
    """p-value of a chi-square test that both samples have the same distribution: the minimum over all features, times
    their number (Bonferroni). Values observed fewer than 20 times are pooled."""
    p_values = []
    for feature in ones[0]:
        counts = [Counter(sample[feature] for sample in samples) for samples in (ones, others)]
        total = counts[0] + counts[1]
        common = [value for value in total if total[value] >= 20]
        table = np.array([[count[v] for v in common] + [count.total() - sum(count[v] for v in common)]
                          for count in counts])
        table = table[:, table.sum(axis=0) > 0]
        if table.shape[1] > 1:
            p_values.append(stats.chi2_contingency(table).pvalue)
    return min(1, len(p_values) * min(p_values))


DOCUMENTS = [[3, 5, 2, 7, 4, 1, 6], [9, 2], [4], [30, 3, 3, 2]]
CAPACITY, PASSES = 15, 2000  # odd, so that spans have equal lengths before they fit


def spans_of(pair_plan):
    """int64[examples, 5] of a plan: the start and length of A, the start and length of B, the label."""
    starts, lengths = pair_plan.spans.starts.reshape(-1, 2), pair_plan.spans.lengths.reshape(-1, 2)
    labels = pair_plan.spans.columns["pair_label"]
    return np.column_stack([starts[:, 0], lengths[:, 0], starts[:, 1], lengths[:, 1], labels])


def document_of(store, tokens):
    return np.searchsorted(store.sentences[store.documents], tokens, side="right") - 1


def passes_of(store, spans):
    """The pairs of each document and pass, in order. A always comes from the document itself."""
    return np.split(spans, np.flatnonzero(np.diff(document_of(store, spans[:, 0]))) + 1)


@pytest.fixture(scope="module")
def store(make_store):
    return make_store(DOCUMENTS)


@pytest.fixture(scope="module")
def planned(store):
    """{label type: for each document, its observations in every pass of a plan}"""
    by_type = {}
    for label_type in ("nsp", "sop"):
        config = SegmentPair(label_type, duplicates=PASSES)
        groups = passes_of(store, spans_of(plan("segment_pair", config, store, CAPACITY + SPECIAL, 0)))
        observed = [observe([(range(a, a + n), range(b, b + m), label) for a, n, b, m, label in group.tolist()])
                    for group in groups]
        by_type[label_type] = [observed[document :: len(DOCUMENTS)] for document in range(len(DOCUMENTS))]
    return by_type


def by_hand(store, number, label_type, mistake=None, seed=1):
    sentences = [list(range(a, b)) for a, b in zip(store.sentences[:-1], store.sentences[1:], strict=True)]
    documents = [sentences[a:b] for a, b in zip(store.documents[:-1], store.documents[1:], strict=True)]
    rng = random.Random(seed)
    return [observe(pairs_by_hand(documents, number, CAPACITY, rng, label_type, mistake=mistake))
            for _ in range(PASSES)]


@pytest.mark.parametrize("label_type", ["nsp", "sop"])
@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_pairs_have_the_distribution_of_the_reference(label_type, number, store, planned):
    assert len(planned[label_type][number]) == PASSES
    assert agreement(planned[label_type][number], by_hand(store, number, label_type)) > REJECT


@pytest.mark.parametrize(("label_type", "number", "mistake"), [
    ("nsp", 0, "short A"), ("nsp", 0, "fewer random"), ("nsp", 0, "one try"), ("nsp", 0, "from the start"),
    ("nsp", 0, "no step back"), ("nsp", 0, "truncate to target"), ("nsp", 0, "target per pair"),
    ("nsp", 3, "ties from A"), ("nsp", 3, "truncate the end"), ("sop", 0, "never swapped"), ("sop", 2, "one try"),
    ("sop", 0, "target per pair"),
])
def test_a_mistake_in_the_procedure_is_rejected(label_type, number, mistake, store, planned):
    assert agreement(planned[label_type][number], by_hand(store, number, label_type, mistake)) < REJECT


# --- Truncation ---


def test_each_span_loses_as_many_tokens_as_by_single_steps():
    rng = random.Random(0)
    for size_a in range(1, 12):
        for size_b in range(1, 12):
            for capacity in range(2, 14):
                a, b = list(range(size_a)), list(range(100, 100 + size_b))
                new_a, new_b = truncate(rng, (0, size_a), (100, 100 + size_b), capacity)
                truncate_by_hand(a, b, capacity, rng)
                assert (new_a[1] - new_a[0], new_b[1] - new_b[0]) == (len(a), len(b))
                assert 0 <= new_a[0] < new_a[1] <= size_a
                assert 100 <= new_b[0] < new_b[1] <= 100 + size_b


def front_p(fronts, removed):
    """p-value: of `removed` tokens, those from the front are Binomial(removed, 1/2)."""
    expected = stats.binom.pmf(np.arange(removed + 1), removed, 0.5) * len(fronts)
    return stats.chisquare(np.bincount(fronts, minlength=removed + 1), expected).pvalue


def test_tokens_are_removed_from_front_and_back_with_equal_probability():
    rng = random.Random(0)
    truncated = [truncate(rng, (0, 16), (100, 116), 20) for _ in range(4000)]
    fronts = np.array([(a[0], b[0] - 100) for a, b in truncated])
    assert front_p(fronts[:, 0], 6) > REJECT and front_p(fronts[:, 1], 6) > REJECT
    assert abs(stats.pearsonr(*fronts.T).statistic) < 4 / len(fronts) ** 0.5  # A and B are truncated independently
    uneven = np.random.default_rng(0).binomial(6, 0.45, len(fronts))
    assert front_p(uneven, 6) < REJECT


# --- Properties of every pair ---


@pytest.mark.parametrize("label_type", ["nsp", "sop"])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_spans_of_documents_and_the_label_is_correct(label_type, seed, random_store):
    store = random_store(seed, documents=25)
    capacity = (10, 25, 60, 400)[seed]
    config = SegmentPair(label_type, duplicates=3)
    a, a_size, b, b_size, label = spans_of(plan("segment_pair", config, store, capacity + SPECIAL, seed)).T
    assert (a_size >= 1).all() and (b_size >= 1).all() and (a_size + b_size <= capacity).all()
    a_document, b_document = document_of(store, a), document_of(store, b)
    np.testing.assert_array_equal(a_document, document_of(store, a + a_size - 1))
    np.testing.assert_array_equal(b_document, document_of(store, b + b_size - 1))
    real = label == 0
    assert (a_document == b_document)[real].all()
    complete = a_size + b_size < capacity  # nothing was truncated
    assert (a + a_size <= b)[real].all() and (a + a_size == b)[real & complete].all()
    for edge in (a, a + a_size, b, b + b_size):
        assert np.isin(edge[complete], store.sentences).all()
    if label_type == "nsp":
        assert (a_document != b_document)[~real].all()
    else:
        swapped = ~real & (a_document == b_document)
        assert (b + b_size <= a)[swapped].all() and (b + b_size == a)[swapped & complete].all()


def test_one_sentence_is_paired_with_another_document(make_store):
    store = make_store([[4], [5], [6]])
    for label_type in ("nsp", "sop"):
        a, _, b, _, label = spans_of(plan("segment_pair", SegmentPair(label_type, duplicates=20), store, 32, 0)).T
        assert (label == 1).all()
        assert (document_of(store, a) != document_of(store, b)).all()


def test_a_corpus_of_one_document_is_paired_with_itself(make_store):
    pair_plan = plan("segment_pair", SegmentPair(duplicates=50), make_store([[3, 4, 5, 6]]), 14, 0)
    assert 0 < pair_plan.spans.columns["pair_label"].mean() < 1
