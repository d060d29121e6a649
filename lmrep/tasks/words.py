"""Words of texts: their spans, their ids, windows of long sentences, and vectors of words."""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array
from lmrep.data.records import Record
from lmrep.data.tokenizers import Tokenizer
from lmrep.tasks.base import TextEncoder

Span = tuple[int, int]


def spans(text: str, tokenizer: Tokenizer) -> list[Span]:
    """Splits a text into words, characters [start, end): at white space, where the tokenizer splits words, such as at
    punctuation, and between a word and the punctuation at its ends."""
    encoding = tokenizer.encode(text)
    starts = {span[0] for (before, word), span in zip(
        itertools.pairwise([None, *encoding.words]), encoding.offsets, strict=True) if word != before}
    split: list[Span] = []
    for start, end in white_space_spans(text):
        cuts = [start, *sorted(cut for cut in starts if start < cut < end), end]
        for first, last in itertools.pairwise(cuts):
            split += _without_edges(text, first, last)
    return split


def white_space_spans(text: str) -> Iterator[Span]:
    """Splits a text at white space into characters [start, end)."""
    return (match.span() for match in re.finditer(r"\S+", text))


def _without_edges(text: str, start: int, end: int) -> list[Span]:
    """Splits the punctuation marks at the ends of a word from it, one by one. A word without letters and digits stays
    whole."""
    inner = [i for i in range(start, end) if not unicodedata.category(text[i]).startswith("P")]
    if not any(text[i].isalnum() for i in inner):
        return [(start, end)]
    first, last = inner[0], inner[-1] + 1
    return [*((i, i + 1) for i in range(start, first)), (first, last), *((i, i + 1) for i in range(last, end))]


def word_ids(records: Sequence[Record], encoder: TextEncoder) -> dict[str, np.ndarray]:
    """Returns {word: its ids, at least one}. Raises UserError for a word without ids if there is no unknown token."""
    where: dict[str, str] = {}
    for record in records:
        for word in record.fields["words"]:
            where.setdefault(word, record.where)
    names = [f"{at}: the word {word!r}" for word, at in where.items()]
    ids = encoder.ids(list(where), names, words=True)
    unknown = encoder.tokenizer.vocabulary.specials.get("unk")
    empty = [name for name, tokens in zip(names, ids, strict=True) if not len(tokens)]
    if empty and unknown is None:
        raise UserError(f"{empty[0]} has no token, and the tokenizer has none for unknown words; remove it, or choose "
                        "another tokenizer")
    return {word: tokens if len(tokens) else np.array([unknown], np.int32)
            for word, tokens in zip(where, ids, strict=True)}


def windows(
    sizes: np.ndarray, capacity: int, stride: int, left: bool = False
) -> list[tuple[int, int, np.ndarray]]:
    """Splits a sentence into overlapping windows of whole words.

    Args:
      sizes: [w], the number of tokens of each word, at most `capacity`.
      capacity: the most tokens of a window.
      stride: tokens between the starts of windows, rounded down to starts of words.
      left: whether only context on the left counts.

    Returns:
      (first word, word after the last, bool mask of the words that have most context in this window) for each window.
      The context of a word is the number of tokens on its shorter side. Each word is in one mask alone.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    spans, start = [], 0
    while True:
        end = int(np.searchsorted(ends, starts[start] + capacity, "right"))
        spans.append((start, end))
        if end == len(sizes):
            break
        following = int(np.searchsorted(starts, starts[start] + stride, "right")) - 1
        start = min(max(following, start + 1), end)
    context = np.full((len(spans), len(sizes)), -1)
    for row, (start, end) in zip(context, spans, strict=True):
        before, after = starts[start:end] - starts[start], ends[end - 1] - ends[start:end]
        row[start:end] = before if left else np.minimum(before, after)
    best = context.argmax(0)
    return [(start, end, best[start:end] == i) for i, (start, end) in enumerate(spans)]


def representatives(word: np.ndarray, pieces: str) -> np.ndarray:
    """Tells which tokens represent their words, bool [t]: the first of each word, or with `pieces="last"` the last.
    `word` [t] is the index of each token's word; -1 for none."""
    padded = np.pad(word, 1, constant_values=-1)
    return (word >= 0) & (word != (padded[2:] if pieces == "last" else padded[:-2]))


def word_means(x: Array, word: Array, segment_ids: Array) -> Array:
    """Computes at each token of a word the mean of x [b, t, d] over the word's tokens, and 0 elsewhere: [b, t, d].

    It multiplies by the matrix of tokens that belong together, so that the order of sums does not matter, unlike with
    sums by index.
    """
    def equal(ids: Array) -> Array:
        return ids[:, :, None] == ids[:, None, :]

    same = equal(word) & equal(segment_ids) & (word >= 0)[:, :, None]
    total = jnp.einsum("bts,bsd->btd", same.astype(x.dtype), x, preferred_element_type=jnp.float32)
    return (total / jnp.maximum(same.sum(-1, keepdims=True), 1)).astype(x.dtype)
