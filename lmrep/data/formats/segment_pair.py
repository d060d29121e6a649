"""Pairs of text segments, [CLS] A [SEP] B [SEP], for next-sentence and sentence-order prediction.

`nsp` samples pairs as BERT's published data generation (Devlin et al. 2019), `sop` as ALBERT's (Lan et al. 2019).
Their peculiarities are kept, since they affect results:

- The target length is drawn once per document and pass, not once per pair. It ends chunks, but pairs are truncated only
  to the example's length: a pair with a target of 10 tokens keeps a sentence of 60.
- A chunk of one sentence is always paired with a random segment, so that a little more than half of the NSP pairs are
  random.
- After a random pair, the next chunk starts with the sentences of this one that were not used.
- A random segment comes from another document unless ten draws all give this one. The pair is labelled random in any
  case, and in a corpus of one document all segments come from that document.
- Documents are drawn uniformly, and then sentences, so that sentences of short documents are more frequent.
- SOP keeps one case of NSP: a chunk of one sentence is paired with text of another document and labelled swapped.

Two things differ. Documents and examples are not shuffled here, since the loader does that. And each document of each
pass has its own random generator, so that its choices do not depend on other documents.
"""

import random
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lmrep.config.record import setting
from lmrep.data.formats.base import PAIR_FIELDS, FormatDef, Layout, Spans, text_pair, truncate_pair
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store

CHUNK = 20_000  # documents that are paired at once, which bounds the memory

Span = tuple[int, int]  # the first token, and the one after the last


@dataclass(frozen=True)
class SegmentPair:
    """Settings of the format `segment_pair`."""

    pairs: str = setting("nsp", "label: whether B is random (nsp), or whether A and B are swapped (sop)",
                         choices=("nsp", "sop"))
    short_sequence_probability: float = setting(0.1, "probability of short pairs, for each document and pass",
                                                at_least=0, at_most=1)
    duplicates: int = setting(10, "passes over the corpus in an epoch, each with its own choices", at_least=1)


def spans(config: SegmentPair, store: Store, length: int, seed: tuple[int, int], layout: Layout) -> Iterator[Spans]:
    """Yields the pairs of one pass, in the order of the corpus. `seed` is (seed, number of the pass)."""
    capacity, count = length - layout.special, len(store.documents) - 1
    # Memoryviews copy nothing and index to Python integers, which makes the loop faster than with numpy's.
    offsets, documents = memoryview(store.sentences), memoryview(store.documents)
    for first in range(0, count, CHUNK):
        flat = array("q")
        for document in range(first, min(first + CHUNK, count)):
            rng = random.Random(f"{seed[0]}/{seed[1]}/{document}")
            for a, b, label in document_pairs(rng, config, offsets, documents, document, capacity):
                (a, a_end), (b, b_end) = truncate(rng, a, b, capacity)
                flat.extend((a, a_end - a, b, b_end - b, label))
        table = np.frombuffer(flat, np.int64).reshape(-1, 5)
        starts, lengths, labels = table[:, (0, 2)].ravel(), table[:, (1, 3)].ravel(), table[:, 4]
        yield Spans(np.arange(0, len(starts) + 1, 2), starts, lengths.astype(np.int32),
                    {"pair_label": labels.astype(np.int8)})


def document_pairs(
    rng: random.Random, config: SegmentPair, offsets: Sequence[int], documents: Sequence[int], document: int,
    capacity: int,
) -> Iterator[tuple[Span, Span, int]]:
    """Yields the pairs (A, B, label) of one document in one pass, before they are truncated.

    Args:
      rng: the generator of this document and pass.
      config: the config of the format.
      offsets: [n+1], the first token of each sentence; last = total number of tokens. None is empty.
      documents: [k+1], the first sentence of each document; last = n. None is empty.
      document: the number of the document.
      capacity: tokens that A and B may have together.
    """
    cursor, last = documents[document], documents[document + 1]
    short = rng.random() < config.short_sequence_probability
    target = 2 + randint_below(rng, capacity - 1) if short else capacity
    while cursor < last:
        # A chunk ends with the sentence that reaches the target length, or with the document.
        end = bisect_left(offsets, offsets[cursor] + target, cursor + 1, last)
        single = end == cursor + 1
        middle = cursor + 1 + randint_below(rng, end - cursor - 1)
        a = offsets[cursor], offsets[middle]
        if single or (config.pairs == "nsp" and rng.random() < 0.5):
            yield a, random_segment(rng, offsets, documents, document, target - (a[1] - a[0])), 1
            cursor = middle
        else:
            b = offsets[middle], offsets[end]
            swapped = config.pairs == "sop" and rng.random() < 0.5
            yield (b, a, 1) if swapped else (a, b, 0)
            cursor = end


def random_segment(
    rng: random.Random, offsets: Sequence[int], documents: Sequence[int], document: int, target: int
) -> Span:
    """Draws consecutive sentences of another document, from a random sentence on: at least one, and as many as it takes
    to reach `target` tokens or the end of the document."""
    for _ in range(10):
        other = randint_below(rng, len(documents) - 1)
        if other != document:
            break
    first, last = documents[other], documents[other + 1]
    start = first + randint_below(rng, last - first)
    end = bisect_left(offsets, offsets[start] + target, start + 1, last)
    return offsets[start], offsets[end]


def randint_below(rng: random.Random, n: int) -> int:
    """Draws uniformly from [0, n); 0 if n is 0. Unlike `randrange`, it gives the same draws in all versions of
    Python."""
    return int(rng.random() * n)


def truncate(rng: random.Random, a: Span, b: Span, capacity: int) -> tuple[Span, Span]:
    """Removes single tokens from the longer span, or from B if they are equal, until both together have at most
    `capacity` tokens. Each is removed from the front or the back with probability 1/2.

    How many tokens each span loses is not random (`truncate_pair`). Of k tokens that a span loses, the number removed
    from the front is the number of ones in k random bits.
    """
    sizes = a[1] - a[0], b[1] - b[0]
    if sum(sizes) <= capacity:
        return a, b
    a_length, b_length = truncate_pair(*sizes, capacity)
    from_a, from_b = sizes[0] - a_length, sizes[1] - b_length
    front_a, front_b = rng.getrandbits(from_a).bit_count(), rng.getrandbits(from_b).bit_count()
    return (a[0] + front_a, a[1] - from_a + front_a), (b[0] + front_b, b[1] - from_b + front_b)


DEFINITION = FormatDef(SegmentPair, "segment_pair-1", text_pair, table(spans, all_passes=True),
                       lambda config: PAIR_FIELDS)
