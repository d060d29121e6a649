"""Contextual vectors of texts: which layers, which texts share a row, which pieces are a word.

Texts are packed: several short ones stand in one row, each seeing itself alone and counting its positions from 0, so
that hardly anything computed is padding. Rows have few lengths and batches few sizes, so that little is compiled. The
vectors are those of each text alone, but for rounding.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, abstract
from lmrep.data.tokenized_text import TokenizedText, word_boundaries
from lmrep.models.base import Inputs, Model, model_inputs

JOINS = ("sum", "concat")
POOLINGS = ("mean", "cls", "max")
PIECES = ("mean", "first", "last")
LONG = ("refuse", "windows")
SHORTEST_ROW = 64  # tokens; texts of up to that many are packed into such rows
BATCH = {"cpu": 1024}  # tokens a batch, by backend: on a processor, more of them leave its caches
BATCH_ELSEWHERE = 8192


# Which layers


@dataclass(frozen=True)
class Layers:
    """Which layers' outputs are wanted, and how they become one.

    Attributes:
      numbers: 0 is the embedding output, l the last layer's, which has passed the final norm where there is one.
      join: "stack" keeps each [n, t, d]; "sum" gives [1, t, d]; "concat" gives [1, t, n * d].
    """

    numbers: tuple[int, ...]
    join: str = "stack"


def parse_layers(asked: str | int | Sequence[int], last: int) -> Layers:
    """What `asked` means for a model of `last` layers.

    Args:
      asked: "last", "all" (the embedding output and every layer), numbers as 4, (3, 4) or "3,4", negative ones counted
        from the last; "sum:" or "concat:" before any of these.
      last: l.

    Raises:
      UserError: it means nothing, or a layer that is not there.
    """
    text = asked if isinstance(asked, str) else ",".join(map(str, np.atleast_1d(asked).tolist()))
    join, colon, names = text.rpartition(":")
    if colon and join not in JOINS:
        raise UserError(f"layers is {text!r}; expected all, last, or numbers as 3,4, with sum: or concat: before them")
    if names in ("all", "last"):
        return Layers(tuple(range(last + 1)) if names == "all" else (last,), join or "stack")
    try:
        numbers = [int(name) for name in names.split(",")]
    except ValueError:
        raise UserError(f"layers is {text!r}; expected all, last, or numbers as 3,4 (with sum: or concat: before them "
                        "to make them one)") from None
    for number in numbers:
        if not -last - 1 <= number <= last:
            raise UserError(f"layers is {text!r}, and there is no layer {number}: this model has 0 (the embeddings) to "
                            f"{last}, or {-last - 1} to -1")
    return Layers(tuple(number % (last + 1) for number in numbers), join or "stack")


def num_layers(model: Model) -> int:
    """l, the number of layers of a model."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    layers = jax.eval_shape(lambda params, tokens: model.encode(params, Inputs(tokens=tokens), layers=True).layers,
                            abstract(model.specs), tokens)
    return len(layers) - 1


def states(
    params: Tree, batch: dict[str, Array], *, model: Model, layers: Layers, attention: bool = False,
    context: str = "both",
) -> tuple[Array, Array | None]:
    """The hidden states f32[n, b, t, d] that `layers` asks for, and attention probabilities f32[l, b, h, t, s] or None.

    Pure. Under `jax.jit`, layers above the highest that is asked for are not computed.

    Args:
      params: of the model.
      batch: `tokens`, `segment_ids` (0: padding) and `positions`, i32[b, t] each.
      model: the network.
      layers: which layers.
      attention: whether to return the attention probabilities.
      context: what a position is conditioned on, as it was trained: "left" or "both".

    Raises:
      UserError: layers of unlike width are to be stacked or summed.
    """
    encoded = model.encode(params, model_inputs(model, batch, context=context), layers=True, attention=attention)
    last = len(encoded.layers) - 1
    chosen = [(encoded.hidden if number == last else encoded.layers[number]).astype(jnp.float32)
              for number in layers.numbers]
    if layers.join != "concat" and len({x.shape[-1] for x in chosen}) > 1:
        widths = ", ".join(f"{number}: {x.shape[-1]}" for number, x in zip(layers.numbers, chosen, strict=True))
        raise UserError(f"the layers that were asked for have unlike widths ({widths}); ask for them one by one, or "
                        "concat: them")
    hidden = {"stack": jnp.stack, "sum": lambda each: sum(each)[None],
              "concat": lambda each: jnp.concatenate(each, -1)[None]}[layers.join](chosen)
    return hidden, encoded.attention.astype(jnp.float32) if attention else None


