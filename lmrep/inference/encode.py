"""Contextual vectors of texts: choosing layers, packing texts into sequences, combining the tokens of a word.

Several short texts are packed into a sequence as segments, so that there is little padding; a token attends to its own
text only, and positions start from 0 in each. There are few lengths and batch sizes, so that little is compiled. The
vectors equal those of each text alone, up to rounding.
"""

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.prompts import text_list
from lmrep.data.tokenized_text import TokenizedText, word_boundaries
from lmrep.models.base import Context, Model, model_inputs
from lmrep.models.layer_choice import Layers, combine, outputs

POOLINGS = ("mean", "cls", "max")
WORD_POOLINGS = ("mean", "first", "last")
LONG = ("refuse", "windows")
MIN_LENGTH = 64  # tokens of a packed sequence
MIN_INPUT_LENGTH = 16  # of `Run.inputs` and streams
BATCH = {"cpu": 1024}  # tokens in a batch, by backend: on a CPU, larger ones do not fit its caches
BATCH_ELSEWHERE = 8192

T = TypeVar("T")


def states(
    params: Tree, batch: dict[str, Array], *, model: Model, layers: Layers, attention: bool = False,
    conditions_on: Context = Context.BOTH,
) -> tuple[Array, Array | None]:
    """Computes the hidden states f32[n, b, t, d] of the chosen layers, and attention probabilities f32[l, b, h, t, s],
    or None without `attention`.

    A pure function. Under `jax.jit`, layers above the highest chosen one are not computed.

    Args:
      batch: `tokens`, `segment_ids` (0: padding) and `positions`, i32[b, t] each.
      conditions_on: what a position attends to: the left context or both sides, as in training.

    Raises:
      UserError: layers of different widths cannot be stacked or summed.
    """
    inputs = model_inputs(model, batch, conditions_on=conditions_on)
    encoded = model.encode(params, inputs, layers=True, attention=attention)
    hidden = combine(outputs(encoded), layers)
    return hidden, encoded.attention.astype(jnp.float32) if attention else None


# Texts and their words


@dataclass(frozen=True)
class EncodedText(TokenizedText):
    """A text with its vectors."""

    hidden: np.ndarray  # f32[n, t, d], of the chosen layers
    # f32[l, h, t, s], the probability with which position t attends to position s; None unless requested
    attention: np.ndarray | None = None

    def pool(self, method: str = "mean") -> np.ndarray:
        """Pools the tokens' vectors to one vector for the text, f32[n, d], as `pool_tokens`."""
        return pool_tokens(self.hidden, self.words, method)

    def by_word(self, method: str = "mean") -> np.ndarray:
        """Returns one vector per word, f32[n, w, d]: the mean over its tokens, or the vector of its "first" or "last"
        token. Raises UserError for another method."""
        return by_word(self.hidden, self.words, method)


def pool_tokens(hidden: np.ndarray, words: Sequence[int | None], method: str = "mean") -> np.ndarray:
    """Pools token vectors [n, t, d] to one vector for the text, [n, d]; zeros for a text without tokens.

    Args:
      words: the index of each token's word; None for a special token.
      method: "mean" or "max" over all tokens, special ones included (Reimers and Gurevych, 2019), or "cls", the vector
        of [CLS].

    Raises:
      UserError: the method is unknown, or "cls" for a model without [CLS].
    """
    check_choice("pooling", method, POOLINGS)
    if method == "cls" and (not words or words[0] is not None):
        raise UserError("pooling is 'cls', and this model's texts do not begin with [CLS]; use mean or max")
    if not hidden.shape[1]:
        return np.zeros((hidden.shape[0], hidden.shape[2]), hidden.dtype)
    return hidden[:, 0] if method == "cls" else getattr(hidden, method)(1)


def check_one_layer(layers: Layers) -> None:
    """Raises UserError if the layers give more than one vector for each token."""
    if layers.join == "stack" and len(layers.numbers) > 1:
        numbers = ",".join(map(str, layers.numbers))
        raise UserError(f"layers are {numbers}, and a text has one pooled vector; give one layer, such as last, or "
                        f"combine them: sum:{numbers} or concat:{numbers}")


