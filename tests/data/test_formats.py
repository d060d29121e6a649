"""Formats: examples built token by token, and tables in a cache."""

import resource
import shutil

import numpy as np
import pytest

from lmrep.core.errors import RunFault
from lmrep.data.formats import cache
from lmrep.data.formats.base import Spans
from lmrep.data.formats.cache import cached
from lmrep.data.formats.plans import Plan
from tests.data.test_format_properties import TABLES, make


def example_by_hand(plan: Plan, number: int) -> dict[str, list | int]:
    """One example, built token by token."""
    lead, tail, pad, spans_per_segment = plan.layout
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
    for i, number in enumerate(numbers):
        expected = example_by_hand(plan, int(number))
        assert set(expected) == set(batch)
        for field, value in expected.items():
            np.testing.assert_array_equal(batch[field][i], value, err_msg=field)


def test_spans_shifted_by_one_token_are_rejected(random_store):
    plan = make("packed", random_store(0, 5))
    shifted = Spans(plan.spans.offsets, plan.spans.starts + 1, plan.spans.lengths - 1, {})
    wrong = Plan(plan.store, shifted, plan.layout, plan.length, "")
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


def test_a_table_that_cannot_be_written_leaves_no_files(random_store, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))  # writing fails, as on a full disk
    try:
        with pytest.raises(RunFault, match=r"cannot write the plan .*too large"):
            make("packed", random_store(0, 300), cache_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def flip_bit(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


def empty(path, rng):
    path.write_bytes(b"")


def truncate(path, rng):
    path.write_bytes(path.read_bytes()[: -int(rng.integers(1, 64))])


def extend(path, rng):
    path.write_bytes(path.read_bytes() + rng.bytes(8))


def remove(path, rng):
    path.unlink()


def make_directory(path, rng):
    path.unlink()
    path.mkdir()


def replace_by_sibling(path, rng):
    shutil.copy(rng.choice([other for other in path.parent.iterdir() if other != path]), path)


def remove_all(path, rng):
    for file in path.parent.iterdir():
        file.unlink()


def replace_directory(path, rng):
    shutil.rmtree(path.parent)
    path.parent.write_text("")


MUTATIONS = (flip_bit, flip_bit, empty, truncate, extend, remove, make_directory, replace_by_sibling, remove_all,
             replace_directory)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_table_is_built_again(seed, random_store, tmp_path, caplog):
    rng = np.random.default_rng(seed)
    name = ("packed", "segment_pair")[seed % 2]
    intact = make(name, random_store(0, 9))
    make(name, intact.store, cache_dir=tmp_path)
    directory = tmp_path / f"plan-{intact.fingerprint}"
    MUTATIONS[seed % len(MUTATIONS)](rng.choice(sorted(directory.iterdir())), rng)
    for time in range(2):
        caplog.clear()
        rebuilt = make(name, intact.store, cache_dir=tmp_path)
        assert ("is damaged and will be built again" in caplog.text) == (time == 0)
        for one, other in zip((*intact.spans[:3], *intact.spans.columns.values()),
                              (*rebuilt.spans[:3], *rebuilt.spans.columns.values()), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        assert [path.name for path in tmp_path.iterdir()] == [directory.name]


def test_the_table_of_another_plan_is_not_taken(random_store, tmp_path):
    one, other = (make("packed", random_store(seed, 9), cache_dir=tmp_path) for seed in (0, 1))
    shutil.rmtree(tmp_path / f"plan-{one.fingerprint}")
    shutil.copytree(tmp_path / f"plan-{other.fingerprint}", tmp_path / f"plan-{one.fingerprint}")
    rebuilt = make("packed", one.store, cache_dir=tmp_path)
    np.testing.assert_array_equal(rebuilt.spans.starts, make("packed", one.store).spans.starts)


def test_a_disk_that_damages_every_table_is_reported(random_store, tmp_path, monkeypatch):
    save = cache._save

    def save_and_damage(*args):
        save(*args)
        empty(args[1] / "starts.npy", None)

    monkeypatch.setattr(cache, "_save", save_and_damage)
    with pytest.raises(RunFault, match="was damaged 3 times; check the disk"):
        make("packed", random_store(0, 9), cache_dir=tmp_path)


def test_texts_are_between_begin_and_end_tokens(make_store):
    batch = make("lines", make_store([[2, 3]], {"bos": 0, "eos": 1}), length=6).gather(np.arange(2))
    assert batch["tokens"].tolist() == [[0, 5, 6, 1, 1, 1], [0, 7, 8, 9, 1, 1]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
