"""The sentence splitter `rules-2`: a few rules for text with punctuation, or one sentence a line.

By the rules:

1. A blank line always ends a sentence. The text between two blank lines is a *block*.
2. A block with a line longer than 120 characters is not hard-wrapped: each line break ends a paragraph, and so a
   sentence (as in dumps of Wikipedia with a paragraph or a sentence per line). In other blocks a line break is a space
   (as in novels, docstrings and mail), except before a list item ("- ", "* ", "2. ").
3. A sentence ends after `.`, `!`, `?` or an ellipsis and any closing quotes and brackets, if white space follows and
   then, after any opening quotes and brackets, a letter that is not lower-case, or a digit. In a hard-wrapped block, a
   `.`, `!` or `?` at the end of a line ends a sentence whatever follows.
4. A full stop does not end a sentence after an abbreviation (`ABBREVIATIONS`; those of `BEFORE_NUMBERS` only before a
   digit), after an initial ("J. Smith"), within letters and dots ("e.g. This", "U.S. Army"), or after the number of a
   list item ("2. Then").
5. The marks of other scripts (`sentence_marks.UNSPACED`: the danda, the Arabic question mark, the full stops of Chinese
   and Japanese and others) end a sentence with or without a space, as in Unicode's UAX 29. A full-width full stop
   before a digit or a Latin letter does not.
6. A sentence of more than `MAX_LENGTH` characters is split, at white space if there is any in its second half, which
   bounds the memory for text without punctuation.

By lines, each line is a sentence, of which rule 6 holds too.

All characters but white space survive, in order. Time is linear in the text.
"""

import re
from collections.abc import Iterator

from lmrep.data.sentence_marks import SPACED, SUPPLEMENTARY, UNSPACED, character_class

VERSION = "rules-2"  # names the rules in fingerprints; change it when a change of the code moves a boundary

MAX_WRAPPED_LINE = 120  # characters: hard-wrapped text has no longer lines
MAX_LENGTH = 2**16  # characters of a sentence: sixty times the longest one of a novel

ABBREVIATIONS = """
    mr mrs ms messrs mme mlle dr prof rev hon st sr jr gen col capt cpt lt sgt maj cpl adm cmdr gov sen rep pres supt
    insp mt ft vs cf viz al approx ca esp incl resp i.e e.g a.k.a
"""

BEFORE_NUMBERS = """
    no nos vol vols p pp fig figs sec secs ch chap art eq eqs op ed ver tab
    jan feb mar apr jun jul aug sep sept oct nov dec
"""

_ALWAYS = frozenset(ABBREVIATIONS.split())
_BEFORE_A_NUMBER = _ALWAYS | frozenset(BEFORE_NUMBERS.split())

BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
LIST_ITEM = re.compile(r"\n(?=[^\S\n]*(?:[-*+•–]|\d{1,3}[.)])[^\S\n])")


def _candidate(unspaced: str) -> re.Pattern:
    """The end of a sentence, if `_ends` agrees. It begins with a set of characters, which the regular expression engine
    finds fast."""
    spaced = character_class(SPACED)
    return re.compile(rf"""
        [{spaced}{unspaced}] (?:
            (?<=[{spaced}]) (?<![{spaced}][{spaced}]) (?P<more>[{spaced}]*+) (?P<close>['"’”»)\]*_]*+) (?P<gap>\s++)
                (?=['"‘“«(\[*_]*+(?P<next>\w?))
          | (?<=[{unspaced}]) (?!(?<=．)[0-9０-９a-zA-Zａ-ｚＡ-Ｚ]) (?:\s?[{unspaced}])* ['"’”»)\]*_」』）]*
        )
    """, re.VERBOSE)


CANDIDATE = _candidate(character_class(UNSPACED))
# The engine is twenty times slower with characters beyond U+FFFF in the set.
CANDIDATE_OF_ALL = _candidate(character_class(UNSPACED + SUPPLEMENTARY))
SUPPLEMENTARY_CHARACTER = re.compile("[\U00010a56-\U0001da88]")
LAST_WORD = re.compile(r"(?:[^\W_]|[.])+\Z")
LETTERS = 2  # letters before a full stop that nearly always rule out an abbreviation
_TAILS = frozenset(word[-LETTERS:] for word in _BEFORE_A_NUMBER)


