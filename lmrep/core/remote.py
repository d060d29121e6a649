"""Reads and writes files in remote stores: `gs://bucket/path`, `s3://...`, and all other protocols of fsspec."""

import contextlib
import errno
import logging
import os
import posixpath
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import Damaged

PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "az": "adlfs", "abfs": "adlfs",
            "http": "aiohttp requests", "https": "aiohttp requests", "hf": "huggingface_hub"}
# Protocols of stores whose paths begin with a bucket, and which have no directories.
BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "ocilake", "obs", "cos", "tos"}
PATIENCE = 900.0  # seconds for which a run retries when its store fails
DENIED_PATIENCE = 30.0  # the same when the store denies access: credentials may be about to be renewed
PAUSE = 5.0  # seconds between two attempts
TRANSFERS = 8  # files at a time
CHECKSUMS = ("md5Hash", "crc32c", "ETag", "etag")  # names that remote stores use, in order of preference

log = logging.getLogger(__name__)


def as_url(path: str | os.PathLike) -> str | None:
    """Returns `path` as a URL if it is remote, else None. A `Path` made from a URL, which lacks a slash, is remote too.
    """
    text = os.fspath(path)
    match = re.match(r"([a-z][a-z0-9+.-]+):/(/?)", text)
    if not match:
        return None
    return (text if match[2] else f"{match[1]}://{text[match.end():]}").rstrip("/")


def file_system(url: str, what: str, example: str) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, and the path in it.

    Args:
      url: the URL.
      what: the name of the setting, for error messages.
      example: a valid URL, for error messages.

    Raises:
      UserError: the protocol is unknown, or needs a package that is not installed.
    """
    import fsspec

    protocol = url.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UserError(f"{protocol}:// needs a package that is not installed ({error}); "
                        f"pip install {PACKAGES.get(protocol, protocol)}") from error
    except ValueError as error:
        raise UserError(f"{what} {url!r}: {error}; expected a local path, or a URL that fsspec supports, such "
                        f"as {example}") from error


@contextlib.contextmanager
def user_errors(url: str, *passed: type[Exception]) -> Iterator[None]:
    """Turns the errors of a store, except those of the types `passed`, into UserErrors that name `url`."""
    try:
        yield
    except (UserError, RunFault, Damaged, *passed):
        raise
    except Exception as error:
        raise UserError(f"cannot reach {url}: {describe(error)}; check the address, the network and the "
                        "credentials") from error


def checksum(info: Mapping[str, Any]) -> str:
    """Returns "NAME VALUE" of the first known checksum in the metadata of a file from fsspec; "" if there is none."""
    return next((f"{key} {info[key]}" for key in CHECKSUMS if info.get(key)), "")


class Refused(RunFault):
    """A store failed until the retries ended. The message is its last error."""


class NoBucket(UserError):
    """The bucket of a URL does not exist."""


def persistent(url: str, action: Callable[[], Any], patience: float | None = None) -> Any:
    """Calls `action`, retries while the store at `url` fails, and returns the result.

    Args:
      url: the address of the store, for messages.
      action: reads from the store or writes to it; may be interrupted at any point.
      patience: seconds of retries, by default `PATIENCE`; at most `DENIED_PATIENCE` if access is denied.

    Raises:
      FileNotFoundError: a file does not exist.
      Refused: the store failed for `patience` seconds.
      Exception: any other exception of `action` that is not an error of a store.
    """
    patience = PATIENCE if patience is None else patience
    began, reported = time.monotonic(), ""
    while True:
        try:
            return action()
        except Exception as error:
            if not _of_store(error):
                raise
            reason, limit = describe(error), min(patience, DENIED_PATIENCE) if _denied(error) else patience
            if time.monotonic() + PAUSE > began + limit:
                raise Refused(reason) from error
            if reason != reported:
                log.warning("%s refuses: %s; trying again every %g s for at most %g s", url, reason, PAUSE, limit)
            reported = reason
            time.sleep(PAUSE)


def _of_store(error: Exception) -> bool:
    """Returns whether a store or the network may have caused an error, so that a retry may succeed: an OSError, such as
    a timeout, or a library's exception without another built-in base. Others are bugs."""
    if isinstance(error, UserError | RunFault | Damaged | FileNotFoundError):
        return isinstance(error, NoBucket)
    builtin = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
    return isinstance(error, OSError | EOFError) or builtin is Exception


def _denied(error: Exception) -> bool:
    """Returns whether a store denies access, or the credentials are missing or have expired."""
    status = getattr(error, "code", None) or getattr(error, "status", None)  # as in errors of gcsfs and aiohttp
    return (isinstance(error, PermissionError | NoBucket) or status in (401, 403) or str(error).startswith("Forbidden")
            or "Credentials" in type(error).__name__)


def transfer(action: Callable[[str], Any], names: Iterable[str]) -> None:
    """Calls `action` with each name, `TRANSFERS` at a time."""
    with ThreadPoolExecutor(TRANSFERS) as pool:
        for _ in pool.map(action, names):
            pass


