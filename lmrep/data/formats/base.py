"""What input formats share: the fields of a batch, and the plan that says which tokens an example is made of.

A plan is a table of spans over the flat token stream of a store. No token is stored twice, any example is found
in O(1), and a batch is gathered at once, without Python per token or per example.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lmrep.core.errors import RunFault, UserError

if TYPE_CHECKING:
    from lmrep.data.store import Store

Batch = dict[str, np.ndarray]
Progress = Callable[[int, int], None]  # called now and then with (documents done, documents in all)


class Field(NamedTuple):
    """One array of a batch. `axes`: `b` rows, `t` positions."""

    axes: str
    dtype: type
    help: str


FIELDS = {
    "tokens": Field("bt", np.int32, "ids; the vocabulary's `pad` where there is none"),
    "segment_ids": Field("bt", np.int32, "the packed segment of a position, from 1; 0 is padding. None sees another"),
    "positions": Field("bt", np.int32, "place in the packed segment, from 0"),
    "token_type_ids": Field("bt", np.int32, "0 for the first text of a pair with its separator, 1 for the second"),
    "example": Field("b", np.int32, "the example's number in the plan; -1 for a row that only fills a batch up"),
    "pair_label": Field("b", np.int32, "NSP: 0 the real next, 1 random. SOP: 0 in order, 1 swapped"),
}

TEXT_FIELDS = ("tokens", "segment_ids", "positions", "token_type_ids", "example")


class Spans(NamedTuple):
    """Rows of spans over a store's token stream.

    Attributes:
      offsets: int64[n+1], where each row's spans begin in `starts`; last = s.
      starts: int64[s], the first token of each span.
      lengths: int32[s], its number of tokens.
      columns: further fields by name, one value a row (`pair_label`).
    """

    offsets: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Plan:
    """Which examples there are, and what is in them.

    A row is laid out as segments that do not see each other. A segment is [CLS], then `spans_per_segment` spans,
    each followed by [SEP]. The table is walked `duplicates` times: example e shows row e mod n, so duplicates
    differ in their number alone, and in what is derived from it (static masks).

    Attributes:
      store: where the tokens are.
      spans: n rows, each of at most `length` tokens with its special tokens.
      spans_per_segment: 1 for single texts, 2 for pairs.
      length: tokens a row, padding included.
      fingerprint: of the store, the format, its config, the length and the seed.
      duplicates: how often the table is walked.
    """

    store: "Store" = field(repr=False)
    spans: Spans = field(repr=False)
    spans_per_segment: int
    length: int
    fingerprint: str
    duplicates: int = 1

    @property
    def examples(self) -> int:
        """The number of examples, duplicates counted."""
        return self.duplicates * (len(self.spans.offsets) - 1)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the arrays of a batch, out of `FIELDS`."""
        return (*TEXT_FIELDS, *self.spans.columns)

    def gather(self, numbers: np.ndarray) -> Batch:
        """The batch of these examples, as `FIELDS` types it.

        Args:
          numbers: int64[b], each in [0, examples), or -1 for a row without content: all padding, segment 0,
            label 0. Whatever counts rows must therefore count those with `example >= 0`.

        Raises:
          IndexError: a number is out of range.
        """
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and not -1 <= numbers.min() <= numbers.max() < self.examples:
            raise IndexError(f"examples {numbers.min()} to {numbers.max()} of a plan that has {self.examples}")
        offsets, starts, lengths, columns = self.spans
        real = numbers >= 0
        rows = numbers % (len(offsets) - 1)
        spans_in = np.where(real, offsets[rows + 1] - offsets[rows], 0)
        ordinal = _count_up(spans_in)  # of a span in its row
        span = np.repeat(offsets[rows], spans_in) + ordinal
        leads = ordinal % self.spans_per_segment == 0  # [CLS] stands before it
        sizes = lengths[span] + 1 + leads  # cells it takes, special tokens included
        ends = np.cumsum(sizes)
        begins = ends - sizes
        segment_begins = begins[leads][np.cumsum(leads) - 1]
        used = np.bincount(np.repeat(np.arange(len(numbers)), spans_in), sizes, len(numbers))

        # From here on one entry a cell that is not padding, in reading order; `filled` puts them in their places.
        cell = np.arange(sizes.sum())
        source = cell + np.repeat(starts[span] - leads - begins, sizes)
        tokens = self.store.take(source.clip(0, self.store.tokens - 1))  # special cells read a neighbour, and lose it
        tokens[begins[leads]] = self.store.vocabulary.specials["cls"]
        tokens[ends - 1] = self.store.vocabulary.specials["sep"]
        filled = np.arange(self.length) < used[:, None]

        def laid_out(values: np.ndarray, padding: int = 0) -> np.ndarray:
            array = np.full(filled.shape, padding, np.int32)
            array[filled] = values
            return array

        return {
            "tokens": laid_out(tokens, self.store.vocabulary.specials["pad"]),
            "segment_ids": laid_out(np.repeat(ordinal // self.spans_per_segment + 1, sizes)),
            "positions": laid_out(cell - np.repeat(segment_begins, sizes)),
            "token_type_ids": laid_out(np.repeat(ordinal % self.spans_per_segment, sizes)),
            "example": numbers.astype(np.int32),
            **{name: np.where(real, column[rows], 0).astype(np.int32) for name, column in columns.items()},
        }

    def statistics(self) -> dict[str, float]:
        """`examples`; `tokens_per_row`, the mean number of real ones, special tokens included; `padding`, the share
        of a batch that is none; and the mean of each column."""
        rows, spans = len(self.spans.offsets) - 1, len(self.spans.starts)
        tokens = int(self.spans.lengths.sum(dtype=np.int64)) + spans + spans // self.spans_per_segment
        means = {name: float(column.mean()) for name, column in self.spans.columns.items()}
        padding = 1 - tokens / (rows * self.length)
        return {"examples": self.examples, "tokens_per_row": tokens / rows, "padding": padding, **means}


def make_plan(
    name: str,
    config: Any,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None,
    build: Callable[[], Spans],
    **layout: int,
) -> Plan:
    """A plan of the format `name`, whose table `build` makes or `cache_dir` already holds.

    Args:
      name: the format and the version of its algorithm: a changed algorithm takes a new name.
      config: the format's record.
      cache_dir: a folder for tables, or None to keep them in memory.
      layout: `spans_per_segment` and `duplicates` of the plan.

    Raises:
      UserError: the store is empty, its tokenizer lacks a special token, or there are 2^31 examples or more.
    """
    missing = [role for role in ("pad", "cls", "sep") if role not in store.vocabulary.specials]
    if missing:
        raise UserError(f"the tokenizer has no special token for {', '.join(missing)}; this format needs pad, cls "
                        "and sep: choose another tokenizer or format")
    if store.tokens == 0:
        raise UserError("the split holds no tokens; expected at least one document: give the corpus more text, or "
                        "this split a larger share of it")
    identity = [store.fingerprint, name, asdict(config), length, seed]
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    plan = Plan(store, cached(build, fingerprint, cache_dir), length=length, fingerprint=fingerprint, **layout)
    if plan.examples > np.iinfo(FIELDS["example"].dtype).max:
        raise UserError(f"the plan has {plan.examples:,} examples; expected fewer than 2^31: lower duplicates")
    return plan


def cached(build: Callable[[], Spans], fingerprint: str, cache_dir: str | os.PathLike | None) -> Spans:
    """`build()`, or what an earlier call with this fingerprint left in `cache_dir`, memory-mapped.

    Raises:
      UserError: the files in the cache cannot be read.
      RunFault: they cannot be written.
    """
    if cache_dir is None:
        return build()
    home = Path(cache_dir) / f"plan-{fingerprint}"
    if not home.exists():
        spans = build()
        try:
            _save(spans, home)
        except OSError as fault:
            raise RunFault(f"cannot write the plan {home}: {fault}; free some space or name another folder") from fault
    try:
        return _load(home)
    except (OSError, ValueError, KeyError) as fault:
        raise UserError(f"the plan in {home} is damaged ({fault}); delete this folder, and it is built anew") from fault


def _save(spans: Spans, home: Path) -> None:
    """Writes a table under another name and renames it when whole: `home` never holds half of one."""
    draft = home.with_name(f".{home.name}-{uuid.uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    try:
        for name, array in (spans._asdict() | spans.columns).items():
            if name != "columns":
                np.save(draft / f"{name}.npy", array, allow_pickle=False)
        try:
            draft.rename(home)
        except OSError:
            if not home.exists():  # where it does, another process was faster, with the same table
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _load(home: Path) -> Spans:
    files = sorted(home.glob("*.npy"))
    arrays = {f.stem: np.asarray(np.load(f, mmap_mode="r", allow_pickle=False)) for f in files}
    spans = Spans(*(arrays.pop(name) for name in Spans._fields[:3]), arrays)
    if not spans.offsets[-1] == len(spans.starts) == len(spans.lengths):
        raise ValueError("its tables differ in length")
    return spans


def _count_up(counts: np.ndarray) -> np.ndarray:
    """0, 1, ..., c-1 for each c of `counts`, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
