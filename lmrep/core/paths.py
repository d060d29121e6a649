"""Paths as users write them: `~` is expanded where they enter (flags, fields of configs, arguments of `lmrep.api`), and
nowhere else."""

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
