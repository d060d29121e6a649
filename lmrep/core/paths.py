"""Paths and globs that users write. `~` is expanded where a path enters (flags, fields of configs, arguments of
`lmrep.api`), and nowhere else."""

import glob
import os

from lmrep.core import remote


def as_path(text: str | os.PathLike) -> str:
    """Expands `~` or `~user` at the beginning of a local path; a URL stays unchanged.

    Raises:
      ValueError: the path has a NUL.
    """
    text = os.fspath(text)
    if "\0" in text:
        raise ValueError("a path cannot have a NUL")
    return text if remote.as_url(text) else os.path.expanduser(text)


def as_paths(text: str | os.PathLike) -> str:
    """Applies `as_path` to each of several comma-separated paths or globs."""
    parts = os.fspath(text).split(",")
    return ",".join(as_path(part.lstrip() if part.lstrip().startswith("~") else part) for part in parts)


def matches(pattern: str) -> list[str]:
    """Returns [pattern] if that local path exists, otherwise the paths that it matches as a glob, sorted. `**` matches
    any folders. The leading folders that exist are taken literally: their names may have `[`, `*` and `?`."""
    if os.path.exists(pattern):
        return [pattern]
    folder = _folder(pattern)
    return sorted(glob.glob(glob.escape(folder) + pattern[len(folder):], recursive=True))


def why_no_match(pattern: str) -> str:
    """Explains why a local path or glob matches nothing, and what to do, as a clause for a message."""
    folder = _folder(pattern)
    missing = pattern[len(folder):].lstrip(os.sep).partition(os.sep)
    path = os.path.join(folder, missing[0])
    if missing[1] and os.path.isfile(path):
        return f"{path} is a file, not a folder; if it is an archive, unpack it"
    if missing[1] and not glob.has_magic(missing[0]):
        return f"there is no folder {path}; check the path"
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError as error:
        return f"cannot list {folder or os.getcwd()}: {error.strerror}"
    listed = ", ".join(names[:6]) + ", ..." * (len(names) > 6)
    return (f"{folder or os.getcwd()} has {listed or 'no files'}; check the path, and quote a glob so that the shell "
            "leaves it alone")


def _folder(pattern: str) -> str:
    """Returns the longest leading part of a path or glob that is a folder; "" for the current folder."""
    while pattern and not os.path.isdir(pattern):
        pattern = os.path.dirname(pattern)
    return pattern
