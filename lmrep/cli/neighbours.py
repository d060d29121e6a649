"""Prints the words of a text file that are nearest to a word in its sentence: "Return the *value* of the key."

First come the nearest occurrences by contextual vectors, then the nearest words of a static table, in which each word
has one vector: the mean over its occurrences."""

from lmrep.cli.arguments import STEP, Arguments, Flag, at_least
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path
from lmrep.core.progress import line_progress

FLAGS = {
    "input": Flag(None, "the corpus, a UTF-8 text file, preferably one sentence per line", as_path),
    "top": Flag(10, "the number of neighbours", bounds=at_least(1, 10**6)),
    "layers": Flag("last", "the layer: last, 4, -1; or several, combined: sum:3,4, concat:3,4"),
    "min_count": Flag(5, "the occurrences that a word needs for a static vector", bounds=at_least(1)),
    "step": STEP,
}
CONTEXT = 40  # characters of the line shown on each side of the word


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, flags = arguments.required_workdir(), arguments.flags
    if len(arguments.words) != 1:
        raise UserError('lmrep neighbours needs one sentence, with a word of it between asterisks: '
                        '"Return the *value* of the key."')
    if not flags.input:
        raise UserError("lmrep neighbours needs a corpus, for example --input=texts.txt")

    from lmrep import api
    from lmrep.analysis.neighbours import neighbours, parse
    from lmrep.inference import export

    parse(arguments.words[0])  # before anything that takes time
    total = export.count_lines(flags.input)
    trained = api.load(workdir, arguments.step)
    with line_progress() as progress:
        nearest = neighbours(trained, arguments.words[0], export.read_lines(flags.input), layers=flags.layers,
                             k=flags.top, min_count=flags.min_count,
                             progress=lambda lines, tokens: progress(lines, tokens, total))
    print(f"{nearest.query.marked}\n\nNearest in context:")
    for occurrence in nearest.context:
        text, first, last = occurrence.text, max(0, occurrence.start - CONTEXT), occurrence.end + CONTEXT
        marked = f"{text[first : occurrence.start]}*{occurrence.word}*{text[occurrence.end : last]}"
        print(f"  {occurrence.cosine:6.3f}  {occurrence.word:16}  {'...' * (first > 0)}{marked}"
              + "..." * (last < len(text)))
    print(f"\nNearest of {nearest.words:,} static words:")
    for word in nearest.static:
        print(f"  {word.cosine:6.3f}  {word.word:16}  {word.count:,} times")
    if not nearest.count:
        print(f"  {nearest.query.word!r} does not occur in {flags.input}, and so has no static vector")
    elif not nearest.static:
        print(f"  no other word occurs {flags.min_count} times; see --min_count")
