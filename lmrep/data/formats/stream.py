"""The corpus as one stream of tokens, split into examples: how GPT-2, Transformer-XL and word-level models are trained.

Documents are concatenated, each followed by the tokenizer's end of text ([EOS], or [SEP] if it has none), and every
`length` consecutive tokens are an example. Nothing else is added, no token is left out, and only the last example may
be short.

`order` is the order in which training shows the examples. `shuffled` is a random order, for models without a memory.
With `contiguous`, the stream is split into as many chunks as a batch has examples, and example r of each batch
continues example r of the previous batch (Dai et al. 2019), except where `reset` is 1; see `order.contiguous_numbers`.

With `lengths=normal`, the length of a batch varies from batch to batch in training (`windows`), as for AWD-LSTM, and
the learning rate of its step is multiplied by it / `length`.

`isolate` separates documents: each is a segment with its own positions that does not attend to the others, and an
example that starts with the first token of a document has `reset` 1 as well. Without it, as published, an example is
one segment, whose positions attend across document boundaries.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import TEXT_FIELDS, VARIES, FormatDef, Layout, Spans, make_layout
from lmrep.data.formats.plans import Plan, table
from lmrep.data.formats.windows import WindowPlan
from lmrep.data.store.token_store import Store


@dataclass(frozen=True)
class Stream:
    """Settings of the format `stream`."""

    order: str = setting("shuffled", "examples in random order, or each continuing the one of the previous batch",
                         choices=("shuffled", "contiguous"))
    lengths: str = setting("fixed", "of training batches with order=contiguous: fixed; or normal, random ones around "
                           "`length`, with a learning rate in proportion, for recurrent networks",
                           choices=("fixed", "normal"))
    isolate: bool = setting(False, "whether documents do not attend to each other")
    duplicates: int = setting(1, "passes over the corpus in an epoch, each with its own static masks", at_least=1)

    def identity(self) -> dict[str, Any]:
        """Returns the settings in fingerprints. Plans of a fixed length keep those that they had before `lengths`."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("lengths", "fixed")}


def layout(config: Stream, vocabulary: Vocabulary) -> Layout:
    """Makes the layout of documents that each end with the end of text."""
    return make_layout(vocabulary, int(config.isolate), lead=(), tail=("eos", "sep"))


def spans(config: Stream, store: Store, length: int, seed: int, layout: Layout) -> Iterator[Spans]:
    """Yields the examples in the order of the corpus. Nothing is random.

    A span ends with its document, and the end of text follows it, or with its example. An example that starts with an
    end of text starts with a span of no tokens.
    """
    bounds = store.sentences[store.documents]
    begins = bounds + np.arange(len(bounds))  # of documents in the stream with ends of text; last = its length
    starts = np.arange(0, begins[-1], length)  # of examples
    span_begins = np.union1d(starts, begins[:-1])
    document = np.searchsorted(begins, span_begins, side="right") - 1
    span_ends = np.append(span_begins[1:], begins[-1])
    lengths = span_ends - span_begins - (span_ends == begins[document + 1])
    first = np.searchsorted(span_begins, starts)
    resets = np.full(len(starts), not contiguous(config))
    if config.isolate:
        resets |= span_begins[first] == begins[document[first]]
    yield Spans(np.append(first, len(span_begins)), span_begins - document, lengths.astype(np.int32),
                {"reset": resets.astype(np.int8)})


def contiguous(config: Stream) -> bool:
    """Tells whether examples continue each other from batch to batch."""
    return config.order == "contiguous"


def plan(config: Stream, *arguments: Any) -> Plan:
    """Makes the plan of a split. Raises UserError if settings do not fit each other."""
    fixed = table(spans, contiguous=contiguous)(config, *arguments)
    if config.lengths == "fixed":
        return fixed
    if config.isolate or not contiguous(config):
        raise UserError("format.lengths is normal, which needs format.order=contiguous and format.isolate=False; set "
                        "these, or format.lengths=fixed")
    return WindowPlan(**vars(fixed))


DEFINITION = FormatDef(
    Stream, "stream-1", layout, plan,
    lambda c: (*TEXT_FIELDS, "reset", *(("following",) if contiguous(c) else ()),
               *(("rate_factor",) if c.lengths == "normal" else ())),
    lambda c, length: (VARIES if c.lengths == "normal" else length) if contiguous(c) else 0, lambda c: c.isolate)
