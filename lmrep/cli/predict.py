"""Fills in masked words: prints the likeliest ones for each [MASK], of the texts given as words or line by line on
standard input."""

import sys

from lmrep.cli.arguments import Arguments, Flag
from lmrep.core.errors import UserError

FLAGS = {
    "top": Flag(5, "how many words for each mask"),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
}


def _lines() -> list[str]:
    """The texts on standard input, one a line."""
    try:
        texts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 text: {error.reason} at byte {error.start}; convert it") from None
    if not texts:
        raise UserError("standard input has no text; give a text with [MASK] a line, or as arguments")
    return texts


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)
    workdir = arguments.required_workdir()
    if arguments.flags.top < 1:
        raise UserError(f"--top is {arguments.flags.top}; expected at least 1")
    if not arguments.words and sys.stdin.isatty():
        raise UserError('lmrep predict needs a text: lmrep predict --workdir=DIR "The [MASK] of a list is an integer."')
    texts = list(arguments.words) or _lines()

    from lmrep import api

    step = arguments.flags.step
    trained = api.load(workdir, None if step < 0 else step)
    for text, answers in zip(texts, trained.fill_masks(texts, arguments.flags.top), strict=True):
        print(text)
        for number, answer in enumerate(answers, 1):
            print(f"  [MASK] {number}" if len(answers) > 1 else "  [MASK]")
            for word, probability in answer:
                print(f"    {probability:6.1%}  {word}")
    return 0
