"""Opens the input files that users name: local or remote, plain, compressed, or in an archive of one file.

Compression and archives are recognised by their first bytes. Files without data, such as Git LFS pointers and HTML
error pages, and files that expand far more than text does raise UserError. Files are streamed, so that memory does not
depend on their size.
"""

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import os
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.messages import byte_size

BUFFER = 2**17  # bytes that a layer reads at a time
HEAD = 1024  # bytes by which a form is recognised; tar's magic number lies at byte 257
MAX_LINE = 2**28  # bytes
MAX_LAYERS = 4  # of compression and archives; files that hold themselves have more
MAX_EXPANSION = 400  # text compresses to 1/3 to 1/50 of its size
ALWAYS_ALLOWED = 2**28  # bytes that any compressed file may expand to
SPECIAL_FILES = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a named pipe", stat.S_ISSOCK: "a socket",
                 stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
VIRTUAL = ("/proc/", "/sys/")
NAMED = 5  # names of files in a message, at most


class Form(NamedTuple):
    """A form of compression or archive."""

    matches: Callable[[bytes], Any]  # the first bytes -> whether they are of this form
    suffixes: dict[str, str]  # suffix of file names, in lower case -> suffix of the content's name
    # (stream, path) -> the content as a readable stream, and its name; None if the form stores no name
    open: Callable[[BinaryIO, str], tuple[Any, str | None]]


def _open_zip(stream: BinaryIO, path: str) -> tuple[BinaryIO, str]:
    """Returns (content, name) of the only file of a zip archive. Raises UserError if the archive is encrypted or does
    not hold exactly one file. Reading to the end compares the CRC."""
    archive = zipfile.ZipFile(stream)
    files = [entry for entry in archive.infolist() if not entry.is_dir() and not _hidden(entry.filename)]
    if len(files) != 1:
        raise _not_one([entry.filename for entry in files[:NAMED]], len(files), path)
    if files[0].flag_bits & 1:
        raise UserError(f"{path} is an encrypted zip archive; unpack it")
    return archive.open(files[0]), posixpath.basename(files[0].filename)


class _OnlyFile:
    """The content of the only file of a tar archive, which need not be seekable. Raises UserError if there is no file,
    and at the end of the content, where the rest of the archive is read, if there is a second one."""

    def __init__(self, stream: BinaryIO, path: str):
        self._stream, self._path = stream, path
        self._archive = tarfile.open(fileobj=stream, mode="r|", bufsize=BUFFER)  # noqa: SIM115 - open as long as this
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
        while self._stream.read(BUFFER):  # so that checksums at the end of a compressed stream are compared
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


def _zstd(stream: BinaryIO) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, "r"), "zstd")


