"""Errors that users see, with the exit codes of `lmrep`.

A message says what was found, what was expected and what to do, in one or two lines. Any other exception is a bug and
shows its traceback.
"""

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping

# The numbers of errors of the system that no command foresees everywhere; they are neither lmrep's nor a component's.
FAULTS = {errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ENODEV,
          errno.ENOSPC, errno.EPERM, errno.EROFS, errno.ESTALE}
TRACEBACK = "LMREP_TRACEBACK"  # environment variable: show the traceback of an error beside its message
WORD, LINE = 300, 2000  # characters of a word and of a line of a message that are shown


def readable(text: str) -> str:
    """A message without control characters, as of a binary file, in which values of excessive length are cut."""
    text = re.sub(r"[\0-\t\v-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)
    text = re.sub(rf"\S{{{WORD},}}", lambda match: _cut(match[0], 100), text)
    return "\n".join(_cut(line, 300) if len(line) > LINE else line for line in text.split("\n"))


def _cut(text: str, ends: int) -> str:
    return f"{text[:ends]}[... {len(text) - 2 * ends:,} characters ...]{text[-ends:]}"


class UserError(Exception):
    """Refused before anything was written: a bad config, bad input, a workdir in use. Exit code 2."""

    exit_code = 2

    def __str__(self) -> str:
        return readable(super().__str__())


class Broken(UserError):
    """What a component breaks of its contract, found where its name is not known; `components.faults_of` adds it."""


class ConfigError(UserError):
    """As UserError, where a change of the config helps; commands that take none replace the advice with their own."""

    def __init__(self, problem: str, advice: str):
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


@contextlib.contextmanager
def published_names(path: object, names: Mapping[str, str]) -> Iterator[None]:
    """Within it, a message about fields of `config.model` that were read from a published file starts with the file's
    path, and calls them what the file does; `names` are field -> name there."""
    try:
        yield
    except UserError as error:
        message = re.sub(r"\bmodel\.(\w+)", lambda field: names.get(field[1], field[0]), str(error))
        raise UserError(f"{path}: {message}") from None


class RunFault(Exception):
    """An error during the run: a non-finite loss, no intact checkpoint, a full disk. Exit code 3."""

    exit_code = 3

    def __str__(self) -> str:
        return readable(super().__str__())


class Stopped(Exception):
    """The run was stopped by a signal, and is saved. Exit code 128 + the signal's number, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int = 143):
        super().__init__(message)
        self.exit_code = exit_code
