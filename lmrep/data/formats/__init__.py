"""Input formats: how the documents of a store become rows of a batch, chosen by name in `FORMATS`."""

from collections.abc import Callable
from typing import NamedTuple

from lmrep.data.formats import (
    doc_sentences,
    full_sentences,
    lines,
    packed,
    segment_pair,
    sentence_pair,
    stream,
)
from lmrep.data.formats.base import FIELDS, TEXT_FIELDS, Batch, Plan, batch_struct

__all__ = ["FIELDS", "FORMATS", "TEXT_FIELDS", "Batch", "Format", "Plan", "batch_struct"]


class Format(NamedTuple):
    """A format: the record of its settings, the names of its batches' arrays, and
    `plan(config, store, length, seed, cache_dir=None, progress=None)`."""

    config: type
    fields: tuple[str, ...]
    plan: Callable[..., Plan]


FORMATS = {
    "packed": Format(packed.Packed, TEXT_FIELDS, packed.plan),
    "segment_pair": Format(segment_pair.SegmentPair, (*TEXT_FIELDS, "pair_label"), segment_pair.plan),
    "sentence_pair": Format(sentence_pair.SentencePair, (*TEXT_FIELDS, "pair_label"), sentence_pair.plan),
    "full_sentences": Format(full_sentences.FullSentences, TEXT_FIELDS, full_sentences.plan),
    "doc_sentences": Format(doc_sentences.DocSentences, TEXT_FIELDS, doc_sentences.plan),
    "stream": Format(stream.Stream, (*TEXT_FIELDS, "reset"), stream.plan),
    "lines": Format(lines.Lines, TEXT_FIELDS, lines.plan),
}