def describe(error: Exception) -> str:
    """Describes an exception in one line."""
    if isinstance(error, UserError | RunFault):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 300, placeholder=' ...') or 'no reason given'}"


def inside(name: str, url: str) -> str:
    """Checks that a file of the store at `url` can be copied to a local file of the same name, and returns the name.

    Raises:
      UserError: the local file would be outside of its folder. Names of objects in a bucket may have any characters.
    """
    if "\\" in name or "\0" in name or {"", ".", ".."} & set(name.split("/")):
        raise UserError(f"{url} has a file named {name[:200]!r}, which cannot be a file in a local folder; remove it "
                        "there, or copy the other files to another address")
    return name


class Store:
    """The files below a URL, named by their relative paths. The methods raise the errors of the store.

    Args:
      url, what, example: as for `file_system`.
    """

    def __init__(self, url: str, what: str, example: str):
        self.url = url
        self._system, self._top = file_system(url, what, example)

    def names(self, folder: str = "") -> list[str]:
        """Returns the sorted names of all files below `folder`; "" is the top. Raises UserError as `inside`."""
        self._system.invalidate_cache()  # other processes write there too
        paths = self._system.find(f"{self._top}/{folder}".rstrip("/"))
        return sorted(self._relative(path) for path in paths)

    def sizes(self) -> dict[str, int]:
        """Returns {name: size} of all files. Raises UserError as `inside`."""
        self._system.invalidate_cache()
        return {self._relative(path): info["size"] for path, info in self._system.find(self._top, detail=True).items()}

    def details(self) -> dict[str, tuple[int, str]]:
        """Returns {name: (size, checksum)} of the files directly in the directory; "." is the file at `url` itself.
        Checksums are those of `checksum`."""
        self._system.invalidate_cache()
        paths = sorted(self._system.find(self._top, maxdepth=1, detail=True).items())
        files = ((self._relative(path), info) for path, info in paths)
        return {name: (info["size"] or 0, checksum(info)) for name, info in files if "/" not in name}

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist."""
        try:
            return self._system.cat_file(self._path(name))
        except FileNotFoundError:
            return None

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Returns the bytes of each range (name, start, stop) of a file, up to its end; none of a missing file."""
        names, starts, stops = zip(*ranges, strict=True)
        contents = self._system.cat_ranges([*map(self._path, names)], list(starts), list(stops), on_error="return")
        for i, content in enumerate(contents):
            if isinstance(content, FileNotFoundError):
                contents[i] = b""
            elif isinstance(content, Exception):
                raise content
        return contents

    def open(self, name: str) -> BinaryIO:
        """Opens a file for reading; it is seekable."""
        return self._system.open(self._path(name), "rb")

    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces a file."""
        self._in_folder(name, lambda path: self._system.pipe_file(path, content))

    def create(self, name: str, content: bytes) -> None:
        """Creates a file. Raises FileExistsError if it exists. A store without atomic creation may replace a file that
        another process creates at the same time."""
        try:
            self._in_folder(name, lambda path: self._system.pipe_file(path, content, mode="create"))
        except (NotImplementedError, OSError) as error:
            if isinstance(error, NotImplementedError) or error.errno == errno.ENOSYS:
                return self.write(name, content)
            if error.errno == errno.EINVAL and self.read(name) is not None:  # some stores of the S3 protocol
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
            raise

    def upload(self, source: Path, name: str) -> None:
        """Creates or replaces a file with the content of a local file, which may be larger than memory."""
        source.stat()  # raises FileNotFoundError
        self._in_folder(name, lambda path: self._system.put_file(str(source), path))

    def download(self, name: str, target: Path) -> None:
        """Copies a file to a local file, and makes its directory."""
        inside(name or posixpath.basename(self.url), self.url)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._system.get_file(self._path(name), str(target))

    def remove(self, name: str) -> None:
        """Removes a file or a directory, if it exists."""
        self._system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            self._system.rm(self._path(name), recursive=True)

    def _relative(self, path: str) -> str:
        """Returns the name of a file of the store; "." for the file `url` itself."""
        top = f"{self._top.rstrip('/')}/"
        name = path.removeprefix(top).rstrip("/") if path.startswith(top) else posixpath.relpath(path, self._top)
        return name if name == "." else inside(name, self.url)

    def _in_folder(self, name: str, write: Callable[[str], Any]) -> None:
        path = self._path(name)
        try:
            write(path)
        except FileNotFoundError as error:
            protocols = self._system.protocol
            if not BUCKETS.isdisjoint([protocols] if isinstance(protocols, str) else protocols):
                # makedirs would create the bucket
                bucket = path.strip("/").partition("/")[0]
                raise NoBucket(f"{self.url} cannot be written: there is no bucket {bucket!r} that these credentials "
                               "can see; check its name, or create it") from error
            self._system.makedirs(posixpath.dirname(path), exist_ok=True)
            write(path)

    def _path(self, name: str) -> str:
        return f"{self._top}/{name}" if name else self._top
