"""Runs `lmrep <command> ...`: parses the command line, and turns failures into messages and exit codes.

Exit codes: 0 done; 2 refused before anything was written; 3 stopped by a fault in the run; 130 interrupted; 143 saved
and stopped on SIGTERM. Any other exception is a bug in lmrep and shows its traceback, unless Python cannot import a
file, such as a component's, which is refused (2). One of several processes exits as
`lmrep.distributed.process_group.leave` describes.
"""

import errno
import importlib
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from lmrep.cli import streams
from lmrep.cli.arguments import COMMON, COMPILATION_CACHE, Flag, parse
from lmrep.config.record import suggestion
from lmrep.core import compilation_cache
from lmrep.core.errors import FAULTS, TRACEBACK, RunFault, Stopped, UserError, readable
from lmrep.core.host import check_address_space, keep_memory
from lmrep.core.messages import aligned, show_messages, shown
from lmrep.distributed import process_group


class Command(NamedTuple):
    """A command.

    The module `lmrep.cli.NAME` has `run(arguments) -> exit code, or None for 0`; `FLAGS`, or a function `flags()` that
    returns them, {name: Flag}, where there are flags beside `common`; and the help as its docstring.
    """

    summary: str  # one line for the overview
    example: str  # a command line
    common: tuple[str, ...] = ("workdir",)  # names of the flags of `COMMON` that it takes
    words: str = ""  # positional arguments, for help; "" for none
    computes: bool = True  # whether it runs a network with JAX; False also where it checks itself that it can


CONFIG = ("config", "workdir")

COMMANDS = {
    "train": Command(
        "prepare data, train, and resume a run that was stopped",
        "lmrep train --config=experiments/quickstart.py --workdir=runs/quickstart --config.steps=500", CONFIG),
    "sweep": Command(
        "train the settings of a grid with several seeds, and compare them",
        "lmrep sweep --config=experiments/quickstart.py --workdir=sweeps/rates --seeds=0-2 "
        "--grid='optimizer.learning_rate=1e-3,4e-3'", CONFIG),
    "reproduce": Command(
        "train the rows of a published table, and compare them with the paper",
        "lmrep reproduce roberta:table1 --workdir=claims/roberta_table1 --seeds=0-2", CONFIG, "[CLAIM]"),
    "doctor": Command(
        "check everything that a run needs before it starts",
        "lmrep doctor --config=experiments/quickstart.py --workdir=runs/quickstart", CONFIG, computes=False),
    "plan": Command(
        "plan memory, time and cost of a run on hardware that is not here",
        "lmrep plan --config=experiments/bert.py:size=large,mesh=fsdp --topology=v5e:16x16", CONFIG, computes=False),
    "evaluate": Command(
        "compute the metrics of a trained run on held-out documents or labelled examples",
        "lmrep evaluate --workdir=runs/quickstart"),
    "score": Command(
        "score predictions of any program as the official scripts do",
        "lmrep score --metric=squad2 --gold=dev-v2.0.json --predictions=predictions.json", (), computes=False),
    "predict": Command(
        "label texts, fill in masked words, continue texts, or find replaced words",
        'lmrep predict --workdir=runs/quickstart "The [MASK] of a list is an integer."', words="[TEXT ...]"),
    "surprisal": Command(
        "write how unexpected each word of a text is, in bits",
        "lmrep surprisal --workdir=runs/gpt2 --input=sentences.txt --output=surprisal.csv"),
    "pages": Command(
        "list the config files that come with lmrep, or copy one",
        "lmrep pages bert.py --copy", (), "[FILE ...]", computes=False),
    "fields": Command(
        "list the fields of a config: default, bounds and meaning",
        "lmrep fields learning_rate --config=experiments/quickstart.py", ("config",), "[WORD ...]", computes=False),
    "flops": Command(
        "compute the floating-point operations of training by three conventions",
        "lmrep flops --config=experiments/electra.py:size=small", CONFIG, computes=False),
    "prepare": Command(
        "prepare the token stores of a corpus, on this machine or on many with Apache Beam",
        "lmrep prepare --config=experiments/quickstart.py --data_dir=data", ("config",), computes=False),
    "inspect": Command(
        "show statistics of the data, and training examples",
        "lmrep inspect --config=experiments/quickstart.py", CONFIG),
    "embed": Command(
        "write the contextual vectors of texts",
        "lmrep embed --workdir=runs/quickstart --input=texts.txt --output=vectors.safetensors"),
    "neighbours": Command(
        "find the words nearest to a word in its sentence, over a corpus",
        'lmrep neighbours --workdir=runs/quickstart --input=texts.txt "Return the *value* of the key."',
        words="SENTENCE"),
    "probe": Command(
        "measure what every layer of a network holds: classifiers, similarities, trees",
        "lmrep probe --workdir=runs/bert --config=experiments/tasks/ud_pos.py:data=UD_English-EWT --untrained", CONFIG),
    "heads": Command(
        "measure which attention heads a trained run needs",
        "lmrep heads --workdir=runs/sst2 --random=3"),
    "prune": Command(
        "remove attention heads of a trained run, which makes it smaller and faster",
        "lmrep prune --workdir=runs/sst2 --output=runs/sst2-pruned --fraction=0.3"),
    "branch": Command(
        "continue a run from a checkpoint in a new workdir, under another learning rate",
        "lmrep branch --workdir=runs/stable --output=runs/decay --step=8000 --config.steps=9000 "
        "--config.optimizer.schedule.cooldown_steps=1000", CONFIG, computes=False),
    "convert": Command(
        "convert a published checkpoint to a workdir, or a workdir to a Hugging Face directory",
        "lmrep convert bert-base-uncased/ runs/bert_base", (), "SOURCE TARGET"),
    "push": Command(
        "publish a run on the Hugging Face Hub, with a model card",
        "lmrep push --workdir=runs/sst2 --repo=OWNER/NAME"),
    "average": Command(
        "average the last checkpoints of a run into a new workdir",
        "lmrep average runs/quickstart runs/averaged --last=3", (), "WORKDIR TARGET"),
    "diff": Command(
        "compare two checkpoints, parameter by parameter",
        "lmrep diff runs/bert_base runs/mine", (), "A B"),
    "pairings": Command(
        "list which networks, objectives and formats fit together",
        "lmrep pairings bert_tiny", (), "[PRESET ...]", computes=False),
    "report": Command(
        "write an offline HTML page of one or several runs",
        "lmrep report runs/quickstart", words="[WORKDIR ...]"),
    "board": Command(
        "write an offline HTML page of all runs in a folder: search, sorting, comparison",
        "lmrep board runs", (), "FOLDER ...", computes=False),
    "docs": Command(
        "show the documentation in a browser, without a network", "lmrep docs sweeps", (), "[PAGE]", computes=False),
    "completion": Command(
        "print a completion script for bash, zsh, tcsh, fish or powershell",
        'eval "$(lmrep completion bash)"', (), "SHELL", computes=False),
}

