"""The corpus as one stream of tokens, cut into rows: as GPT-2, Transformer-XL and word-level models are trained.

Documents stand one after another, each followed by the tokenizer's end of text ([EOS], or [SEP] where it has none),
and every `length` tokens of that stream are a row, wherever they begin and end. Nothing else is added, no token is
left out, and only the last row may be short.

`order` says how a run walks the rows. `shuffled` shows them in random order, for models without a memory. With `rows`
the stream is cut into as many parts as a batch has rows, and row r of each batch continues row r of the batch before
(Dai et al. 2019); `reset` is 1 where a row continues none, which is at the beginning of each walk over the corpus.
The parts then depend on the batch size.

`isolate` makes documents strangers: each is a segment of its own with positions of its own, which sees no other, and a
row that begins with a document's first token has `reset` 1, too. Without it, as published, a row is one segment,
whose positions see across the documents' ends.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.data.formats.base import Plan, Progress, Spans, layout, make_plan

if TYPE_CHECKING:
    from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Stream:
    """Settings of the format `stream`."""

    order: str = setting("shuffled", "rows in random order, or each continuing its row of the batch before",
                         choices=("shuffled", "rows"))
    isolate: bool = setting(False, "whether documents do not see each other")
    duplicates: int = setting(1, "how often a pass walks the corpus, each time with other static masks", at_least=1)


def plan(
    config: Stream,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The rows of a store, in its order. Nothing is drawn, so that `seed` is in the fingerprint alone.

    Raises:
      UserError: rows of a single token, an empty store, a tokenizer without a token to end a text with.
    """
    if length < 2:
        raise UserError(f"length is {length}; rows of a stream have two tokens at least: set it to 2 or more")
    marks = layout(store.vocabulary, int(config.isolate), lead=(), tail=("eos", "sep"))

    def build() -> Iterator[Spans]:
        spans = rows(store.sentences[store.documents], length, config)
        if progress:
            progress(len(store.documents) - 1, len(store.documents) - 1)
        yield spans

    return make_plan("stream-1", config, store, length, seed, cache_dir, marks, build, duplicates=config.duplicates,
                     continues=config.order == "rows")


def rows(bounds: np.ndarray, length: int, config: Stream) -> Spans:
    """Cuts the stream of documents whose first tokens are `bounds` (int64[k+1], last = tokens in all).

    A span ends with its document's end, whose mark follows it, or with its row, which leaves no room for a mark. A row
    that begins with a mark begins with a span of no token.
    """
    marked = bounds + np.arange(len(bounds))  # where documents begin once each has its mark
    begins = np.arange(0, marked[-1], length)
    cuts = np.union1d(begins, marked[:-1])
    document = np.searchsorted(marked, cuts, side="right") - 1
    ends = np.append(cuts[1:], marked[-1])
    lengths = ends - cuts - (ends == marked[document + 1])
    first = np.searchsorted(cuts, begins)
    resets = np.full(len(begins), config.order == "shuffled")
    if config.isolate:
        resets |= cuts[first] == marked[document[first]]
    return Spans(np.append(first, len(cuts)), cuts - document, lengths.astype(np.int32),
                 {"reset": resets.astype(np.int8)})
