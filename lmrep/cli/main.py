"""`lmrep <command> ...`: finds the command, parses its words, and turns failures into messages and exit codes.

Exit codes: 0 done; 2 refused before anything was written; 3 stopped by a fault in the run; 130 interrupted; 143 saved
and stopped on SIGTERM. Any other exception is a bug in lmrep and shows its traceback. One of several processes exits
as `lmrep.distributed.process_group.leave` describes.
"""

import errno
import importlib
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from types import ModuleType
from typing import NamedTuple

from lmrep.cli.arguments import COMMON, Flag, parse
from lmrep.config.record import suggestion
from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.core.host import keep_memory
from lmrep.distributed import process_group


class Command(NamedTuple):
    """A command.

    Attributes:
      summary: what it does, in a line.
      example: a command line.
      module: the module that has its `run(arguments) -> exit code`, its `FLAGS` or, where these come from elsewhere,
        `flags() -> {name: Flag}`, and its help as the docstring.
      common: the flags of `COMMON` that it takes.
      words: its positional arguments, for help; "" where it takes none.
    """

    summary: str
    example: str
    module: str
    common: tuple[str, ...] = ("workdir",)
    words: str = ""


CONFIG = ("config", "workdir")

COMMANDS = {
    "train": Command(
        "prepare data, train, and resume a run that was stopped",
        "lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart --config.steps=500",
        "lmrep.cli.train", CONFIG),
    "doctor": Command(
        "check everything that a run needs before it starts",
        "lmrep doctor --config=experiments/quickstart.py --workdir=runs/quickstart",
        "lmrep.cli.doctor", CONFIG),
    "evaluate": Command(
        "compute the metrics of a trained run on held-out documents",
        "lmrep evaluate --workdir=runs/quickstart",
        "lmrep.cli.evaluate"),
    "predict": Command(
        "fill in masked words, continue texts, or find replaced words",
        'lmrep predict --workdir=runs/quickstart "The [MASK] of a list is an integer."',
        "lmrep.cli.predict", words="[TEXT ...]"),
    "pages": Command(
        "list the experiment files that come with lmrep, or copy one",
        "lmrep pages bert.py --copy",
        "lmrep.cli.pages", (), "[PAGE ...]"),
    "fields": Command(
        "list the fields of a config: default, bounds and meaning",
        "lmrep fields learning_rate --config=experiments/quickstart.py",
        "lmrep.cli.fields", ("config",), "[WORD ...]"),
    "inspect": Command(
        "show statistics of the data, and training examples",
        "lmrep inspect --config=experiments/quickstart.py",
        "lmrep.cli.inspect", CONFIG),
    "embed": Command(
        "write the contextual vectors of texts",
        "lmrep embed --workdir=runs/quickstart --input=texts.txt --output=vectors.safetensors",
        "lmrep.cli.embed"),
    "neighbours": Command(
        "find the words nearest to a word in its sentence, over a corpus",
        'lmrep neighbours --workdir=runs/quickstart --input=texts.txt "Return the *value* of the key."',
        "lmrep.cli.neighbours", words="SENTENCE"),
    "convert": Command(
        "convert a published checkpoint to a workdir, or a workdir to a Hugging Face directory",
        "lmrep convert bert-base-uncased/ runs/bert_base",
        "lmrep.cli.convert", (), "SOURCE TARGET"),
    "average": Command(
        "average the last checkpoints of a run into a new workdir",
        "lmrep average runs/quickstart runs/averaged --last=3",
        "lmrep.cli.average", (), "WORKDIR TARGET"),
    "diff": Command(
        "compare two checkpoints, parameter by parameter",
        "lmrep diff runs/bert_base runs/mine",
        "lmrep.cli.diff", (), "A B"),
    "pairings": Command(
        "list which networks, objectives and formats fit together",
        "lmrep pairings bert_tiny",
        "lmrep.cli.pairings", (), "[PRESET ...]"),
    "report": Command(
        "write an offline HTML page of one or several runs",
        "lmrep report runs/quickstart",
        "lmrep.cli.report", words="[WORKDIR ...]"),
    "completion": Command(
        "print a completion script for bash, zsh or fish",
        'eval "$(lmrep completion bash)"',
        "lmrep.cli.completion", (), "SHELL"),
}