# Texts and their words


@dataclass(frozen=True)
class EncodedText(TokenizedText):
    """A text with its vectors.

    Attributes:
      hidden: f32[n, t, d], the layers that were asked for.
      attention: f32[l, h, t, s], where asked for: how much of position s enters position t.
    """

    hidden: np.ndarray
    attention: np.ndarray | None = None

    def pool(self, how: str = "mean") -> np.ndarray:
        """A vector of the whole text, f32[n, d]: the mean or the maximum over all tokens, special ones included (as
        Reimers and Gurevych, 2019), or "cls", that of the token [CLS].

        Raises:
          UserError: another word, or "cls" of a model without [CLS].
        """
        check_choice("pooling", how, POOLINGS)
        if how == "cls" and (not self.words or self.words[0] is not None):
            raise UserError("pooling is 'cls', and this model's texts do not begin with [CLS]; pool by mean or max")
        return {"mean": lambda: self.hidden.mean(1), "max": lambda: self.hidden.max(1),
                "cls": lambda: self.hidden[:, 0]}[how]()

    def by_word(self, how: str = "mean") -> np.ndarray:
        """A vector for each word, f32[n, w, d]: the mean of its pieces', or that of the first or the last."""
        return by_word(self.hidden, self.words, how)


def by_word(hidden: np.ndarray, words: Sequence[int | None], how: str = "mean") -> np.ndarray:
    """[n, t, d] -> [n, w, d]: one vector a word, as `EncodedText.by_word`."""
    check_choice("pieces", how, PIECES)
    starts, ends = word_boundaries(words)
    if how == "first":
        return hidden[:, starts]
    if how == "last":
        return hidden[:, ends - 1]
    sums = np.zeros((hidden.shape[0], len(hidden[0]) + 1, hidden.shape[2]))
    np.cumsum(hidden, 1, out=sums[:, 1:])
    return ((sums[:, ends] - sums[:, starts]) / (ends - starts)[:, None]).astype(hidden.dtype)


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises UserError where `value` is none of `choices`."""
    if value not in choices:
        raise UserError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


# Windows of long texts


class Window(NamedTuple):
    """Tokens that the model reads at once, and the share of their text's vectors that come from it."""

    text: int  # which text
    ids: np.ndarray  # int32[t], special tokens included
    low: int  # the vectors [low, high) of this window are those of the text from `place` on
    high: int
    place: int


