"""Prints a completion script of lmrep for a shell: commands, flags, experiment files and fields of the config.

    eval "$(lmrep completion bash)"                                    # in ~/.bashrc
    lmrep completion zsh > "${fpath[1]}/_lmrep"                        # then start a new shell
    lmrep completion fish > ~/.config/fish/completions/lmrep.fish"""

import importlib
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmrep.cli.arguments import COMMON, Arguments, Flag
from lmrep.core.errors import UserError

FLAGS: dict[str, Flag] = {}


class Choice(NamedTuple):
    """A command as completions see it: its flags, as ("--name=" or "--name", help), and whether it takes a config."""

    name: str
    summary: str
    flags: tuple[tuple[str, str], ...]
    config: bool


def run(arguments: Arguments) -> int:
    """The command."""
    if len(arguments.words) != 1 or arguments.words[0] not in SCRIPTS:
        raise UserError(f"lmrep completion takes the name of a shell: {', '.join(SCRIPTS)}")
    from lmrep.cli import fields

    paths = dict.fromkeys(field.path for field in fields.listed(None) if ".N." not in field.path)
    print(SCRIPTS[arguments.words[0]](choices(), list(paths)))
    return 0


def choices() -> list[Choice]:
    """Every command with its flags."""
    from lmrep.cli.main import COMMANDS, flags_of

    found = []
    for name, command in COMMANDS.items():
        own = flags_of(importlib.import_module(command.module))
        flags = {key: COMMON[key] for key in command.common} | dict(own)
        spelled = tuple((f"--{key}" if flag.value_type is bool else f"--{key}=", flag.help)
                        for key, flag in flags.items())
        found.append(Choice(name, command.summary, (*spelled, ("--help", "describe the command")),
                            "config" in command.common))
    return found


def bash(commands: Sequence[Choice], fields: Sequence[str]) -> str:
    """The script for bash."""
    cases = "\n".join(f"    {each.name}) words='{' '.join(flag for flag, _ in each.flags)}' config={int(each.config)};;"
                      for each in commands)
    return f"""_lmrep_fields='{' '.join(f'--config.{path}=' for path in fields)}'
_lmrep() {{
  local line="${{COMP_LINE:0:$COMP_POINT}}" current before words config=0 candidate
  current="${{line##*[[:space:]]}}"
  before=${{current%"${{current##*=}}"}}  # bash completes only what follows the last =
  COMPREPLY=()
  compopt -o nospace 2>/dev/null
  if [[ "$line" =~ ^[[:space:]]*[^[:space:]]+[[:space:]]+[^[:space:]]*$ ]]; then
    COMPREPLY=($(compgen -W 'help {' '.join(each.name for each in commands)}' -- "$current"))
    COMPREPLY=("${{COMPREPLY[@]/%/ }}")
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$current" in
    --config=*) COMPREPLY=($(compgen -f -X '!*.py' -- "${{current#*=}}") $(compgen -d -S / -- "${{current#*=}}"));;
    *=*) COMPREPLY=($(compgen -f -- "${{current##*=}}"));;
    --config.*) ((config)) && COMPREPLY=($(compgen -W "$_lmrep_fields" -- "$current"));;
    -*) COMPREPLY=($(compgen -W "$words" -- "$current"));;
    *) COMPREPLY=($(compgen -f -- "$current"));;
  esac
}}
complete -F _lmrep lmrep"""


def zsh(commands: Sequence[Choice], fields: Sequence[str]) -> str:
    """The script for zsh."""
    cases = "\n".join(f"    {each.name}) flags=({' '.join(flag for flag, _ in each.flags)}) config={int(each.config)};;"
                      for each in commands)
    described = "\n".join(f"    {shlex.quote(f'{each.name}:{each.summary}')}" for each in commands)
    return f"""#compdef lmrep
_lmrep() {{
  local -a commands flags
  local config=0
  commands=(
{described}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  case $words[2] in
{cases}
  esac
  case $PREFIX in
    --config=*) compset -P '*='; _files -g '*.py';;
    *=*) compset -P '*='; _files;;
    --config.*) (( config )) && compadd -S '' -- {' '.join(f'--config.{path}=' for path in fields)};;
    -*) compadd -S '' -- $flags;;
    *) _files;;
  esac
}}
compdef _lmrep lmrep"""


def fish(commands: Sequence[Choice], fields: Sequence[str]) -> str:
    """The script for fish."""
    lines = []
    for each in commands:
        lines.append(f"complete -c lmrep -n __fish_use_subcommand -f -a {each.name} -d {shlex.quote(each.summary)}")
        seen = f"complete -c lmrep -n '__fish_seen_subcommand_from {each.name}'"
        for flag, help in each.flags:
            name, takes_value, _ = flag.removeprefix("--").partition("=")
            lines.append(f"{seen} -l {name} {'-r ' if takes_value else ''}-d {shlex.quote(help)}")
    takers = " ".join(each.name for each in commands if each.config)
    lines += [f"complete -c lmrep -n '__fish_seen_subcommand_from {takers}' -r -l config.{path}" for path in fields]
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[Sequence[Choice], Sequence[str]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
