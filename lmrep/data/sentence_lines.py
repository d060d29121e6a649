"""Whether a text has one sentence a line, as the inputs of the scripts of BERT, ALBERT and NVIDIA do.

Only line breaks that another line follows, without a blank line between, tell. A text has one sentence a line if

- half of these line breaks or more follow the mark that ends a sentence (0.9 and more in such text, 0.03 to 0.2 in
  hard-wrapped novels), and the rules of `sentences.py` seldom divide a line, or
- they find nothing to divide, and lines end where the next word would have fitted, as in text without punctuation;
  those of hard-wrapped text end where it would not.

Other texts, of which each line is a paragraph or a part of one, are split by the rules.
"""

import itertools
import re
from collections.abc import Iterable

from lmrep.data import sentences
from lmrep.data.sentence_marks import SPACED, SUPPLEMENTARY, UNSPACED, character_class

MIN_LINES = 16  # line breaks that tell something
MARKED = 0.5  # of the line breaks after marks
DIVIDED, DIVIDED_UNMARKED = 1.25, 1.02  # sentences that the rules find in a line, less than
FULL = 0.5  # of the line breaks of hard-wrapped text before a word that did not fit
LONG_WORD = 12  # characters of a word, at most: some scripts have no spaces

END = re.compile(rf"[{character_class(SPACED + UNSPACED + SUPPLEMENTARY)}]['\"’”»)\]*_」』）\s]*\Z")


def one_a_line(texts: Iterable[str]) -> tuple[bool, str]:
    """(whether documents have one sentence a line, why, as text for people)."""
    breaks, marked, lines, found = [], 0, 0, 0
    for text in texts:
        for block in sentences.BLANK_LINE.split(text):
            every = [line.strip() for line in block.strip().split("\n")]
            lines += len(every)
            found += sum(len(sentences.split(line)) for line in every)
            marked += sum(END.search(line[-20:]) is not None for line in every[:-1])
            breaks += [(len(line), len(line) + 1 + min(len(following.split(" ", 1)[0]), LONG_WORD))
                       for line, following in itertools.pairwise(every)]
    count = len(breaks)
    if count < MIN_LINES:
        return False, f"{count} line breaks within paragraphs"
    width = sorted(length for length, _ in breaks)[int(0.95 * (count - 1))]
    full = sum(needed > width for _, needed in breaks) / count
    why = f"{marked / count:.0%} of line breaks follow the end of a sentence, {found / lines:.2f} sentences in a line"
    if marked >= MARKED * count:
        return found < DIVIDED * lines, why
    if full >= FULL:
        return False, f"{why}, wrapped near {width} characters"
    return found < DIVIDED_UNMARKED * lines, f"{why}, not wrapped to one width"
