"""The files of a corpus: found by a glob, local or remote, opened, decompressed and fingerprinted.

Paths with a protocol (`gs://`, `s3://`, `https://` ...) are read with fsspec and its package for that protocol. Every
failure is a UserError that names the file.
"""

import contextlib
import glob
import hashlib
import os
import posixpath
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from lmrep.core import remote
from lmrep.core.errors import UserError

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
SPECIAL_FILES = {stat.S_ISFIFO: "a named pipe", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device",
                 stat.S_ISBLK: "a device"}
VIRTUAL = ("/proc/", "/sys/")


@dataclass(frozen=True)
class Source:
    """One file.

    Attributes:
      path: with its protocol.
      name: its path relative to the folder of all files of the corpus.
      store: the fsspec file system of a remote file, otherwise None.
      checksum: of a remote file, if the store provides one, otherwise "".
      size: of a remote file, in bytes.
    """

    path: str
    name: str
    store: Any = field(default=None, repr=False)
    checksum: str = ""
    size: int = 0


def find(pattern: str, corpus: str, example: str) -> list[Source]:
    """The files of a glob in the order of their paths. Raises UserError if there is none, or one that is not a regular
    file of known size."""
    if not pattern:
        raise UserError(f"data.corpus is {corpus} but data.files is empty; expected a glob, such as "
                        f"--config.data.files={os.path.join('books', '**', example)!r}")
    return _remote(pattern, example) if "://" in pattern else _local(pattern, example)


def describe(sources: list[Source], pattern: str) -> str:
    """The files of a glob as text for people."""
    return os.path.basename(sources[0].path) if len(sources) == 1 else f"{len(sources)} files of {pattern}"


def _local(pattern: str, example: str) -> list[Source]:
    path = os.path.expanduser(pattern)
    paths = [match for match in sorted(glob.glob(path, recursive=True)) if os.path.exists(match)
             and not os.path.isdir(match)]
    if not paths:
        where = "" if os.path.isabs(path) else f" in {os.getcwd()}"
        raise UserError(_no_match(pattern, where, os.path.isdir(path), os.path.join(path, "**", example)))
    for match in paths:
        check_regular(match)
    top = os.path.commonpath([os.path.dirname(match) for match in paths])
    return [Source(match, os.path.relpath(match, top or ".")) for match in paths]


def check_regular(path: str) -> None:
    """Raises UserError, without reading, for a device, pipe or socket, and for a file whose size the system does not
    know, such as those in /proc: reading these may never end."""
    what = ""
    with _translated(path):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            what = next((name for test, name in SPECIAL_FILES.items() if test(status.st_mode)), "a special file")
        elif os.path.realpath(path).startswith(VIRTUAL):
            what = "a file of the system, of unknown size"
    if what:
        raise UserError(f"{path} is {what}; expected a regular file: leave it out of data.files, or copy its content "
                        "to a file")


def _remote(pattern: str, example: str) -> list[Source]:
    with _translated(pattern):
        store, path = remote.file_system(pattern, "data.files", "gs://bucket/folder/*.txt")
        matches = sorted((name, info) for name, info in store.glob(path, detail=True).items() if info["type"] == "file")
        if not matches:
            within = posixpath.join(pattern, "**", example)
            raise UserError(_no_match(pattern, " in that store", store.isdir(path), within))
        top = posixpath.commonpath([posixpath.dirname(name) for name, _ in matches])
        return [Source(store.unstrip_protocol(name), posixpath.relpath(name, top or "."), store,
                       remote.checksum(info), info["size"] or 0)
                for name, info in matches]


def _no_match(pattern: str, where: str, folder: bool, within: str) -> str:
    hint = f"it is a folder; try {within!r}" if folder else \
        "check the path, and quote the glob so that the shell leaves it alone"
    return f"data.files {pattern!r} matches no file{where}; {hint}"


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turns any exception of a file or a store into a UserError that names the path."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason, compression = str(error).partition("\n")[0], COMPRESSED.get(os.path.splitext(path)[1])
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        if compression and "Truncated" in reason:
            raise UserError(f"{path} ends in the middle of its {compression} stream, as after an interrupted copy; "
                            "copy it again, or leave it out of data.files") from error
        if compression and any(word in reason for word in ("zlib", "ZSTD")):
            raise UserError(f"{path} is not an intact {compression} file ({reason}); copy it again, or leave it out of "
                            "data.files") from error
        name = type(error).__name__
        if "://" in path:
            raise UserError(f"cannot read {path}: {name}: {reason or name}; check the address, the network and the "
                            "credentials") from error
        if isinstance(error, OSError):
            raise UserError(f"cannot read {path}: {reason or name}") from error
        raise


@contextlib.contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """The file's bytes, not decompressed."""
    with _translated(source.path), \
            (source.store.open(source.path, "rb") if source.store else open(source.path, "rb")) as file:
        yield file


@contextlib.contextmanager
def decompressed(source: Source) -> Iterator[BinaryIO]:
    """The file's bytes as a stream, decompressed if its suffix is in COMPRESSED."""
    compression = COMPRESSED.get(os.path.splitext(source.path)[1])
    with opened(source) as file:
        if compression is None:
            yield file
            return
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.PythonFile(file, "r"), compression) as stream:
            yield stream


def fingerprint(sources: list[Source], *facts: str) -> str:
    """SHA-256 of the names, sizes and contents of files, and of `facts`. Remote files with a checksum are not read.

    Names are relative to the folder of all files, so that the same files elsewhere have the same fingerprint.
    """
    digest = hashlib.sha256("\0".join(facts).encode())
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
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
