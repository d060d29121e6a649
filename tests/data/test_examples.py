"""Sequences of labelled examples, against the same built one token at a time."""

from itertools import combinations

import numpy as np
import pytest

from lmrep.data.records import examples as records
from lmrep.data.records.examples import arrange
from tests.data.test_mixed_examples import units
from tests.tasks import tiny

COUNT = 60


def labelled(source):
    """Units with a value for each unit, an array for each unit, and a number for each token."""
    drawn, draw = units(COUNT, 3), np.random.default_rng(0)
    columns = drawn.columns | {"parts": draw.random((COUNT, 2)).astype(np.float32),
                               "tags": draw.integers(0, 5, len(drawn.tokens))}
    return drawn._replace(
        columns=columns, token_columns=("tags",), source=drawn.source if source else None,
        token_types=draw.integers(0, 2, len(drawn.tokens)).astype(np.int8), example=np.arange(COUNT, dtype=np.int32))


def by_hand(own, numbers, members, length, group, slots):
    """name -> array, of the units `members[number]` of each sequence."""
    shape = (len(numbers), group, length) if group else (len(numbers), length)
    tokenwise = {name: np.full(shape, padding) for name, padding in (
        ("tokens", 0), ("segment_ids", 0), ("positions", 0), ("token_type_ids", 0), ("tags", -1))}
    unitwise = {name: np.full((len(numbers), slots), padding) for name, padding in (
        ("unit", -1), ("known", -1), ("first", 0), ("last", 0))}
    parts = np.full((len(numbers), slots, 2), -1.0)
    for row, number in enumerate(numbers):
        begin = 0
        for slot, unit in enumerate(members[number] if number >= 0 else ()):
            line = {name: array[row, slot] if group else array[row] for name, array in tokenwise.items()}
            begin = 0 if group else begin
            first, last = own.offsets[unit : unit + 2]
            for at, token in enumerate(range(first, last), begin):
                line["tokens"][at], line["segment_ids"][at] = own.tokens[token], 1 if group else slot + 1
                line["positions"][at], line["token_type_ids"][at] = at - begin, own.token_types[token]
                line["tags"][at] = own.columns["tags"][token]
            unitwise["unit"][row, slot], unitwise["known"][row, slot] = unit, own.columns["known"][unit]
            unitwise["first"][row, slot], unitwise["last"][row, slot] = begin, begin + last - first - 1
            parts[row, slot] = own.columns["parts"][unit]
            begin += last - first
    return tokenwise | unitwise | {"parts": parts, "example": np.array(numbers)}


@pytest.mark.parametrize(("packed", "group", "source"), [(0, 0, False), (64, 0, False), (0, 3, False), (64, 0, True)])
def test_sequences_hold_their_units_and_columns(packed, group, source):
    own = labelled(source)
    examples = arrange(own, tiny.tokenizer().vocabulary, 0, "", packed, group)
    members = [examples.order[a:b].tolist() for a, b in zip(examples.rows[:-1], examples.rows[1:], strict=True)]
    assert sorted(unit for sequence in members for unit in sequence) == list(range(COUNT))  # each unit in one sequence
    assert (max(map(len, members)) > 1) == bool(packed or group)
    assert not group or all(sequence == list(range(sequence[0], sequence[0] + group)) for sequence in members)
    numbers = np.array([-1, *range(examples.examples), -1])
    batch = examples.gather(numbers)
    expected = by_hand(own, numbers, members, examples.length, group, examples.slots)
    for name, array in expected.items():
        np.testing.assert_allclose(batch[name], array, err_msg=name)
    if not source:
        assert set(batch) == set(expected)
        return
    for row, number in enumerate(numbers):
        texts = [own.source.tokens[slice(*own.source.offsets[unit : unit + 2])] for unit in
                 (members[number] if number >= 0 else ())]
        size = sum(map(len, texts))
        assert batch["source"]["tokens"][row, :size].tolist() == [i for text in texts for i in text.tolist()]
        assert batch["source"]["segment_ids"][row].tolist() == [
            slot for slot, text in enumerate(texts, 1) for _ in text] + [0] * (examples.length - size)
        assert batch["source"]["positions"][row, :size].tolist() == [i for text in texts for i in range(len(text))]


def test_every_epoch_has_its_batches_in_another_order():
    examples = arrange(units(304, 0), tiny.tokenizer().vocabulary, 0, "")
    epochs = examples.numbers(np.arange(5 * 304), 8, 3).reshape(5, -1, 8)
    assert all(sorted(epoch.ravel()) == list(range(304)) for epoch in epochs)
    assert len({int(examples.lengths[epoch].sum(axis=1).argmax()) for epoch in epochs}) > 2  # where the longest are


@pytest.mark.parametrize("program", [0, 100, 1000, 10**6])
def test_the_padded_lengths_cost_least(monkeypatch, program):
    """Against all subsets. Free programs pad to every length; dear ones leave a single length."""
    monkeypatch.setattr(records, "PROGRAM", program)
    examples = arrange(units(COUNT, 3)._replace(source=None), tiny.tokenizer().vocabulary, 0, "")
    candidates = [bucket for bucket in records.BUCKETS if bucket <= examples.length]
    used = {next(bucket for bucket in candidates if bucket >= length) for length in examples.lengths}

    def cost(lengths):
        padded = [next(length for length in lengths if length >= tokens) for tokens in examples.lengths]
        return sum(padded) + program * len(lengths)

    subsets = [(*some, examples.length) for k in range(len(candidates)) for some in combinations(candidates[:-1], k)]
    chosen = {examples.bucket(length) for length in examples.lengths}
    assert cost(sorted(chosen)) == min(map(cost, subsets))
    assert chosen == {0: used, 10**6: {examples.length}}.get(program, chosen)