def _is_tar(head: bytes) -> bool:
    """Returns whether the bytes begin with a tar header whose checksum is correct."""
    if b"\0" not in head[:512]:
        return False
    try:
        return bool(tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape"))
    except (tarfile.HeaderError, ValueError):
        return False


def _compression(magic: bytes, suffixes: dict[str, str], opener: Callable[[BinaryIO], Any]) -> Form:
    return Form(re.compile(magic, re.DOTALL).match, suffixes, lambda stream, path: (opener(stream), None))


FORMS = {
    "gzip": _compression(rb"\x1f\x8b\x08", {".gz": "", ".tgz": ".tar"}, lambda stream: gzip.GzipFile(fileobj=stream)),
    "bzip2": _compression(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", {".bz2": "", ".tbz2": ".tar", ".tbz": ".tar"},
                          bz2.BZ2File),
    "xz": _compression(rb"\xfd7zXZ\x00", {".xz": "", ".txz": ".tar"}, lzma.LZMAFile),
    "zstd": _compression(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", {".zst": "", ".tzst": ".tar"}, _zstd),
    "zip": Form(re.compile(rb"PK(\x03\x04|\x05\x06)").match, {".zip": ""}, _open_zip),
    "tar": Form(_is_tar, {".tar": ""}, lambda stream, path: (content := _OnlyFile(stream, path), content.name)),
}
COMPRESSED = {suffix for form in FORMS.values() for suffix in form.suffixes}
UNSUPPORTED = {b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive", b"Rar!\x1a\x07": "a RAR archive", b"\x04\x22\x4d\x18": "LZ4",
               b"\x1f\x9d": "compressed by compress (.Z)", b"LZIP": "compressed by lzip"}
LFS_POINTER = re.compile(rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v\d")
ANNEX_POINTER = re.compile(rb"(?:\.\./)*(?:\.git)?/annex/objects/\S")
HTML = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html)[\s>]", re.IGNORECASE)
HTML_SUFFIXES = (".html", ".htm", ".xhtml")


def open_bytes(path: str | os.PathLike, store: Any = None, pipes: bool = False) -> io.BufferedReader:
    """Opens a file as it is stored. The result is seekable, unless the file is a pipe.

    Args:
      path: local, or a URL.
      store: the fsspec file system of a URL; None makes one.
      pipes: whether it may be a named pipe.

    Raises:
      UserError: it is not a regular file, or cannot be read. Reads from the result raise it too.
    """
    url = remote.as_url(path)
    path = url or os.fspath(path)
    if not url:
        check_regular(path, pipes)
    with _errors(path):
        if url and store is None:
            store, _ = remote.file_system(url, "the path", "gs://bucket/folder/*.txt")
        return io.BufferedReader(_Layer(store.open(path, "rb") if store else open(path, "rb", 0), path, path), BUFFER)


def open_input(path: str | os.PathLike, store: Any = None, pipes: bool = False) -> io.BufferedReader:
    """Opens the content of a file: decompressed, or the only file of an archive. The content of a plain file is
    seekable. The `name` of the result is that of the content, such as a.txt of a.txt.gz.

    Args:
      path, store, pipes: as for `open_bytes`.

    Raises:
      UserError: as `open_bytes`; it is a Git LFS pointer or an HTML page, an archive of several files, or not of the
        form that its name says. Reads raise it if the content is damaged or expands too much.
    """
    stream = open_bytes(path, store, pipes)
    try:
        file_name = stream.name
        for _ in range(MAX_LAYERS):
            head = stream.peek(HEAD)[:HEAD]
            check_head(head, file_name, stream.name)
            if (kind := _form_of_bytes(head)) is None:
                if head and (expected := _form_of_name(stream.name)):
                    raise UserError(f"{file_name} is not an intact {expected} file (its first bytes are not those of "
                                    f"{expected}); copy it again, or rename it if it is decompressed already")
                return stream
            if kind == "zip" and not stream.seekable():
                raise UserError(f"{file_name} is a zip archive inside another form of compression; unpack it")
            with _errors(file_name, kind):
                content, name = FORMS[kind].open(stream, file_name)
            stream = io.BufferedReader(
                _Layer(content, file_name, name or _without_suffix(stream.name), kind, stream), BUFFER)
        raise UserError(f"{file_name} is compressed more than {MAX_LAYERS} times; unpack it")
    except BaseException:
        stream.close()
        raise


def check_plain(path: str | os.PathLike) -> None:
    """Raises UserError if a file is compressed, an archive, or without data, for readers that need a plain file."""
    with open_bytes(path) as file:
        head = file.peek(HEAD)[:HEAD]
    check_head(head, os.fspath(path))
    if kind := _form_of_bytes(head):
        raise UserError(f"{path} is a {kind} file; unpack it, and name what it holds")


def lines(file: BinaryIO, path: str | os.PathLike, limit: int = MAX_LINE, expected: str = "text") -> Iterator[bytes]:
    """Yields the lines of an open file with their line feeds; no other character ends a line. Raises UserError, which
    says what was `expected`, for a line of more than `limit` bytes."""
    for number in itertools.count(1):
        if len(line := file.readline(limit + 1)) > limit:
            raise UserError(f"{path}, line {number} is longer than {byte_size(limit)}; expected {expected}")
        if not line:
            return
        yield line


def content_name(path: str | os.PathLike) -> str:
    """Returns the name of a file's content, such as a.txt for a.txt.gz and for a.zip that holds it. Opens archives
    only. Raises UserError as `open_input`."""
    name = os.fspath(path)
    while form := _form_of_name(name):
        if form in ("zip", "tar"):
            with open_input(path) as file:
                return file.name
        name = _without_suffix(name)
    return name


def check_regular(path: str, pipes: bool = False) -> None:
    """Raises UserError for a local path that is a folder, a device, a socket, or, unless `pipes`, a pipe, and for files
    in /proc and /sys, without reading: reads of these may never end."""
    with _errors(path):
        mode = os.stat(path).st_mode
        what = "" if stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode)) else next(
            (name for test, name in SPECIAL_FILES.items() if test(mode)), "a special file")
        if stat.S_ISREG(mode) and os.path.realpath(path).startswith(VIRTUAL):
            what = "a file of the system, of unknown size"
    if what:
        raise UserError(f"{path} is {what}; expected a regular file: copy the content to one, or leave it out")


