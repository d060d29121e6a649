"""Prints which networks, objectives and formats go together, each triple tried on shapes alone, and why others do not.
Words choose presets by what their names begin with: lmrep pairings bert_tiny gpt2"""

from lmrep.cli.arguments import Arguments
from lmrep.core.errors import UserError

FLAGS = {}


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)

    from lmrep.experiment import compatibility
    from lmrep.models import PRESETS

    words = arguments.words
    if unknown := [word for word in words if not any(name.startswith(word) for name in PRESETS)]:
        raise UserError(f"no preset's name begins with {unknown[0]!r}; there are {', '.join(PRESETS)}")
    print(compatibility.table([p for p in compatibility.pairings() if not words or p.preset.startswith(tuple(words))]))
    return 0
