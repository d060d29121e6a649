"""The token store of a split: a stream of token ids, divided into sentences and documents.

A store is a directory. The tokens are a TFDS dataset (ArrayRecord files, written by `SequentialWriter`, readable by any
TFDS installation) whose records hold `RECORD` tokens each, so that reading 128 tokens decodes one or two small records.
Two index files say where sentences and documents begin:

    sentences.npy  int64[n + 1]  offset of each sentence's first token in the stream; the last entry is the total
    documents.npy  int64[k + 1]  index into `sentences` of each document's first sentence; the last entry is n

For tokenizers of words with characters, `unknown_words.py` adds those outside of the vocabulary.

Positions are flat: token i of the stream is token i % RECORD of record i // RECORD. TensorFlow is never imported.

The records may lie in an object store (`remote_records.py`), of which each host reads those of its examples. Decoded
records are kept in a cache of limited size, wherever they lie.

A store is written in parts (`Writer`), each in a directory of its own, so that an interrupted build keeps those that
are complete; `join` moves their files into one store.
"""

import logging
import pathlib
import shutil
import threading
from collections.abc import Iterable, Sequence

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.core.files import manifest
from lmrep.core.host import available_memory
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.characters import utf8
from lmrep.data.store import unknown_words
from lmrep.data.store.offsets import save_offsets
from lmrep.data.store.unknown_words import UnknownTable, UnknownWords

RECORD = 4096  # tokens of a record: 8 kB
CACHE_BYTES = 256 * 2**20  # at least, where there is memory for more
CACHE_FRACTION = 1 / 16  # of the memory that is available; several processes of a host have a cache each

log = logging.getLogger(__name__)


def dtype(vocabulary_size: int) -> np.dtype:
    """Returns the smallest unsigned type of 16 or 32 bits that holds every id."""
    return np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.uint32)


def write(directory: str | pathlib.Path, documents: Iterable[Sequence[Sequence[int]]], vocabulary: Vocabulary,
          split: str = "train", fingerprint: str = "") -> "Store":
    """Writes documents, which are sequences of sentences, which are sequences of ids from `encode_batch`, to a store,
    and opens it."""
    part, words, unknown = pathlib.Path(directory) / "part", vocabulary.characters, None
    with Writer(part, split, vocabulary.size, last=True, characters=words is not None) as writer:
        for document in documents:
            lengths = np.array([len(sentence) for sentence in document if len(sentence)], np.int64)
            if not len(lengths):
                continue
            ids = np.concatenate(document)
            if words is not None:
                others = np.flatnonzero(ids >= vocabulary.size)
                unknown = UnknownWords(others, *utf8([words.word(i) for i in ids[others]]))
                ids = words.known(ids)
            writer.add(ids.astype(dtype(vocabulary.size)), lengths, np.array([len(lengths)]), unknown)
    join([part], directory, split, vocabulary.size)
    shutil.rmtree(part)
    return Store(directory, split, vocabulary, fingerprint)


