"""Pairs of single sentences, [CLS] A [SEP] B [SEP], for next-sentence prediction: RoBERTa's SENTENCE-PAIR + NSP (Liu et
al. 2019, section 4.2).

A pass makes a pair of every sentence A that has a next one in its document. With even odds B is that next one (label
0), or a sentence of another document (label 1): of any of the others alike, and of any of its sentences alike. In a
corpus of one document B comes from that one. So each sentence but the last of its document is A once in every pass,
and the labels are even, unlike in `segment_pair`, whose chunks of one sentence are always paired at random.

A pair that is too long loses the ends of its sentences: of the longer one until both are of one length, then of both.

Pairs are much shorter than rows of BERT's length. For as many tokens a step as another format has, make rows shorter
and the batch larger: two sentences of Wikipedia have about 53 tokens, and 98 % of pairs fit into 128.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.formats.base import Plan, Progress, Spans, layout, make_plan
from lmrep.data.order import uniform

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store

SPECIAL = 3  # [CLS] and two [SEP]
PART = 20_000  # documents that are paired at once: bounds the memory


@dataclass(frozen=True)
class SentencePair:
    """Settings of the format `sentence_pair`."""

    duplicates: int = setting(10, "passes over the corpus, each with its own choices", at_least=1)


def plan(
    config: SentencePair,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The pairs of all passes over a store, in the order of the corpus, pass by pass.

    Raises:
      UserError: rows too short for two tokens a pair, an empty store, no document of two sentences, a tokenizer without
        [CLS] or [SEP].
    """
    if length < SPECIAL + 2:
        raise UserError(f"length is {length}; a pair holds [CLS], two [SEP] and a token each: set it to 5 or more")
    marks = layout(store.vocabulary, 2, ("cls",), ("sep",))

    def build() -> Iterator[Spans]:
        if np.diff(store.documents).max() < 2:
            raise UserError("no document of the split has two sentences, of which format sentence_pair could make a "
                            "pair; give the corpus longer documents, or choose another format")
        count = len(store.documents) - 1
        for turn in range(config.duplicates):
            for first in range(0, count, PART):
                documents = range(first, min(first + PART, count))
                yield sample(store.sentences, store.documents, length - SPECIAL, (seed, turn), documents)
                if progress:
                    progress(turn * count + documents.stop, config.duplicates * count)

    return make_plan("sentence_pair-1", config, store, length, seed, cache_dir, marks, build)


def sample(
    sentences: np.ndarray, documents: np.ndarray, room: int, entropy: tuple[int, ...], of: range
) -> Spans:
    """The pairs of one pass whose first sentence is in some documents.

    Args:
      sentences: int64[n+1], the first token of each sentence; last = tokens in all.
      documents: int64[k+1], the first sentence of each document; last = n.
      room: tokens that A and B have together.
      entropy: of the pass's draws; each sentence has its own.
      of: these documents.
    """
    count = len(documents) - 1
    sizes = np.diff(documents[of.start : of.stop + 1])
    own = np.repeat(np.arange(of.start, of.stop), sizes - 1)
    a = documents[of.start] + np.arange(len(own)) + own - of.start  # each document's sentences but its last
    coin, which, place = (uniform((*entropy, draw), a) for draw in range(3))
    other = (which * max(count - 1, 1)).astype(np.int64)
    other += (other >= own) & (count > 1)
    random = coin < 0.5
    drawn = documents[other] + (place * (documents[other + 1] - documents[other])).astype(np.int64)
    b = np.where(random, drawn, a + 1)
    lengths = np.stack([sentences[a + 1] - sentences[a], sentences[b + 1] - sentences[b]], axis=1)
    of_a = np.minimum(lengths[:, 0], np.maximum(room // 2, room - lengths[:, 1]))
    of_b = np.minimum(lengths[:, 1], room - of_a)
    starts = np.stack([sentences[a], sentences[b]], axis=1).ravel()
    return Spans(np.arange(0, len(starts) + 1, 2), starts, np.stack([of_a, of_b], axis=1).ravel().astype(np.int32),
                 {"pair_label": random.astype(np.int8)})
