"""Stores whose records lie in an object store: hosts read the batches of one host, and the bytes of these alone."""

import os
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from lmrep.core import object_store, remote
from lmrep.core.errors import RunFault
from lmrep.core.files import seal
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import plan
from lmrep.data.formats.packed import Packed
from lmrep.data.formats.stream import Stream
from lmrep.data.loader import batches, evaluation_batches
from lmrep.data.store import token_store
from lmrep.data.store.remote_records import BLOCK, RemoteRecords
from lmrep.data.store.token_store import RECORD, Store
from tests.data.test_loader import assert_same
from tests.storage import emulators

SHARDS, RECORDS, BATCH, LENGTH = 3, 20, 8, 64
VOCABULARY = Vocabulary(1000, {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4, "eos": 3, "bos": 2},
                        np.ones(1000, bool), np.zeros(1000, np.int64))


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A store on the disk, of documents of one sentence of 200 tokens."""
    folder, rng = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    parts, sentences = [folder / str(part) for part in range(SHARDS)], np.full(RECORDS * RECORD // 200, 200)
    for number, part in enumerate(parts):
        before = parts[number - 1] if number else None
        with token_store.Writer(part, "train", 1000, before, number == SHARDS - 1) as writer:
            writer.add(rng.integers(5, 1000, sentences.sum(), np.uint16), sentences, np.ones_like(sentences))
    token_store.join(parts, folder / "data/train", "train", 1000)
    seal(folder / "data", {})
    return Store(folder / "data/train", "train", VOCABULARY)


@pytest.fixture(params=["memory", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "gs"))])
def place(request, local, tmp_path, monkeypatch):
    """The same store in an object store: `open(**options)` opens it as another host does, and `requests` are the
    ranges that all hosts have read."""
    emulator, requests, read = None, [], object_store.RangeReader.read
    if request.param != "memory":
        kind = {"s3": emulators.S3, "gs": emulators.GoogleCloudStorage}[request.param]
        emulator = emulators.started(kind, tmp_path / "emulator")
        for name, value in emulator.environment.items():
            monkeypatch.setenv(name, value)
    files = remote.Store(f"{kind.url if emulator else 'memory://data'}/{uuid.uuid4().hex}", "", "")
    for path in local.directory.iterdir():
        files.upload(path, path.name)

    def record(self, ranges):
        contents = read(self, ranges)
        requests.extend(ranges)
        return contents

    monkeypatch.setattr(object_store.RangeReader, "read", record)
    monkeypatch.setattr(remote, "PAUSE", 0.05)
    yield SimpleNamespace(files=files, emulator=emulator, requests=requests, open=lambda **options: Store(
        local.directory, "train", VOCABULARY, url=files.url, **options))
    if emulator:
        emulator.stop()


def examples(store, contiguous=False):
    form = ("stream", Stream(order="contiguous")) if contiguous else ("packed", Packed())
    return plan(*form, store, LENGTH, 0)


def run_of(store, indices=range(BATCH), first=0, last=6, contiguous=False):
    return list(batches(examples(store, contiguous), batch_size=BATCH, indices=np.array(indices), seed=3,
                        first_step=first, last_step=last))


def bytes_of(ranges):
    return sum(stop - start for _, start, stop in ranges)


def records_read(place):
    """The ranges of records: all but the end of each file."""
    sizes = {name: size for name, (size, _) in place.files.details().items()}
    return [(name, start, stop) for name, start, stop in place.requests if stop < sizes[name]]


@pytest.mark.parametrize("contiguous", [False, True])
def test_hosts_read_the_batches_of_one_and_their_own_records_once(local, place, contiguous):
    expected, pages = run_of(local, contiguous=contiguous), []
    for indices in (range(4), range(4, 8)):
        store = place.open()
        del place.requests[:]
        assert_same(run_of(store, indices, contiguous=contiguous),
                    [{name: values[indices] for name, values in batch.items()} for batch in expected])
        taken = 6 * len(indices)
        ranges = records_read(place)
        assert len(set(ranges)) == len(ranges) <= 2 * taken and len(place.requests) <= len(ranges) + SHARDS
        assert all(stop - start < 2 * RECORD for _, start, stop in ranges)
        pages.append(sum(os.fstat(file).st_blocks * 512 for file in store._records.data_source._descriptors))
    assert max(pages) <= SHARDS * 3 * BLOCK  # the ends of the files; no record stays


def test_evaluation_reads_every_record_once(local, place):
    def all_of(store):
        return list(evaluation_batches(examples(store), batch_size=BATCH, indices=np.arange(BATCH)))

    assert_same(all_of(place.open()), all_of(local))
    ranges = records_read(place)
    assert len(ranges) == len(set(ranges)) == len(local._slot)
    assert bytes_of(ranges) < local.tokens * 2


def test_a_cache_of_few_records_changes_nothing_and_reads_them_again(local, place):
    store = place.open(cache_bytes=4 * RECORD * 2)
    assert_same(run_of(store), run_of(local))
    assert store._cache.nbytes <= 4 * RECORD * 2 and len(set(place.requests)) < len(place.requests)


def test_a_resumed_run_reads_as_little_as_a_new_one(local, place):
    late = run_of(place.open(), first=10**6, last=10**6 + 2)
    assert_same(late, run_of(local, first=10**6, last=10**6 + 2))
    assert len(place.requests) <= SHARDS + 2 * 2 * BATCH


def test_a_store_that_fails_once_is_asked_again(local, place, monkeypatch, caplog):
    store, read, failures = place.open(), object_store.RangeReader.read, [OSError("refused"), None, OSError("again")]

    def fail(self, ranges):
        if failures and (failure := failures.pop()):
            raise failure
        return read(self, ranges)

    monkeypatch.setattr(object_store.RangeReader, "read", fail)
    assert_same(run_of(store), run_of(local))
    assert not failures and f"{place.files.url} refuses: OSError: again; trying again" in caplog.text
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    monkeypatch.setattr(object_store.RangeReader, "read", fail_always)
    with pytest.raises(RunFault, match=f"{place.files.url} cannot be read: OSError: down; run again when"):
        place.open().take(np.array([0]))


def fail_always(self, ranges):
    raise OSError("down")


def test_a_server_that_stops_is_waited_for(local, place, monkeypatch):
    if place.emulator is None:
        pytest.skip("needs a server")
    store = place.open()
    store.take(np.array([0]))
    place.emulator.stop()
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    with pytest.raises(RunFault, match="cannot be read"):
        store.take(np.arange(local.tokens))
    place.emulator.start()
    np.testing.assert_array_equal(store.take(np.arange(local.tokens)), local.take(np.arange(local.tokens)))


def test_damage_names_the_file_and_is_read_as_unknown_within_the_budget(local, place):
    name, positions = token_store.shard_name("train", 1), np.arange(local.tokens)
    content, expected = place.files.read(name), local.take(positions)
    before = (RECORDS - 1) * RECORD  # in the first file
    flips = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (30_000, 70)]
    # The emulator of Google Cloud Storage gives another answer than the service to a range after the end of a file.
    cut = () if place.files.url.startswith("gs:") else (content[: len(content) // 2], b"")
    for change in (*flips, content[:-1], bytes(len(content)), *cut, None):
        place.files.remove(name) if change is None else place.files.write(name, change)
        with pytest.raises(RunFault, match=rf"record \d+ of {place.files.url}/{name} is damaged .*; copy the"):
            place.open().take(positions)
        np.testing.assert_array_equal(place.open().take(positions[:before]), expected[:before])
    for change in flips:
        place.files.write(name, change)
        taken = place.open(damaged_records=1).take(positions)
        wrong = np.flatnonzero(taken != expected)
        assert len(set((wrong // RECORD).tolist())) == 1 and (taken[wrong] == 1).all()


def test_an_index_of_many_records_is_read(tmp_path):
    count = 30_000
    records = [bytes([i % 251]) * (1 + i % 9) for i in range(count)]
    writer = ArrayRecordWriter(str(tmp_path / "many"), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    content = (tmp_path / "many").read_bytes()
    files = remote.Store(f"memory://data/{uuid.uuid4().hex}", "", "")
    files.write("many", content)
    opened = RemoteRecords(files.url, {"many": (len(content), count)})
    wanted = [*range(0, count, 997), count - 1]
    assert opened.__getitems__(wanted) == [records[i] for i in wanted]
