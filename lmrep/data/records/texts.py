"""Reads classified texts, as lines `label text` or as a folder of text files per class, and texts without labels."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.data.records import files
from lmrep.data.records.base import Job, ReaderDef, Record
from lmrep.data.records.values import CORRECT, short


def read_lines(job: Job) -> Iterator[Record | UserError]:
    """Yields a record for each line: the label, white space, the text (TREC)."""
    for where, line in files.filled_lines(job.path, job.config):
        label, *rest = line.split(maxsplit=1)
        if rest:
            yield Record({"text": rest[0].strip(), "label": label}, "", where)
        else:
            yield UserError(f"{where} has nothing after {short(label)}; expected a label, a space and a text: "
                            f"{CORRECT}")


def read_documents(job: Job) -> Iterator[Record | UserError]:
    """Yields a record without label for each text between blank lines; `where` has the number of its first line."""
    lines: list[str] = []
    first = 1
    for number, line in enumerate(itertools.chain(files.lines(job.path, job.config), [""]), 1):
        if line.strip():
            lines.append(line)
            continue
        if lines:
            yield Record({"text": "\n".join(lines).strip()}, "", f"{job.path}, line {first}")
        lines, first = [], number + 1


def read_folders(job: Job) -> Iterator[Record | UserError]:
    """Yields a record for each .txt file of a folder's subfolders, whose names are the classes (IMDb), sorted by name.
    A test folder without subfolders has texts without labels. Raises UserError if a class has no folder."""
    if not job.path.is_dir():
        raise UserError(f"{job.path} is not a folder; expected one with a subfolder of .txt files for each class")
    folders = {path.name: path for path in sorted(job.path.iterdir()) if path.is_dir() and _texts(path)}
    for name in job.config.classes:
        if name not in folders:
            raise UserError(f"{job.path} has no subfolder {name!r} with .txt files; it has "
                            f"{', '.join(folders) or 'none'}: correct config.data.classes{suggestion(name, folders)}")
    unlabelled = _texts(job.path) if job.split == "test" and not folders else []
    for path in unlabelled:
        yield _record(job, path, {})
    if not folders and not unlabelled:
        others = sorted({files.suffix(path) for path in job.path.iterdir() if path.is_file()} - {"", ".txt"})
        raise UserError(f"{job.path} has no subfolder with .txt files; expected one for each class"
                        + (f", or, for files of other formats, a glob: {job.path / '*'}{others[0]}" if others
                           else ""))
    for name in job.config.classes or folders:
        for path in _texts(folders[name]):
            yield _record(job, path, {"label": name})


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if files.suffix(path) == ".txt")


def _record(job: Job, path: Path, fields: dict[str, str]) -> Record:
    text = files.text(path, job.config).strip()
    name = str(path.relative_to(job.path))
    return Record({"text": text, **fields}, re.sub(r"(\.txt)?\.\w+$|\.txt$", "", name, flags=re.IGNORECASE), str(path))


DOCUMENTS = ReaderDef(read_documents)
LABEL_TEXT = ReaderDef(read_lines, (".label", ".all"))
FOLDERS = ReaderDef(read_folders)
