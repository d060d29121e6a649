"""Finds the files of a split, and reads their text and lines."""

import codecs
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from lmrep.core import hub, input_files, paths, remote, text_files
from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size
from lmrep.data.records.base import Config, Job

log = logging.getLogger(__name__)

MAX_TEXT = 2**30  # bytes of a file that is read as a whole
BEGINNING = 2**16  # bytes by which the format is detected


def find(pattern: str, split: str) -> list[Path]:
    """Finds the files and folders of a path or a glob, sorted, or of several of them, separated by commas, in their
    order and without duplicates. Raises UserError if one of them matches nothing."""
    if not remote.as_url(pattern) and (matches := _matches(pattern)):  # commas may be part of a name
        return matches
    parts = list(filter(None, map(str.strip, re.split(r",(?![^{]*\})", pattern))))  # {a,b} is one glob
    files: dict[Path, None] = {}
    for part in parts or [pattern]:
        matches = _find_remote(part, split) if remote.as_url(part) else _matches(part)
        if not matches:
            raise UserError(f"the {split} files {part!r} match no file; {paths.why_no_match(part)}")
        files |= dict.fromkeys(matches)
    return list(files)


def _matches(pattern: str) -> list[Path]:
    """Finds the local files and folders of a path or a glob, sorted. Folders among several matches are left out."""
    names = paths.matches(pattern)
    if len(names) > 1:  # ** matches folders too
        names = [name for name in names if not os.path.isdir(name)] or names
    return [Path(name) for name in names]


def _find_remote(pattern: str, split: str) -> list[Path]:
    if hub.is_address(pattern):
        return _matches(hub.local(pattern, f"config.data.{split}"))
    store, path = remote.file_system(pattern, f"config.data.{split}", "gs://bucket/folder/train.tsv")
    with remote.user_errors(pattern):
        names = sorted(name for name, info in store.glob(path, detail=True).items() if info["type"] == "file")
    if not names:
        raise UserError(f"the {split} files {pattern!r} match no file in that store; check the address")
    return [Path(store.unstrip_protocol(name)) for name in names]


def beside(job: Job, ending: str, other: str, field: str) -> Path | None:
    """Returns the path of the second file, which has a field of the examples of `job.path`: its name has `other` in
    place of `ending`. Returns None for test data without such a file. Raises UserError if it is missing, or if the name
    of `job.path` lacks the ending."""
    before, matched, after = job.path.name.rpartition(ending)
    path = hub.with_file(job.path.with_name(f"{before}{other}{after}"))
    if matched and (remote.as_url(path) or path.exists()):
        return path
    if job.optional(field):
        return None
    if not matched:
        raise UserError(f"{job.path} has no {field}, which is in a second file: expected one whose name ends with "
                        f"{ending}, and beside it one that ends with {other}")
    raise UserError(f"{path} is missing, which has the {field} of {job.path}; expected both files side by side")


def suffix(path: Path) -> str:
    """Returns the suffix of a file's name in lower case, as if decompressed: .tsv for A.TSV.gz and for a zip archive of
    A.TSV."""
    return Path(input_files.content_name(path)).suffix.lower()


def beginning(path: Path, config: Config) -> str:
    """Reads the first BEGINNING bytes of a file as text. Leaves out bytes that cannot be decoded."""
    codec = _codec(config.encoding)
    with input_files.open_input(path) as file:
        content = file.read(BEGINNING)
    _check_mark(path, content, config.encoding)
    return content.decode(codec, errors="ignore").removeprefix("\ufeff")


def lines(path: Path, config: Config) -> Iterator[str]:
    """Yields the lines of a file, without line break (LF or CRLF) and byte order mark. Raises UserError with file and
    line for bytes that are not of the encoding; with `undecodable=replace` they become U+FFFD, with a warning."""
    codec = _codec(config.encoding)
    if "\n\t".encode(codec) != b"\n\t":  # UTF-16: a line break is not one byte
        content = text(path, config)
        yield from content.removesuffix("\n").split("\n") if content else ()
        return
    replaced: list[int] = []
    with input_files.open_input(path) as file:
        for number, line in enumerate(input_files.lines(file, path), 1):
            if number == 1:
                _check_mark(path, line, config.encoding)
            decoded = _decoded(path, line, codec, config, number, replaced)
            if number == 1:
                decoded = decoded.removeprefix("\ufeff")
            yield decoded.removesuffix("\n").removesuffix("\r")
    _report(path, replaced, config.encoding)


def filled_lines(path: Path, config: Config) -> Iterator[tuple[str, str]]:
    """Yields (file and line, for messages; line) of the lines of a file that are not blank, as `lines`."""
    return ((f"{path}, line {number}", line) for number, line in enumerate(lines(path, config), 1) if line.strip())


def text(path: Path, config: Config) -> str:
    """Reads a file's text without byte order mark; CRLF becomes LF. Undecodable bytes are treated as in `lines`. Raises
    UserError for a file of more than MAX_TEXT bytes."""
    codec, replaced = _codec(config.encoding), []
    with input_files.open_input(path) as file:
        if len(content := file.read(MAX_TEXT + 1)) > MAX_TEXT:
            raise UserError(f"{path} has more than {byte_size(MAX_TEXT)}; expected a smaller file: split it, or give "
                            "JSONL, which is read line by line")
    _check_mark(path, content, config.encoding)
    decoded = _decoded(path, content, codec, config, 1, replaced)
    _report(path, replaced, config.encoding)
    return decoded.removeprefix("\ufeff").replace("\r\n", "\n")


def _decoded(path: Path, content: bytes, codec: str, config: Config, first: int, replaced: list[int]) -> str:
    """Decodes bytes that begin in line `first`. Appends the number of a line whose bytes are replaced to `replaced`."""
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        number = first + content.count(b"\n", 0, error.start)
        if config.undecodable == "refuse":
            raise UserError(
                f"{path}, line {number} is not {config.encoding.upper()} (byte 0x{error.object[error.start]:02x}); "
                "convert the file to UTF-8, set config.data.encoding, such as latin-1 or cp1252, or replace such bytes "
                "with --config.data.undecodable=replace") from error
        replaced.append(number)
        return content.decode(codec, "replace")


def _report(path: Path, replaced: list[int], encoding: str) -> None:
    if replaced:
        log.warning("%s: bytes that are not %s are replaced by U+FFFD, first in line %d%s", path, encoding.upper(),
                    replaced[0], f", in {len(replaced):,} lines" * (len(replaced) > 1))


def _check_mark(path: Path, content: bytes, encoding: str) -> None:
    """Raises UserError if a file begins with the byte order mark of UTF-16 or UTF-32, and the encoding is another one.
    """
    marked = text_files.byte_order(content)
    if marked and not _codec(encoding).startswith(("utf-16", "utf-32")):
        raise UserError(f"{path} begins with the byte order mark of {marked}, and config.data.encoding is "
                        f"{encoding!r}; set it to {marked.lower()}")


def _codec(encoding: str) -> str:
    try:
        # Rejects base64, which does not encode text, and IDNA and Punycode, which cannot replace such a byte.
        ("\n\t".encode(encoding) + b"\xff").decode(encoding, "replace")
        return codecs.lookup(encoding).name
    except (LookupError, ValueError) as error:
        raise UserError(f"config.data.encoding is {encoding[:60]!r}, which is no encoding of text files that "
                        "Python knows; expected one such as utf-8, latin-1, cp1252 or utf-16") from error