TERMINATED = 143  # the exit code after SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, by default `sys.argv`, and returns the exit code."""
    if argv is None:  # a process of its own: SIGTERM ends it in order (training saves first)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        sys.unraisablehook = _signal_again
    code = _guarded(sys.argv[1:] if argv is None else argv)
    if code and process_group.joined():
        process_group.leave(code)
    if code == TERMINATED and argv is None:
        # Without the interpreter's shutdown, during which threads of XLA that still compile may crash.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _signal_again(unraisable) -> None:
    """Repeats a signal whose exception Python ignored, as in a callback of the garbage collector."""
    error = unraisable.exc_value
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == TERMINATED):
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _guarded(words: Sequence[str]) -> int:
    """The exit code of a command, after its failure was reported."""
    try:
        return run(words)
    except Stopped as stop:
        print(f"lmrep: {stop}", file=sys.stderr)
        return stop.exit_code
    except (UserError, RunFault) as error:
        print(f"lmrep: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("lmrep: interrupted", file=sys.stderr)
        return 130
    except SystemExit as stop:
        if stop.code != TERMINATED:
            raise
        print("lmrep: terminated", file=sys.stderr)
        return TERMINATED
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            print(f"lmrep: error: {error.filename}: {error.strerror}; give a shorter one", file=sys.stderr)
            return UserError.exit_code
        if not process_group.joined():
            raise
        traceback.print_exc()
        return 1


def run(words: Sequence[str]) -> int:
    """As `main`, but failures are exceptions."""
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("--help", "-h", "help"):
        print(overview())
        return 0
    if words[0] in ("--version", "-V"):
        print(f"lmrep {metadata.version('lmrep')}")
        return 0
    name, rest = words[0], words[1:]
    if name.startswith("-"):
        raise UserError(f"expected a command before {name}: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        raise UserError(f"there is no command {name!r}{suggestion(name, COMMANDS) or '; see lmrep --help'}")
    command, module = COMMANDS[name], importlib.import_module(COMMANDS[name].module)
    flags = flags_of(module)
    before_dashes = rest[: rest.index("--")] if "--" in rest else rest
    if "--help" in before_dashes or "-h" in before_dashes:
        print(description(name, module, flags))
        return 0
    arguments = parse(name, rest, flags, command.common)
    if arguments.words and not command.words:
        raise UserError(f"lmrep {name} takes no argument {arguments.words[0]!r}"
                        + ("; set a field of the config with --config.FIELD=VALUE" if "config" in command.common
                           else f"; see lmrep {name} --help"))
    if os.environ.get("LMREP_KEEP_MEMORY") == "1":
        keep_memory()  # before JAX is imported
    return module.run(arguments) or 0


def flags_of(module: ModuleType) -> Mapping[str, Flag]:
    """A command's own flags."""
    return module.flags() if hasattr(module, "flags") else module.FLAGS


def overview() -> str:
    """The help of `lmrep` itself."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"""lmrep pretrains contextual language representations and uses them.

Usage: lmrep COMMAND [--config=FILE.py[:key=value,...]] [--workdir=DIR] [--config.FIELD=VALUE ...]

Commands:
{commands}

Example:
  {COMMANDS["train"].example}

lmrep help COMMAND describes a command; lmrep --version prints the version."""


def description(name: str, module: ModuleType, flags: Mapping[str, Flag]) -> str:
    """The help of a command: its module's docstring, the flags that it takes, and an example."""
    command = COMMANDS[name]
    shown = {flag: COMMON[flag] for flag in COMMON if flag in command.common}
    if "config" in shown:
        shown["config.FIELD"] = Flag(None, "a field of the config; lmrep fields lists them")
    shown |= flags
    width = max((len(flag.spelling(key)) for key, flag in shown.items()), default=0)
    lines = [f"  {flag.spelling(key):{width}}  {flag.help}{_default(flag)}" for key, flag in shown.items()]
    about = inspect.cleandoc(module.__doc__ or command.summary)
    usage = " ".join(filter(None, ["Usage: lmrep", name, "[flags]" if lines else "", command.words]))
    listed = "\n\nFlags:\n" + "\n".join(lines) if lines else ""
    return f"{about}\n\n{usage}{listed}\n\nExample:\n  {command.example}"


def _default(flag: Flag) -> str:
    return "" if flag.default in (None, "") else f" (default: {flag.default})"


if __name__ == "__main__":
    sys.exit(main())
