"""As many full sentences per example as fit: RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019, section 4.2).

An example of `full_sentences` is [CLS], consecutive sentences of the corpus, and [SEP]. It may cross document
boundaries, where another [SEP] is inserted; all of it is one segment, in which every position attends to every other.
There is no next-sentence label. Every token of the store is in exactly one example.

A sentence that is longer than an example starts a new one and is split into chunks that fill examples. Its last chunk
starts an example that further sentences fill, as any sentence does.

An example of `doc_sentences` ends where its document ends, so that the last example of each document is short. The
paper increased the batch size dynamically, so that a step had as many tokens as with FULL-SENTENCES. A compiled step
has one batch size; with `pack`, short examples are packed together instead, each as a segment with its own positions
that does not attend to the others. The number of texts in a batch then varies, and its number of tokens hardly does,
which is the setting to compare with `full_sentences`. Without `pack`, each is padded, and a step has fewer tokens.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from lmrep.config.record import setting
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import FormatDef, Layout, Spans, make_layout, single_text, split_texts
from lmrep.data.formats.packed import pack
from lmrep.data.formats.plans import table
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class FullSentences:
    """Settings of the format `full_sentences`."""

    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


@dataclass(frozen=True)
class DocSentences:
    """Settings of the format `doc_sentences`."""

    pack: bool = setting(True, "pack short examples together, so that all steps have about as many tokens")
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)


def layout(config: FullSentences, vocabulary: Vocabulary) -> Layout:
    """Makes the layout [CLS] sentences [SEP] sentences of the next document [SEP], in one segment."""
    return make_layout(vocabulary, spans_per_segment=0)


def spans(
    config: FullSentences | DocSentences, store: Store, length: int, seed: int, layout: Layout, across: bool
) -> Iterator[Spans]:
    """Yields the examples in the order of the corpus; `across` is as in `example_starts`. Nothing is random."""
    starts = example_starts(store.sentences, store.documents, length - layout.special, across)
    if not across and config.pack:
        yield pack(np.append(starts, store.tokens), length, layout.special)
        return
    first_tokens = store.sentences[store.documents[:-1]]
    span_starts = np.union1d(starts, first_tokens)
    offsets = np.append(np.searchsorted(span_starts, starts), len(span_starts))
    yield Spans(offsets, span_starts, np.diff(span_starts, append=store.tokens).astype(np.int32), {})


def example_starts(sentences: np.ndarray, documents: np.ndarray, capacity: int, across: bool) -> np.ndarray:
    """Returns the first token of each example, where an example takes sentences as long as they fit.

    Args:
      sentences: int64[n+1], the first token of each sentence; last = total number of tokens.
      documents: int64[k+1], the first sentence of each document; last = n.
      capacity: tokens of an example without [CLS] and the last [SEP]. The separator before each document after the
        first takes one of them.
      across: whether examples cross document boundaries.

    Returns:
      int64[number of examples], ascending, from 0.
    """
    chunks = split_texts(sentences, capacity)
    first_tokens = sentences[documents]
    document = np.searchsorted(first_tokens, chunks[:-1], side="right") - 1
    # An example from chunk i to the end of chunk j has ends[j] - begins[i] tokens, the separators between included.
    begins, ends = chunks[:-1] + document, chunks[1:] + document
    limits = np.searchsorted(chunks, first_tokens[1:])[document] if not across else np.full(len(document), len(ends))
    # Memoryviews copy nothing and index to Python integers: numpy's search costs ten times as much for single values.
    begins, ends, limits = memoryview(begins), memoryview(ends), memoryview(limits)
    starts, chunk = [], 0
    while chunk < len(ends):
        starts.append(chunk)
        chunk = min(bisect_right(ends, begins[chunk] + capacity, chunk + 1), limits[chunk])
    return chunks[:-1][starts]


FULL_SENTENCES = FormatDef(FullSentences, "full_sentences-1", layout, table(partial(spans, across=True)))
DOC_SENTENCES = FormatDef(DocSentences, "doc_sentences-1", single_text, table(partial(spans, across=False)),
                          packed=lambda config: config.pack)
