"""Encodes texts as inputs of a network: special tokens, token types and windows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import ranges


class InputLayout(NamedTuple):
    """The special tokens around a text or a pair of texts, as in a network's pretraining."""

    lead: tuple[int, ...]  # ids before the first text
    between: tuple[int, ...]  # ids between the texts of a pair
    tail: tuple[int, ...]  # ids after the last text; two if the last one is [CLS], which then has token type 2
    pad: int  # id of padding

    @property
    def cls_last(self) -> bool:
        """Whether [CLS] is the last token, as in XLNet."""
        return len(self.tail) > 1

    def special(self, pair: bool) -> int:
        """Counts the special tokens around a text, or a pair."""
        return len(self.lead) + len(self.tail) + (len(self.between) if pair else 0)


def input_layout(
    vocabulary: Vocabulary, context: str, one_separator: bool, end_of_text: bool = True, cls_last: bool = False
) -> InputLayout:
    """Makes the layout of a network's input: [CLS] a [SEP] b [SEP] as BERT; <s> a </s></s> b </s> as RoBERTa; a <sep> b
    <sep> <cls> as XLNet; a, end of text, b, end of text for networks that read from left to right.

    Args:
      vocabulary: the vocabulary of the tokenizer; special tokens that it lacks are left out.
      context: "left" or "both".
      one_separator: whether one separator, not two, is between the texts of a pair if `context` is "both".
      end_of_text: whether an end of text follows the last text, unless [SEP] does.
      cls_last: whether [CLS] is the last token, if `context` is "both".
    """
    def first(*roles: str) -> tuple[int, ...]:
        return next(((vocabulary.specials[role],) for role in roles if role in vocabulary.specials), ())

    if cls_last and context == "both" and {"cls", "sep"} <= set(vocabulary.specials):
        return InputLayout((), first("sep"), first("sep") + first("cls"), (first("pad", "sep") or (0,))[0])
    lead, tail = first("cls", "bos"), first("sep", "eos")
    between = tail if one_separator or context == "left" else 2 * tail
    if not end_of_text:
        lead, tail = first("cls"), first("sep")
    return InputLayout(() if lead == tail else lead, between, tail, (first("pad", "sep", "eos") or (0,))[0])


class Source(NamedTuple):
    """The tokenized source texts of text-to-text tasks."""

    tokens: np.ndarray  # int32[n], the tokens of all units, concatenated, with special tokens
    offsets: np.ndarray  # int64[u+1], the first token of each unit's text; last = n
    decode: Callable[[Iterable[int]], str]  # ids -> text

    @property
    def lengths(self) -> np.ndarray:
        """int64[u], tokens of each unit's text."""
        return np.diff(self.offsets)


class Units(NamedTuple):
    """Tokenized examples. A unit is one input of a network: a text, a pair, a window of a long text, or one of several
    choices."""

    tokens: np.ndarray  # int32[n], the tokens of all units, concatenated, with special tokens
    token_types: np.ndarray  # int8[n], 1 for the second text of a pair
    offsets: np.ndarray  # int64[u+1], the first token of each unit; last = n
    example: np.ndarray  # int32[u], the number of each unit's example, ascending
    columns: dict[str, np.ndarray]  # name -> [u, ...], a value for each unit, or [n, ...], a value for each token
    details: dict[str, np.ndarray] = {}  # noqa: RUF012 - arrays for the task, which batches do not have
    token_columns: tuple[str, ...] = ()  # the names of the columns with a value for each token
    source: Source | None = None  # the source text of each unit, in text-to-text tasks

    @property
    def lengths(self) -> np.ndarray:
        """int64[u], tokens of each unit."""
        return np.diff(self.offsets)


def join(parts: Sequence[Units]) -> Units:
    """Concatenates sets of units with the same columns. The examples of later sets get higher numbers. Leaves out
    details."""
    first = parts[0]
    examples = np.cumsum([0, *(int(units.example[-1]) + 1 for units in parts)])
    source = first.source and Source(
        np.concatenate([units.source.tokens for units in parts]),
        _joined_offsets([units.source.offsets for units in parts]), first.source.decode)
    return Units(
        np.concatenate([units.tokens for units in parts]), np.concatenate([units.token_types for units in parts]),
        _joined_offsets([units.offsets for units in parts]),
        np.concatenate([units.example + start for units, start in zip(parts, examples, strict=False)]),
        {name: np.concatenate([units.columns[name] for units in parts]) for name in first.columns},
        token_columns=first.token_columns, source=source)