def split(text: str, lines: bool = False) -> list[str]:
    """The sentences of a text by the rules or by lines, in order, none empty, with each run of white space as one
    space."""
    return [clean for _, sentence in _sentences(text, lines) if (clean := _collapse(sentence))]


def split_verbatim(text: str, lines: bool = False) -> list[str]:
    """The same sentences, each with its white space and the white space before it, the last one also with the white
    space at the end of the text. They concatenate to `text`; a text of white space alone gives none."""
    ends = [start + len(kept) for start, sentence in _sentences(text, lines) if (kept := sentence.rstrip())]
    starts, ends = [0, *ends[:-1]], [*ends[:-1], len(text)] if ends else []
    return [text[start:end] for start, end in zip(starts, ends, strict=False)]


def _collapse(text: str) -> str:
    if text.isprintable() and "  " not in text:  # a space is the only white space that is printable
        return text.strip()
    return " ".join(text.split())


def _sentences(text: str, lines: bool) -> Iterator[tuple[int, str]]:
    """(start, characters) of each sentence, which may be white space."""
    for start, paragraph, wrapped in _lines(text) if lines else _paragraphs(text):
        for sentence in [paragraph] if lines else _split_paragraph(paragraph, wrapped):
            for part in _split_long(sentence):
                yield start, part
                start += len(part)


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """(start, characters, False) of each line."""
    start = 0
    for line in text.split("\n"):
        yield start, line, False
        start += len(line) + 1


def _paragraphs(text: str) -> Iterator[tuple[int, str, bool]]:
    """(start, characters, whether it is hard-wrapped) of the text between boundaries of rules 1 and 2."""
    start = 0
    for gap in (*BLANK_LINE.finditer(text), None):
        block = text[start : gap.start() if gap else len(text)]
        lines = block.split("\n")
        wrapped = max(map(len, lines)) <= MAX_WRAPPED_LINE
        for paragraph in LIST_ITEM.split(block) if wrapped else lines:
            yield start, paragraph, wrapped
            start += len(paragraph) + 1  # the line break
        start = gap.end() if gap else start


def _split_long(sentence: str) -> Iterator[str]:
    start = 0
    while len(sentence) - start > MAX_LENGTH:
        end = start + MAX_LENGTH
        words = sentence[end - MAX_LENGTH // 2 : end].rsplit(maxsplit=1)
        if len(words) == 2 and not sentence[end - 1].isspace():
            end -= len(words[1])
        yield sentence[start:end]
        start = end
    yield sentence[start:]


def _split_paragraph(text: str, wrapped: bool) -> Iterator[str]:
    start = 0
    candidate = CANDIDATE_OF_ALL if SUPPLEMENTARY_CHARACTER.search(text) else CANDIDATE
    for match in candidate.finditer(text):
        if match["gap"] is None or _ends(text, start, match, wrapped):
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def _ends(text: str, start: int, match: re.Match, wrapped: bool) -> bool:
    """Whether the matched stop ends the sentence that starts at `start`."""
    more, close, gap, following = match.groups()
    opens = following.isalnum() and not following.islower()
    if not opens and not (wrapped and not close and gap[0] == "\n"):
        return False
    end = match.start()
    if more or text[end] != ".":
        return True
    tail = text[end - LETTERS : end]
    if tail.isalpha() and tail.lower() not in _TAILS:
        return True
    word = LAST_WORD.search(text, max(start, end - 16), end)
    return word is None or not _abbreviates(word, following, start)


def _abbreviates(match: re.Match, following: str, start: int) -> bool:
    """Whether the full stop after the matched word, in the sentence that starts at `start`, is part of the word."""
    word = match[0]
    if len(word) == 1 and word.isupper() and word != "I":
        return True
    if word.isdigit():
        return not match.string[start : match.start()].strip()
    if "." in word and all(len(letter) == 1 and letter.isalpha() for letter in word.split(".")):
        return True
    return word.lower() in (_BEFORE_A_NUMBER if following.isdigit() else _ALWAYS)