def embed(
    run: Any, texts: Sequence[str], pool: str = "mean", layers: str | int | Sequence[int] = "last", long: str = "refuse"
) -> np.ndarray:
    """Computes a vector for each text, f32[texts, d].

    Args:
      run: the trained run.
      texts: any number.
      pool: how the vectors of a text's tokens are combined: "mean", "max" or "cls", as in `pool_tokens`.
      layers: as in `Run.encode`: one layer, or several combined, such as "sum:9,10" or "concat:9,10".
      long: as in `Run.encode`.

    Raises:
      UserError: as `Run.encode` and `pool_tokens`, or `layers` are several.
    """
    check_choice("pooling", pool, POOLINGS)
    chosen = run.layers(layers)
    check_one_layer(chosen)
    tokenized = [run.tokenize(text) for text in text_list(texts, "embed")]
    width = run.model.width * (len(chosen.numbers) if chosen.join == "concat" else 1)
    vectors = np.empty((len(tokenized), width), np.float32)
    for i, hidden, _ in run.vectors(tokenized, chosen, long):
        [vectors[i]] = pool_tokens(hidden, tokenized[i].words, pool)
    return vectors


def by_word(hidden: np.ndarray, words: Sequence[int | None], method: str = "mean") -> np.ndarray:
    """Combines token vectors [n, t, d] to word vectors [n, w, d], as `EncodedText.by_word`.

    Args:
      words: the index of each token's word; None for a special token.
    """
    check_choice("method", method, WORD_POOLINGS)
    starts, ends = word_boundaries(words)
    if method == "first":
        return hidden[:, starts]
    if method == "last":
        return hidden[:, ends - 1]
    sums = np.zeros((hidden.shape[0], len(hidden[0]) + 1, hidden.shape[2]))
    np.cumsum(hidden, 1, out=sums[:, 1:])
    return ((sums[:, ends] - sums[:, starts]) / (ends - starts)[:, None]).astype(hidden.dtype)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises UserError if `value` is not in `choices`."""
    if value not in choices:
        raise UserError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


# Windows of long texts


class Window(NamedTuple):
    """A part of a text that the model reads at once."""

    text: int  # index of the text
    ids: np.ndarray  # int32[t], special tokens included
    start: int  # the window gives the vectors of its tokens [start, stop)
    stop: int
    position: int  # the index in the text of the window's token `start`


def windows(
    text: int, ids: np.ndarray, special: tuple[int, int], max_length: int, long: str = "refuse", name: str = "a text"
) -> list[Window]:
    """Splits a text into windows that the model can read; a text that fits is a single window.

    Windows of a longer text are as long as the model allows, each with its special tokens, and overlap by half (the
    last may overlap by more). The vector of a token comes from the window in which it is nearest to the middle, so that
    it has at least a quarter of the model's length as context on each side, as far as the text has that much.

    Args:
      text: the index of the text.
      ids: int32[t], special tokens included.
      special: the numbers of special tokens before and after the text.
      max_length: the most tokens that the model takes; 0 for any number.
      long: "refuse" or "windows".
      name: the text's name in messages.

    Raises:
      UserError: the text is too long and `long` is "refuse", or the model is too short for windows.
    """
    check_choice("long", long, LONG)
    if not max_length or len(ids) <= max_length:
        return [Window(text, ids, 0, len(ids), 0)]
    if long == "refuse":
        raise UserError(f"{name} has {len(ids):,} tokens; the model takes {max_length:,} at most: shorten it, or read "
                        "it in overlapping windows (long=windows)")
    before, after = special
    capacity, content = max_length - before - after, len(ids) - before - after
    if capacity < 2:
        raise UserError(f"{name} is longer than the model, whose {max_length} tokens are too few for windows")
    starts = [*range(0, content - capacity, capacity // 2), content - capacity]
    middles = [(a + b + capacity) // 2 for a, b in itertools.pairwise(starts)]
    spans = []
    for start, first, end in zip(starts, [-before, *middles], [*middles, content + after], strict=True):
        tokens = ids[before + start : before + start + capacity]
        window = np.concatenate([ids[:before], tokens, ids[len(ids) - after :]])
        spans.append(Window(text, window, before + first - start, before + end - start, before + first))
    return spans


# Batches


def batch_tokens() -> int:
    """Returns the number of tokens of a batch that suits the backend."""
    return BATCH.get(jax.default_backend(), BATCH_ELSEWHERE)


def batch_size(length: int, tokens: int, multiple: int = 1) -> int:
    """Returns the number of sequences of `length` tokens in a batch of about `tokens` tokens: a multiple of `multiple`,
    and at least one."""
    return -(-max(1, tokens // length) // multiple) * multiple


def one_behind(items: Iterable[T]) -> Iterator[T]:
    """Yields items after the next one is made, so that a device computes one batch while the host reads the previous
    one."""
    previous = None
    for item in items:
        if previous is not None:
            yield previous
        previous = item
    if previous is not None:
        yield previous


def padded_length(length: int, least: int = 1, most: int = 0) -> int:
    """Returns the least power of two that is at least `length` and `least`, but at most `most` (0: no limit). Few
    different lengths mean that few programs are compiled."""
    size = max(least, 1 << max(0, length - 1).bit_length())
    return min(size, most) if most else size


def pack(lengths: Sequence[int], max_length: int, packed: bool = True) -> list[tuple[int, list[int]]]:
    """Packs texts into sequences and returns (length of the sequence, indices of its texts), the longest first.

    Lengths are those of `padded_length`, from MIN_LENGTH to `max_length` (0: any). With `packed`, a sequence is filled
    with the longest texts that still fit; otherwise it holds one text.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    sorted_lengths, sequences = [lengths[i] for i in order], []
    while order:
        length = free = padded_length(sorted_lengths[-1], MIN_LENGTH, max_length)
        members = []
        while at := bisect.bisect_right(sorted_lengths, free):
            free -= sorted_lengths.pop(at - 1)
            members.append(order.pop(at - 1))
            if not packed:
                break
        sequences.append((length, members))
    return sequences


