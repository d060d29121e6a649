"""The two kinds of failure a user can meet, each with the exit code that `lmrep` gives it.

A message says what was found, what was expected and what to do, in one or two lines. Anything
else that reaches the console is a bug and shows its traceback.
"""


class UserError(Exception):
    """Refused before anything was written: a bad config, bad input, a workdir in use. Exit code 2."""

    exit_code = 2


class RunFault(Exception):
    """Stopped by a fault in the run: a non-finite loss, no verifiable checkpoint, a full disk. Exit code 3."""

    exit_code = 3


class Stopped(Exception):
    """Asked to stop, and everything saved: not an error. Exit code 128 + the signal's number, 143 for SIGTERM."""

    def __init__(self, message: str, exit_code: int = 143):
        super().__init__(message)
        self.exit_code = exit_code
