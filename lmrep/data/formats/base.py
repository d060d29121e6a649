"""The contract of an input format: the fields of a batch, the special tokens and the spans of an example.

A format describes each example as spans of a store's token stream, with special tokens around them. It stores no token
twice, and `plans.Plan` gathers a batch from the spans without a Python loop over examples or tokens.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lmrep.core.components import row
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.characters import LENGTH
from lmrep.data.dataset import Dataset
from lmrep.data.store.token_store import Store

if TYPE_CHECKING:
    import jax

Progress = Callable[[int, int], None]  # called with (work done, in total), in any unit, and last with both equal


class Field(NamedTuple):
    """An array of a batch."""

    # a letter per axis: `b` examples, `t` positions, `s` positions of a second text, `n` segments of a packed example,
    # `c` characters of a token, `y` bytes of a word, `l` labels of a task, `k` candidates of an example
    axes: str
    dtype: type  # of the array on the host
    help: str  # what it holds


FIELDS = {
    "tokens": Field("bt", np.int32, "token ids; padding has the vocabulary's `pad`"),
    "characters": Field("btc", np.int32, "ids of the characters of each word (`data.characters`); all 0 at padding. "
                                         "Only of tokenizers that have them"),
    "segment_ids": Field("bt", np.int32, "number of the packed segment, from 1; 0 is padding. Segments do not attend "
                                         "to each other. BERT's segments A and B are one: see `token_type_ids`"),
    "positions": Field("bt", np.int32, "position in the packed segment, from 0"),
    "token_type_ids": Field("bt", np.int32, "0 for the first text of a pair with its separator, 1 for the second; 2 "
                                            "for XLNet's [CLS] at the end"),
    "example": Field("b", np.int32, "number of the example in its `Dataset`; -1 for an empty one that fills the batch"),
    "pair_label": Field("b", np.int32, "NSP: 0 for the actual next text, 1 for a random one. SOP: 0 in order, 1 "
                                       "swapped"),
    "reset": Field("b", np.int32, "1 where the example does not continue the one at the same index of the previous "
                                  "batch, so that a carried state starts from its initial value"),
    "reversed": Field("b", np.int32, "1 where the tokens of the example stand in the reverse order of the text"),
    "unit": Field("bn", np.int32, "of labelled examples: number of the unit, a text or a window of it, in each "
                               "segment; -1 for none"),
    "first": Field("bn", np.int32, "of labelled examples: position of the first token of each unit, special tokens "
                                "included"),
    "last": Field("bn", np.int32, "of labelled examples: position of the last token of each unit, special tokens "
                               "included"),
    "following": Field("b", np.int32, "the token that follows the example's last one in the text, which is the first "
                                      "token of the next example; -1 where the text ends"),
    "rate_factor": Field("b", np.float32, "factor of the learning rate of the step, the same for all examples of a "
                                          "batch; 0 for an empty example"),
}
TEXT_FIELDS = ("tokens", "segment_ids", "positions", "token_type_ids", "example")
PAIR_FIELDS = (*TEXT_FIELDS, "pair_label")
VARIES = -1  # in place of the number of tokens between the starts of examples
BACKWARD = "backward/"  # precedes the names of the fields of a text that a backward direction reads


def batch_struct(
    names: Iterable[str], characters: bool, columns: Mapping[str, Field] = {},
    sharding: "jax.sharding.Sharding | None" = None, **sizes: int | tuple[int, ...],
) -> dict[str, Any]:
    """Makes the shapes and dtypes of a batch, as `jax.ShapeDtypeStruct`.

    Args:
      names: fields of the batch, from `FormatDef.fields`.
      characters: whether every text also has the field `characters`, as with tokenizers of words with characters.
      columns: further fields by path.
      sharding: the sharding of every array.
      sizes: for each letter of the axes, the size of the axis, or of the axes that it stands for: b=32, t=128.
    """
    import jax  # here, since the processes that tokenize import this module and need no JAX

    from lmrep.core.params import unflatten

    fields = {name: FIELDS[name.removeprefix(BACKWARD)] for name in names}
    texts = [name.removesuffix("tokens") for name in fields if characters and name.endswith("tokens")]
    fields |= {f"{text}characters": FIELDS["characters"] for text in texts} | columns
    sizes = {"c": LENGTH, **sizes}
    return unflatten({
        path: jax.ShapeDtypeStruct(tuple(int(size) for axis in field.axes for size in np.ravel(sizes[axis])),
                                   field.dtype, sharding=sharding) for path, field in fields.items()})


class Layout(NamedTuple):
    """The special tokens around the spans of an example."""

    lead: int | None  # precedes the first span of each segment; None for no token
    # follows every span. After the last span it is left out where the example has no position left for it: the text
    # continues in the next example.
    tail: int
    pad: int  # fills the rest of the example
    # 1 for single texts; 2 for pairs, whose second span has token type 1; 0 where all spans of an example form one
    # segment
    spans_per_segment: int = 1
    last: int | None = None  # follows the last tail of an example (XLNet's <cls>); None for no token
    end: int | None = None  # follows each document, where it is not the tail

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text that is an example by itself."""
        lead, last = ([] if token is None else [token] for token in (self.lead, self.last))
        return lead, [self.tail, *last]

    @property
    def special(self) -> int:
        """The number of special tokens of a segment (of one span, where a segment may have any number)."""
        return max(1, self.spans_per_segment) + (self.lead is not None) + (self.last is not None)

    @property
    def min_length(self) -> int:
        """The length of an example with one token in each span of a segment."""
        return self.special + max(1, self.spans_per_segment)


