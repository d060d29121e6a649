"""Places in remote stores: `gs://bucket/path`, `s3://...`, whatever fsspec has a package for."""

import contextlib
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lmrep.core.errors import RunFault, UserError

PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "az": "adlfs", "abfs": "adlfs",
            "http": "aiohttp requests", "https": "aiohttp requests", "hf": "huggingface_hub"}


def as_url(place: str | os.PathLike) -> str | None:
    """`place` as a URL where it is remote, else None. A `Path` of a URL, which has lost a slash, is one too."""
    text = os.fspath(place)
    found = re.match(r"([a-z][a-z0-9+.-]+):/(/?)", text)
    if not found:
        return None
    return (text if found[2] else f"{found[1]}://{text[found.end():]}").rstrip("/")


def file_system(url: str, what: str, example: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it. `what` names the setting in messages.

    Raises:
      UserError: its protocol is unknown, or needs a package that is not installed.
    """
    import fsspec

    protocol = url.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UserError(f"{protocol}:// needs a package that is not installed ({error}); "
                        f"pip install {PACKAGES.get(protocol, protocol)}") from error
    except ValueError as error:
        raise UserError(f"{what} {url!r}: {error}; expected a path on this machine, or one that fsspec knows, such "
                        f"as {example}") from error


@contextlib.contextmanager
def user_errors(url: str) -> Iterator[None]:
    """Whatever a store raises becomes a UserError that names `url`."""
    try:
        yield
    except (UserError, RunFault):
        raise
    except Exception as error:
        raise UserError(f"cannot reach {url}: {describe(error)}; check the address, the network and the "
                        "credentials") from error


def describe(error: Exception) -> str:
    """What an exception says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason given'])[0]}"


class Store:
    """The files under `url`, by their paths from there. Each method raises whatever the store does.

    Args:
      what, example: as `file_system` takes them.
    """

    def __init__(self, url: str, what: str, example: str):
        self.url = url
        self._system, self._top = file_system(url, what, example)

    def names(self) -> list[str]:
        """Of all files there."""
        self._system.invalidate_cache()  # others write there too
        return sorted(posixpath.relpath(name, self._top) for name in self._system.find(self._top))

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where it is not there."""
        try:
            return self._system.cat_file(self._path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Makes or replaces a file."""
        self._in_folder(name, lambda path: self._system.pipe_file(path, content))

    def upload(self, source: Path, name: str) -> None:
        """As `write`, for files too large to be held."""
        self._in_folder(name, lambda path: self._system.put_file(str(source), path))

    def download(self, name: str, target: Path) -> None:
        """To a file, whose folder is made."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._system.get_file(self._path(name), str(target))

    def remove(self, name: str) -> None:
        """Removes a file, or all under a folder, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm(self._path(name), recursive=True)

    def _in_folder(self, name: str, write: Callable[[str], Any]) -> None:
        try:
            write(self._path(name))
        except FileNotFoundError:  # of stores that have folders
            self._system.makedirs(posixpath.dirname(self._path(name)), exist_ok=True)
            write(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._top}/{name}"