def windows(
    text: int, ids: np.ndarray, edges: tuple[int, int], longest: int, long: str = "refuse", name: str = "a text"
) -> list[Window]:
    """The windows in which a text is read: one where it fits.

    A longer one is read in windows as long as the model, each between the special tokens, that overlap by half (the
    last may overlap by more). A piece has its vector from the window in whose middle it is most nearly, so at least a
    quarter of the model's length of context on each side, wherever the text has it.

    Args:
      text: its number.
      ids: int32[t], special tokens included.
      edges: how many special tokens stand before and after it.
      longest: tokens that the model takes; 0 for any number.
      long: "refuse" or "windows".
      name: of the text, for the message.

    Raises:
      UserError: it is longer, and `long` is "refuse"; or the model is too short for windows.
    """
    check_choice("long", long, LONG)
    if not longest or len(ids) <= longest:
        return [Window(text, ids, 0, len(ids), 0)]
    if long == "refuse":
        raise UserError(f"{name} has {len(ids):,} tokens; the model takes {longest:,} at most: shorten it, or have it "
                        "read in overlapping windows (long=windows)")
    before, after = edges
    room, content = longest - before - after, len(ids) - before - after
    if room < 2:
        raise UserError(f"{name} is longer than the model, whose {longest} tokens leave no room for windows")
    starts = [*range(0, content - room, room // 2), content - room]
    middles = [(a + b + room) // 2 for a, b in itertools.pairwise(starts)]
    found = []
    for start, first, end in zip(starts, [-before, *middles], [*middles, content + after], strict=True):
        part = np.concatenate([ids[:before], ids[before + start : before + start + room], ids[len(ids) - after :]])
        found.append(Window(text, part, before + first - start, before + end - start, before + first))
    return found


# Packing and computing


def pack(lengths: Sequence[int], longest: int, shared: bool = True) -> list[tuple[int, list[int]]]:
    """Rows that hold all texts: (length of the row, the texts in it), the longest rows first.

    A row is as long as a power of two, SHORTEST_ROW at least and `longest` at most (0: any length). Where texts may
    share a row, the longest that still fits is put in next.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    sorted_lengths, rows = [lengths[i] for i in order], []
    while order:
        room = max(SHORTEST_ROW, 1 << max(0, sorted_lengths[-1] - 1).bit_length())
        size = room = min(room, longest) if longest else room
        members = []
        while at := bisect.bisect_right(sorted_lengths, room):
            room -= sorted_lengths.pop(at - 1)
            members.append(order.pop(at - 1))
            if not shared:
                break
        rows.append((size, members))
    return rows


def batches(rows: Sequence[tuple[int, list[int]]], tokens: int) -> Iterator[tuple[int, list[list[int]]]]:
    """Groups of packed rows of one length, of `tokens` tokens at most but one row at least."""
    while rows:
        size = rows[0][0]
        number = max(1, tokens // size)
        alike = [members for length, members in rows[:number] if length == size]
        yield size, alike
        rows = rows[len(alike):]


def compute(
    run: Callable[[dict[str, np.ndarray]], tuple[Array, Array | None]], parts: Sequence[Window], longest: int,
    pad: int = 0, tokens: int | None = None, shared: bool = True,
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """The vectors of texts, in no particular order: (which text, hidden f32[n, t, d], attention f32[l, h, t, s]).

    Args:
      run: a compiled `states` with its parameters.
      parts: of `windows`; those of one text follow each other.
      longest: tokens that the model takes; 0 for any number.
      pad: id of padding.
      tokens: tokens a batch; by default as suits the backend.
      shared: whether texts may share a row: whether the model keeps segments apart.
    """
    tokens = tokens or BATCH.get(jax.default_backend(), BATCH_ELSEWHERE)
    sizes = {part.text: part.place + part.high - part.low for part in parts}
    unfinished: dict[int, tuple[np.ndarray, int]] = {}  # texts of several windows: the vectors so far, how many

    def finished(rows: list[list[int]], outcome: tuple[Array, Array | None]) -> Iterator[tuple]:
        hidden, maps = (None if x is None else np.asarray(x) for x in outcome)
        for row, members in enumerate(rows):
            start = 0
            for part in (parts[i] for i in members):
                end, size = start + len(part.ids), sizes[part.text]
                kept = hidden[:, row, start + part.low : start + part.high]
                if part.high - part.low == size:
                    yield part.text, kept.copy(), None if maps is None else maps[:, row, :, start:end, start:end].copy()
                else:
                    whole, done = unfinished.pop(part.text, (None, 0))
                    whole = np.empty((len(kept), size, kept.shape[2]), kept.dtype) if whole is None else whole
                    whole[:, part.place : part.place + kept.shape[1]] = kept
                    done += kept.shape[1]
                    if done == size:
                        yield part.text, whole, None
                    else:
                        unfinished[part.text] = whole, done
                start = end

    waiting = None
    for size, rows in batches(pack([len(part.ids) for part in parts], longest, shared), tokens):
        texts = [[parts[i].ids for i in members] for members in rows]
        outcome = run(_batch(texts, size, _room(len(rows), max(1, tokens // size)), pad))
        if waiting:  # the batch before is read while this one is computed
            yield from finished(*waiting)
        waiting = rows, outcome
    if waiting:
        yield from finished(*waiting)


def _room(number: int, full: int) -> int:
    """How many rows to compute where `number` are wanted: a full batch's, or a quarter of that, a quarter of a quarter
    and so on, so that few shapes are compiled."""
    while full // 4 >= number:
        full //= 4
    return full


def _batch(rows: Sequence[Sequence[np.ndarray]], size: int, b: int, pad: int) -> dict[str, np.ndarray]:
    """`b` packed rows of `size` places, the last of them empty where there are fewer."""
    tokens, segments = np.full((b, size), pad, np.int32), np.zeros((b, size), np.int32)
    positions = np.zeros((b, size), np.int32)
    for row, texts in enumerate(rows):
        start = 0
        for number, ids in enumerate(texts, 1):
            end = start + len(ids)
            tokens[row, start:end], segments[row, start:end] = ids, number
            positions[row, start:end] = np.arange(len(ids))
            start = end
    return {"tokens": tokens, "segment_ids": segments, "positions": positions}
