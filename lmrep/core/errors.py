"""Errors that users see, with the exit codes of `lmrep`.

A message says what was found, what was expected and what to do, in one or two lines. Any other exception is a bug and
shows its traceback.
"""

import re


class UserError(Exception):
    """Refused before anything was written: a bad config, bad input, a workdir in use. Exit code 2."""

    exit_code = 2

    def __str__(self) -> str:
        """The message, in which control characters, as of a binary file, are escaped."""
        return re.sub(r"[\0-\t\v-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], super().__str__())


class ConfigError(UserError):
    """As UserError, where a change of the config helps; commands that take none replace the advice with their own."""

    def __init__(self, problem: str, advice: str):
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


class RunFault(Exception):
    """An error during the run: a non-finite loss, no intact checkpoint, a full disk. Exit code 3."""

    exit_code = 3


class Stopped(Exception):
    """The run was stopped by a signal, and is saved. Exit code 128 + the signal's number, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int = 143):
        super().__init__(message)
        self.exit_code = exit_code