def check_head(head: bytes, path: str, name: str = "") -> None:
    """Raises UserError if a file that begins with `head` is a Git LFS or git-annex pointer, an HTML page whose `name`
    does not say so, or an archive that lmrep does not read."""
    if LFS_POINTER.match(head):
        size = re.search(rb"\nsize (\d{1,18})\s", head)
        of = f" of a file of {byte_size(int(size[1]))}" if size else ""
        raise UserError(f"{path} is a Git LFS pointer{of}, without the data; run git lfs pull in its repository")
    if ANNEX_POINTER.match(head):
        raise UserError(f"{path} is a git-annex pointer, without the data; run git annex get {os.path.basename(path)}")
    if HTML.match(head) and not (name or path).lower().endswith(HTML_SUFFIXES):
        raise UserError(f"{path} is an HTML page, as a server sends in place of a file; download the file itself "
                        "(if pages are what you want, name it .html)")
    if what := next((what for magic, what in UNSUPPORTED.items() if head.startswith(magic)), None):
        raise UserError(f"{path} is {what}, which lmrep does not read; unpack it, or compress it by gzip, xz or zstd")


def _form_of_name(name: str) -> str | None:
    """Returns the form that the suffix of a file name indicates, a key of FORMS; None if there is none."""
    return next((kind for kind, form in FORMS.items() if name.lower().endswith(tuple(form.suffixes))), None)


def _form_of_bytes(head: bytes) -> str | None:
    """Returns the form that the first bytes of a file indicate, a key of FORMS; None if there is none."""
    return next((kind for kind, form in FORMS.items() if form.matches(head)), None)


def _without_suffix(name: str) -> str:
    """Returns the name of the content of a compressed file: a.txt for a.txt.gz."""
    base, suffix = os.path.splitext(name)
    replacement = next((form.suffixes[suffix.lower()] for form in FORMS.values() if suffix.lower() in form.suffixes),
                       None)
    return name if replacement is None else base + replacement


class _Layer(io.RawIOBase):
    """A file, or the decompressed content of the layer below it. Reads raise UserError, which names the file.

    Attributes:
      name: the name of the content.
      total: bytes read so far.
    """

    def __init__(self, stream: Any, path: str, name: str, kind: str = "", below: io.BufferedReader | None = None):
        self._stream, self._path, self.name, self._kind, self._below = stream, path, name, kind, below
        self.total = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer up to the end of the content, so that `peek` gives as many bytes as there are."""
        view, count = memoryview(buffer).cast("B"), 0
        with _errors(self._path, self._kind):
            while count < len(view) and (block := self._stream.read(len(view) - count)):
                view[count : count + len(block)] = block
                count += len(block)
        self.total += count
        if self._below and self.total > max(ALWAYS_ALLOWED, MAX_EXPANSION * self._below.raw.total):
            raise UserError(f"{self._path} expands to more than {MAX_EXPANSION} times its size, which text does not; "
                            "unpack it and look at its content")
        return count

    def seekable(self) -> bool:
        return not self._kind and self._stream.seekable()

    def seek(self, position: int, whence: int = 0) -> int:
        if not self.seekable():
            raise io.UnsupportedOperation("seek")
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        return self._stream.tell() if self.seekable() else self.total

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(OSError):  # nothing was written
                self._stream.close()
            if self._below:
                self._below.close()
        super().close()


@contextlib.contextmanager
def _errors(path: str, kind: str = "") -> Iterator[None]:
    """Turns any exception of a store, the system or a decompressor into a UserError that names the path. Decompressors
    raise exceptions of any type for damaged files."""
    try:
        yield
    except (UserError, RunFault):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).partition("\n")[0][:200]
        if kind and (isinstance(error, EOFError) or "Truncated" in reason or "end of data" in reason):
            raise UserError(f"{path} ends in the middle of its {kind} stream, so it is not an intact {kind} file; copy "
                            "it again") from error
        if kind:
            raise UserError(f"{path} is not an intact {kind} file ({reason}); copy it again") from error
        if "://" in path:
            raise UserError(f"cannot read {path}: {remote.describe(error)}; check the address, the network and the "
                            "credentials") from error
        if isinstance(error, OSError | ValueError):  # ValueError: a name with NUL
            raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or reason}"
                            f"{_broken_link(path)}") from error
        raise


def _broken_link(path: str) -> str:
    """Describes the target of a broken symbolic link, for a message; returns "" for any other path."""
    with contextlib.suppress(OSError, ValueError):
        if os.path.islink(path) and not os.path.exists(path):
            target = os.readlink(path)
            fix = f"; run git annex get {os.path.basename(path)}" if "annex/objects/" in target else ""
            return f" (a link to {target}){fix}"
    return ""
