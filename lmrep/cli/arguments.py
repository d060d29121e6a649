"""Parses the words of a command line. Imports nothing heavy, so that help and error messages come at once."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from lmrep.config.record import NAMES, Bounds, suggestion
from lmrep.core.errors import UserError
from lmrep.core.messages import shown
from lmrep.core.paths import as_path, as_paths

FILE_URL = re.compile(r"(?:^|(?<==))file://(?=/\S*$)")  # at the start of a word or of a flag's value


class Flag(NamedTuple):
    """A flag of a command."""

    default: Any  # its value where it is not given
    help: str  # what it means
    # of its values; by default the type of the default. A bool is set by --name and --noname.
    type: Callable[[str], Any] | None = None
    bounds: Bounds = Bounds()  # what its values may be

    @property
    def value_type(self) -> Callable[[str], Any]:
        """The type of its values."""
        return self.type or (str if self.default is None else type(self.default))

    def spelling(self, name: str) -> str:
        """Returns the flag as help shows it: --name=TEXT, --name=N, --[no]name."""
        if self.value_type is bool:
            return f"--[no]{name}"
        kinds = {str: "TEXT", int: "N", float: "X", as_path: "PATH", as_paths: "PATHS"}
        return f"--{name}={kinds.get(self.value_type, self.value_type.__name__.upper())}"


# Flags that many commands take. `--config.FIELD=VALUE` comes with --config.
COMMON = {
    "config": Flag(None, "the config file, with choices after a colon: FILE.py:key=value,...", as_path),
    "workdir": Flag(None, "the directory of the run", as_path),
}


LARGEST = 2**31 - 1  # of a whole number, unless the flag says otherwise
WHOLE = re.compile(r"[+-]?[0-9]{1,20}")


def at_least(limit: int, at_most: int = LARGEST) -> Bounds:
    """Bounds of a flag whose values are `limit` or more, up to `at_most`."""
    return Bounds(at_least=limit, at_most=at_most)


# The flag of every command that reads a trained run.
STEP = Flag(-1, "the step of the checkpoint to read; -1: the newest, or the best where checkpoint.load "
            "is best, as it is of tasks")
ENSEMBLE = Flag("", "of a task, workdirs of other runs of the same task and labels, with commas between them, whose "
                "probabilities are averaged with this run's, such as that of a backward language model", as_paths)
# The flag of every command that compiles programs.
COMPILATION_CACHE = Flag(True, "keep compiled programs for the next start ($JAX_COMPILATION_CACHE_DIR; default: "
                               "$LMREP_DATA_DIR/compiled or ~/.cache/lmrep/compiled)")
DATA_DIR = Flag("", "the directory of token stores (default: $LMREP_DATA_DIR or ~/.cache/lmrep); from gs://..., those "
                    "that are there are downloaded to the default one", as_path)


@dataclass(frozen=True)
class Arguments:
    """What a command's `run` receives."""

    command: str  # its name
    config_file: str | None = None  # FILE of `--config=FILE:ARGUMENT`, or None
    config_argument: str = ""  # ARGUMENT, "" where there is none
    overrides: tuple[tuple[str, str], ...] = ()  # `--config.a.b=c` as ("a.b", "c"), in the order given
    workdir: str | None = None  # of `--workdir`, or None
    flags: SimpleNamespace = field(default_factory=SimpleNamespace)  # the command's own flags as attributes
    words: tuple[str, ...] = ()  # the positional arguments, in order

    @property
    def paths(self) -> list[str]:
        """`words`, where they are paths."""
        return [as_path(word) for word in self.words]

    @property
    def step(self) -> int | None:
        """`--step`, None for the newest checkpoint."""
        return None if self.flags.step < 0 else self.flags.step

    def load_config(self) -> Any:
        """Loads the config of --config, or else of the run in --workdir, with the overrides.

        Raises:
          UserError: there is neither, or the config cannot be loaded.
        """
        if self.config_file is not None:
            from lmrep.interop.checkpoint_config import load_config

            return load_config(self.config_file, self.config_argument, self.overrides, self.workdir)
        if not self.workdir:
            raise UserError(f"lmrep {self.command} needs an experiment, for example "
                            "--config=experiments/quickstart.py")
        from lmrep.core import remote

        if not remote.as_url(self.workdir) and not (Path(self.workdir) / "config.json").is_file():
            raise UserError(f"there is no run in {self.workdir}; correct --workdir, or start one there with "
                            "--config, for example --config=experiments/quickstart.py; a chain of runs continues with "
                            "its --config")
        from lmrep.experiment.resolve import apply_overrides
        from lmrep.storage import remote_workdir
        from lmrep.storage.workdir import read_config

        config = read_config(remote_workdir.local_copy(self.workdir))["config"]
        fields = {path for path, _ in self.overrides}
        if "epochs" in fields and "steps" not in fields:  # the steps on record belong to the previous epochs
            config = {**config, "steps": 0}
        return apply_overrides(config, self.overrides)

    def load_chain(self) -> list[Any]:
        """Returns the runs (`ChainRun`) that the config file of --config chains; [] where it defines one experiment."""
        if self.config_file is None:
            return []
        from lmrep.interop import chain

        return chain.runs(f"{self.config_file}:{self.config_argument}", dict(self.overrides), self.workdir)

    def required_workdir(self) -> str:
        """Returns `workdir`. Raises UserError if it is missing."""
        if not self.workdir:
            raise UserError(f"lmrep {self.command} needs the directory of a run, for example "
                            "--workdir=runs/quickstart")
        return self.workdir


