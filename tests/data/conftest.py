"""A token store in memory, for the tests of formats and loader; files of labelled examples."""

from dataclasses import dataclass

import numpy as np
import pytest

from lmrep.core.vocabulary import Vocabulary

SPECIALS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


@dataclass
class MemoryStore:
    """Arrays with the interface of `lmrep.data.store.token_store.Store`."""

    stream: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    vocabulary: Vocabulary
    fingerprint: str = "memory"

    @property
    def tokens(self) -> int:
        return len(self.stream)

    def take(self, index: np.ndarray) -> np.ndarray:
        assert index.size == 0 or 0 <= index.min() <= index.max() < self.tokens
        return self.stream[index]


def make_store(documents: list[list[int]], specials: dict[str, int] = SPECIALS) -> MemoryStore:
    """A store of documents, described by the lengths of their sentences. Tokens are consecutive numbers after the
    special ids, so that a test can tell the position of each token of a batch in the store."""
    lengths = [n for document in documents for n in document]
    tokens, size = sum(lengths), sum(lengths) + len(SPECIALS)
    vocabulary = Vocabulary(size, specials, np.ones(size, bool), np.zeros(size, np.int64))
    return MemoryStore(
        stream=np.arange(len(SPECIALS), size, dtype=np.int32),
        sentences=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        documents=np.concatenate([[0], np.cumsum([len(d) for d in documents], dtype=np.int64)]).astype(np.int64),
        vocabulary=vocabulary,
        fingerprint=f"memory-{tokens}",
    )


def random_store(seed: int, documents: int, sentences: int = 12, tokens: int = 30) -> MemoryStore:
    """A store of random documents of 1 to `sentences` sentences of 1 to `tokens` tokens."""
    rng = np.random.default_rng(seed)
    return make_store([rng.integers(1, tokens + 1, rng.integers(1, sentences + 1)).tolist() for _ in range(documents)])


@pytest.fixture(scope="session", name="make_store")
def _make_store():
    return make_store


@pytest.fixture(scope="session", name="random_store")
def _random_store():
    return random_store


@pytest.fixture
def write(tmp_path, monkeypatch):
    """write(name, content) makes a file of str or bytes in the test's folder, which is the current one."""
    monkeypatch.chdir(tmp_path)

    def write_file(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return write_file
