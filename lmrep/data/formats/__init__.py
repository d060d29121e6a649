"""Input formats: how the documents of a store become the examples of a batch, chosen by name in `FORMATS`."""

import os
from dataclasses import asdict
from typing import Any

import numpy as np

from lmrep.core.components import check_built, component_table, described, faults_of
from lmrep.core.errors import UserError
from lmrep.core.files import digest
from lmrep.data.dataset import Dataset
from lmrep.data.formats import (
    full_sentences,
    packed,
    segment_pair,
    sentence_pair,
    sentence_stream,
    single_texts,
    stream,
    stream_pair,
)
from lmrep.data.formats.base import FIELDS, TEXT_FIELDS, FormatDef, Progress, batch_struct
from lmrep.data.formats.plans import Plan, table
from lmrep.data.store.token_store import Store

__all__ = ["FIELDS", "FORMATS", "TEXT_FIELDS", "FormatDef", "Plan", "batch_struct", "plan", "table"]

FORMATS: dict[str, FormatDef] = component_table(FormatDef, {
    "packed": packed.DEFINITION,
    "segment_pair": segment_pair.DEFINITION,
    "sentence_pair": sentence_pair.DEFINITION,
    "full_sentences": full_sentences.FULL_SENTENCES,
    "doc_sentences": full_sentences.DOC_SENTENCES,
    "stream": stream.DEFINITION,
    "lines": single_texts.LINES,
    "documents": single_texts.DOCUMENTS,
    "sentence_stream": sentence_stream.DEFINITION,
    "stream_pair": stream_pair.DEFINITION,
})


def plan(
    name: str, config: Any, store: Store, length: int, seed: int, cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Makes the examples of a split in a format.

    Args:
      name: a format in `FORMATS`.
      config: the config record of the format.
      store: the tokens of the split.
      length: tokens per example, padding included.
      seed: decides the format's random choices, not the order of the examples.
      cache_dir: a directory for tables of spans, which are then built once and memory-mapped; None: in memory.
      progress: called while the table is built.

    Raises:
      UserError: the tokenizer lacks a special token, `length` is too short, the store is empty or unsuitable, or there
        are 2^31 examples or more.
      RunFault: the table cannot be written to `cache_dir`.
    """
    definition = FORMATS[name]
    layout = definition.layout(config, store.vocabulary)
    if length < layout.min_length:
        raise UserError(f"length is {length}, too short for an example of format {name!r} with its special tokens; set "
                        f"it to {layout.min_length} or more")
    if store.tokens == 0:
        raise UserError("the split holds no tokens; expected at least one document: give the corpus more text, or "
                        "this split a larger fraction of it")
    settings = config.identity() if hasattr(config, "identity") else asdict(config)
    fingerprint = digest([store.fingerprint, definition.version, settings, length, seed])[:16]
    what = described("format", name, definition.config)
    with faults_of(what, definition.config):
        result = definition.plan(config, store, length, seed, layout, fingerprint, cache_dir, progress)
    check_built(what, result, Dataset, "plan")
    if result.examples > np.iinfo(FIELDS["example"].dtype).max:
        raise UserError(f"the plan has {result.examples:,} examples; expected fewer than 2^31: lower duplicates")
    return result