def batches(sequences: Sequence[tuple[int, list[int]]], tokens: int) -> Iterator[tuple[int, list[list[int]]]]:
    """Groups packed sequences of one length into batches of at most `tokens` tokens, but at least one sequence. Yields
    (length, indices of the texts of each sequence)."""
    while sequences:
        length = sequences[0][0]
        batch = [members for size, members in sequences[:batch_size(length, tokens)] if size == length]
        yield length, batch
        sequences = sequences[len(batch):]


def compute(
    run: Callable[[dict[str, np.ndarray]], tuple[Array, Array | None]], windows: Sequence[Window], max_length: int,
    pad: int = 0, tokens: int | None = None, packed: bool = True,
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """Computes the vectors of texts. Yields (index of the text, hidden f32[n, t, d], attention f32[l, h, t, s]) in any
    order; attention is None if `run` returns none, and for texts of several windows.

    Args:
      run: a compiled `states` with its parameters.
      windows: the windows of all texts; those of a text follow each other.
      max_length: the most tokens that the model takes; 0 for any number.
      pad: the id of padding.
      tokens: the tokens of a batch; None for a number that suits the backend.
      packed: whether texts may share a sequence, which needs a model that masks segments.
    """
    tokens = tokens or batch_tokens()
    lengths = {window.text: window.position + window.stop - window.start for window in windows}
    unfinished: dict[int, tuple[np.ndarray, int]] = {}  # texts of several windows -> vectors so far, their number

    def split(batch: list[list[int]], outputs: tuple[Array, Array | None]) -> Iterator[tuple]:
        hidden, attention = (None if x is None else np.asarray(x) for x in outputs)
        for row, members in enumerate(batch):
            begin = 0
            for window in (windows[i] for i in members):
                end, length = begin + len(window.ids), lengths[window.text]
                vectors = hidden[:, row, begin + window.start : begin + window.stop]
                if window.stop - window.start == length:
                    yield window.text, vectors.copy(), (
                        None if attention is None else attention[:, row, :, begin:end, begin:end].copy())
                else:
                    full, done = unfinished.pop(window.text, (None, 0))
                    full = np.empty((len(vectors), length, vectors.shape[2]), vectors.dtype) if full is None else full
                    full[:, window.position : window.position + vectors.shape[1]] = vectors
                    done += vectors.shape[1]
                    if done == length:
                        yield window.text, full, None
                    else:
                        unfinished[window.text] = full, done
                begin = end

    def computed() -> Iterator[tuple[list[list[int]], tuple[Array, Array | None]]]:
        for length, batch in batches(pack([len(window.ids) for window in windows], max_length, packed), tokens):
            size = batch_size(length, tokens)
            while size // 4 >= len(batch):  # few shapes are compiled
                size //= 4
            yield batch, run(make_batch([[windows[i].ids for i in members] for members in batch], length, size, pad))

    for item in one_behind(computed()):
        yield from split(*item)


def make_batch(
    packed: Sequence[Sequence[np.ndarray]], length: int, batch_size: int, pad: int
) -> dict[str, np.ndarray]:
    """Makes `tokens`, `segment_ids` and `positions`, int32[batch_size, length] each, from the ids of the texts of each
    sequence. Further sequences are padding, with segment 0."""
    tokens, segments = np.full((batch_size, length), pad, np.int32), np.zeros((batch_size, length), np.int32)
    positions = np.zeros((batch_size, length), np.int32)
    for row, texts in enumerate(packed):
        start = 0
        for number, ids in enumerate(texts, 1):
            end = start + len(ids)
            tokens[row, start:end], segments[row, start:end] = ids, number
            positions[row, start:end] = np.arange(len(ids))
            start = end
    return {"tokens": tokens, "segment_ids": segments, "positions": positions}
