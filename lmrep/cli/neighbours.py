"""Prints the nearest neighbours of a word in its sentence, over a text file: "Return the *value* of the key." First
those in context, words where they stand; then those of a static table, in which each word has one vector, its mean."""

import time

from lmrep.cli.arguments import Arguments, Flag
from lmrep.cli.embed import ProgressLine
from lmrep.core.errors import UserError

FLAGS = {
    "input": Flag(None, "a UTF-8 text file, the corpus; a sentence a line reads best"),
    "top": Flag(10, "how many neighbours"),
    "layers": Flag("last", "of which layer: last, 4, -1; several made one: sum:3,4, concat:3,4"),
    "least": Flag(5, "how often a word must occur to be a static neighbour"),
    "step": Flag(-1, "which checkpoint; -1: the newest"),
}
AROUND = 40  # characters of a line shown on each side of the word


def run(arguments: Arguments) -> int:
    """The command."""
    arguments.refuse(config=True)
    workdir, flags = arguments.required_workdir(), arguments.flags
    if len(arguments.words) != 1:
        raise UserError('lmrep neighbours needs one sentence, a word of it between asterisks: '
                        '"Return the *value* of the key."')
    if not flags.input:
        raise UserError("lmrep neighbours needs a corpus: --input=texts.txt, say")
    for name in ("top", "least"):
        if getattr(flags, name) < 1:
            raise UserError(f"--{name} is {getattr(flags, name)}; expected at least 1")

    from lmrep import api
    from lmrep.analysis.neighbours import neighbours, parse
    from lmrep.inference import export

    parse(arguments.words[0])  # before anything that takes time
    total, done, began = export.survey(flags.input), [0, 0], time.monotonic()
    trained = api.load(workdir, None if flags.step < 0 else flags.step)
    with ProgressLine() as line:
        def tell(lines: int, tokens: int) -> None:
            done[:] = done[0] + lines, done[1] + tokens
            line.show(export.Progress(done[0], total.lines, done[1], time.monotonic() - began))

        found = neighbours(trained, arguments.words[0], export.read_lines(flags.input), layers=flags.layers,
                           k=flags.top, least=flags.least, tell=tell)
    print(f"{found.asked.marked}\n\nNearest in context:")
    for near in found.context:
        print(f"  {near.cosine:6.3f}  {near.word:16}  {_around(near)}")
    print(f"\nNearest of {found.words:,} static words:")
    for word in found.static:
        print(f"  {word.cosine:6.3f}  {word.word:16}  {word.count:,} times")
    if not found.count:
        print(f"  {found.asked.word!r} is no word of {flags.input}, and has no static vector")
    elif not found.static:
        print(f"  no other word occurs {flags.least} times; see --least")
    return 0


def _around(near) -> str:
    """The word between asterisks, and what stands near it."""
    start, end = max(0, near.start - AROUND), near.end + AROUND
    return ("..." if start else "") + near.text[start : near.start] + f"*{near.word}*" + near.text[near.end : end] + (
        "..." if end < len(near.text) else "")
