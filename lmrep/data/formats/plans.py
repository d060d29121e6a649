"""A plan: the examples of a split in one format and length, computed in O(1) by number and gathered as batches."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lmrep.core import sealed_cache
from lmrep.core.components import type_of
from lmrep.core.errors import Broken
from lmrep.core.files import Damaged, manifest
from lmrep.data.dataset import Batch
from lmrep.data.formats.base import Layout, Progress, Spans, StorePlan, ranges
from lmrep.data.order import contiguous_numbers, example_numbers
from lmrep.data.store.offsets import growing_array
from lmrep.data.store.token_store import Store


@dataclass(frozen=True, eq=False)
class Plan(StorePlan):
    """The examples of a split.

    The table of spans is repeated `repeats` times: example e shows row e mod n, so that the repetitions differ only in
    the example's number and in what is derived from it (static masks)."""

    spans: Spans = field(repr=False)  # a table of n rows, each of at most `length` tokens with its special tokens
    repeats: int = 1
    contiguous: bool = False  # whether examples are shown in the order of the corpus; see `FormatDef`

    @property
    def examples(self) -> int:
        """The number of examples, repetitions included."""
        return self.repeats * self.rows

    @property
    def rows(self) -> int:
        """The number of rows of the table of spans."""
        return len(self.spans.offsets) - 1

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        if self.contiguous:  # only these have empty examples
            return contiguous_numbers(self.rows, self.repeats, batch_size, positions, seed)
        return example_numbers(self.examples, seed, positions)

    def continues(self, previous: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return (previous >= 0) & (numbers >= 0) & (previous % self.rows + 1 == numbers % self.rows)

    def gather(self, numbers: np.ndarray, length: int = 0) -> Batch:
        numbers = self.checked(numbers)
        (offsets, starts, lengths, columns), (lead, tail, pad, spans_per_segment, *_) = self.spans, self.layout
        filled = numbers >= 0
        rows = numbers % self.rows
        counts = np.where(filled, offsets[rows + 1] - offsets[rows], 0)  # spans of each example

        # One entry per span of the batch.
        index = ranges(counts)  # number of the span in its example
        span = np.repeat(offsets[rows], counts) + index
        segment, in_segment = np.divmod(index, spans_per_segment or max(1, len(index)))
        has_lead = (in_segment == 0) & (lead is not None)
        sizes = lengths[span] + 1 + has_lead  # positions of the span, special tokens included
        used = np.bincount(np.repeat(np.arange(len(numbers)), counts), sizes, len(numbers)).astype(np.int64)
        no_tail = np.zeros(len(sizes), np.int64)
        no_tail[(np.cumsum(counts) - 1)[used > self.length]] = 1
        sizes -= no_tail
        ends = np.cumsum(sizes)
        begins = ends - sizes
        segment_begins = begins[in_segment == 0][np.cumsum(in_segment == 0) - 1]

        # One entry per position that is not padding, in reading order; `in_place` puts them into arrays [b, t].
        position = np.arange(sizes.sum())
        source = position + np.repeat(starts[span] - has_lead - begins, sizes)
        tokens = self.store.take(source.clip(0, self.store.tokens - 1))  # special tokens are written over neighbours
        if lead is not None:
            tokens[begins[has_lead]] = lead
        tokens[ends[no_tail == 0] - 1] = tail
        shape = len(numbers), self.length
        real = None if len(position) == shape[0] * shape[1] else np.arange(self.length) < used[:, None]

        def in_place(values: np.ndarray, padding: int = 0) -> np.ndarray:
            if real is None:  # no padding
                return values.astype(np.int32, copy=False).reshape(*shape, *values.shape[1:])
            array = np.full((*shape, *values.shape[1:]), padding, np.int32)
            array[real] = values
            return array

        return {
            "tokens": in_place(tokens, pad),
            **({} if self.vocabulary.characters is None else
               {"characters": in_place(self.store.characters(tokens, source))}),
            "segment_ids": in_place(np.repeat((segment + 1).astype(np.int32), sizes)),
            "positions": in_place(position - np.repeat(segment_begins, sizes)),
            "token_type_ids": (in_place(np.repeat(in_segment.astype(np.int32), sizes)) if spans_per_segment == 2
                               else np.zeros(shape, np.int32)),
            "example": numbers.astype(np.int32),
            **{name: np.where(filled, column[rows], 0).astype(np.int32) for name, column in columns.items()},
            **({"following": self._following(numbers)} if self.contiguous else {}),
        }

    def _following(self, numbers: np.ndarray) -> np.ndarray:
        offsets, starts, lengths, columns = self.spans
        rows = (numbers % self.rows + 1) % self.rows
        continued = self.continues(numbers, rows) & (columns["reset"][rows] == 0)
        first = offsets[rows]  # spans; an empty one represents the tail of the span before it
        tokens = self.store.take(np.asarray(starts[first]).clip(0, self.store.tokens - 1))
        return np.where(continued, np.where(lengths[first] > 0, tokens, self.layout.tail), -1).astype(np.int32)

    def statistics(self) -> dict[str, float]:
        offsets, spans_per_segment = self.spans.offsets, self.layout.spans_per_segment
        counts = np.diff(offsets)
        segments = -(-counts // spans_per_segment) if spans_per_segment else np.minimum(counts, 1)
        totals = np.concatenate([[0], np.cumsum(self.spans.lengths, dtype=np.int64)])[offsets]
        used = np.diff(totals) + counts + segments * (self.layout.lead is not None)
        tokens = float(np.minimum(used, self.length).mean())  # a tail that does not fit is left out
        means = {name: float(column.mean()) for name, column in self.spans.columns.items()}
        return {"examples": self.examples, "tokens_per_example": tokens, "padding": 1 - tokens / self.length, **means}


def cached(build: Callable[[], Iterable[Spans]], fingerprint: str, cache_dir: str | os.PathLike | None) -> Spans:
    """Returns the table that an earlier call with this fingerprint wrote to `cache_dir`, or builds it. A table that
    does not match its manifest is logged and built again.

    Args:
      build: returns consecutive chunks of the table.
      fingerprint: a hash of everything that the table depends on.
      cache_dir: where tables are stored and memory-mapped, so that no more than a chunk is in memory; None: the table
        is built in memory.

    Raises:
      Broken: a chunk is not `Spans`, or its arrays do not fit each other.
      RunFault: the table cannot be written, or is damaged again each time.
    """
    if cache_dir is None:
        chunks = list(_arrays(build()))
        return _spans({name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]})
    return sealed_cache.cached(Path(cache_dir) / f"plan-{fingerprint}", lambda directory: _save(
        build(), directory), _load, {"plan": fingerprint}, "the plan")


def _arrays(chunks: Iterable[Spans]) -> Iterator[dict[str, np.ndarray]]:
    """Yields the arrays of each chunk, whose offsets count the spans of the whole table. Raises Broken for one whose
    arrays do not fit each other: examples would hold other text."""
    begin = total = 0
    for chunk in chunks:
        if not isinstance(chunk, Spans):
            raise Broken(f"its spans give {type_of(chunk)}; expected Spans of lmrep.data.formats.base")
        examples, spans = len(chunk.offsets) - 1, len(chunk.starts)
        for name, value, expected in (
                ("offsets[0]", chunk.offsets[0], 0), ("offsets[-1]", chunk.offsets[-1], spans),
                ("len(lengths)", len(chunk.lengths), spans),
                *((f"len(columns[{name!r}])", len(column), examples) for name, column in chunk.columns.items())):
            if value != expected:
                raise Broken(f"its Spans have offsets of {examples:,} examples and starts of {spans:,} spans, and "
                             f"{name} is {value:,}; expected {expected:,}")
        yield {"offsets": chunk.offsets[begin:] + total, "starts": chunk.starts, "lengths": chunk.lengths,
               **chunk.columns}
        begin, total = 1, total + spans


def _spans(arrays: dict[str, np.ndarray]) -> Spans:
    return Spans(*(arrays.pop(name) for name in Spans._fields[:3]), arrays)


def _save(chunks: Iterable[Spans], directory: Path) -> None:
    """Writes the arrays of a table."""
    with contextlib.ExitStack() as stack:
        files = {}
        for arrays in _arrays(chunks):
            for name, array in arrays.items():
                if name not in files:
                    files[name] = stack.enter_context(growing_array(directory / f"{name}.npy", array.dtype))
                files[name](array)


def _load(directory: Path) -> Spans:
    """Opens the memory-mapped table in `directory`, whose files were verified. Raises Damaged if the files are not the
    arrays of a table."""
    try:
        return _spans({Path(name).stem: np.asarray(np.load(directory / name, mmap_mode="r", allow_pickle=False))
                       for name in manifest(directory)["files"]})
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise Damaged(f"an array cannot be read ({error})") from error


def table(
    spans: Callable[..., Iterator[Spans]], all_passes: bool = False,
    contiguous: Callable[[Any], bool] = lambda config: False,
) -> Callable[..., Plan]:
    """Returns the `FormatDef.plan` of a format whose examples are spans of the tokens of a store.

    Args:
      spans: (config, store, length, seed, layout) -> consecutive chunks of the table.
      all_passes: whether the table holds all `config.duplicates` passes, each with its own random choices. `spans`
        then yields one pass, and its seed is (seed, number of the pass). Otherwise the table is repeated.
      contiguous: config -> whether examples continue each other from batch to batch. The table then has the column
        `reset`, and batches have the fields `reset` and `following`.
    """
    def plan(
        config: Any, store: Store, length: int, seed: int, layout: Layout, fingerprint: str,
        cache_dir: str | os.PathLike | None = None, progress: Progress | None = None,
    ) -> Plan:
        def chunks() -> Iterator[Spans]:
            total = store.tokens * (config.duplicates if all_passes else 1)
            for pass_ in range(config.duplicates if all_passes else 1):
                for chunk in spans(config, store, length, (seed, pass_) if all_passes else seed, layout):
                    yield chunk
                    if progress and len(chunk.starts):
                        progress(pass_ * store.tokens + int(chunk.starts[chunk.offsets[-2]]), total)
            if progress:
                progress(total, total)

        rows = cached(chunks, fingerprint, cache_dir)
        return Plan(store, layout, length, fingerprint, rows, 1 if all_passes else config.duplicates,
                    contiguous(config))

    return plan
