"""A folder that all workers of a pipeline see: local or shared, or in a remote store (`gs://` and others)."""

import contextlib
import functools
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmrep.core import remote
from lmrep.core.files import sync

TRANSFERS = 16  # files at a time


@dataclass(frozen=True)
class Folder:
    """A folder, which may be pickled. Files appear complete or not at all; their names may have slashes."""

    path: str  # its absolute path or URL

    @functools.cached_property
    def _store(self) -> remote.Store | None:
        return remote.Store(self.path, "--data_dir", "gs://bucket/data") if "://" in self.path else None

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.path}/{name}")

    def names(self, folder: str = "") -> list[str]:
        """Lists the names of the files in a folder, sorted; relative to this one."""
        if self._store:
            return [name for name in self._store.names(folder) if not os.path.basename(name).startswith(".")]
        top = Path(self.path)
        return sorted(str(path.relative_to(top)) for path in (top / folder).rglob("[!.]*") if path.is_file())

    def read(self, name: str) -> bytes | None:
        """Reads a file; None if it does not exist."""
        if self._store:
            return self._store.read(name)
        try:
            return Path(self.path, name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces a file."""
        with self.temporary() as temporary:
            (temporary / "file").write_bytes(content)
            self.put(temporary / "file", name)

    def put(self, source: Path, name: str) -> tuple[int, str]:
        """Creates or replaces a file with a local one, which is moved if it is in `temporary`. Returns its size and
        SHA-256."""
        with open(source, "rb") as file:
            size, sha256 = source.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
        if self._store:
            self._store.upload(source, name)
            return size, sha256
        target = Path(self.path, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        sync(source)
        os.replace(source, target)
        return size, sha256

    def save(self, name: str, **arrays: np.ndarray) -> None:
        """Writes arrays, which `arrays` reads."""
        content = io.BytesIO()
        np.savez(content, **arrays)
        self.write(name, content.getvalue())

    @contextlib.contextmanager
    def arrays(self, name: str) -> Iterator[Any]:
        """Opens the arrays of a file by name, each of which is read when it is first used."""
        with (self._store.open(name) if self._store else open(Path(self.path, name), "rb")) as file, \
                np.load(file) as arrays:
            yield arrays

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """Makes a local directory for the time of the context, for a local folder on the same file system."""
        if not self._store:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=None if self._store else self.path) as path:
            yield Path(path)

    def remove(self) -> None:
        """Removes the folder, if it exists."""
        if self._store:
            self._store.remove("")
        else:
            shutil.rmtree(self.path, ignore_errors=True)


def transfer(action: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Runs `action` for each item, several at a time, and returns the results in order."""
    with ThreadPoolExecutor(TRANSFERS) as pool:
        return list(pool.map(action, items))
