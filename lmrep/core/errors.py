"""Errors that users see, with the exit codes of `lmrep`.

A message says what was found, what was expected and what to do, in one or two lines. Any other exception is a bug and
shows its traceback.
"""

import contextlib
import errno
import re
from collections.abc import Iterator, Mapping

# Errors of the operating system, which are caused neither by lmrep nor by a component.
FAULTS = {errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ELOOP, errno.EMFILE, errno.ENFILE, errno.ENODEV,
          errno.ENOSPC, errno.EPERM, errno.EROFS, errno.ESTALE}
TRACEBACK = "LMREP_TRACEBACK"  # environment variable: show the traceback of an error beside its message
WORD, LINE = 300, 2000  # characters; longer words and lines of a message are cut


def readable(text: str) -> str:
    """Escapes the control characters of a message, and cuts words and lines of excessive length."""
    text = re.sub(r"[\0-\t\v-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)
    text = re.sub(rf"\S{{{WORD},}}", lambda match: _cut(match[0], 100), text)
    return "\n".join(_cut(line, 300) if len(line) > LINE else line for line in text.split("\n"))


def _cut(text: str, ends: int) -> str:
    return f"{text[:ends]}[... {len(text) - 2 * ends:,} characters ...]{text[-ends:]}"


class _Shown(Exception):
    def __str__(self) -> str:
        return readable(super().__str__())


class UserError(_Shown):
    """Refused before anything was written: a bad config, bad input, a workdir in use. Exit code 2."""

    exit_code = 2


class Broken(UserError):
    """A violation of a component's contract, raised where its name is not known; `components.faults_of` adds it."""


class ConfigError(UserError):
    """A UserError that a change of the config resolves. Commands without a config give their own advice."""

    def __init__(self, problem: str, advice: str):
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


@contextlib.contextmanager
def published_names(path: object, names: Mapping[str, str]) -> Iterator[None]:
    """Rewrites UserErrors about fields of `config.model` that were read from a published file: the message starts with
    `path` and uses the file's names of the fields; `names` maps fields to them."""
    try:
        yield
    except UserError as error:
        message = re.sub(r"\bmodel\.(\w+)", lambda field: names.get(field[1], field[0]), str(error))
        raise UserError(f"{path}: {message}") from None


class RunFault(_Shown):
    """An error during the run: a non-finite loss, no intact checkpoint, a full disk. Exit code 3."""

    exit_code = 3


class Stopped(Exception):
    """The run was stopped by a signal, and is saved. Exit code 128 + the signal's number, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int = 143):
        super().__init__(message)
        self.exit_code = exit_code