TERMINATED = 143  # the exit code after SIGTERM


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code. Failures are printed.

    Args:
      argv: the words after `lmrep`; None: `sys.argv`, in a process that runs this command alone.
    """
    if argv is None:  # SIGTERM ends the process in order (training saves first)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        sys.unraisablehook = _signal_again
        streams.prepare_streams()
    code = _run_and_report(sys.argv[1:] if argv is None else argv)
    if code and process_group.joined():
        process_group.leave(code)
    if argv is None:
        streams.leave()
    if code == TERMINATED and argv is None:
        # Without the interpreter's shutdown, during which threads of XLA that still compile may crash.
        os._exit(code)
    return code


def _signal_again(unraisable) -> None:
    """Repeats a signal whose exception Python ignored, as in a callback of the garbage collector."""
    error = unraisable.exc_value
    terminated = isinstance(error, SystemExit) and error.code == TERMINATED
    if terminated or isinstance(error, KeyboardInterrupt):
        number = signal.SIGTERM if terminated else signal.SIGINT
        threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _run_and_report(words: Sequence[str]) -> int:
    """Runs a command, prints its failure if it fails, and returns the exit code."""
    try:
        try:
            return run(words)
        finally:
            sys.stdout.flush()
    except Stopped as stop:
        streams.say(f"lmrep: {stop}")
        return stop.exit_code
    except (UserError, RunFault) as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        streams.say(f"lmrep: error: {error}")
        return error.exit_code
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        streams.leave()
        return 0
    except MemoryError as error:
        streams.say(f"lmrep: error: the memory is exhausted: {error or 'see ulimit -v'}; use less data at a time, a "
                    "smaller network, or a larger machine")
        return RunFault.exit_code
    except KeyboardInterrupt:
        streams.say("lmrep: interrupted")
        return 130
    except SystemExit as stop:
        if stop.code != TERMINATED:
            raise
        streams.say("lmrep: terminated")
        return TERMINATED
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            streams.say(f"lmrep: error: {readable(error.filename)}: {error.strerror}; give a shorter one")
            return UserError.exit_code
        if isinstance(error, OSError) and error.errno in FAULTS:
            name = f"{readable(str(error.filename))}: " if error.filename else ""
            streams.say(f"lmrep: error: {name}{error.strerror}; fix that, and run the command again")
            return RunFault.exit_code
        if "RESOURCE_EXHAUSTED" in str(error) or "can't start new thread" in str(error):  # XLA's and Python's
            streams.say(f"lmrep: error: the memory is exhausted: {readable(str(error))[:300]}")
            return RunFault.exit_code
        if place := _import_of(error):
            streams.say(f"lmrep: error: {place}, cannot be imported: {type(error).__name__}: {readable(str(error))} "
                        f"({TRACEBACK}=1 shows the traceback)")
            return UserError.exit_code
        if not process_group.joined():
            raise
        traceback.print_exc()
        return 1


def _import_of(error: Exception) -> str:
    """Returns file and line of the module that fails while Python imports it; "" for other errors, and where the
    traceback is asked for."""
    places = [f"{frame.filename}, line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
              if frame.name == "<module>"]
    if isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):
        places.append(f"{error.filename}, line {error.lineno}")
    return places[-1] if places and not os.environ.get(TRACEBACK) else ""


def run(words: Sequence[str]) -> int:
    """Runs a command line and returns the exit code. Failures are exceptions."""
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("--help", "-h", "help"):
        print(overview())
        return 0
    if words[0] in ("--version", "-V"):
        print(f"lmrep {metadata.version('lmrep')}")
        return 0
    for word in words:
        try:
            word.encode(errors="surrogateescape")  # as os.fsencode, of names that are not UTF-8
        except UnicodeEncodeError:
            raise UserError(f"the argument {shown(word)} is not text") from None
        if "\0" in word:
            raise UserError(f"the argument {shown(word)} has a null character")
    name, rest = words[0], words[1:]
    if name.startswith("-"):
        raise UserError(f"expected a command before {name}: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        raise UserError(f"there is no command {shown(name)}{suggestion(name, COMMANDS) or '; see lmrep --help'}")
    command, module = COMMANDS[name], importlib.import_module(f"lmrep.cli.{name}")
    flags = flags_of(name)
    before_dashes = rest[: rest.index("--")] if "--" in rest else rest
    if "--help" in before_dashes or "-h" in before_dashes:
        print(description(name, module.__doc__ or command.summary, flags))
        return 0
    arguments = parse(name, rest, flags)
    if arguments.words and not command.words:
        raise UserError(f"lmrep {name} takes no argument {arguments.words[0]!r}"
                        + ("; set a field of the config with --config.FIELD=VALUE" if "config" in command.common
                           else f"; see lmrep {name} --help"))
    if command.computes or name == "plan":
        check_address_space()
    if os.environ.get("LMREP_KEEP_MEMORY") == "1":
        keep_memory()  # before JAX is imported
    if command.computes:
        (compilation_cache.enable if arguments.flags.compilation_cache else compilation_cache.disable)()
    show_messages(logging.WARNING)  # commands that take long show more
    return module.run(arguments) or 0


def flags_of(name: str) -> dict[str, Flag]:
    """Returns the flags of a command: those of `COMMON`, the module's, and --compilation_cache last if it computes."""
    module = importlib.import_module(f"lmrep.cli.{name}")
    flags = module.flags() if hasattr(module, "flags") else getattr(module, "FLAGS", {})
    computing = {"compilation_cache": COMPILATION_CACHE} if COMMANDS[name].computes else {}
    return {key: COMMON[key] for key in COMMANDS[name].common} | flags | computing