def make_layout(
    vocabulary: Vocabulary, spans_per_segment: int = 1, lead: Sequence[str] = ("cls", "bos"),
    tail: Sequence[str] = ("sep", "eos"),
) -> Layout:
    """Makes a layout whose lead and tail are the first of these roles that the tokenizer has a token for.

    Single texts have no lead where the tokenizer has no token for it, or where that token is the tail (GPT-2's end of
    text). Without a padding token the tail is used; padding is masked in any case. Raises UserError if the tokenizer
    has no token for the tail or, for pairs, for the lead."""
    def first(roles: Sequence[str]) -> int | None:
        return next((vocabulary.specials[role] for role in roles if role in vocabulary.specials), None)

    missing = [roles for roles in ((lead, tail) if spans_per_segment == 2 else (tail,)) if first(roles) is None]
    if missing:
        raise UserError(f"the tokenizer has no special token for {' nor for '.join(map(' or '.join, missing))}, which "
                        f"this format needs; it has {', '.join(vocabulary.specials)}: choose another tokenizer or "
                        "format")
    before = first(lead) if first(lead) != first(tail) else None
    return Layout(before, first(tail), first(("pad", *tail)), spans_per_segment)


def single_text(config: Any, vocabulary: Vocabulary) -> Layout:
    """Makes the layout [CLS] text [SEP]."""
    return make_layout(vocabulary)


def text_pair(config: Any, vocabulary: Vocabulary) -> Layout:
    """Makes the layout [CLS] A [SEP] B [SEP]."""
    return make_layout(vocabulary, 2, ("cls",), ("sep",))


class Spans(NamedTuple):
    """A table with a row for each example: the spans of the token stream that the example holds."""

    offsets: np.ndarray  # int64[n+1], the index of each row's first span; last = s
    starts: np.ndarray  # int64[s], the first token of each span
    lengths: np.ndarray  # int32[s], the number of tokens of each span
    columns: dict[str, np.ndarray]  # further fields of a batch by name, with one value per row (`pair_label`)


