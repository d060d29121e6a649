"""Full sentences, those of one document, and lines: every token as often as the format says, whole sentences, no
document crossed where none may be, rows as full as the rule makes them."""

import numpy as np
import pytest

from lmrep.config import record
from lmrep.data import formats
from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import split_texts
from lmrep.data.formats.doc_sentences import DocSentences
from lmrep.data.formats.full_sentences import example_starts

LENGTHS = (6, 17, 40)  # sentences have up to 30 tokens: longer than a row, shorter than it, and several of them a row


def rows_of(name, store, length, **settings):
    """Of each row in the order of the table: its real tokens, and their segments."""
    plan = formats.plan(name, record.read(FORMATS[name].config, settings), store, length, 0)
    batch = plan.gather(np.arange(plan.examples))
    for tokens, segments, positions in zip(batch["tokens"], batch["segment_ids"], batch["positions"], strict=True):
        real = segments > 0
        for segment in range(1, segments.max() + 1):
            np.testing.assert_array_equal(positions[segments == segment], np.arange((segments == segment).sum()))
        yield tokens[real], segments[real]


def places(tokens, store):
    """The ordinary tokens' places in the store, and where specials stand."""
    special = tokens < store.stream[0]
    return tokens[~special] - store.stream[0], special


def by_the_rule(store, room, across):
    """Rows as lists of (first token, last token + 1) of pieces of sentences, added one by one as long as they fit."""
    rows, used, last_document = [], None, None
    for document in range(len(store.documents) - 1):
        for sentence in range(store.documents[document], store.documents[document + 1]):
            first, last = store.sentences[sentence : sentence + 2].tolist()
            for start in range(first, last, room):
                piece = (start, min(start + room, last))
                new = document != last_document
                cost = piece[1] - piece[0] + (new and used is not None)
                if used is None or used + cost > room or (new and not across):
                    rows.append([])
                    used, cost = 0, piece[1] - piece[0]
                rows[-1].append(piece)
                used, last_document = used + cost, document
    return rows


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_rows_take_sentences_as_long_as_they_fit(seed, length, across, random_store):
    store = random_store(seed, 30)
    starts = example_starts(store.sentences, store.documents, length - 2, across)
    expected = by_the_rule(store, length - 2, across)
    assert starts.tolist() == [row[0][0] for row in expected]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("seed", range(3))
def test_full_sentences(seed, length, random_store):
    store = random_store(seed, 30)
    cls, sep = store.vocabulary.specials["cls"], store.vocabulary.specials["sep"]
    document_of = np.repeat(np.arange(30), np.diff(store.sentences[store.documents]))
    seen, crossings = [], 0
    for (tokens, segments), pieces in zip(rows_of("full_sentences", store, length),
                                          by_the_rule(store, length - 2, True), strict=True):
        assert (segments == 1).all() and len(tokens) <= length
        assert tokens[0] == cls and tokens[-1] == sep
        here, special = places(tokens, store)
        assert (here[0], here[-1] + 1) == (pieces[0][0], pieces[-1][1])
        changes = np.flatnonzero(np.diff(document_of[here])) + 1
        inner = np.flatnonzero(special[1:-1])  # places among the tokens between the first and the last
        np.testing.assert_array_equal(inner - np.arange(len(inner)), changes)  # one separator at each change
        assert (tokens[1:-1][inner] == sep).all()
        crossings += len(changes)
        seen.extend(here.tolist())
    assert seen == list(range(store.tokens))
    assert crossings > 0 or length == 6


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_doc_sentences(length, pack, random_store):
    store = random_store(5, 30)
    document_of = np.repeat(np.arange(30), np.diff(store.sentences[store.documents]))
    examples, rows = [], 0
    for tokens, segments in rows_of("doc_sentences", store, length, pack=pack):
        rows += 1
        assert pack or (segments == 1).all()
        for segment in range(1, segments.max() + 1):
            own = tokens[segments == segment]
            here, special = places(own, store)
            np.testing.assert_array_equal(np.flatnonzero(special), [0, len(own) - 1])
            assert (np.diff(here) == 1).all() and len(set(document_of[here])) == 1
            examples.append((here[0], here[-1] + 1))
    expected = [(row[0][0], row[-1][1]) for row in by_the_rule(store, length - 2, False)]
    assert sorted(examples) == expected and (pack or examples == expected)
    assert rows == len(expected) if not pack else rows < len(expected) or length == 6


def test_packing_keeps_the_tokens_of_a_step(random_store):
    store = random_store(0, 400, sentences=8, tokens=25)
    plans = {name: formats.plan(name, record.read(FORMATS[name].config, settings), store, 128, 0)
             for name, settings in {"full_sentences": {}, "doc_sentences": {}}.items()}
    alone = formats.plan("doc_sentences", DocSentences(pack=False), store, 128, 0)
    tokens = {name: plan.statistics()["tokens_per_row"] for name, plan in plans.items()}
    assert tokens["doc_sentences"] == pytest.approx(tokens["full_sentences"], rel=0.08)
    assert alone.statistics()["tokens_per_row"] < 0.8 * tokens["full_sentences"]


@pytest.mark.parametrize("length", [12, 40])
def test_lines(length, random_store):
    store = random_store(3, 20)
    bounds = store.sentences
    count = 0
    for (tokens, segments), first, last in zip(rows_of("lines", store, length), bounds[:-1], bounds[1:], strict=True):
        here, special = places(tokens, store)
        assert (segments == 1).all() and special.sum() == 2 and special[0] and special[-1]
        assert here.tolist() == list(range(first, min(last, first + length - 2)))
        count += len(here)
    assert count == np.minimum(np.diff(bounds), length - 2).sum()
    assert length == 12 or count == store.tokens


def test_pieces_of_texts():
    assert split_texts(np.array([0, 0, 3, 10, 11, 11]), 3).tolist() == [0, 3, 6, 9, 10, 11]


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences"])
def test_a_row_that_is_one_sentence_short_is_noticed(name, random_store, monkeypatch):
    """Planted error: examples hold one token less than their capacity."""
    store = random_store(1, 30)
    monkeypatch.setattr(f"lmrep.data.formats.{name}.example_starts", lambda sentences, documents, capacity, **options:
                        example_starts(sentences, documents, capacity - 1, **options))
    found = formats.plan(name, FORMATS[name].config(), store, 40, 0)
    expected = by_the_rule(store, 38, name == "full_sentences")
    assert sorted(found.spans.starts[found.spans.offsets[:-1]].tolist()) != [row[0][0] for row in expected]
