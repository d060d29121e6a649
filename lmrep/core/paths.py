"""Paths as users write them: `~` is expanded where they enter (flags, fields of configs, arguments of `lmrep.api`), and
nowhere else. Globs match files whose folders have wildcards in their names."""

import glob
import os

from lmrep.core import remote


def as_path(text: str | os.PathLike) -> str:
    """A local path without `~` or `~user` at its beginning; a URL stays as it is.

    Raises:
      ValueError: it has a NUL, which no path has.
    """
    text = os.fspath(text)
    if "\0" in text:
        raise ValueError("a path cannot have a NUL")
    return text if remote.as_url(text) else os.path.expanduser(text)


def as_paths(text: str | os.PathLike) -> str:
    """As `as_path`, of several paths or globs between commas."""
    parts = os.fspath(text).split(",")
    return ",".join(as_path(part.lstrip() if part.lstrip().startswith("~") else part) for part in parts)


def matches(pattern: str) -> list[str]:
    """The local path `pattern`, or, if there is none, the paths that it matches as a glob, sorted. `**` matches any
    folders. The folders of its beginning that exist are taken literally: names may have `[`, `*` and `?`."""
    if os.path.exists(pattern):
        return [pattern]
    folder = _folder(pattern)
    return sorted(glob.glob(glob.escape(folder) + pattern[len(folder):], recursive=True))


def why_no_match(pattern: str) -> str:
    """Why a local path or glob matches nothing, and what to do, as a clause for a message."""
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
    """The longest beginning of a path or glob that is a folder; "" for the current one."""
    while pattern and not os.path.isdir(pattern):
        pattern = os.path.dirname(pattern)
    return pattern
