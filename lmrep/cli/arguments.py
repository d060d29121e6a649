"""The words of a command line, as data. Imports nothing heavy, so that help and refusals are instant."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from lmrep.config.record import NAMES, suggestion
from lmrep.core.errors import UserError


class Flag(NamedTuple):
    """A flag of one command. `type` is that of the default unless given; a bool is set by --name and --noname."""

    default: Any
    help: str
    type: Callable[[str], Any] | None = None

    @property
    def kind(self) -> Callable[[str], Any]:
        """The type of its values."""
        return self.type or (str if self.default is None else type(self.default))

    def spelling(self, name: str) -> str:
        """How help writes it: --name=TEXT, --name=N, --[no]name."""
        if self.kind is bool:
            return f"--[no]{name}"
        return f"--{name}={ {str: 'TEXT', int: 'N', float: 'X'}.get(self.kind, self.kind.__name__.upper())}"


# What every command takes. `--config.FIELD=VALUE` is the third, and has a form of its own.
COMMON = {
    "config": Flag(None, "the experiment, and the parts it chooses after a colon: FILE.py:part=choice,..."),
    "workdir": Flag(None, "where the run lives"),
}


@dataclass(frozen=True)
class Arguments:
    """What a command's `run` receives.

    Attributes:
      command: its name.
      config_file: FILE of `--config=FILE:ARGUMENT`, or None.
      config_argument: ARGUMENT, "" where there is none.
      overrides: `--config.a.b=c` as ("a.b", "c"), in the order given.
      workdir: of `--workdir`, or None.
      flags: the command's own flags, each as an attribute: its value, or its default.
      words: everything else, in order.
    """

    command: str
    config_file: str | None = None
    config_argument: str = ""
    overrides: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    flags: SimpleNamespace = field(default_factory=SimpleNamespace)
    words: tuple[str, ...] = ()

    def load_config(self) -> Any:
        """The experiment's ConfigDict with the overrides; UserError where --config is missing or does not load."""
        if self.config_file is None:
            raise UserError(f"lmrep {self.command} needs an experiment: --config=experiments/quickstart.py, say")
        from lmrep.config import loading

        return loading.load(self.config_file, self.config_argument, self.overrides)

    def required_workdir(self) -> str:
        """`workdir`; UserError where it is missing."""
        if not self.workdir:
            raise UserError(f"lmrep {self.command} needs a directory for the run: --workdir=runs/quickstart, say")
        return self.workdir

    def refuse(self, words: bool = False, config: bool = False) -> None:
        """UserError where words, or a config, were given to a command that has no use for them."""
        if words and self.words:
            raise UserError(f"lmrep {self.command} has no use for {self.words[0]!r}; a field of the config is set by "
                            "--config.FIELD=VALUE")
        if config and (self.config_file is not None or self.overrides):
            raise UserError(f"lmrep {self.command} takes the config of the run in --workdir; leave --config out")


def parse(command: str, given: Sequence[str], flags: Mapping[str, Flag]) -> Arguments:
    """The arguments that the words `given` after the command spell.

    `--flag=value` and `--flag value`; `--flag` and `--noflag` for a bool; `_` and `-` are one in names; what
    follows `--` are words. A flag given twice counts as last given. Raises UserError, naming the nearest flag.
    """
    known = {**COMMON, **flags}
    values = {name: flag.default for name, flag in known.items()}
    switches = {f"{no}{name}": (name, not no) for name, flag in known.items() if flag.kind is bool for no in ("", "no")}
    overrides, words, rest = [], [], list(given)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if not word.startswith("--"):
            words.append(_word(word, command))
            continue
        written, equals, text = word[2:].partition("=")
        name, is_field = written.replace("-", "_"), written.startswith("config.")
        if name in switches and not equals:
            switch, values[switch] = switches[name]
        elif name not in known and not is_field:
            near = suggestion(word, [f"--{n}" for n in known])
            raise UserError(f"lmrep {command} has no flag --{written}{near or f'; see lmrep {command} --help'}")
        else:
            if not equals:
                text = _next(rest, written)
            if is_field:
                overrides.append((written.removeprefix("config."), text))
            else:
                values[name] = _value(text, known[name].kind, written)
    file, _, argument = (values.pop("config") or "").partition(":")
    workdir = values.pop("workdir")
    own = SimpleNamespace(**values)
    return Arguments(command, file or None, argument, tuple(overrides), workdir, own, tuple(words))


def _word(word: str, command: str) -> str:
    """A word that is no flag; one dash and a letter is a flag misspelt."""
    if word[:1] == "-" and word[1:2].isalpha():
        raise UserError(f"lmrep {command} has no flag {word}; flags begin with two dashes, and words may follow `--`")
    return word


def _next(rest: list[str], name: str) -> str:
    """The word after a flag, as its value."""
    if not rest or rest[0].startswith("--"):
        raise UserError(f"--{name} needs a value: --{name}=VALUE")
    return rest.pop(0)


def _value(text: str, kind: Callable[[str], Any], name: str) -> Any:
    """`text` as the type of a flag."""
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise UserError(f"--{name} is {text!r}; expected {NAMES.get(kind.__name__, kind.__name__)}") from None
