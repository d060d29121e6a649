"""The files of a split: found by a glob, decompressed, decoded, and split into lines."""

import codecs
import contextlib
import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lmrep.core import remote
from lmrep.core.errors import UserError

MARKS = {"utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)}
BEGINNING = 2**16  # bytes by which a format is detected


def find(pattern: str, split: str) -> list[Path]:
    """The files and folders of a path or a glob, sorted, or of several of them between commas, in their order and each
    once. Raises UserError if one of them has none."""
    if not remote.as_url(pattern) and (matches := _matches(pattern)):  # commas may be part of a name
        return matches
    several = list(filter(None, map(str.strip, re.split(r",(?![^{]*\})", pattern))))  # {a,b} is one glob
    return list(dict.fromkeys(path for one in several or [pattern] for path in _find(one, split)))


def _find(pattern: str, split: str) -> list[Path]:
    if remote.as_url(pattern):
        return _find_remote(pattern, split)
    if not (matches := _matches(pattern)):
        path = os.path.expanduser(pattern)
        where = "" if os.path.isabs(path) else f" in {os.getcwd()}"
        raise UserError(f"the {split} files {pattern!r} match no file{where}; check the path, and quote a glob so that "
                        "the shell leaves it alone")
    return matches


def _matches(pattern: str) -> list[Path]:
    """The local files and folders of a path or a glob, sorted."""
    path = os.path.expanduser(pattern)
    names = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
    if len(names) > 1:  # ** matches folders too
        names = [name for name in names if not os.path.isdir(name)] or names
    return [Path(name) for name in names]


def _find_remote(pattern: str, split: str) -> list[Path]:
    store, path = remote.file_system(pattern, f"config.data.{split}", "gs://bucket/folder/train.tsv")
    with remote.user_errors(pattern):
        names = sorted(name for name, info in store.glob(path, detail=True).items() if info["type"] == "file")
    if not names:
        raise UserError(f"the {split} files {pattern!r} match no file in that store; check the address")
    return [Path(store.unstrip_protocol(name)) for name in names]


def suffix(path: Path) -> str:
    """The last suffix of a file name in lower case, without .gz."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def beginning(path: Path, encoding: str) -> str:
    """The first BEGINNING bytes of a file as text; what cannot be decoded is left out."""
    with _opened(path) as file:
        content = file.read(BEGINNING)
        _check_mark(path, content, encoding)
        return content.decode(_codec(encoding), errors="ignore").removeprefix("\ufeff")


def lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a file, without line break (LF or CRLF) and byte order mark. Raises UserError with file and line."""
    codec = _codec(encoding)
    if "\n\t".encode(codec) != b"\n\t":  # UTF-16: a line break is not one byte
        content = text(path, encoding)
        yield from content.removesuffix("\n").split("\n") if content else ()
        return
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                _check_mark(path, line, encoding)
            try:
                decoded = line.decode(codec)
            except UnicodeDecodeError as error:
                raise UserError(_undecodable(path, number, error, encoding)) from error
            if number == 1:
                decoded = decoded.removeprefix("\ufeff")
            yield decoded.removesuffix("\n").removesuffix("\r")


def text(path: Path, encoding: str) -> str:
    """A file's text without byte order mark; line breaks become LF. Raises UserError with file and line."""
    codec = _codec(encoding)
    with _opened(path) as file:
        content = file.read()
    _check_mark(path, content, encoding)
    try:
        return content.decode(codec).removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UserError(_undecodable(path, number, error, encoding)) from error


def _check_mark(path: Path, content: bytes, encoding: str) -> None:
    """Refuses a file whose byte order mark is that of UTF-16 or UTF-32, where that is not the encoding."""
    marked = next((name for name, marks in MARKS.items() if content.startswith(marks)), None)
    if marked and not _codec(encoding).startswith(("utf-16", "utf-32")):
        raise UserError(f"{path} begins with the byte order mark of {marked.upper()}, and config.data.encoding is "
                        f"{encoding!r}; set it to {marked}")


def _undecodable(path: Path, number: int, error: UnicodeDecodeError, encoding: str) -> str:
    return (f"{path}, line {number} is not {encoding.upper()} (byte 0x{error.object[error.start]:02x}); convert the "
            "file to UTF-8, or set config.data.encoding, such as latin-1 or cp1252")


def _codec(encoding: str) -> str:
    try:
        "".encode(encoding)  # refuses those that are no encodings of text, such as base64
        return codecs.lookup(encoding).name
    except LookupError as error:
        raise UserError(f"config.data.encoding is {encoding!r}, which Python does not know; expected one such "
                        "as utf-8, latin-1, cp1252 or utf-16") from error


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
