"""The functions of a pipeline's workers. One that is called again with the same arguments writes the same files."""

import functools
import json
import os
import pathlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare, scan, token_store
from lmrep.data.store.beam.folder import Folder
from lmrep.data.store.tokenize import DocumentBatch, tokenize


class Block(NamedTuple):
    """Consecutive documents of one reader, split and part; `number` counts the blocks of the reader."""

    reader: int
    number: int
    batch: DocumentBatch


class Tokens(NamedTuple):
    """A tokenized block."""

    split: str
    part: int
    reader: int
    number: int
    name: str  # the file with its arrays `tokens`, and the lengths `sentences` and `documents`
    tally: dict[str, int]  # `Tokenized.tally`


class File(NamedTuple):
    """A file of the store, with its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


def reader_file(folder: str, reader: int) -> str:
    """Returns the name of the file of a reader in a folder of the build."""
    return f"{folder}/{reader:06}"


def measure(item: tuple[int, corpora.Reader], work: Folder) -> tuple[int, int, dict[str, int]]:
    """Writes the hashes and lengths of a reader's documents to a file; returns (reader, documents, tally)."""
    number, reader = item
    tally: Counter[str] = Counter()
    positions, lengths = scan.measure(reader.read(tally), lambda characters: None)
    work.save(reader_file("scan", number), positions=positions, lengths=lengths)
    return number, len(positions), dict(tally)


def sample(item: tuple[int, corpora.Reader], work: Folder) -> int:
    """Writes the documents of a reader that the tokenizer is trained on to a file; returns the number of the reader."""
    number, reader = item
    with work.arrays(reader_file("plan", number)) as plan:
        positions, repeats = plan["positions"], plan["repeats"]
    texts = [text for text, times in zip(_texts(reader, positions), repeats, strict=True) if times]
    work.write(reader_file("sample", number), json.dumps(texts).encode())
    return number


def blocks(item: tuple[int, corpora.Reader], work: Folder, size: int) -> Iterator[Block]:
    """Yields the documents of a reader in blocks of about `size` characters."""
    number, reader = item
    with work.arrays(reader_file("plan", number)) as plan:
        positions, splits, parts = plan["positions"], plan["splits"], plan["parts"]
    documents = zip(parts, splits, _texts(reader, positions), strict=True)
    for i, batch in enumerate(prepare.batches(documents, size)):
        yield Block(number, i, batch)


def _texts(reader: corpora.Reader, positions: np.ndarray) -> Iterator[str]:
    return scan.unchanged(reader.read(Counter()), positions)


def tokenize_block(block: Block, work: Folder, keep_whitespace: bool, lines: bool, key: str,
                   alone: bool) -> tuple[Tokens, bytes]:
    """Tokenizes a block into a file. Returns its description, and how often each id occurs in the train split, as the
    bytes of int64[v] (empty for other splits).

    Args:
      block: the documents.
      work: the folder of the build, with the files of the tokenizer.
      keep_whitespace, lines: as for `tokenize`.
      key: identifies the tokenizer, which a process loads once.
      alone: whether no other worker runs on this machine, so that the library may use all cores.
    """
    if not alone:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer, batch = load_tokenizer(work, key), block.batch
    tokenized = tokenize(tokenizer, batch.texts, keep_whitespace, lines)
    name = f"tokens/{block.reader:06}-{block.number:06}-{batch.characters}"
    work.save(name, tokens=tokenized.tokens, sentences=tokenized.sentences, documents=tokenized.documents)
    counts = np.bincount(tokenized.tokens, minlength=tokenizer.size).tobytes() if batch.split == "train" else b""
    return Tokens(batch.split, batch.part, block.reader, block.number, name, tokenized.tally), counts


@functools.lru_cache(maxsize=1)
def load_tokenizer(work: Folder, key: str) -> tokenizers.Tokenizer:
    """Loads the tokenizer of the build."""
    with tempfile.TemporaryDirectory() as directory:
        for name in work.names("tokenizer"):
            path = pathlib.Path(directory, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(work.read(name))
        return tokenizers.load(pathlib.Path(directory, "tokenizer"))


def sum_counts(counts: Iterable[bytes]) -> bytes:
    """Adds arrays int64[v], as bytes. Empty ones count as zeros."""
    total = np.zeros(1, np.int64)
    for block in counts:
        total = total + np.frombuffer(block, np.int64) if block else total
    return total.tobytes() if len(total) > 1 else b""


def read_tokens(work: Folder, split: str) -> list[Tokens]:
    """Lists the tokenized blocks of a split, in the order of the corpus."""
    tokenized = (Tokens(*block) for block in json.loads(work.read("tokens.json")))
    return sorted((block for block in tokenized if block.split == split), key=lambda block: block[:4])


def tokens_of_parts(tokenized: Iterable[Tokens], parts: int) -> list[int]:
    """Counts the tokens of each part of a split."""
    tokens = [0] * parts
    for block in tokenized:
        tokens[block.part] += block.tally["tokens"]
    return tokens


def write_shard(item: tuple[str, int], work: Folder, done: Folder, parts: int, vocabulary_size: int) -> File:
    """Writes the file of the records of a (split, part) that has some."""
    split, part = item
    tokenized = read_tokens(work, split)
    tokens = tokens_of_parts(tokenized, parts)
    before = [block for block in tokenized if block.part < part]
    rest = _last_tokens(work, before, sum(tokens[:part]) % token_store.RECORD)
    number = sum(records > 0 for records in token_store.records_of_parts(tokens)[:part])
    with work.temporary() as temporary:
        (temporary / "before").mkdir()
        np.save(temporary / "before" / "rest.npy", rest.astype(token_store.dtype(vocabulary_size)))
        with token_store.Writer(temporary / "part", split, vocabulary_size, temporary / "before",
                                part == parts - 1) as writer:
            for block in tokenized:
                if block.part == part:
                    with work.arrays(block.name) as arrays:
                        writer.add(arrays["tokens"], arrays["sentences"], arrays["documents"])
        name = f"{split}/{token_store.shard_name(split, number)}"
        return File(name, *done.put(temporary / "part" / token_store.shard_name(split, 0), name))


def _last_tokens(work: Folder, tokenized: list[Tokens], number: int) -> np.ndarray:
    """Reads the last `number` tokens of blocks."""
    last: list[np.ndarray] = [np.zeros(0, np.uint16)]
    for block in reversed(tokenized):
        if not number:
            break
        with work.arrays(block.name) as arrays:
            last.append(arrays["tokens"][-number:])
        number -= len(last[-1])
    return np.concatenate(last[::-1])


def write_index(item: tuple[str, str], work: Folder, done: Folder) -> File:
    """Writes an index, (split, one of `token_store.INDICES`)."""
    split, name = item
    with work.temporary() as temporary:
        token_store.save_offsets(temporary / name, _lengths(work, split, name.removesuffix(".npy")))
        return File(f"{split}/{name}", *done.put(temporary / name, f"{split}/{name}"))


def _lengths(work: Folder, split: str, name: str) -> Iterator[np.ndarray]:
    for block in read_tokens(work, split):
        with work.arrays(block.name) as arrays:
            yield arrays[name]


def check_readable(readers: Iterable[corpora.Reader], runner: str) -> None:
    """Raises UserError if a worker on another machine cannot read the corpus."""
    for reader in readers:
        if "://" not in reader.path:
            what = f"is in {reader.path}, on this machine" if reader.path else "comes with this machine's Python"
            raise UserError(f"the corpus {what}, which the workers of {runner} cannot read; copy it to an object "
                            "store, and set --config.data.files or data.tfds_name to its address, gs://bucket/...")
