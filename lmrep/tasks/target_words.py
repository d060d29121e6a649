"""Target words: words that are classified in the context of their texts. Their units, which keep the context around
the word in a long text, and their vectors."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.data.formats.base import Field, truncate_pair
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units, assemble
from lmrep.data.records.values import SPANS
from lmrep.objectives.base import Batch
from lmrep.tasks import heads
from lmrep.tasks.answers import answer_tokens, tokens_of
from lmrep.tasks.base import TextEncoder

COLUMN = "target_word"
COLUMNS = {COLUMN: Field("bt", np.int32, "1 at the tokens of the first text's target word, 2 at those of the second "
                                         "text's, 0 at other tokens; -1 for special tokens")}

log = logging.getLogger(__name__)


class Text(NamedTuple):
    """A text with a target word.

    Attributes:
      ids: int32 [t].
      start, end: the word's tokens.
      words: int32 [t], the number of each token's word (`TextEncoder.words`); None if the task does not need it.
    """

    ids: np.ndarray
    start: int
    end: int
    words: np.ndarray | None


def encode(
    records: Sequence[Record], encoder: TextEncoder, columns: dict[str, Any]
) -> tuple[Units, int]:
    """Makes a unit of each text with its target word, or pair of such texts. A long text is cut to the context around
    the word, equal on both sides, whether `format.long` is "truncate" or "windows"; in a pair, the longer text is cut
    first.

    Args:
      records: with `text` and `span`, pairs also with `text2` and `span2`.
      encoder: makes units of texts.
      columns: name -> a value for each unit.

    Returns:
      (units with the token column `target_word`, the number of records that were too long for one unit).

    Raises:
      UserError: a text is not Unicode, has no tokens, or is too long and `format.long` is "refuse".
    """
    units, marks, long, empty = [], [], 0, []
    for record in records:
        texts = [_text(record, field, span, encoder) for span, field in SPANS.items() if span in record.fields]
        special = encoder.layout.special(len(texts) > 1)
        sizes, capacity = [len(text.ids) for text in texts], encoder.length - special
        if capacity < len(texts):
            raise UserError(f"{record.where} needs {special} special tokens and one of each text, and config.length is "
                            f"{encoder.length}; raise it")
        if sum(sizes) > capacity:
            if encoder.format.long == "refuse":
                raise encoder.too_long(record.where, sum(sizes) + special)
            long += 1
            sizes = truncate_pair(*sizes, capacity) if len(texts) > 1 else (capacity,)
        empty += [record.where] * any(text.start == text.end for text in texts)
        parts = [_around(text, size) for text, size in zip(texts, sizes, strict=True)]
        unit = assemble(
            encoder.layout, *[text.ids[part] for text, part in zip(texts, parts, strict=True)],
            words=None if encoder.distinct is None else [
                text.words[part] for text, part in zip(texts, parts, strict=True)])
        mark = np.full(len(unit.ids), -1)
        for number, (text, part, first) in enumerate(zip(texts, parts, (unit.first, unit.second), strict=False), 1):
            inside = np.arange(part.start, part.stop)
            mark[first : first + len(inside)] = number * ((inside >= text.start) & (inside < text.end))
        units.append(unit)
        marks.append(mark)
    if empty:
        log.warning("%s: the tokenizer leaves out the target word, whose vector is 0; so of %s of %s examples",
                    empty[0], f"{len(empty):,}", f"{len(records):,}")
    return encoder.collect(units, range(len(units)), columns, {COLUMN: marks}), long


def _text(record: Record, field: str, span: str, encoder: TextEncoder) -> Text:
    text, (start, end) = record.fields[field], record.fields[span]
    ids, offsets = tokens_of(text, encoder.tokenizer, record.where)
    word = answer_tokens(offsets, text[start:end], start)
    first = int(np.searchsorted(offsets[:, 0], start)) if word is None else word[0]
    return Text(ids, first, first if word is None else word[1] + 1,
                None if encoder.distinct is None else encoder.words(text))


def _around(text: Text, size: int) -> slice:
    """Returns the slice of `size` tokens of the text with the word in its middle, as far as the text allows."""
    start = min(max((text.start + text.end - size) // 2, 0), len(text.ids) - size)
    return slice(start, start + size)


def vectors(x: Array, batch: Batch, number: int) -> Array:
    """Computes the mean [b, n, d] of the vectors x [b, t, d] over the tokens of each unit's target word in text
    `number`, 1 or 2."""
    in_unit = heads.unit_tokens(batch, batch["unit"].shape[1])
    return heads.mean(x, in_unit & (batch[COLUMN] == number)[:, None])


def marked(record: Record) -> dict[str, str]:
    """Returns the texts of a record by field, with brackets around their target words, for people."""
    texts = {}
    for span, field in SPANS.items():
        if span in record.fields:
            (start, end), text = record.fields[span], record.fields[field]
            texts[field] = f"{text[:start]}[{text[start:end]}]{text[end:]}"
    return texts
