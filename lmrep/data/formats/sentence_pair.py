"""Pairs of single sentences, [CLS] A [SEP] B [SEP], for next-sentence prediction: RoBERTa's SENTENCE-PAIR + NSP (Liu et
al. 2019, section 4.2).

In each pass, every sentence that has a next one in its document is the A of one pair. With probability 1/2, B is the
next sentence (label 0), and otherwise a random sentence of another document (label 1): the document is uniform among
the others, the sentence uniform within it. In a corpus of one document, B comes from that document. The labels are thus
balanced, unlike in `segment_pair`, where chunks of one sentence are always paired with a random one.

A pair that is too long is truncated at the ends of its sentences: first the longer one until both have the same length,
then both.

Pairs are much shorter than BERT's examples. To have as many tokens per step as with another format, use shorter
examples and a larger batch: two sentences of Wikipedia have about 53 tokens, and 98 % of the pairs fit into 128.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.formats.base import PAIR_FIELDS, FormatDef, Layout, Spans, text_pair
from lmrep.data.formats.plans import table
from lmrep.data.order import uniform
from lmrep.data.store.token_store import Store

CHUNK = 20_000  # documents that are paired at once, which bounds the memory


@dataclass(frozen=True)
class SentencePair:
    """Settings of the format `sentence_pair`."""

    duplicates: int = setting(10, "passes over the corpus in an epoch, each with its own choices", at_least=1)


def spans(config: SentencePair, store: Store, length: int, seed: tuple[int, int], layout: Layout) -> Iterator[Spans]:
    """Yields the pairs of one pass, in the order of the corpus. `seed` is (seed, number of the pass). Raises UserError
    if no document has two sentences."""
    if np.diff(store.documents).max() < 2:
        raise UserError("no document of the split has two sentences, which format 'sentence_pair' needs to make a "
                        "pair; give the corpus longer documents, or choose another format")
    count = len(store.documents) - 1
    for first in range(0, count, CHUNK):
        documents = range(first, min(first + CHUNK, count))
        yield sample(store.sentences, store.documents, length - layout.special, seed, documents)


def sample(
    sentences: np.ndarray, documents: np.ndarray, capacity: int, entropy: tuple[int, ...], selected: range
) -> Spans:
    """Makes the pairs of one pass whose first sentence is in one of the selected documents.

    Args:
      sentences: int64[n+1], the first token of each sentence; last = total number of tokens.
      documents: int64[k+1], the first sentence of each document; last = n.
      capacity: tokens that A and B may have together.
      entropy: the seed of the random draws of this pass; the draws of a sentence do not depend on `selected`.
      selected: documents, a range within [0, k).
    """
    count = len(documents) - 1
    sizes = np.diff(documents[selected.start : selected.stop + 1])
    document = np.repeat(np.arange(selected.start, selected.stop), sizes - 1)
    # All sentences but the last of each document.
    a = documents[selected.start] + np.arange(len(document)) + document - selected.start
    coin, document_draw, sentence_draw = (uniform((*entropy, draw), a) for draw in range(3))
    other = (document_draw * max(count - 1, 1)).astype(np.int64)
    other += (other >= document) & (count > 1)
    random = coin < 0.5
    drawn = documents[other] + (sentence_draw * (documents[other + 1] - documents[other])).astype(np.int64)
    b = np.where(random, drawn, a + 1)
    lengths = np.stack([sentences[a + 1] - sentences[a], sentences[b + 1] - sentences[b]], axis=1)
    a_length = np.minimum(lengths[:, 0], np.maximum(capacity // 2, capacity - lengths[:, 1]))
    b_length = np.minimum(lengths[:, 1], capacity - a_length)
    starts = np.stack([sentences[a], sentences[b]], axis=1).ravel()
    return Spans(np.arange(0, len(starts) + 1, 2), starts,
                 np.stack([a_length, b_length], axis=1).ravel().astype(np.int32),
                 {"pair_label": random.astype(np.int8)})


DEFINITION = FormatDef(SentencePair, "sentence_pair-1", text_pair, table(spans, all_passes=True),
                       lambda config: PAIR_FIELDS)
