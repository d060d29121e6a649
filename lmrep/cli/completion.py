"""Prints a completion script of lmrep for a shell: commands, flags, config files and fields of the config.

    eval "$(lmrep completion bash)"                                    # in ~/.bashrc
    lmrep completion zsh > "${fpath[1]}/_lmrep"                        # then start a new shell
    lmrep completion fish > ~/.config/fish/completions/lmrep.fish"""

import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lmrep.cli.arguments import Arguments
from lmrep.core.errors import UserError

HELP = ("help", "describe a command")


class Choice(NamedTuple):
    """A command to complete."""

    name: str
    summary: str
    flags: dict[str, str]  # {"--name", or "--name=" with a value: help}
    config: bool  # whether it takes --config.FIELD


def run(arguments: Arguments) -> None:
    """Runs the command."""
    if len(arguments.words) != 1 or arguments.words[0] not in SCRIPTS:
        raise UserError(f"lmrep completion takes the name of a shell: {', '.join(SCRIPTS)}")
    from lmrep.experiment import fields

    paths = dict.fromkeys(field.path for field in fields.list_fields(None) if ".N." not in field.path)
    print(SCRIPTS[arguments.words[0]](choices(), list(paths)))


def choices() -> list[Choice]:
    """Returns every command with its flags."""
    from lmrep.cli.main import COMMANDS, flags_of

    return [Choice(name, command.summary, {
        **{f"--{key}" if flag.value_type is bool else f"--{key}=": flag.help for key, flag in flags_of(name).items()},
        "--help": "describe the command"}, "config" in command.common) for name, command in COMMANDS.items()]


def bash(commands: Sequence[Choice], fields: Sequence[str]) -> str:
    """Returns the script for bash. `fields` are the paths of config fields."""
    cases = "\n".join(f"    {choice.name}) words='{' '.join(choice.flags)}' config={int(choice.config)};;"
                      for choice in commands)
    return f"""_lmrep_fields='{' '.join(f'--config.{path}=' for path in fields)}'
_lmrep() {{
  local line="${{COMP_LINE:0:$COMP_POINT}}" current before words config=0 candidate
  current="${{line##*[[:space:]]}}"
  before=${{current%"${{current##*=}}"}}  # bash completes only what follows the last =
  COMPREPLY=()
  compopt -o nospace 2>/dev/null
  if [[ "$line" =~ ^[[:space:]]*[^[:space:]]+[[:space:]]+(help[[:space:]]+)?[^[:space:]]*$ ]]; then
    COMPREPLY=($(compgen -W 'help {' '.join(choice.name for choice in commands)}' -- "$current"))
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
    """Returns the script for zsh. `fields` are the paths of config fields."""
    cases = "\n".join(f"    {choice.name}) flags=({' '.join(choice.flags)}) config={int(choice.config)};;"
                      for choice in commands)
    described = "\n".join(f"    {shlex.quote(f'{name}:{summary}')}"
                          for name, summary in [HELP, *((choice.name, choice.summary) for choice in commands)])
    return f"""#compdef lmrep
_lmrep() {{
  local -a commands flags
  local config=0
  commands=(
{described}
  )
  if (( CURRENT == 2 )) || [[ $CURRENT == 3 && $words[2] == help ]]; then
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
    """Returns the script for fish. `fields` are the paths of config fields."""
    lines = [f"complete -c lmrep -n __fish_use_subcommand -f -a {HELP[0]} -d {shlex.quote(HELP[1])}"]
    for choice in commands:
        summary = shlex.quote(choice.summary)
        for condition in ("__fish_use_subcommand", "'__fish_seen_subcommand_from help; and __fish_is_nth_token 2'"):
            lines.append(f"complete -c lmrep -n {condition} -f -a {choice.name} -d {summary}")
        seen = f"complete -c lmrep -n '__fish_seen_subcommand_from {choice.name}'"
        for flag, help in choice.flags.items():
            name, takes_value, _ = flag.removeprefix("--").partition("=")
            lines.append(f"{seen} -l {name} {'-r ' if takes_value else ''}-d {shlex.quote(help)}")
    takers = " ".join(choice.name for choice in commands if choice.config)
    lines += [f"complete -c lmrep -n '__fish_seen_subcommand_from {takers}' -r -l config.{path}" for path in fields]
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[Sequence[Choice], Sequence[str]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
