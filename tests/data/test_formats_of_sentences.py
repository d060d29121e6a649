"""Full sentences, and those of one document: every token is used as often as the format says, sentences
are complete, document boundaries are respected, and examples are as full as possible."""

import numpy as np
import pytest

from lmrep.config import record
from lmrep.data import formats
from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import split_texts
from lmrep.data.formats.doc_sentences import DocSentences
from lmrep.data.formats.full_sentences import example_starts

LENGTHS = (6, 17, 40)  # sentences have up to 30 tokens: longer and shorter than an example


def examples_of(name, store, length, **settings):
    """The tokens and segment ids of each example, without padding, in the order of the table."""
    plan = formats.plan(name, record.read(FORMATS[name].config, settings), store, length, 0)
    batch = plan.gather(np.arange(plan.examples))
    for tokens, segments, positions in zip(batch["tokens"], batch["segment_ids"], batch["positions"], strict=True):
        real = segments > 0
        for segment in range(1, segments.max() + 1):
            np.testing.assert_array_equal(positions[segments == segment], np.arange((segments == segment).sum()))
        yield tokens[real], segments[real]


def positions_in(store, tokens):
    """The positions of the ordinary tokens in the store, and which tokens are special."""
    special = tokens < store.stream[0]
    return tokens[~special] - store.stream[0], special


def examples_by_hand(store, capacity, across):
    """Examples as lists of chunks (first token, last token + 1) of sentences, added one by one as long as they fit."""
    examples, used, last_document = [], None, None
    for document in range(len(store.documents) - 1):
        for sentence in range(store.documents[document], store.documents[document + 1]):
            first, last = store.sentences[sentence : sentence + 2].tolist()
            for start in range(first, last, capacity):
                chunk = (start, min(start + capacity, last))
                new = document != last_document
                cost = chunk[1] - chunk[0] + (new and used is not None)
                if used is None or used + cost > capacity or (new and not across):
                    examples.append([])
                    used, cost = 0, chunk[1] - chunk[0]
                examples[-1].append(chunk)
                used, last_document = used + cost, document
    return examples


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize(("seed", "length"), enumerate(LENGTHS))
def test_examples_take_sentences_as_long_as_they_fit(seed, length, across, random_store):
    store = random_store(seed, 30)
    starts = example_starts(store.sentences, store.documents, length - 2, across)
    expected = examples_by_hand(store, length - 2, across)
    assert starts.tolist() == [chunks[0][0] for chunks in expected]


@pytest.mark.parametrize(("seed", "length"), enumerate(LENGTHS))
def test_full_sentences_fill_examples_across_documents(seed, length, random_store):
    store = random_store(seed, 30)
    cls, sep = store.vocabulary.specials["cls"], store.vocabulary.specials["sep"]
    document_of = np.repeat(np.arange(30), np.diff(store.sentences[store.documents]))
    seen, crossings = [], 0
    for (tokens, segments), chunks in zip(examples_of("full_sentences", store, length),
                                          examples_by_hand(store, length - 2, True), strict=True):
        assert (segments == 1).all() and len(tokens) <= length
        assert tokens[0] == cls and tokens[-1] == sep
        positions, special = positions_in(store, tokens)
        assert (positions[0], positions[-1] + 1) == (chunks[0][0], chunks[-1][1])
        changes = np.flatnonzero(np.diff(document_of[positions])) + 1
        inner = np.flatnonzero(special[1:-1])  # indices among the tokens between the first and the last
        np.testing.assert_array_equal(inner - np.arange(len(inner)), changes)  # one separator at each change
        assert (tokens[1:-1][inner] == sep).all()
        crossings += len(changes)
        seen.extend(positions.tolist())
    assert seen == list(range(store.tokens))
    assert crossings > 0 or length == 6


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_doc_sentences_end_with_their_document(length, pack, random_store):
    store = random_store(5, 30)
    document_of = np.repeat(np.arange(30), np.diff(store.sentences[store.documents]))
    texts, count = [], 0
    for tokens, segments in examples_of("doc_sentences", store, length, pack=pack):
        count += 1
        assert pack or (segments == 1).all()
        for segment in range(1, segments.max() + 1):
            own = tokens[segments == segment]
            positions, special = positions_in(store, own)
            np.testing.assert_array_equal(np.flatnonzero(special), [0, len(own) - 1])
            assert (np.diff(positions) == 1).all() and len(set(document_of[positions])) == 1
            texts.append((positions[0], positions[-1] + 1))
    expected = [(chunks[0][0], chunks[-1][1]) for chunks in examples_by_hand(store, length - 2, False)]
    assert sorted(texts) == expected and (pack or texts == expected)
    assert count == len(expected) if not pack else count < len(expected) or length == 6


def test_packed_steps_have_about_as_many_tokens_as_full_sentences(random_store):
    store = random_store(0, 400, sentences=8, tokens=25)
    plans = {name: formats.plan(name, record.read(FORMATS[name].config, settings), store, 128, 0)
             for name, settings in {"full_sentences": {}, "doc_sentences": {}}.items()}
    padded = formats.plan("doc_sentences", DocSentences(pack=False), store, 128, 0)
    tokens = {name: plan.statistics()["tokens_per_example"] for name, plan in plans.items()}
    assert tokens["doc_sentences"] == pytest.approx(tokens["full_sentences"], rel=0.08)
    assert padded.statistics()["tokens_per_example"] < 0.8 * tokens["full_sentences"]


def test_texts_are_split_into_chunks():
    assert split_texts(np.array([0, 0, 3, 10, 11, 11]), 3).tolist() == [0, 3, 6, 9, 10, 11]


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences"])
def test_examples_with_a_smaller_capacity_are_rejected(name, random_store, monkeypatch):
    """Planted error: examples hold one token less than their capacity."""
    store = random_store(1, 30)
    monkeypatch.setattr(f"lmrep.data.formats.{name}.example_starts", lambda sentences, documents, capacity, **options:
                        example_starts(sentences, documents, capacity - 1, **options))
    plan = formats.plan(name, FORMATS[name].config(), store, 40, 0)
    expected = examples_by_hand(store, 38, name == "full_sentences")
    assert sorted(plan.spans.starts[plan.spans.offsets[:-1]].tolist()) != [chunks[0][0] for chunks in expected]
