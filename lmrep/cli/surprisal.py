"""Writes how unexpected each word of a text file is to a language model, as a table in CSV.

    lmrep surprisal --workdir=runs/gpt2 --input=sentences.txt --output=surprisal.csv

Each line is a text by itself. The table has a row for each word, which is what is between white space: line and number,
from 1, the word, the number of its tokens, and its surprisal in bits, -log2 of its probability, summed over its tokens.
It is empty where the model predicts none, as for the first word of a model without a token before it. Models that
predict from left to right give it given the words before; masked language models given all others
(pseudo-log-likelihood, or with --pll=word_l2r without the later tokens of the same word)."""

import csv
import io

from lmrep.cli.arguments import STEP, Arguments, Flag
from lmrep.core.errors import UserError
from lmrep.core.messages import show_messages
from lmrep.core.paths import as_path

FLAGS = {
    "input": Flag(None, "a UTF-8 text file", as_path),
    "output": Flag("", "the .csv file to write; by default the table is printed", as_path),
    "pll": Flag("", "another score than the default, as of lmrep evaluate --pairs: word_l2r or log_probability"),
    "step": STEP,
}


def run(arguments: Arguments) -> None:
    """Runs the command."""
    workdir, flags = arguments.required_workdir(), arguments.flags
    if not flags.input:
        raise UserError("lmrep surprisal needs --input, a text file, for example --input=sentences.txt")

    from lmrep.core import text_files
    from lmrep.core.files import write_text
    from lmrep.inference.load import load
    from lmrep.inference.surprisal import surprisals

    show_messages()
    texts = {number: line for number, line in enumerate(text_files.lines(flags.input), 1) if line.strip()}
    if not texts:
        raise UserError(f"{flags.input} has no text; expected a text in each line")
    places = [f"{flags.input}, line {number}" for number in texts]
    words = surprisals(load(workdir, arguments.step), [*texts.values()], flags.pll, places)
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(("line", "number", "word", "tokens", "surprisal"))
    writer.writerows((line, i, word.text, word.tokens, "" if word.surprisal is None else f"{word.surprisal:.6f}")
                     for line, found in zip(texts, words, strict=True) for i, word in enumerate(found, 1))
    if not flags.output:
        print(table.getvalue(), end="")
        return
    write_text(flags.output, table.getvalue())
    print(f"{flags.output}: {sum(map(len, words)):,} words of {len(texts):,} texts")
