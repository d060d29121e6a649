"""The files of a split: found by a glob, decompressed, decoded, and split into lines."""

import codecs
import contextlib
import glob
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lmrep.core import remote
from lmrep.core.errors import UserError

BEGINNING = 2**16  # bytes by which a format is detected


def find(pattern: str, split: str) -> list[Path]:
    """The files and folders of a path or a glob, sorted. Raises UserError if there is none."""
    if remote.as_url(pattern):
        return _find_remote(pattern, split)
    path = os.path.expanduser(pattern)
    found = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    if not found:
        where = "" if os.path.isabs(path) else f" in {os.getcwd()}"
        raise UserError(f"the {split} files {pattern!r} match no file{where}; check the path, and quote a glob so that "
                        "the shell leaves it alone")
    if len(found) > 1:  # ** matches folders too
        found = [match for match in found if not os.path.isdir(match)] or found
    return [Path(match) for match in found]


def _find_remote(pattern: str, split: str) -> list[Path]:
    store, path = remote.file_system(pattern, f"config.data.{split}", "gs://bucket/folder/train.tsv")
    with remote.user_errors(pattern):
        found = sorted(name for name, info in store.glob(path, detail=True).items() if info["type"] == "file")
    if not found:
        raise UserError(f"the {split} files {pattern!r} match no file in that store; check the address")
    return [Path(store.unstrip_protocol(name)) for name in found]


def suffix(path: Path) -> str:
    """The last suffix of a file name in lower case, without .gz."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def beginning(path: Path, encoding: str) -> str:
    """The first BEGINNING bytes of a file as text; what cannot be decoded is left out."""
    with _opened(path) as file:
        return file.read(BEGINNING).decode(_codec(encoding), errors="ignore").removeprefix("\ufeff")


def lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a file, without line break (LF or CRLF) and byte order mark. Raises UserError with file and line."""
    codec = _codec(encoding)
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode(codec)
            except UnicodeDecodeError as error:
                raise UserError(_undecodable(path, number, error, encoding)) from error
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield text.removesuffix("\n").removesuffix("\r")


def text(path: Path, encoding: str) -> str:
    """A file's text without byte order mark; line breaks become LF. Raises UserError with file and line."""
    codec = _codec(encoding)
    with _opened(path) as file:
        content = file.read()
    try:
        return content.decode(codec).removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UserError(_undecodable(path, number, error, encoding)) from error


def _undecodable(path: Path, number: int, error: UnicodeDecodeError, encoding: str) -> str:
    return (f"{path}, line {number} is not {encoding.upper()} (byte 0x{error.object[error.start]:02x}); convert the "
            "file to UTF-8, or set config.data.encoding, such as latin-1 or cp1252")


def _codec(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
        if "\n\t".encode(name) == b"\n\t":
            return name
    except LookupError as error:
        raise UserError(f"config.data.encoding is {encoding!r}, which Python does not know; expected one such "
                        "as utf-8, latin-1 or cp1252") from error
    raise UserError(f"config.data.encoding is {encoding!r}, in which ASCII characters are not single bytes; convert "
                    "the files to UTF-8")


@contextlib.contextmanager
def _opened_remote(url: str) -> Iterator[BinaryIO]:
    store, path = remote.file_system(url, "the path", "gs://bucket/folder/train.tsv")
    with remote.user_errors(url), store.open(path, "rb") as file:
        yield file


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, decompressed if its name ends with .gz. A remote file has a URL as its path."""
    url = remote.as_url(path)
    try:
        with _opened_remote(url) if url else open(path, "rb") as file:
            if path.suffix.lower() == ".gz":
                with gzip.open(file) as stream:
                    yield stream
            else:
                yield file
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is not an intact gzip file ({error}); copy it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
