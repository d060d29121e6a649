"""The token store of one split: a long stream of token ids, cut into sentences and documents.

A store is a directory. The tokens are a TFDS dataset (ArrayRecord, written by `SequentialWriter`, readable by any
TFDS installation) whose records hold `RECORD` tokens each, so that fetching 128 tokens never decodes a novel. Beside
them two index files say where sentences and documents begin:

    sentences.npy  int64[n + 1]  offset of each sentence's first token in the stream; the last entry is the total
    documents.npy  int64[k + 1]  index into `sentences` of each document's first sentence; the last entry is n

Positions are flat: token i of the stream is number i % RECORD of record i // RECORD. TensorFlow is never imported.
"""

import pathlib
import threading
from collections.abc import Iterable, Sequence

import numpy as np

from lmrep.core.errors import RunFault
from lmrep.core.vocabulary import Vocabulary

RECORD = 4096  # tokens a record: 8 kB, 70 microseconds to fetch and decode
CACHE_BYTES = 256 * 2**20


def write(directory: str | pathlib.Path, documents: Iterable[Sequence[Sequence[int]]], vocabulary: Vocabulary,
          split: str = "train", fingerprint: str = "") -> "Store":
    """Writes documents, each a sequence of sentences, each a sequence of ids, and opens the store they make."""
    with Writer(directory, split, vocabulary.size) as writer:
        for document in documents:
            writer.add([np.asarray(sentence, np.int32) for sentence in document])
    return Store(directory, split, vocabulary, fingerprint)


class Writer:
    """Appends documents to a new store; a context manager that completes the store when it closes without an error.

    Holds one record and the two indices in memory: 8 bytes a sentence.
    """

    def __init__(self, directory: str | pathlib.Path, split: str, vocabulary_size: int):
        import tensorflow_datasets as tfds

        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        dtype = np.uint16 if vocabulary_size <= 2**16 else np.uint32
        tokens = tfds.features.Tensor(shape=(RECORD,), dtype=dtype, encoding="bytes")
        identity = tfds.core.dataset_builder.dataset_info.DatasetIdentity(
            name="tokens", version=tfds.core.Version("1.0.0"), data_dir=str(self.directory), module_name=__name__)
        info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict({"tokens": tokens}))
        self._records = tfds.core.SequentialWriter(info, max_examples_per_shard=2**17, file_format="array_record")
        self._records.initialize_splits([split])
        self._split, self._dtype, self._pending, self._waiting = split, dtype, [], 0
        self._ends, self._documents = [np.zeros(1, np.int64)], [0]
        self._tokens = self._sentences = 0

    def add(self, document: Sequence[np.ndarray]) -> None:
        """Appends a document, an int array of token ids a sentence. Empty sentences and documents leave no trace."""
        document = [sentence for sentence in document if len(sentence)]
        if not document:
            return
        ends = self._tokens + np.cumsum([len(sentence) for sentence in document], dtype=np.int64)
        self._ends.append(ends)
        self._tokens, self._sentences = int(ends[-1]), self._sentences + len(document)
        self._documents.append(self._sentences)
        self._pending.extend(document)
        self._waiting += sum(map(len, document))
        if self._waiting >= 64 * RECORD:
            self._flush()

    def _flush(self, last: bool = False) -> None:
        stream = np.concatenate([*self._pending, np.zeros(0, np.int32)]).astype(self._dtype)
        if last:  # zeros that no index reaches fill the last record; there always is one, as TFDS wants
            stream = np.pad(stream, (0, RECORD - len(stream) % RECORD))
        whole = len(stream) // RECORD * RECORD
        rows = stream[:whole].reshape(-1, RECORD)
        self._records.add_examples({self._split: [{"tokens": row} for row in rows]})
        self._pending, self._waiting = [stream[whole:]], len(stream) - whole

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self._flush(last=True)
            np.save(self.directory / "sentences.npy", np.concatenate(self._ends))
            np.save(self.directory / "documents.npy", np.asarray(self._documents, np.int64))
        self._records.close_all()


