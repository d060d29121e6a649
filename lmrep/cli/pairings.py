"""Lists which networks, objectives and formats fit together, and why others do not. Combinations are checked by shapes,
without data. Arguments select presets by the beginning of their names: lmrep pairings bert_tiny gpt2"""

from lmrep.cli.arguments import Arguments
from lmrep.core.errors import UserError


def run(arguments: Arguments) -> None:
    """Runs the command."""
    from lmrep.experiment import compatibility

    words = arguments.words
    if unknown := [word for word in words if not any(name.startswith(word) for name in compatibility.networks())]:
        raise UserError(f"no preset or network has a name that begins with {unknown[0]!r}; there are "
                        f"{', '.join(compatibility.networks())}")
    print(compatibility.table([*compatibility.pairings(words or ("",))]))