def _joined_offsets(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(offsets) for offsets in parts]))])


def take(units: Units, chosen: np.ndarray) -> Units:
    """Returns the units at the indices `chosen`, int64[n] ascending, with examples numbered from 0. Leaves out
    details."""
    tokens, offsets = _take_tokens(units.offsets, chosen)
    source = units.source
    if source is not None:
        source_tokens, source_offsets = _take_tokens(source.offsets, chosen)
        source = Source(source.tokens[source_tokens], source_offsets, source.decode)
    columns = {name: values[tokens if name in units.token_columns else chosen]
               for name, values in units.columns.items()}
    example = np.unique(units.example[chosen], return_inverse=True)[1].astype(np.int32)
    return Units(units.tokens[tokens], units.token_types[tokens], offsets, example, columns,
                 token_columns=units.token_columns, source=source)


def _take_tokens(offsets: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (indices of the tokens of the chosen units, offsets of these units among them)."""
    lengths = np.diff(offsets)[chosen]
    return np.repeat(offsets[chosen], lengths) + ranges(lengths), np.concatenate([[0], np.cumsum(lengths)])


class EncodedUnit(NamedTuple):
    """The tokens of one unit, and the positions of its texts."""

    ids: np.ndarray  # int32[n], with special tokens
    types: np.ndarray  # int8[n], the token types
    first: int  # position of the first text's first token
    second: int  # position of the second text's first token; -1 for a single text
    words: np.ndarray | None = None  # int32[n], the number of each token's word, -1 for special tokens; None: unused


def assemble(
    layout: InputLayout, a: np.ndarray, b: np.ndarray | None = None, words: Sequence[np.ndarray] | None = None
) -> EncodedUnit:
    """Adds special tokens to a text or a pair of texts, int32[n] ids each. `words` has for each text the numbers of its
    tokens' words."""
    if b is None:
        ids = np.concatenate([layout.lead, a, layout.tail]).astype(np.int32)
        unit = EncodedUnit(ids, np.zeros(len(ids), np.int8), len(layout.lead), -1)
    else:
        # The first separator has the first text's type, any other one the second's.
        first = np.concatenate([layout.lead, a, layout.between]).astype(np.int32)
        second = np.concatenate([b, layout.tail]).astype(np.int32)
        types = np.repeat(np.array([0, 1], np.int8), [len(first), len(second)])
        unit = EncodedUnit(np.concatenate([first, second]), types, len(layout.lead), len(first))
    if layout.cls_last:
        unit.types[-1] = 2
    if words is None:
        return unit
    numbers = np.full(len(unit.ids), -1, np.int32)
    for start, text_words in zip((unit.first, unit.second), words, strict=False):
        numbers[start : start + len(text_words)] = text_words
    return unit._replace(words=numbers)


def windows(length: int, capacity: int, stride: int) -> list[tuple[int, int]]:
    """Returns (start, end) of windows of at most `capacity` tokens that begin `stride` apart and cover `length` tokens;
    `end` is exclusive."""
    if length <= capacity:
        return [(0, length)]
    last = -(-(length - capacity) // stride)
    return [(i * stride, min(i * stride + capacity, length)) for i in range(last + 1)]


def collect(
    parts: Sequence[EncodedUnit], example: Sequence[int], columns: Mapping[str, Sequence] = {},
    token_columns: Mapping[str, Sequence[np.ndarray]] = {}, distinct: Mapping[str, int] | None = None,
) -> Units:
    """Makes Units from encoded texts.

    Args:
      parts: the encoded units.
      example: the number of each unit's example, ascending.
      columns: name -> a value for each unit.
      token_columns: name -> an array for each unit, with a value for each token.
      distinct: distinct word -> its number, if parts have `words`. `details` then has `distinct`, the words in this
        order, and `number` int32[n], the number of each token's word, or -1.
    """
    lengths = [len(part.ids) for part in parts]
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    arrays |= {name: np.concatenate(values) for name, values in token_columns.items()}
    details = {} if distinct is None else {
        "distinct": np.array([*distinct], object), "number": np.concatenate([part.words for part in parts])}
    return Units(
        np.concatenate([part.ids for part in parts]), np.concatenate([part.types for part in parts]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), np.asarray(example, np.int32), arrays,
        details, tuple(token_columns))