def parse(command: str, words: Sequence[str], flags: Mapping[str, Flag]) -> Arguments:
    """Parses the words after the name of a command.

    `--flag=value` and `--flag value` are the same, as are `_` and `-` in names. A bool is set by `--flag` and
    `--noflag`. Everything after `--` is positional. The last value of a flag counts. `file:///x` is the path /x.

    Raises:
      UserError: a flag is unknown, with the nearest name; a value is missing, of another type or out of bounds.
    """
    values = {name: flag.default for name, flag in flags.items()}
    switches = {f"{no}{name}": (name, not no) for name, flag in flags.items() if flag.value_type is bool
                for no in ("", "no")}
    overrides, positional, rest = [], [], [FILE_URL.sub("", word) for word in words]
    while rest:
        word = rest.pop(0)
        if word == "--":
            positional += rest
            break
        if not word.startswith("--"):
            if word[:1] == "-" and word[1:2].isalpha():
                raise UserError(f"lmrep {command} has no flag {word}; flags begin with two dashes, and text that "
                                "begins with one goes after `--`")
            positional.append(word)
            continue
        written, equals, text = word[2:].partition("=")
        name, is_field = written.replace("-", "_"), written.startswith("config.")
        if name in switches and not equals:
            switch, values[switch] = switches[name]
        elif (name in COMMON or is_field) and name.partition(".")[0] not in flags:
            raise UserError(f"lmrep {command} takes the config of the run in --workdir; leave --config out"
                            if "workdir" in flags else f"lmrep {command} takes no --{name}; see lmrep {command} --help")
        elif name not in flags and not is_field:
            near = suggestion(word, [f"--{n}" for n in flags])
            raise UserError(f"lmrep {command} has no flag --{written}{near or f'; see lmrep {command} --help'}")
        else:
            if not equals:
                if not rest or rest[0].startswith("--"):
                    raise UserError(f"--{written} needs a value: --{written}=VALUE")
                text = rest.pop(0)
            if is_field:
                overrides.append((written.removeprefix("config."), text))
            else:
                values[name] = _value(text, flags[name], written)
    file, _, argument = (values.pop("config", None) or "").partition(":")
    workdir = values.pop("workdir", None)
    return Arguments(command, file or None, argument, tuple(overrides), workdir, SimpleNamespace(**values),
                     tuple(positional))


def _value(text: str, flag: Flag, name: str) -> Any:
    """Parses the value of a flag."""
    value_type, bounds = flag.value_type, flag.bounds
    if value_type is int and bounds.at_most is None:
        bounds = dataclasses.replace(bounds, at_most=LARGEST)
    try:
        if value_type is int and not WHOLE.fullmatch(text):
            raise ValueError
        value = {"true": True, "false": False}[text.lower()] if value_type is bool else value_type(text)
    except (ValueError, KeyError):
        expected = NAMES.get(value_type.__name__, value_type.__name__)
        raise UserError(f"--{name} is {shown(text)}; expected {expected}") from None
    if expected := bounds.broken_by(value):
        raise UserError(f"--{name} is {shown(value)}; expected {expected}")
    return value
