"""Pairs of text segments: [CLS] A [SEP] B [SEP], for next-sentence and sentence-order prediction.

`nsp` is the sampling of BERT (Devlin et al. 2019) as its published data generation has it, `sop` that of ALBERT
(Lan et al. 2019). What is peculiar in them is kept, since results depend on it:

- The length to aim for is drawn once a document and pass, not once an example. It ends chunks, but pairs are cut to
  the row's length alone: a pair that aims for 10 tokens keeps a sentence of 60.
- A chunk of one sentence always becomes a random pair, so that a little more than half of the NSP pairs are random.
- After a random pair the walk goes on with the sentences of the chunk that it did not use.
- "Random" means a document other than this one only as far as ten draws find one. The pair is labelled random even
  so, and in a corpus of one document all of them come from it.
- Sentences are drawn uniformly after documents are: those of short documents come more often.
- SOP keeps a remainder of NSP: a chunk of one sentence is paired with text of another document and labelled swapped.

Two things differ. Documents and examples are not shuffled here, as the loader's order does that. And random numbers
come from a generator of the seed, the pass and the document, so that each document's choices stand alone.
"""

import os
import random
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.formats.base import Plan, Progress, Spans, layout, make_plan

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store

SPECIAL = 3  # [CLS] and two [SEP]
PROGRESS_EVERY = 1000  # documents

Span = tuple[int, int]  # first token, and the one after the last


@dataclass(frozen=True)
class SegmentPair:
    """Settings of the format `segment_pair`."""

    pairs: str = setting("nsp", "what the label tells: a real or random next, or the order", choices=("nsp", "sop"))
    short_sequence_probability: float = setting(0.1, "share of document passes with short pairs", at_least=0, at_most=1)
    duplicates: int = setting(10, "passes over the corpus, each with its own choices", at_least=1)


def plan(
    config: SegmentPair,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The pairs of all passes over a store, in the order of the corpus, pass by pass.

    Raises:
      UserError: rows too short for two tokens a pair, an empty store, a tokenizer without [CLS], [SEP] or padding.
    """
    if length < SPECIAL + 2:
        raise UserError(f"length is {length}; a pair holds [CLS], two [SEP] and a token each: set it to 5 or more")

    marks = layout(store.vocabulary, 2, ("cls",), ("sep",))

    def build() -> Iterator[Spans]:
        return sample(config, store.sentences, store.documents, length - SPECIAL, seed, progress)

    return make_plan("segment_pair-1", config, store, length, seed, cache_dir, marks, build)


def sample(
    config: SegmentPair,
    offsets: np.ndarray,
    documents: np.ndarray,
    room: int,
    seed: int,
    progress: Progress | None = None,
) -> Iterator[Spans]:
    """Walks every document `config.duplicates` times, and gives what each pass finds.

    Args:
      offsets: int64[n+1], the first token of each sentence; last = tokens in all. None is empty.
      documents: int64[k+1], the first sentence of each document; last = n. None is empty.
      room: tokens that A and B have together.
    """
    count = len(documents) - 1
    # Views that copy nothing and index to Python integers, with which the walk is faster than with numpy's.
    offsets, documents = memoryview(offsets), memoryview(documents)
    for turn in range(config.duplicates):
        found = array("q")
        for document in range(count):
            rng = random.Random(f"{seed}/{turn}/{document}")
            for a, b, label in walk(rng, config, offsets, documents, document, room):
                (a, a_end), (b, b_end) = fit(rng, a, b, room)
                found.extend((a, a_end - a, b, b_end - b, label))
            done = turn * count + document + 1
            if progress and (done % PROGRESS_EVERY == 0 or done == config.duplicates * count):
                progress(done, config.duplicates * count)
        table = np.frombuffer(found, np.int64).reshape(-1, 5)
        starts, lengths, labels = table[:, (0, 2)].ravel(), table[:, (1, 3)].ravel(), table[:, 4]
        yield Spans(np.arange(0, len(starts) + 1, 2), starts, lengths.astype(np.int32),
                    {"pair_label": labels.astype(np.int8)})


def walk(
    rng: random.Random,
    config: SegmentPair,
    offsets: Sequence[int],
    documents: Sequence[int],
    document: int,
    room: int,
) -> Iterator[tuple[Span, Span, int]]:
    """The pairs (A, B, label) of one document in one pass, before they are cut to length."""
    cursor, last = documents[document], documents[document + 1]
    short = rng.random() < config.short_sequence_probability
    target = 2 + below(rng, room - 1) if short else room
    while cursor < last:
        # A chunk is the sentences up to the first at which it reaches the target, or to the document's end.
        end = bisect_left(offsets, offsets[cursor] + target, cursor + 1, last)
        alone = end == cursor + 1
        middle = cursor + 1 + below(rng, end - cursor - 1)
        a = offsets[cursor], offsets[middle]
        if alone or (config.pairs == "nsp" and rng.random() < 0.5):
            yield a, elsewhere(rng, offsets, documents, document, target - (a[1] - a[0])), 1
            cursor = middle
        else:
            b = offsets[middle], offsets[end]
            swapped = config.pairs == "sop" and rng.random() < 0.5
            yield (b, a, 1) if swapped else (a, b, 0)
            cursor = end


def elsewhere(
    rng: random.Random, offsets: Sequence[int], documents: Sequence[int], document: int, target: int
) -> Span:
    """Whole sentences from a random one of another document on: at least one, then until they have `target` tokens or
    their document ends."""
    for _ in range(10):
        other = below(rng, len(documents) - 1)
        if other != document:
            break
    first, last = documents[other], documents[other + 1]
    start = first + below(rng, last - first)
    end = bisect_left(offsets, offsets[start] + target, start + 1, last)
    return offsets[start], offsets[end]


def below(rng: random.Random, n: int) -> int:
    """Uniform in [0, n), or 0 where n is 0. Unlike `randrange`, Python promises the same draws in later versions."""
    return int(rng.random() * n)


def fit(rng: random.Random, a: Span, b: Span, room: int) -> tuple[Span, Span]:
    """Takes single tokens from the longer span, B where they tie, until both have `room`; each from the front or
    the back with even odds.

    How many each loses is not random: first the longer one down to the shorter, then B and A in turn. How many of k
    come from the front is the number of ones in k random bits.
    """
    longer_by = (a[1] - a[0]) - (b[1] - b[0])
    over = (a[1] - a[0]) + (b[1] - b[0]) - room
    if over <= 0:
        return a, b
    levelling = min(over, abs(longer_by))
    from_a = (over - levelling) // 2 + (levelling if longer_by > 0 else 0)
    front_a, front_b = rng.getrandbits(from_a).bit_count(), rng.getrandbits(over - from_a).bit_count()
    return (a[0] + front_a, a[1] - from_a + front_a), (b[0] + front_b, b[1] - (over - from_a) + front_b)
