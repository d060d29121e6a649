"""Words of texts: where they are, their ids, the windows of long sentences, and vectors of words."""

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
    """The characters [start, end) of each word of a text: what white space separates, split where the tokenizer splits
    words, such as at punctuation; and punctuation at the ends of a word that the tokenizer leaves whole."""
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
    """The characters [start, end) of what white space separates."""
    return (match.span() for match in re.finditer(r"\S+", text))


def _without_edges(text: str, start: int, end: int) -> list[Span]:
    """A word, without the punctuation marks at its ends, which are words of their own; one without letters and digits
    stays whole."""
    inner = [i for i in range(start, end) if not unicodedata.category(text[i]).startswith("P")]
    if not any(text[i].isalnum() for i in inner):
        return [(start, end)]
    first, last = inner[0], inner[-1] + 1
    return [*((i, i + 1) for i in range(start, first)), (first, last), *((i, i + 1) for i in range(last, end))]


def word_ids(records: Sequence[Record], encoder: TextEncoder) -> dict[str, np.ndarray]:
    """The ids of each word, one at least."""
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
    """The windows of a sentence.

    Args:
      sizes: [w], tokens of each word, at most `capacity`.
      capacity: tokens of a window at most.
      stride: tokens between the starts of windows, which are starts of words.
      left: whether context is that on the left alone.

    Returns:
      (first word, word after the last, bool mask of the words that have the most context there) for each window. Of
      two windows a word has the most context in that with more tokens on its shorter side. Each word is chosen once.
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
    """bool [t], the tokens that stand for their words: each first one, or each last one; `word` [t] as in `encode`."""
    padded = np.pad(word, 1, constant_values=-1)
    return (word >= 0) & (word != (padded[2:] if pieces == "last" else padded[:-2]))


def word_means(x: Array, word: Array, segment_ids: Array) -> Array:
    """x [b, t, d] -> [b, t, d]: at each token of a word the mean of x over the word's tokens, and 0 elsewhere.

    A product with the matrix of which tokens belong together, which is exact in any order, unlike sums by index.
    """
    def equal(ids: Array) -> Array:
        return ids[:, :, None] == ids[:, None, :]

    same = equal(word) & equal(segment_ids) & (word >= 0)[:, :, None]
    total = jnp.einsum("bts,bsd->btd", same.astype(x.dtype), x, preferred_element_type=jnp.float32)
    return (total / jnp.maximum(same.sum(-1, keepdims=True), 1)).astype(x.dtype)
