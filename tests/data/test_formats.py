"""Formats: examples built token by token, and tables in a cache."""


import numpy as np
import pytest

from lmrep.core.errors import RunFault
from lmrep.data.formats import plans
from lmrep.data.formats.base import Spans
from lmrep.data.formats.plans import Plan, cached
from tests.data.test_format_properties import TABLES, make


def example_by_hand(plan: Plan, number: int) -> dict[str, list | int]:
    """One example, built token by token."""
    lead, tail, pad, spans_per_segment, *_ = plan.layout
    row = number % plan.rows
    first, last = plan.spans.offsets[row : row + 2]
    entries, segment = [], 0  # (token, segment, position, type)
    for i in range(first, last):
        nth = (i - first) % spans_per_segment if spans_per_segment else i - first
        if nth == 0:
            segment, position = segment + 1, 0
        start, size = int(plan.spans.starts[i]), int(plan.spans.lengths[i])
        text = ([lead] if nth == 0 and lead is not None else []) + plan.store.stream[start : start + size].tolist()
        for token in [*text, tail]:
            entries.append((token, segment, position, nth if spans_per_segment == 2 else 0))
            position += 1
    if len(entries) == plan.length + 1:
        del entries[-1]  # the text continues in the next example
    entries += [(pad, 0, 0, 0)] * (plan.length - len(entries))
    columns = {name: column[row] for name, column in plan.spans.columns.items()}
    names = ("tokens", "segment_ids", "positions", "token_type_ids")
    return dict(zip(names, map(list, zip(*entries, strict=True)), strict=True)) | {"example": number} | columns


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("seed", range(2))
def test_gather_matches_examples_built_token_by_token(name, seed, random_store):
    rng = np.random.default_rng(seed)
    length = int(rng.integers(5, 70))
    plan = make(name, random_store(seed, documents=int(rng.integers(1, 30))), length, seed, duplicates=3)
    numbers = rng.integers(0, plan.examples, 40)
    batch = plan.gather(numbers)
    batch.pop("following", None)  # of contiguous plans; `test_formats_stream.py` has it
    assert np.all(batch.pop("rate_factor", 1) == 1)  # of windows, whose examples all have `length` tokens
    for i, number in enumerate(numbers):
        expected = example_by_hand(plan, int(number))
        assert set(expected) == set(batch)
        for field, value in expected.items():
            np.testing.assert_array_equal(batch[field][i], value, err_msg=field)


def test_spans_shifted_by_one_token_are_rejected(random_store):
    plan = make("packed", random_store(0, 5))
    shifted = Spans(plan.spans.offsets, plan.spans.starts + 1, plan.spans.lengths - 1, {})
    wrong = Plan(plan.store, plan.layout, plan.length, "", shifted)
    assert (wrong.gather(np.arange(2))["tokens"] != plan.gather(np.arange(2))["tokens"]).any()


def test_padding_uses_the_vocabularys_pad_token(make_store):
    specials = {"pad": 3, "cls": 0, "sep": 1}
    batch = make("packed", make_store([[2, 2]], specials), length=9).gather(np.array([0]))
    np.testing.assert_array_equal(batch["tokens"], [[0, 5, 6, 7, 8, 1, 3, 3, 3]])
    np.testing.assert_array_equal(batch["segment_ids"], [[1, 1, 1, 1, 1, 1, 0, 0, 0]])


def test_a_table_that_another_process_saved_first_is_used(random_store, tmp_path):
    spans = make("packed", random_store(0, 9)).spans

    def build_slowly():
        cached(lambda: [spans], "f", tmp_path)
        yield spans

    table = cached(build_slowly, "f", tmp_path)
    np.testing.assert_array_equal(table.starts, spans.starts)
    assert [p.name for p in tmp_path.iterdir()] == ["plan-f"]


@pytest.mark.parametrize("name", ["packed", "segment_pair"])
def test_a_damaged_table_is_built_again(name, random_store, tmp_path, caplog):
    """`tests/core/test_sealed_cache.py` has every kind of damage."""
    intact = make(name, random_store(0, 9))
    make(name, intact.store, cache_dir=tmp_path)
    for path in sorted((tmp_path / f"plan-{intact.fingerprint}").iterdir()):
        path.write_bytes(path.read_bytes()[:-9])
        for time in range(2):
            caplog.clear()
            rebuilt = make(name, intact.store, cache_dir=tmp_path)
            assert ("is damaged and will be built again" in caplog.text) == (time == 0)
            for one, other in zip((*intact.spans[:3], *intact.spans.columns.values()),
                                  (*rebuilt.spans[:3], *rebuilt.spans.columns.values()), strict=True):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype


def test_a_disk_that_damages_every_table_is_reported(random_store, tmp_path, monkeypatch):
    save = plans._save

    def save_and_damage(*args):
        save(*args)
        (args[1] / "starts.npy").write_bytes(b"")

    monkeypatch.setattr(plans, "_save", save_and_damage)
    with pytest.raises(RunFault, match="was damaged 3 times; check the disk"):
        make("packed", random_store(0, 9), cache_dir=tmp_path)


def test_texts_are_between_begin_and_end_tokens(make_store):
    batch = make("lines", make_store([[2, 3]], {"bos": 0, "eos": 1}), length=6).gather(np.arange(2))
    assert batch["tokens"].tolist() == [[0, 5, 6, 1, 1, 1], [0, 7, 8, 9, 1, 1]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