class Writer:
    """A writer of one part of a store: a context manager that completes the part if no error occurs.

    A part is a TFDS dataset of full records and these files:

        sentences.npy  int64  tokens of each sentence
        documents.npy  int64  sentences of each document
        rest.npy       the tokens after its last full record, fewer than RECORD, with which the next part begins

    and the files of `unknown_words.save`, if there are any.

    It holds some records and the two indices in memory: 8 bytes per sentence.

    Args:
      directory: the directory of the part.
      split: the name of the split.
      vocabulary_size: the number of token ids.
      before: the directory of the previous part; None for the first.
      last: whether this is the last part, whose last record is padded with zeros. It always has a record, which TFDS
        expects of a dataset.
      characters: whether to keep the words outside of the vocabulary.
    """

    def __init__(self, directory: str | pathlib.Path, split: str, vocabulary_size: int,
                 before: str | pathlib.Path | None = None, last: bool = False, characters: bool = False):
        import tensorflow_datasets as tfds

        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._split, self._dtype, self._last = split, dtype(vocabulary_size), last
        # one shard per part, as `join` expects
        self._records = tfds.core.SequentialWriter(_info(self.directory, vocabulary_size), 2**62,
                                                   file_format="array_record")
        self._records.initialize_splits([split])
        self._pending = [np.zeros(0, self._dtype) if before is None else np.load(pathlib.Path(before) / "rest.npy")]
        self._waiting = len(self._pending[0])
        self._sentences, self._documents = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        self._unknown: list[UnknownWords] | None = [] if characters else None
        self._added = 0

    def add(self, tokens: np.ndarray, sentences: np.ndarray, documents: np.ndarray,
            unknown: UnknownWords | None = None) -> None:
        """Appends documents: their tokens [n], the number of tokens of each sentence, the number of sentences of each
        document, none of them empty, and their words outside of the vocabulary."""
        if self._unknown is not None:
            self._unknown.append(unknown._replace(positions=unknown.positions + self._added))
        self._added += len(tokens)
        self._pending.append(tokens)
        self._sentences.append(sentences)
        self._documents.append(documents)
        self._waiting += len(tokens)
        if self._waiting >= 256 * RECORD:
            self._flush()

    def _flush(self) -> None:
        stream = np.concatenate(self._pending)
        full = len(stream) // RECORD * RECORD
        records = stream[:full].reshape(-1, RECORD)
        self._records.add_examples({self._split: [{"tokens": record} for record in records]})
        self._pending, self._waiting = [stream[full:]], len(stream) - full

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, exception_type, *_) -> None:
        if exception_type is not None:
            try:
                self._records.close_all()
            except Exception:  # the first error is raised
                log.debug("closing %s", self.directory, exc_info=True)
            return
        if self._last:
            self._pending.append(np.zeros(RECORD - self._waiting % RECORD, self._dtype))
        self._flush()
        self._records.close_all()
        np.save(self.directory / "rest.npy", self._pending[0])
        np.save(self.directory / "sentences.npy", np.concatenate(self._sentences))
        np.save(self.directory / "documents.npy", np.concatenate(self._documents))
        if self._unknown is not None:
            unknown_words.save(self.directory, self._unknown)


def join(parts: Sequence[str | pathlib.Path], directory: str | pathlib.Path, split: str, vocabulary_size: int) -> None:
    """Makes a store of its parts, in order, by moving their records. Holds the indices of one part in memory.

    After an interruption it may be called again with the same arguments. The parts cannot be used afterwards.
    """
    parts, directory = [pathlib.Path(part) for part in parts], pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    shards, size = [], 0
    tokens = [int(np.load(part / "sentences.npy", mmap_mode="r").sum()) for part in parts]
    for part, records in zip(parts, records_of_parts(tokens), strict=True):
        if not records:
            continue
        source, target = part / shard_name(split, 0), directory / shard_name(split, len(shards))
        if source.exists() or not target.exists():
            source.replace(target)
        shards.append(records)
        size += target.stat().st_size
    for name in INDICES:
        save_offsets(directory / name, (np.load(part / name) for part in parts))
    unknown_words.join(parts, directory, tokens)
    write_info(directory, split, vocabulary_size, shards, size)


def records_of_parts(tokens: Sequence[int]) -> list[int]:
    """Returns the number of records of each part, given the number of tokens of each part."""
    ends = np.cumsum(tokens) // RECORD
    ends[-1] += 1  # the padded one
    return np.diff(ends, prepend=0).tolist()


def write_info(directory: pathlib.Path, split: str, vocabulary_size: int, shards: Sequence[int], size: int) -> None:
    """Writes the files with which TFDS opens the records: `shards` are the numbers of records of each file, and `size`
    is the sum of the bytes of these files."""
    import tensorflow_datasets as tfds

    info = _info(directory, vocabulary_size)
    template = tfds.core.ShardedFileTemplate(directory, template=TEMPLATE, dataset_name=info.name, split=split,
                                             filetype_suffix="array_record")
    info.set_file_format("array_record")
    info.set_splits(tfds.core.splits.SplitDict([tfds.core.SplitInfo(split, list(shards), size, template)]))
    info.write_to_directory(directory)


INDICES = ("sentences.npy", "documents.npy")
RECORDS = "*.array_record-*"  # the files of records
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"  # the file names of SequentialWriter


def shard_name(split: str, number: int) -> str:
    """Returns the name of a file of records."""
    return f"tokens-{split}.array_record-{number:05}"


def _info(directory: pathlib.Path, vocabulary_size: int):
    import tensorflow_datasets as tfds

    tokens = tfds.features.Tensor(shape=(RECORD,), dtype=dtype(vocabulary_size).type, encoding="bytes")
    identity = tfds.core.dataset_builder.dataset_info.DatasetIdentity(
        name="tokens", version=tfds.core.Version("1.0.0"), data_dir=str(directory), module_name=__name__)
    return tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict({"tokens": tokens}))


