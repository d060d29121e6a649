"""Prints a completion script of lmrep for a shell: commands, flags, and fields of the config.

    eval "$(lmrep completion bash)"                                    # in ~/.bashrc
    lmrep completion zsh > "${fpath[1]}/_lmrep"                        # then start a new shell
    lmrep completion fish > ~/.config/fish/completions/lmrep.fish"""

import argparse
import re

from lmrep.cli.arguments import Arguments
from lmrep.core.errors import UserError

FISH = "(__fish_complete_path (commandline -ct))"
# In bash, --flag=value is three words.
BASH = """
_lmrep() {
  local before=$((COMP_CWORD - 1))
  if [[ ${COMP_WORDS[COMP_CWORD]} == "=" ]]; then
    COMP_WORDS[COMP_CWORD]=""
  elif [[ ${COMP_WORDS[before]} == "=" ]]; then
    COMP_WORDS=("${COMP_WORDS[@]:0:before}" "${COMP_WORDS[@]:COMP_CWORD}")
    COMP_CWORD=$before
  fi
  _shtab_lmrep "$@"
}
complete -o filenames -F _lmrep lmrep"""


def run(arguments: Arguments) -> None:
    """Runs the command."""
    import shtab

    if len(arguments.words) != 1 or arguments.words[0] not in shtab.SUPPORTED_SHELLS:
        raise UserError(f"lmrep completion takes the name of a shell: {', '.join(shtab.SUPPORTED_SHELLS)}")
    script = shtab.complete(parser(), arguments.words[0])
    if arguments.words[0] == "zsh":  # where an option takes --flag=value if it says so
        script = re.sub(r'^( *"--[\w.]+)(\[.*\]:)', r"\1=\2", script, flags=re.MULTILINE)
    elif arguments.words[0] == "fish":  # whose own completion of files knows --flag=value
        script = script.replace(f'-xka "{FISH}"', "-rF")
    print(script + BASH * (arguments.words[0] == "bash"))


def parser() -> argparse.ArgumentParser:
    """Returns a parser with every command, its flags and, if it takes them, the fields of the config."""
    import shtab

    from lmrep.cli.main import COMMANDS, flags_of
    from lmrep.experiment import fields

    paths = dict.fromkeys(field.path for field in fields.list_fields(None) if ".N." not in field.path)
    program = argparse.ArgumentParser("lmrep")
    commands = program.add_subparsers(dest="command")
    for name, command in COMMANDS.items():
        added = commands.add_parser(name, help=command.summary)
        for key, flag in flags_of(name).items():
            value = {"action": "store_true"} if flag.value_type is bool else {}
            option = added.add_argument(f"--{key}", help=flag.help.replace("%", "%%"), **value)
            if not value:
                option.complete = shtab.FILE
        for path in paths if "config" in command.common else ():
            added.add_argument(f"--config.{path}")
        if command.words:
            added.add_argument("words", nargs="*").complete = shtab.FILE
    commands.add_parser("help", help="describe a command").add_argument("name", choices=[*COMMANDS])
    return program
