"""The token store returns what was written, at any position, with any cache size and number of threads."""

import itertools
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from lmrep.core.errors import RunFault
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.store import token_store
from lmrep.data.store.token_store import RECORD, Store


def vocabulary(size):
    return Vocabulary(size, {}, np.ones(size, bool), np.zeros(size, np.int64))


def draw_documents(seed, count, size=1000):
    """Documents of sentences of ids; some sentences are empty, one is longer than a record."""
    rng = np.random.default_rng(seed)
    documents = [[rng.integers(0, size, rng.integers(0, 200)) for _ in range(rng.integers(0, 20))]
                 for _ in range(count)]
    return [*documents, [rng.integers(0, size, 2 * RECORD + 5)]]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A store of about eight records, its directory, its documents and its stream."""
    directory = tmp_path_factory.mktemp("store")
    documents = draw_documents(0, 30)
    stream = np.concatenate([sentence for document in documents for sentence in document])
    return token_store.write(directory, documents, vocabulary(1000), "validation", "name"), directory, documents, stream


def test_index_and_stream_restore_the_documents(written):
    opened, _, documents, stream = written
    assert opened.split == "validation" and opened.fingerprint == "name" and opened.tokens == len(stream)
    assert opened.tokens > 8 * RECORD
    assert opened.sentences.dtype == opened.documents.dtype == np.int64
    kept = [ids for document in documents if (ids := [s.tolist() for s in document if len(s)])]
    assert len(opened.documents) == len(kept) + 1 and len(opened.sentences) == sum(map(len, kept)) + 1
    for number, document in enumerate(kept):
        first, last = opened.documents[number : number + 2]
        bounds = opened.sentences[first : last + 1]
        assert [opened.take(np.arange(a, b)).tolist() for a, b in itertools.pairwise(bounds)] == document


def test_indices_stay_on_disk(written):
    assert isinstance(written[0].sentences, np.memmap) and isinstance(written[0].documents, np.memmap)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 100])
def test_take_does_not_depend_on_the_cache_size(written, slots):
    _, directory, _, stream = written
    opened = Store(directory, "validation", vocabulary(1000), cache_bytes=slots * RECORD * 2)
    assert len(opened._cache) <= slots
    rng = np.random.default_rng(slots)
    for shape in ((), (0,), (3, 0), (7,), (5, 40), (2, 3, 10)) * 5:
        index = rng.integers(0, len(stream), shape)
        taken = opened.take(index)
        assert taken.dtype == np.int32 and taken.shape == shape
        np.testing.assert_array_equal(taken, stream[index])
    np.testing.assert_array_equal(opened.take(np.arange(len(stream))), stream)


def test_cache_takes_a_fraction_of_the_free_memory_and_at_least_its_minimum(written, monkeypatch):
    _, directory, _, stream = written
    monkeypatch.setattr(token_store, "CACHE_BYTES", 2 * RECORD * 2)
    for memory, slots in ((None, 2), (0, 2), (16 * 5 * RECORD * 2, 5), (10**15, len(stream) // RECORD + 1)):
        monkeypatch.setattr(token_store, "available_memory", lambda memory=memory: memory)
        assert len(Store(directory, "validation", vocabulary(1000))._cache) == slots


def test_records_with_another_header_are_decoded_by_tfds(written):
    _, directory, _, stream = written
    opened = Store(directory, "validation", vocabulary(1000))
    opened._header = b"that of another version"
    np.testing.assert_array_equal(opened.take(np.arange(len(stream))), stream)
    assert opened._header and opened._header != b"that of another version"


def test_recently_used_records_stay_in_the_cache(written):
    _, directory, _, _ = written
    opened = Store(directory, "validation", vocabulary(1000), cache_bytes=2 * RECORD * 2)
    fetched, read = [], opened._read
    opened._read = lambda records: fetched.append(records.tolist()) or read(records)
    for record in (0, 1, 0, 2, 0, 1):  # 2 replaces 1, the least recently used, and 1 then replaces 2
        opened.take(np.array([record * RECORD]))
    assert fetched == [[0], [1], [2], [1]]


def test_several_threads_may_read_at_once(written):
    _, directory, _, stream = written
    opened = Store(directory, "validation", vocabulary(1000), cache_bytes=3 * RECORD * 2)
    wrong = []

    def ask(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            index = rng.integers(0, len(stream), (4, 1)) + np.arange(50)
            index %= len(stream)
            if not np.array_equal(opened.take(index), stream[index]):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("index", [[-1], [3, 10**9]])
def test_positions_out_of_range_are_refused(written, index):
    with pytest.raises(IndexError, match="positions"):
        written[0].take(np.array(index))
    written[0].take(np.array([0, written[0].tokens - 1]))


def test_large_vocabularies_and_empty_stores(tmp_path):
    wide = token_store.write(tmp_path / "wide", [[[2**16, 7, 2**17 - 1]]], vocabulary(2**17))
    assert wide.take(np.arange(3)).tolist() == [2**16, 7, 2**17 - 1]
    limit = token_store.write(tmp_path / "limit", [[[2**16 - 1]]], vocabulary(2**16))
    assert limit.take(np.array([0])).tolist() == [2**16 - 1] and limit._cache.itemsize == 2
    empty = token_store.write(tmp_path / "empty", [], vocabulary(10))
    assert (empty.tokens, empty.sentences.tolist(), empty.documents.tolist()) == (0, [0], [0])


def test_a_flipped_bit_is_never_read_as_a_token(tmp_path):
    rng = np.random.default_rng(0)
    stream = rng.integers(0, 1000, 3 * RECORD)
    token_store.write(tmp_path, [[stream]], vocabulary(1000))
    (file,) = tmp_path.glob("*array_record*")
    content = file.read_bytes()
    noticed = 0
    for _ in range(20):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        file.write_bytes(damaged)
        try:
            taken = Store(tmp_path, "train", vocabulary(1000)).take(np.arange(len(stream)))
            np.testing.assert_array_equal(taken, stream)
        except RunFault as fault:
            noticed += f"of {file} is damaged" in str(fault)
    assert noticed


UNK = 1
KNOWN = Vocabulary(1000, {"unk": UNK}, np.ones(1000, bool), np.zeros(1000, np.int64))


def write_parts(directory, stream, cuts):
    """A store joined from parts of one sentence each."""
    parts = [directory / f"part{number}" for number in range(len(cuts) + 1)]
    for number, (part, chunk) in enumerate(zip(parts, np.split(stream, cuts), strict=True)):
        before = parts[number - 1] if number else None
        with token_store.Writer(part, "train", 1000, before, number == len(cuts)) as writer:
            if len(chunk):
                writer.add(chunk.astype(np.uint16), np.array([len(chunk)]), np.array([1]))
    token_store.join(parts, directory, "train", 1000)
    for part in parts:
        shutil.rmtree(part)
    return Store(directory, "train", KNOWN)


@pytest.mark.parametrize("cuts", [[], [5], [RECORD, RECORD], [RECORD - 1, RECORD + 1, 3 * RECORD + 7], [0, 4 * RECORD]])
def test_joined_parts_equal_a_store_written_at_once(tmp_path, cuts):
    stream = np.random.default_rng(0).integers(2, 1000, 5 * RECORD + 3)
    joined = write_parts(tmp_path / "parts", stream, cuts)
    np.testing.assert_array_equal(joined.take(np.arange(len(stream))), stream)
    bounds = np.unique([0, *cuts, len(stream)])
    assert joined.sentences.tolist() == bounds.tolist() and joined.documents.tolist() == [*range(len(bounds))]
    assert (joined.sentences.dtype, joined.documents.dtype) == (np.int64, np.int64)


@pytest.mark.parametrize("damage", [lambda file, content: file.write_bytes(content[: len(content) // 2]),
                                    lambda file, content: file.write_bytes(bytes(len(content))),
                                    lambda file, content: file.unlink()])
def test_damaged_records_within_a_budget_are_reported_and_read_as_unknown(tmp_path, caplog, damage):
    stream = np.random.default_rng(0).integers(2, 1000, 10 * RECORD + 77)
    write_parts(tmp_path, stream, [3 * RECORD + 5, 7 * RECORD])
    file = tmp_path / "tokens-train.array_record-00001"  # its four records are 3 to 6 of the stream
    damage(file, file.read_bytes())
    positions = np.arange(len(stream))
    for budget in (0, 3):
        opened = Store(tmp_path, "train", KNOWN, damaged_records=budget)
        for _ in range(2):  # the second call raises the same error
            with pytest.raises(RunFault, match=rf"record {budget} of {file} is damaged .*delete {tmp_path},"):
                opened.take(positions)
        np.testing.assert_array_equal(opened.take(positions[: 3 * RECORD]), stream[: 3 * RECORD])
    caplog.clear()
    opened = Store(tmp_path, "train", KNOWN, damaged_records=4, cache_bytes=2 * RECORD * 2)
    expected = stream.copy()
    expected[3 * RECORD : 7 * RECORD] = UNK
    for _ in range(2):
        np.testing.assert_array_equal(opened.take(positions), expected)
    messages = [line.getMessage() for line in caplog.records if line.name == token_store.__name__]
    assert len(messages) == 4 and all(f"record {i} of {file}" in line for i, line in enumerate(messages))


def test_a_damaged_record_affects_no_other(tmp_path):
    stream = np.random.default_rng(0).integers(2, 1000, 10 * RECORD)
    token_store.write(tmp_path, [[stream]], KNOWN)
    (file,) = tmp_path.glob("*array_record*")
    content, hit = file.read_bytes(), set()
    for position in range(1000, 60_000, 6000):  # records are some 6 kB each
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        taken = Store(tmp_path, "train", KNOWN, damaged_records=1).take(np.arange(len(stream)))
        wrong = np.flatnonzero(taken != stream)
        (record,) = set((wrong // RECORD).tolist())
        assert len(wrong) == RECORD and (taken[wrong] == UNK).all()
        hit.add(record)
    assert hit == set(range(9))


SCRIPT = """
import sys
import numpy as np
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.store import prepare, token_store
heavy = {"tensorflow_datasets", "jax", "grain"} & set(sys.modules)
assert not heavy, f"importing lmrep.data brought in {heavy}"
vocabulary = Vocabulary(9, {}, np.ones(9, bool), np.zeros(9, np.int64))
assert token_store.write(sys.argv[1], [[[1, 2]]], vocabulary).take(np.array([1, 0])).tolist() == [2, 1]
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
def test_tensorflow_is_never_imported(tmp_path):
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True)