class Store:
    """Random access to the tokens of one split.

    Attributes:
      directory: the directory of the store.
      address: the folder of the records: `directory`, or a URL.
      split: "train", "validation" or "test".
      tokens: the number of tokens.
      sentences: int64[n + 1], memory-mapped; sentence i has the tokens `sentences[i]` up to `sentences[i + 1]`.
      documents: int64[k + 1], memory-mapped; document j has the sentences `documents[j]` up to `documents[j + 1]`.
      unknown: the words outside of the vocabulary; None for tokenizers without characters.
      vocabulary: the vocabulary of the ids.
      fingerprint: a hash that is equal for equal corpus, split, tokenizer and white space.

    Up to `damaged_records` unreadable records are read as unknown tokens, each with a warning that names it. Positions
    do not change, so a resumed run reads the same.

    Opening reads only the headers of the indices. Raises ValueError if they do not match the records.

    Args:
      url: the folder in an object store that has the records; None if `directory` has them.
      cache_bytes: of decoded records in memory; by default a fraction of the memory, and at least CACHE_BYTES.
    """

    def __init__(self, directory: str | pathlib.Path, split: str, vocabulary: Vocabulary, fingerprint: str = "",
                 cache_bytes: int | None = None, damaged_records: int = 0, url: str | None = None):
        import tensorflow_datasets as tfds

        if cache_bytes is None:
            cache_bytes = max(CACHE_BYTES, int(CACHE_FRACTION * (available_memory() or 0)))

        self.directory = directory = pathlib.Path(directory)
        self.address = url or directory
        self.split, self.vocabulary, self.fingerprint = split, vocabulary, fingerprint
        self.sentences = np.load(directory / "sentences.npy", mmap_mode="r")
        self.documents = np.load(directory / "documents.npy", mmap_mode="r")
        self.tokens = int(self.sentences[-1])
        self.unknown = None if vocabulary.characters is None else UnknownTable(directory, vocabulary)
        self._records = tfds.builder_from_directory(str(directory)).as_data_source(split)
        shard_lengths = self._records.dataset_info.splits[split].shard_lengths
        if url:
            from lmrep.data.store.remote_records import RemoteRecords

            sizes = manifest(directory.parent)["files"]
            names = [shard_name(split, number) for number in range(len(shard_lengths))]
            self._records.data_source = RemoteRecords(url, {
                name: (sizes[f"{split}/{name}"][0], records)
                for name, records in zip(names, shard_lengths, strict=True)})
        if self.documents[-1] != len(self.sentences) - 1 or len(self._records) != self.tokens // RECORD + 1:
            raise ValueError(f"{directory}: the index does not match the records")
        dtype = self._records.dataset_info.features["tokens"].np_dtype
        slots = max(1, min(len(self._records), cache_bytes // (RECORD * dtype.itemsize)))
        self._cache = np.empty((slots, RECORD), dtype)  # decoded records; memory is allocated as they are filled
        self._slot = np.full(len(self._records), -1, np.int32)  # the slot of a record in the cache, -1 if it has none
        self._record = np.full(slots, -1, np.int64)  # the record in a slot
        self._used = np.zeros(slots, np.int64)  # the request that last used a slot, by number
        self._clock = 0
        self._lock = threading.Condition()
        self._reading: set[int] = set()  # records that a thread is about to put into the cache
        self._ends = np.cumsum(shard_lengths)
        self._damaged, self._budget = set(), damaged_records
        self._header: bytes | None = None  # of the records that `_decode` has seen

    def take(self, index: np.ndarray) -> np.ndarray:
        """Reads the tokens at flat positions of the stream.

        `index` is an int array of any shape; the result is int32 of that shape. It may be called from several threads.
        Raises IndexError for a position outside of [0, tokens), and RunFault if more than `damaged_records` records are
        unreadable.
        """
        index = np.asarray(index)
        if not index.size:
            return np.zeros(index.shape, np.int32)
        flat = index.reshape(-1)
        if not (flat.min() >= 0 and flat.max() < self.tokens):
            raise IndexError(f"positions {index.min()} to {index.max()} are outside of the {self.tokens:,} tokens "
                             f"of split {self.split!r}")
        record = flat // RECORD
        # Neighbours are mostly of one record: each run of them is looked up once.
        first = np.flatnonzero(np.diff(record, prepend=-1))
        runs, lengths = record[first], np.diff(first, append=len(flat))
        with self._lock:
            slots = self._slots_of(runs)
            if slots is not None:
                shift = (slots - runs) * RECORD  # from a token's position in the stream to that in the cache
                tokens = self._cache.reshape(-1)[flat + np.repeat(shift, lengths)]
                return tokens.astype(np.int32).reshape(index.shape)
        halves = np.array_split(flat, 2)  # it needs more records than the cache holds
        return np.concatenate([self.take(half) for half in halves]).reshape(index.shape)

    def characters(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Returns the characters int16[n, c] of tokens int[n]. Words outside of the vocabulary are looked up by their
        `positions` in the stream, int64[n]. Only for tokenizers with characters."""
        rows = self.vocabulary.characters.table[tokens]
        unknown = np.flatnonzero(tokens == self.vocabulary.specials["unk"])
        rows[unknown] = self.unknown.take(positions[unknown])
        return rows

    def _slots_of(self, record: np.ndarray) -> np.ndarray | None:
        """Returns the slots of these records in the cache. Reads missing ones in place of the least recently used ones,
        meanwhile without the lock; None if they are more than half of the cache, as another thread needs the rest."""
        if len(np.unique(record)) > max(1, len(self._used) // 2):
            return None
        while True:
            self._clock += 1
            slots = self._slot[record]
            absent = slots < 0
            self._used[slots[~absent]] = self._clock
            missing = set(record[absent].tolist())
            if not missing:
                return slots
            if here := missing - self._reading:
                self._insert(np.array(sorted(here)))
            else:
                self._lock.wait()

    def _insert(self, missing: np.ndarray) -> None:
        """Reads records into the cache. Holds the lock at the beginning and at the end."""
        self._reading.update(missing.tolist())
        self._lock.release()
        try:
            records = self._read(missing)
        finally:
            self._lock.acquire()
            self._reading.difference_update(missing.tolist())
            self._lock.notify_all()
        free = np.argpartition(self._used, len(missing) - 1)[: len(missing)]
        evicted = self._record[free]
        self._slot[evicted[evicted >= 0]] = -1
        self._cache[free] = records
        self._slot[missing], self._record[free], self._used[free] = free, missing, self._clock

    def _read(self, records: np.ndarray) -> list[np.ndarray]:
        if self._damaged.isdisjoint(records.tolist()):
            try:
                return [*map(self._decode, self._records.data_source.__getitems__(records.tolist()))]
            except RunFault:
                raise
            except Exception:  # readers raise various errors for files that are missing, truncated or damaged
                log.debug("reading records one by one", exc_info=True)
        return [self._read_one(record) for record in records.tolist()]

    def _decode(self, encoded: bytes) -> np.ndarray:
        """Decodes the tokens of a record: its last bytes, after a header that TFDS writes. TFDS itself decodes the
        first record and records with another header, which takes ten times as long."""
        size = RECORD * self._cache.itemsize
        if self._header is None or encoded[:-size] != self._header:
            tokens = self._records.dataset_info.features.deserialize_example_np(encoded)["tokens"]
            self._header = encoded[:-size] if encoded[-size:] == tokens.tobytes() else None
            return tokens
        return np.frombuffer(encoded, self._cache.dtype, offset=len(encoded) - size)

    def _read_one(self, record: int) -> np.ndarray:
        """Reads a record; if it is unreadable and the budget allows it, returns unknown tokens."""
        if record not in self._damaged:
            try:
                return self._records.__getitems__([record])[0]["tokens"]
            except RunFault:
                raise
            except Exception as error:
                with self._lock:
                    self._allow(record, error)
        return np.full(RECORD, self.vocabulary.specials["unk"], self._cache.dtype)

    def _allow(self, record: int, error: Exception) -> None:
        """Warns of an unreadable record; raises RunFault if the budget does not allow it."""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        reason = "its checksum differs" if "NoneType" in reason else reason  # for which the readers return None
        shard = int(np.searchsorted(self._ends, record, side="right"))
        within = record - (int(self._ends[shard - 1]) if shard else 0)
        message = f"record {within:,} of {self.address}/{shard_name(self.split, shard)} is damaged ({reason})"
        if len(self._damaged) == self._budget:
            folder = self.directory.parent if (self.directory.parent / "counts.npy").exists() else self.directory
            fix = ("copy the store there again" if self.address != self.directory else
                   f"delete {folder}, and the next run builds it again")
            raise RunFault(f"{message}, and data.damaged_records is {self._budget}; {fix}, or set "
                           "--config.data.damaged_records to the number of records of a split that may be read as "
                           "unknown words")
        self._damaged.add(record)
        log.warning("%s; its %s tokens are read as unknown", message, f"{RECORD:,}")