class Store:
    """Random access to the tokens of one split.

    Attributes:
      split: its name, "train", "validation" or "test".
      tokens: how many tokens the stream holds.
      sentences: int64[n + 1], memory-mapped; sentence i is the tokens `sentences[i]` up to `sentences[i + 1]`.
      documents: int64[k + 1], memory-mapped; document j is the sentences `documents[j]` up to `documents[j + 1]`.
      vocabulary: what the ids mean.
      fingerprint: names the content: equal for equal corpus, split and tokenizer, and for nothing else.

    Opening reads the indices' headers alone. Raises ValueError where the index does not fit the records.
    """

    split: str
    tokens: int
    sentences: np.ndarray
    documents: np.ndarray
    vocabulary: Vocabulary
    fingerprint: str

    def __init__(self, directory: str | pathlib.Path, split: str, vocabulary: Vocabulary, fingerprint: str = "",
                 cache_bytes: int = CACHE_BYTES):
        import tensorflow_datasets as tfds

        self._directory = directory = pathlib.Path(directory)
        self.split, self.vocabulary, self.fingerprint = split, vocabulary, fingerprint
        self.sentences = np.load(directory / "sentences.npy", mmap_mode="r")
        self.documents = np.load(directory / "documents.npy", mmap_mode="r")
        self.tokens = int(self.sentences[-1])
        self._records = tfds.builder_from_directory(str(directory)).as_data_source(split)
        if self.documents[-1] != len(self.sentences) - 1 or len(self._records) != self.tokens // RECORD + 1:
            raise ValueError(f"{directory}: the index does not fit the records")
        dtype = self._records.dataset_info.features["tokens"].np_dtype
        slots = max(1, min(len(self._records), cache_bytes // (RECORD * dtype.itemsize)))
        self._cache = np.empty((slots, RECORD), dtype)  # decoded records; the system gives pages as they are filled
        self._slot = np.full(len(self._records), -1, np.int32)  # where a record lies in the cache, -1 where it does not
        self._record = np.full(slots, -1, np.int64)  # the record that a slot holds
        self._used = np.zeros(slots, np.int64)  # when a slot was last asked for, counted in requests
        self._clock = 0
        self._lock = threading.Lock()

    def take(self, index: np.ndarray) -> np.ndarray:
        """The tokens at flat positions of the stream.

        `index` is an int array of any shape; the result is int32 of that shape. Any number of threads may ask at
        once. Raises IndexError for a position outside of [0, tokens), RunFault where the files are damaged.
        """
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and index.max() < self.tokens):
            raise IndexError(f"positions {index.min()} to {index.max()} asked of the {self.tokens:,} tokens "
                             f"of split {self.split!r}")
        record = index // RECORD
        with self._lock:
            slots = self._slots_of(record)
            if slots is not None:
                return self._cache[slots, index - record * RECORD].astype(np.int32)
        halves = np.array_split(index.reshape(-1), 2)  # it needs more records than the cache holds
        return np.concatenate([self.take(half) for half in halves]).reshape(index.shape)

    def _slots_of(self, record: np.ndarray) -> np.ndarray | None:
        """Where in the cache these records lie. Brings in those that are missing, in place of the ones unused for
        longest; None where the cache is too small for all of them at once."""
        self._clock += 1
        slots = self._slot[record]
        absent = slots < 0
        if not absent.any():
            self._used[slots] = self._clock
            return slots
        self._used[slots[~absent]] = self._clock
        missing = np.unique(record[absent])
        if len(missing) > len(self._used):
            return None
        free = np.argpartition(self._used, len(missing) - 1)[: len(missing)]
        if self._used[free].max() == self._clock:
            return None
        rows = self._read(missing)
        evicted = self._record[free]
        self._slot[evicted[evicted >= 0]] = -1
        self._cache[free] = rows
        self._slot[missing], self._record[free], self._used[free] = free, missing, self._clock
        return self._slot[record]

    def _read(self, records: np.ndarray) -> list[np.ndarray]:
        try:
            return [record["tokens"] for record in self._records.__getitems__(records.tolist())]
        except Exception as error:
            raise RunFault(f"cannot read the token store at {self._directory}: {error}; delete that directory, "
                           "and the next run builds it anew") from error
