"""Files of a corpus: found by a glob, here or in a remote store, opened, decompressed and fingerprinted.

A path with a protocol (`gs://`, `s3://`, `https://` ...) is read by fsspec, whose package for that protocol must be
installed. Whatever goes wrong is one UserError that names the file.
"""

import contextlib
import glob
import hashlib
import os
import posixpath
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from lmrep.core import remote
from lmrep.core.errors import UserError

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
CHECKSUMS = ("md5Hash", "crc32c", "ETag", "etag")  # what stores call theirs, the best first


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
      path: as a person would write it, with its protocol.
      name: its path from the folder that holds all files of the corpus.
      store: the fsspec file system of a remote one, else None.
      checksum: what the remote store gives for its content, or "".
      size: of a remote file, in bytes.
    """

    path: str
    name: str
    store: Any = field(default=None, repr=False)
    checksum: str = ""
    size: int = 0


def find(pattern: str, kind: str, example: str) -> list[Source]:
    """The files of a glob in order of their paths. Raises UserError where there is none."""
    if not pattern:
        raise UserError(f"data.corpus is {kind} but data.files is empty; expected a glob, such as "
                        f"--config.data.files={os.path.join('books', '**', example)!r}")
    return _remote(pattern, example) if "://" in pattern else _local(pattern, example)


def describe(sources: list[Source], pattern: str) -> str:
    """The files of a glob, for people."""
    return os.path.basename(sources[0].path) if len(sources) == 1 else f"{len(sources)} files of {pattern}"


def _local(pattern: str, example: str) -> list[Source]:
    path = os.path.expanduser(pattern)
    paths = [found for found in sorted(glob.glob(path, recursive=True)) if os.path.isfile(found)]
    if not paths:
        raise UserError(_nothing(pattern, os.getcwd(), os.path.isdir(path), os.path.join(path, "**", example)))
    top = os.path.commonpath([os.path.dirname(found) for found in paths])
    return [Source(found, os.path.relpath(found, top or ".")) for found in paths]


def _remote(pattern: str, example: str) -> list[Source]:
    with _translated(pattern):
        store, path = remote.store(pattern, "data.files", "gs://bucket/folder/*.txt")
        found = sorted((name, info) for name, info in store.glob(path, detail=True).items() if info["type"] == "file")
        if not found:
            raise UserError(_nothing(pattern, "that store", store.isdir(path), posixpath.join(pattern, "**", example)))
        top = posixpath.commonpath([posixpath.dirname(name) for name, _ in found])
        return [Source(store.unstrip_protocol(name), posixpath.relpath(name, top or "."), store,
                       next((f"{key} {info[key]}" for key in CHECKSUMS if info.get(key)), ""), info["size"] or 0)
                for name, info in found]


def _nothing(pattern: str, where: str, folder: bool, within: str) -> str:
    hint = f"it is a folder; try {within!r}" if folder else \
        "check the path, and quote the glob so that the shell leaves it alone"
    return f"data.files {pattern!r} matches no file in {where}; {hint}"


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Whatever a file or a store raises becomes a UserError that names the path."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        compressed = COMPRESSED.get(os.path.splitext(path)[1])
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if compressed and "Truncated" in reason:
            raise UserError(f"{path} ends in the middle of its {compressed} stream: what wrote or copied it was cut "
                            "short; copy it anew, or leave it out of data.files") from error
        if compressed and any(word in reason for word in ("zlib", "ZSTD")):
            raise UserError(f"{path} is no intact {compressed} file ({reason}); copy it anew, or leave it out of "
                            "data.files") from error
        if "://" not in path:
            if not isinstance(error, OSError):
                raise
            raise UserError(f"cannot read {path}: {reason}") from error
        raise UserError(f"cannot read {path}: {type(error).__name__}: {reason}; check the address, the network and the "
                        "credentials") from error


@contextlib.contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """The file's bytes as they lie."""
    with _translated(source.path), \
            (source.store.open(source.path, "rb") if source.store else open(source.path, "rb")) as file:
        yield file


@contextlib.contextmanager
def decompressed(source: Source) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed where its name ends as in COMPRESSED. Only as much as is read is held."""
    compression = COMPRESSED.get(os.path.splitext(source.path)[1])
    with opened(source) as file:
        if compression is None:
            yield file
            return
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), compression) as stream:
            yield stream


def fingerprint(sources: list[Source], *facts: str) -> str:
    """Names the content of files: their names, sizes and SHA-256, or the remote store's checksum where it has one.

    Names count from the folder that holds them all, so the same files elsewhere have the same fingerprint.
    """
    digest = hashlib.sha256("\0".join(facts).encode())
    with ThreadPoolExecutor() as pool:  # hashing leaves Python's lock: a gigabyte a second and core
        for source, (size, content) in zip(sources, pool.map(_content, sources), strict=True):
            digest.update(f"{source.name}\0{size}\0{content}\n".encode())
    return digest.hexdigest()


def _content(source: Source) -> tuple[int, str]:
    if source.checksum:
        return source.size, source.checksum
    with opened(source) as file:
        content = hashlib.sha256()
        while block := file.read(2**20):
            content.update(block)
        return file.tell(), content.hexdigest()