def overview() -> str:
    """Returns the help of `lmrep` itself."""
    commands = aligned([(f"  {name}", command.summary) for name, command in COMMANDS.items()])
    return f"""lmrep pretrains contextual language representations, fine-tunes them and uses them.

Usage: lmrep COMMAND [--config=FILE.py[:key=value,...]] [--workdir=DIR] [--config.FIELD=VALUE ...]

Commands:
{commands}

Example:
  {COMMANDS["train"].example}

lmrep help COMMAND describes a command; lmrep --version prints the version."""


def description(name: str, about: str, flags: Mapping[str, Flag]) -> str:
    """Returns the help of a command: what it does, the flags that it takes, and an example."""
    command, rows = COMMANDS[name], list(flags.items())
    if "config" in flags:
        field = Flag(None, "a field of the config; lmrep fields lists them")
        rows.insert(len(command.common), ("config.FIELD", field))
    lines = [(f"  {flag.spelling(key)}", flag.help + (
        f" (default: {flag.default})" if flag.default not in (None, "") else "")) for key, flag in rows]
    usage = " ".join(filter(None, ["Usage: lmrep", name, "[flags]" if lines else "", command.words]))
    listed = f"\n\nFlags:\n{aligned(lines)}" if lines else ""
    return f"{inspect.cleandoc(about)}\n\n{usage}{listed}\n\nExample:\n  {command.example}"


if __name__ == "__main__":
    sys.exit(main())
