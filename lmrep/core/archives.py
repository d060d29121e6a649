"""The content of a tar or zip archive that holds one file."""

import itertools
import posixpath
import tarfile
import zipfile
from collections.abc import Sequence
from typing import BinaryIO

from lmrep.core.errors import UserError

NAMED = 5  # names of files in a message, at most
BLOCK = 2**18  # bytes


def open_zip(stream: BinaryIO, path: str) -> tuple[BinaryIO, str]:
    """Returns (content, name) of the only file of a zip archive. Raises UserError if the archive is encrypted or does
    not hold exactly one file. Reading to the end compares the CRC."""
    archive = zipfile.ZipFile(stream)
    files = [entry for entry in archive.infolist() if not entry.is_dir() and not _hidden(entry.filename)]
    if len(files) != 1:
        raise _not_one([entry.filename for entry in files[:NAMED]], len(files), path)
    if files[0].flag_bits & 1:
        raise UserError(f"{path} is an encrypted zip archive; unpack it")
    return archive.open(files[0]), posixpath.basename(files[0].filename)


def open_tar(stream: BinaryIO, path: str) -> tuple["_OnlyFile", str]:
    """Returns (content, name) of the only file of a tar archive, which need not be seekable. Raises UserError if the
    archive holds no file; reading to the end of the content raises it if the archive holds a second one."""
    content = _OnlyFile(stream, path)
    return content, content.name


class _OnlyFile:
    """The content of a tar archive's first file. At its end the rest of the archive is read to exclude a second file.
    """

    def __init__(self, stream: BinaryIO, path: str):
        self._stream, self._path = stream, path
        self._archive = tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK)  # noqa: SIM115 - open as long as this
        self._files = (entry for entry in self._archive if entry.isreg() and not _hidden(entry.name))
        first = next(self._files, None)
        if first is None:
            raise _not_one([], 0, path)
        self.name = posixpath.basename(first.name)
        self._content = self._archive.extractfile(first)

    def read(self, size: int) -> bytes:
        if block := self._content.read(size):
            return block
        if others := [entry.name for entry in itertools.islice(self._files, NAMED)]:
            raise _not_one([self.name, *others][:NAMED], len(others) + 1, self._path)
        while self._stream.read(BLOCK):  # so that checksums at the end of a compressed stream are compared
            pass
        return b""

    def close(self) -> None:
        self._content.close()


def _hidden(name: str) -> bool:
    """Returns whether an operating system added this file to the archive, such as ._a.txt and .DS_Store of macOS."""
    return posixpath.basename(name).startswith(".") or name.startswith("__MACOSX/")


def _not_one(names: Sequence[str], count: int, path: str) -> UserError:
    more = ", ..." if count > len(names) else ""
    holds = f"holds {', '.join(names)}{more}" if names else "holds no file"
    return UserError(f"{path} is an archive that {holds[:500]}; expected exactly one file: unpack it, and name the "
                     "files to read")