@dataclass(frozen=True, eq=False)
class StorePlan(Dataset):
    """Base class of the examples of a split of a store."""

    store: Store = field(repr=False)  # holds the tokens
    layout: Layout  # the special tokens of an example, and which spans attend to each other
    length: int  # tokens per example, padding included
    fingerprint: str  # of the store, the format, its config, the length and the seed

    @property
    def vocabulary(self) -> Vocabulary:
        return self.store.vocabulary

    @functools.cached_property
    def begins(self) -> np.ndarray:
        """int64[k+1], the position of each document in the stream of documents that each end with a token; last = its
        length."""
        bounds = np.asarray(self.store.sentences)[np.asarray(self.store.documents)]
        return bounds + np.arange(len(bounds))

    def stream(self, positions: np.ndarray, end: int) -> np.ndarray:
        """Reads the tokens at positions of the stream, in which `end` follows each document. Those of positions outside
        of it have no meaning."""
        positions = positions.clip(0, self.begins[-1] - 1)
        document = np.searchsorted(self.begins, positions, side="right") - 1
        ends = positions == self.begins[document + 1] - 1
        return np.where(ends, end, self.store.take((positions - document - ends).clip(0, self.store.tokens - 1)))


PLAN_ARGUMENTS = ("config", "store", "length", "seed", "layout", "fingerprint", "cache_dir", "progress")


@row
class FormatDef(NamedTuple):
    """A row of `FORMATS`: an input format as a choice of an experiment config."""

    config: type  # a frozen record; its field `duplicates` is the number of passes over the corpus in an epoch
    version: str  # names the algorithm in fingerprints and caches; change it whenever the examples change
    # (config, vocabulary) -> Layout; raises UserError where the tokenizer lacks a special token
    layout: Callable[[Any, Vocabulary], Layout]
    # PLAN_ARGUMENTS -> the examples of a split, a `Dataset`; `plans.table` makes this function from one that yields the
    # spans of each example. The store is not empty, and `length` is `layout.min_length` or more. Raises UserError
    # where the text is unsuitable. None for labelled examples, which no store holds.
    plan: Callable[..., Dataset] | None
    # config -> names of the arrays of a batch, out of `FIELDS`; "backward/tokens" for the tokens of a text that a
    # backward direction reads, which are `batch["backward"]["tokens"]`
    fields: Callable[[Any], tuple[str, ...]] = lambda config: TEXT_FIELDS
    # (config, length) -> where each example continues the example at the same index of the previous batch: the tokens
    # from the start of that example to its own start, fewer than `length` if they overlap; VARIES if that varies and
    # batches may be longer than `length`. Batches then have the field `reset`. 0 for shuffled examples.
    advance: Callable[[Any, int], int] = lambda config, length: 0
    # config -> whether an example may hold several segments that must not attend to each other
    packed: Callable[[Any], bool] = lambda config: False

    def contiguous(self, config: Any) -> bool:
        """Tells whether examples continue each other from batch to batch."""
        return self.advance(config, 2) != 0

    def shapes(self, config: Any, characters: bool, **sizes: int) -> dict[str, Any]:
        """Returns `batch_struct` for these sizes; {} for labelled examples, whose batches differ in length."""
        return {} if self.plan is None else batch_struct(self.fields(config), characters, **sizes)


def split_texts(bounds: np.ndarray, max_tokens: int) -> np.ndarray:
    """Splits each text into chunks of `max_tokens` tokens and a shorter last one.

    Args:
      bounds: int64[k+1], the first token of each text; last = total number of tokens.

    Returns:
      int64[m+1], the first token of each chunk; last as in `bounds`. Empty texts have no chunk.
    """
    counts = -(-np.diff(bounds) // max_tokens)
    starts = np.repeat(bounds[:-1], counts) + max_tokens * ranges(counts)
    return np.append(starts, bounds[-1])


def ranges(counts: np.ndarray) -> np.ndarray:
    """Concatenates 0, 1, ..., c-1 for each c of `counts`."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def truncate_pair(a: int, b: int, capacity: int) -> tuple[int, int]:
    """Returns how many tokens are kept of two texts of a and b tokens. The longer text (the second, if both are equal)
    loses its last token until `capacity` tokens are left, as in BERT's code."""
    a = min(a, max(capacity - capacity // 2, capacity - b))
    return a, min(b, capacity - a)
