"""Full sentences, and those of one document: every token is used as often as the format says, sentences
are complete, document boundaries are respected, and examples are as full as possible."""

import numpy as np
import pytest

from lmrep.config import record
from lmrep.data import formats
from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import split_texts
from lmrep.data.formats.full_sentences import DocSentences

LENGTHS = (6, 17, 40)  # sentences have up to 30 tokens: longer and shorter than an example


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


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences"])
@pytest.mark.parametrize(("seed", "length"), enumerate(LENGTHS))
def test_examples_take_sentences_as_long_as_they_fit(seed, length, name, random_store):
    """The first token of each example, or of each text of packed ones; `test_format_properties.py` has the rest."""
    store = random_store(seed, 30)
    expected = examples_by_hand(store, length - 2, name == "full_sentences")
    for settings in ({}, {"pack": False})[: 1 + (name == "doc_sentences")]:
        starts, offsets = formats.plan(name, record.read(FORMATS[name].config, settings), store, length, 0).spans[1::-1]
        texts = starts.tolist() if name == "doc_sentences" else starts[offsets[:-1]].tolist()
        assert (texts if settings or name == "full_sentences" else sorted(texts)) == [c[0][0] for c in expected]


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
