"""What input formats share: the fields of a batch, and the plan that says which tokens an example is made of.

A plan is a table of spans over the flat token stream of a store. No token is stored twice, any example is found
in O(1), and a batch is gathered at once, without Python per token or per example.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.order import continuing_numbers, example_numbers

if TYPE_CHECKING:
    import jax

    from lmrep.data.store.token_store import Store

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
    "reset": Field("b", np.int32, "1 where the row continues none: what is carried from row to row starts clean"),
}

def batch_struct(fields: Iterable[str], **sizes: int) -> "dict[str, jax.ShapeDtypeStruct]":
    """Shapes and dtypes of a batch with these fields: `batch_struct(plan.fields, b=32, t=128)`."""
    import jax  # children that tokenize import this module, and do without

    return {name: jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in FIELDS[name].axes), FIELDS[name].dtype)
            for name in fields}


TEXT_FIELDS = ("tokens", "segment_ids", "positions", "token_type_ids", "example")


class Layout(NamedTuple):
    """Which special tokens stand around the spans of a row.

    Attributes:
      lead: stands before the first span of each segment; None where nothing does.
      tail: stands behind every span. Behind the last one it is left out where the row is full without it: the text
        goes on in the next row.
      pad: fills rows up.
      spans_per_segment: 1 for single texts; 2 for pairs, whose second span has type 1; 0 where all spans of a row are
        one segment.
    """

    lead: int | None
    tail: int
    pad: int
    spans_per_segment: int = 1

    @property
    def special(self) -> int:
        """Special tokens of a segment of one span."""
        return 1 + (self.lead is not None)


def layout(
    vocabulary: Vocabulary, spans_per_segment: int = 1, lead: Sequence[str] = ("cls", "bos"),
    tail: Sequence[str] = ("sep", "eos"),
) -> Layout:
    """The layout whose special tokens are the first of these roles that the tokenizer has.

    A tokenizer without any of `lead` puts nothing before single texts, nor does one whose lead is its tail (GPT-2's
    end of text). One without padding fills up with the tail, which nothing sees.

    Raises:
      UserError: it lacks all of `tail`; or, for pairs, one of the two.
    """
    def first(roles: Sequence[str]) -> int | None:
        return next((vocabulary.specials[role] for role in roles if role in vocabulary.specials), None)

    needed = [roles for roles in ((lead, tail) if spans_per_segment == 2 else (tail,)) if first(roles) is None]
    if needed:
        raise UserError(f"the tokenizer has no special token for {' nor for '.join(map(' or '.join, needed))}, which "
                        f"this format needs; it has {', '.join(vocabulary.specials)}: choose another tokenizer or "
                        "format")
    before = first(lead) if first(lead) != first(tail) else None
    return Layout(before, first(tail), first(("pad", *tail)), spans_per_segment)


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

    A row is laid out as segments that do not see each other; `layout` says of how many spans each, and what stands
    around them. The table is walked `duplicates` times: example e shows row e mod n, so duplicates differ in their
    number alone, and in what is derived from it (static masks).

    Attributes:
      store: where the tokens are.
      spans: n rows, each of at most `length` tokens with its special tokens.
      layout: the special tokens of a row, and which spans see each other.
      length: tokens a row, padding included.
      fingerprint: of the store, the format, its config, the length and the seed.
      duplicates: how often the table is walked.
      continues: whether examples are walked in the order of the corpus, row r of a batch continuing row r of the batch
        before, rather than shuffled. A batch then has `reset`.
    """

    store: "Store" = field(repr=False)
    spans: Spans = field(repr=False)
    layout: Layout
    length: int
    fingerprint: str
    duplicates: int = 1
    continues: bool = False

    @property
    def examples(self) -> int:
        """The number of examples, duplicates counted."""
        return self.duplicates * self.rows

    @property
    def rows(self) -> int:
        """The number of rows of the table."""
        return len(self.spans.offsets) - 1

    @property
    def once(self) -> int:
        """The number of examples that an evaluation of all of them shows."""
        return self.examples

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the arrays of a batch, out of `FIELDS`."""
        return (*TEXT_FIELDS, *self.spans.columns)

    def numbers(self, rows: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """The examples that rows of a run show, in O(1) each: int64 like `rows`, which count from the run's first; -1
        for a row that is empty, in plans that continue."""
        if self.continues:
            return continuing_numbers(self.rows, self.duplicates, batch_size, rows)
        return example_numbers(self.examples, seed, rows)

    def evaluation_order(self, rows: np.ndarray) -> np.ndarray:
        """The examples that rows of an evaluation show."""
        return rows

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
        (offsets, starts, lengths, columns), (lead, tail, pad, together) = self.spans, self.layout
        real = numbers >= 0
        rows = numbers % self.rows
        spans_in = np.where(real, offsets[rows + 1] - offsets[rows], 0)
        ordinal = _count_up(spans_in)  # of a span in its row
        span = np.repeat(offsets[rows], spans_in) + ordinal
        segment, place = np.divmod(ordinal, together) if together else (np.zeros_like(ordinal), ordinal)
        leads = (place == 0) & (lead is not None)
        sizes = lengths[span] + 1 + leads  # cells it takes, special tokens included
        row = np.repeat(np.arange(len(numbers)), spans_in)
        used = np.bincount(row, sizes, len(numbers)).astype(np.int64)
        open_ended = np.zeros(len(sizes), np.int64)  # 1 for a span whose tail is left out
        open_ended[(np.cumsum(spans_in) - 1)[used > self.length]] = 1
        sizes -= open_ended
        ends = np.cumsum(sizes)
        begins = ends - sizes
        segment_begins = begins[place == 0][np.cumsum(place == 0) - 1]

        # From here on one entry a cell that is not padding, in reading order; `filled` puts them in their places.
        cell = np.arange(sizes.sum())
        source = cell + np.repeat(starts[span] - leads - begins, sizes)
        tokens = self.store.take(source.clip(0, self.store.tokens - 1))  # special cells read a neighbour, and lose it
        if lead is not None:
            tokens[begins[leads]] = lead
        tokens[ends[open_ended == 0] - 1] = tail
        filled = np.arange(self.length) < used[:, None]

        def laid_out(values: np.ndarray, padding: int = 0) -> np.ndarray:
            array = np.full(filled.shape, padding, np.int32)
            array[filled] = values
            return array

        return {
            "tokens": laid_out(tokens, pad),
            "segment_ids": laid_out(np.repeat(segment + 1, sizes)),
            "positions": laid_out(cell - np.repeat(segment_begins, sizes)),
            "token_type_ids": laid_out(np.repeat(place if together == 2 else 0 * place, sizes)),
            "example": numbers.astype(np.int32),
            **{name: np.where(real, column[rows], 0).astype(np.int32) for name, column in columns.items()},
        }

    def statistics(self) -> dict[str, float]:
        """`examples`; `tokens_per_row`, the mean number of real ones, special tokens included; `padding`, the share
        of a batch that is none; and the mean of each column."""
        offsets, together = self.spans.offsets, self.layout.spans_per_segment
        spans_in = np.diff(offsets)
        segments = -(-spans_in // together) if together else np.minimum(spans_in, 1)
        totals = np.concatenate([[0], np.cumsum(self.spans.lengths, dtype=np.int64)])[offsets]
        used = np.diff(totals) + spans_in + segments * (self.layout.lead is not None)
        tokens = float(np.minimum(used, self.length).mean())  # one tail more than fits is left out
        means = {name: float(column.mean()) for name, column in self.spans.columns.items()}
        return {"examples": self.examples, "tokens_per_row": tokens, "padding": 1 - tokens / self.length, **means}


def make_plan(
    name: str,
    config: Any,
    store: "Store",
    length: int,
    seed: int,
    cache_dir: str | os.PathLike | None,
    layout: Layout,
    build: Callable[[], Iterable[Spans]],
    *,
    duplicates: int = 1,
    continues: bool = False,
) -> Plan:
    """A plan of the format `name`, whose table `build` makes, part by part, or `cache_dir` already holds.

    Args:
      name: the format and the version of its algorithm: a changed algorithm takes a new name.
      config: the format's record.
      cache_dir: a folder for tables, or None to keep them in memory.
      layout, duplicates, continues: as in `Plan`.

    Raises:
      UserError: the store is empty, or there are 2^31 examples or more.
    """
    if store.tokens == 0:
        raise UserError("the split holds no tokens; expected at least one document: give the corpus more text, or "
                        "this split a larger share of it")
    identity = [store.fingerprint, name, asdict(config), length, seed]
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    plan = Plan(store, cached(build, fingerprint, cache_dir), layout, length, fingerprint, duplicates, continues)
    if plan.examples > np.iinfo(FIELDS["example"].dtype).max:
        raise UserError(f"the plan has {plan.examples:,} examples; expected fewer than 2^31: lower duplicates")
    return plan


def cached(build: Callable[[], Iterable[Spans]], fingerprint: str, cache_dir: str | os.PathLike | None) -> Spans:
    """The parts of `build()` as one table, or what an earlier call with this fingerprint left in `cache_dir`,
    memory-mapped. Without a `cache_dir` it is in memory; with one, no more than a part is at a time.

    Raises:
      UserError: the files in the cache cannot be read.
      RunFault: they cannot be written.
    """
    if cache_dir is None:
        return _joined(list(build()))
    home = Path(cache_dir) / f"plan-{fingerprint}"
    if not home.exists():
        try:
            _save(build(), home)
        except OSError as fault:
            raise RunFault(f"cannot write the plan {home}: {fault}; free some space or name another folder") from fault
    try:
        return _load(home)
    except (OSError, ValueError, KeyError) as fault:
        raise UserError(f"the plan in {home} is damaged ({fault}); delete this folder, and it is built anew") from fault


def _joined(parts: Sequence[Spans]) -> Spans:
    if len(parts) == 1:
        return parts[0]
    before = np.cumsum([0, *(len(part.starts) for part in parts)])
    offsets = [part.offsets[:-1] + first for part, first in zip(parts, before[:-1], strict=True)]
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    return Spans(np.concatenate([*offsets, before[-1:]]), np.concatenate([part.starts for part in parts]),
                 np.concatenate([part.lengths for part in parts]), columns)


def _save(parts: Iterable[Spans], home: Path) -> None:
    """Writes a table under another name and renames it when whole: `home` never holds half of one."""
    draft = home.with_name(f".{home.name}-{uuid.uuid4().hex[:8]}")
    draft.mkdir(parents=True)
    try:
        with contextlib.ExitStack() as stack:
            files, spans = {}, 0
            for part in parts:
                first = part.offsets[:1] if not files else part.offsets[:0]
                arrays = {"offsets": np.append(first, part.offsets[1:] + spans), "starts": part.starts,
                          "lengths": part.lengths, **part.columns}
                for name, array in arrays.items():
                    if name not in files:
                        files[name] = stack.enter_context(_Growing(draft / f"{name}.npy", array.dtype))
                    files[name].append(array)
                spans += len(part.starts)
        try:
            draft.rename(home)
        except OSError:
            if not home.exists():  # where it does, another process was faster, with the same table
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class _Growing:
    """A .npy file of one dimension that grows; its header, which numpy leaves room in, comes last."""

    def __init__(self, path: Path, dtype: np.dtype):
        self._file, self._dtype, self._count = path.open("wb"), dtype, 0
        self._head()

    def append(self, array: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(array, self._dtype).data)
        self._count += len(array)

    def _head(self) -> None:
        self._file.seek(0)
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": self._dtype.str, "fortran_order": False, "shape": (self._count,)})

    def __enter__(self) -> "_Growing":
        return self

    def __exit__(self, kind, *_) -> None:
        with self._file:
            if kind is None:
                self._head()


def _load(home: Path) -> Spans:
    files = sorted(home.glob("*.npy"))
    arrays = {f.stem: np.asarray(np.load(f, mmap_mode="r", allow_pickle=False)) for f in files}
    spans = Spans(*(arrays.pop(name) for name in Spans._fields[:3]), arrays)
    if not spans.offsets[-1] == len(spans.starts) == len(spans.lengths):
        raise ValueError("its tables differ in length")
    return spans


def cut(bounds: np.ndarray, room: int) -> np.ndarray:
    """Cuts texts into pieces of `room` tokens and what is left: int64[k+1] offsets of texts (last = tokens in all) to
    offsets of pieces. Empty texts leave no piece."""
    pieces = -(-np.diff(bounds) // room)
    starts = np.repeat(bounds[:-1], pieces) + room * _count_up(pieces)
    return np.append(starts, bounds[-1])


def _count_up(counts: np.ndarray) -> np.ndarray:
    """0, 1, ..., c-1 for each c of `counts`, one after another."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
