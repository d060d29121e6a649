"""`lmrep <command> ...`: finds the command, parses its words, turns failures into messages and exit codes.

Exit codes: 0 done; 2 refused before anything was written; 3 stopped by a fault in the run; 130 interrupted;
143 saved and stopped on SIGTERM.
Any other exception is a bug of ours, and shows its traceback. One of several processes leaves by itself: see
`lmrep.distributed.process_group.leave`.
"""

import importlib
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata
from types import ModuleType
from typing import NamedTuple

from lmrep.cli.arguments import COMMON, Flag, parse
from lmrep.config.record import suggestion
from lmrep.core.errors import RunFault, Stopped, UserError
from lmrep.core.host import keep_memory
from lmrep.distributed import process_group


class Command(NamedTuple):
    """A command: what it does, an example, and the module that runs it."""

    summary: str
    example: str
    module: str


COMMANDS = {
    "train": Command(
        "prepare what is missing, train, and resume by itself",
        "lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart --config.steps=500",
        "lmrep.cli.train"),
    "doctor": Command(
        "check everything a run will need, before it needs it",
        "lmrep doctor --config=experiments/quickstart.py --workdir=runs/quickstart",
        "lmrep.cli.doctor"),
    "evaluate": Command(
        "the figures of a trained run on held-out documents",
        "lmrep evaluate --workdir=runs/quickstart",
        "lmrep.cli.evaluate"),
    "predict": Command(
        "fill in masked words, continue texts, or tell which of their words were replaced",
        'lmrep predict --workdir=runs/quickstart "The [MASK] of a list is an integer."',
        "lmrep.cli.predict"),
    "fields": Command(
        "every field of a config: its default, bounds and meaning",
        "lmrep fields learning_rate --config=experiments/quickstart.py",
        "lmrep.cli.fields"),
    "inspect": Command(
        "statistics of the data, and examples as the model is asked them",
        "lmrep inspect --config=experiments/quickstart.py",
        "lmrep.cli.inspect"),
    "embed": Command(
        "texts in, contextual vectors out",
        "lmrep embed --workdir=runs/quickstart --input=texts.txt --output=vectors.safetensors",
        "lmrep.cli.embed"),
    "neighbours": Command(
        "the words nearest to a word in its sentence, over a corpus",
        'lmrep neighbours --workdir=runs/quickstart --input=texts.txt "Return the *value* of the key."',
        "lmrep.cli.neighbours"),
    "convert": Command(
        "a published checkpoint into a workdir, or a workdir into a Hugging Face directory",
        "lmrep convert bert-base-uncased/ runs/bert_base",
        "lmrep.cli.convert"),
    "average": Command(
        "the mean of a run's last checkpoints, as a workdir",
        "lmrep average runs/quickstart runs/averaged --last=3",
        "lmrep.cli.average"),
    "diff": Command(
        "two checkpoints, parameter by parameter",
        "lmrep diff runs/bert_base runs/mine",
        "lmrep.cli.diff"),
    "pairings": Command(
        "which networks, objectives and formats go together",
        "lmrep pairings bert_tiny",
        "lmrep.cli.pairings"),
    "report": Command(
        "one offline page of one or several runs",
        "lmrep report runs/quickstart",
        "lmrep.cli.report"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line, `sys.argv` unless given, and returns the exit code."""
    if argv is None:  # a process of its own: what SIGTERM ends is left in order (training saves first)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    code = _guarded(sys.argv[1:] if argv is None else argv)
    if code and process_group.joined():
        process_group.leave(code)
    return code


def _guarded(words: Sequence[str]) -> int:
    """The exit code of a command, once its failure has been told."""
    try:
        return run(words)
    except Stopped as stop:
        print(f"lmrep: {stop}", file=sys.stderr)
        return stop.exit_code
    except (UserError, RunFault) as error:
        print(f"lmrep: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("lmrep: interrupted", file=sys.stderr)
        return 130
    except Exception:
        if not process_group.joined():
            raise
        traceback.print_exc()
        return 1


def run(words: Sequence[str]) -> int:
    """As `main`, with failures as exceptions."""
    if not words or words[0] in ("--help", "-h", "help"):
        print(overview())
        return 0
    if words[0] == "--version":
        print(f"lmrep {metadata.version('lmrep')}")
        return 0
    name, rest = words[0], words[1:]
    if name.startswith("-"):
        raise UserError(f"expected a command before {name}: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        raise UserError(f"there is no command {name!r}{suggestion(name, COMMANDS) or '; see lmrep --help'}")
    module = importlib.import_module(COMMANDS[name].module)
    flags_only = rest[: rest.index("--")] if "--" in rest else rest
    if "--help" in flags_only or "-h" in flags_only:
        print(description(name, module))
        return 0
    arguments = parse(name, rest, module.FLAGS)
    if os.environ.get("LMREP_KEEP_MEMORY") == "1":
        keep_memory()  # before JAX is imported
    return module.run(arguments) or 0


def overview() -> str:
    """The help of `lmrep` itself."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"""lmrep pretrains contextual language representations and puts them to use.

Usage: lmrep COMMAND --config=FILE.py[:part=choice,...] --workdir=DIR [--config.field=value ...]

Commands:
{commands}

Example:
  {COMMANDS["train"].example}

lmrep COMMAND --help says more of one command; lmrep --version names this version."""


def description(name: str, module: ModuleType) -> str:
    """The help of one command: its module's docstring, its flags and an example."""
    one = Flag(None, "set one field of the config; lmrep fields lists them")
    flags = {**COMMON, "config.FIELD": one, **module.FLAGS}
    width = max(len(flag.spelling(name)) for name, flag in flags.items())
    lines = [f"  {flag.spelling(name):{width}}  {flag.help}{_default(flag)}" for name, flag in flags.items()]
    about = inspect.cleandoc(module.__doc__ or COMMANDS[name].summary)
    return f"{about}\n\nUsage: lmrep {name} [flags] [words]\n\nFlags:\n" + "\n".join(lines) + (
        f"\n\nExample:\n  {COMMANDS[name].example}")


def _default(flag: Flag) -> str:
    return "" if flag.default in (None, "") else f" (default: {flag.default})"


if __name__ == "__main__":
    sys.exit(main())
