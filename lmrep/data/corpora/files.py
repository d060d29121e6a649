"""Finds, opens and fingerprints the files of a corpus, local or remote.

Paths with a protocol (`gs://`, `s3://`, `https://` ...) are read with fsspec and its package for that protocol. Every
failure raises UserError with the name of the file.
"""

import hashlib
import os
import posixpath
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from lmrep.core import hub, input_files, paths, remote, text_files
from lmrep.core.errors import UserError


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus."""

    path: str  # with its protocol
    name: str  # the path relative to the common folder of all files of the corpus
    store: Any = field(default=None, repr=False)  # the fsspec file system of a remote file; None if local
    checksum: str = ""  # the checksum of a remote file; "" if local, or if the store has none
    size: int = 0  # bytes of a remote file; 0 if local


def find(pattern: str, corpus: str, example: str) -> list[CorpusFile]:
    """Finds the files of a glob, in the order of their paths. Raises UserError if nothing matches, or if a match is not
    a regular file."""
    if not pattern:
        raise UserError(f"data.corpus is {corpus} but data.files is empty; expected a glob, such as "
                        f"--config.data.files={os.path.join('books', '**', example)!r}")
    if hub.is_address(pattern):
        return _local(hub.local(pattern, "data.files"), example)
    return _remote(pattern, example) if "://" in pattern else _local(pattern, example)


def describe(sources: list[CorpusFile], pattern: str) -> str:
    """Describes the files of a glob for messages."""
    return os.path.basename(sources[0].path) if len(sources) == 1 else f"{len(sources)} files of {pattern}"


def _local(pattern: str, example: str) -> list[CorpusFile]:
    # Broken links are ignored, except those of git-annex, whose content must be fetched.
    names = [name for name in paths.matches(pattern) if (os.path.exists(name) and not os.path.isdir(name)) or (
        os.path.islink(name) and not os.path.exists(name) and "annex/objects/" in os.readlink(name))]
    if not names:
        raise UserError(_no_match(pattern, "", os.path.isdir(pattern) and os.path.join(pattern, "**", example),
                                  paths.why_no_match(pattern)))
    for name in names:
        input_files.check_regular(name)
    top = os.path.commonpath([os.path.dirname(name) for name in names])
    return [CorpusFile(name, os.path.relpath(name, top or ".")) for name in names]


def _remote(pattern: str, example: str) -> list[CorpusFile]:
    with remote.user_errors(pattern):
        store, path = remote.file_system(pattern, "data.files", "gs://bucket/folder/*.txt")
        matches = sorted((name, info) for name, info in store.glob(path, detail=True).items() if info["type"] == "file")
        if not matches:
            within = posixpath.join(pattern, "**", example)
            raise UserError(_no_match(pattern, " in that store", store.isdir(path) and within, "check the address"))
        top = posixpath.commonpath([posixpath.dirname(name) for name, _ in matches])
        return [CorpusFile(store.unstrip_protocol(name), posixpath.relpath(name, top or "."), store,
                       remote.checksum(info), info["size"] or 0)
                for name, info in matches]


def _no_match(pattern: str, where: str, within: str, reason: str) -> str:
    """Makes the message for a glob without matches; `within` is the glob to suggest for a folder, or empty."""
    return f"data.files {pattern!r} matches no file{where}; {f'it is a folder; try {within!r}' if within else reason}"


def opened(source: CorpusFile) -> BinaryIO:
    """Opens a file's content, decompressed. Raises UserError as `input_files.open_input`, and for UTF-16 and UTF-32."""
    file = input_files.open_input(source.path, source.store)
    text_files.check_utf8(file.peek(4)[:4], source.path)
    return file


def fingerprint(sources: list[CorpusFile], *facts: str) -> str:
    """Computes the SHA-256 of the names, sizes and contents of files, and of `facts`. Remote files with a checksum are
    not read.

    Names are relative to the folder of all files, so that the same files elsewhere have the same fingerprint.
    """
    digest = hashlib.sha256("\0".join(facts).encode())
    with ThreadPoolExecutor() as pool:  # hashing releases the GIL
        for source, (size, content) in zip(sources, pool.map(_content, sources), strict=True):
            digest.update(f"{source.name}\0{size}\0{content}\n".encode())
    return digest.hexdigest()


def _content(source: CorpusFile) -> tuple[int, str]:
    if source.checksum:
        return source.size, source.checksum
    with input_files.open_bytes(source.path, source.store) as file:
        content = hashlib.sha256()
        while block := file.read(2**20):
            content.update(block)
        return file.tell(), content.hexdigest()
