"""The sentence splitter, `rules-1`: a few rules for English and most text that is punctuated like it.

1. A blank line always ends a sentence. What stands between two of them is a *block*.
2. A block with a line longer than 120 characters is not hard-wrapped: each of its line breaks ends a paragraph, hence
   a sentence (Wikipedia dumps, a paragraph or a sentence a line). In any other block a line break is a space
   (novels, docstrings, mail), except before a list item ("- ", "* ", "2. ").
3. A sentence ends after `.`, `!`, `?` or an ellipsis, with the quotes and brackets that close behind it, where white
   space follows and then, past opening quotes and brackets, a letter that is not lower-case, or a digit. In a
   hard-wrapped block a `.`, `!` or `?` at the very end of a line ends it whatever follows.
4. A full stop does not end a sentence after an abbreviation (`ABBREVIATIONS`; those of `BEFORE_NUMBERS` only where a
   digit follows), after an initial ("J. Smith"), inside of letters and dots ("e.g. This", "U.S. Army"), or after the
   number that opens a list item ("2. Then").
5. The full-width stops of Chinese and Japanese end a sentence with or without a space.

6. A sentence longer than `LONGEST` characters is cut there, at white space where the half before has any, so that no
   tokenizer is handed 50 MB at once because nobody ended a sentence.

Everything but white space survives, in order: the sentences hold each other character of the text exactly once. Time
is linear in the text, whatever it holds.
"""

import re
from collections.abc import Iterator

VERSION = "rules-1"  # names the rules in fingerprints: raise it when a change moves a boundary

WRAPPED = 120  # characters: no hard-wrapped text has longer lines
LONGEST = 2**16  # characters of a sentence: sixty times the longest one in a novel

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
# It begins with one set of characters, for which the regular expression engine looks ahead fast.
CANDIDATE = re.compile(r"""
    [.!?…。！？] (?:
        (?<=[.!?…]) (?<![.!?…][.!?…]) (?P<more>[.!?…]*+) (?P<close>['"’”»)\]*_]*+) (?P<gap>\s++)
            (?=['"‘“«(\[*_]*+(?P<next>\w?))
      | (?<=[。！？]) [。！？]* [」』”’）]* )
""", re.VERBOSE)
LAST_WORD = re.compile(r"(?:[^\W_]|[.])+\Z")
LETTERS = 2  # how many letters before a full stop tell, nearly always, that no abbreviation ends there
_TAILS = frozenset(word[-LETTERS:] for word in _BEFORE_A_NUMBER)


def split(text: str) -> list[str]:
    """The sentences of a text, in order, none empty, with one space for each run of white space."""
    found = []
    for block in BLANK_LINE.split(text):
        lines = block.split("\n")
        wrapped = max(map(len, lines)) <= WRAPPED
        for part in LIST_ITEM.split(block) if wrapped else lines:
            for piece in _pieces(part, wrapped):
                found += [clean for short in _cut(piece) if (clean := _tidy(short))]
    return found


def _tidy(text: str) -> str:
    """One space for each run of white space, none at the ends."""
    if text.isprintable() and "  " not in text:  # a space is the only white space that is printable
        return text.strip()
    return " ".join(text.split())


def _cut(sentence: str) -> Iterator[str]:
    """A sentence of any length in pieces of at most LONGEST characters (rule 6)."""
    start = 0
    while len(sentence) - start > LONGEST:
        end = start + LONGEST
        words = sentence[end - LONGEST // 2 : end].rsplit(maxsplit=1)
        if len(words) == 2 and not sentence[end - 1].isspace():
            end -= len(words[1])
        yield sentence[start:end]
        start = end
    yield sentence[start:]


def _pieces(text: str, wrapped: bool) -> Iterator[str]:
    """Cuts after each candidate that ends a sentence (rules 3 to 5)."""
    start = 0
    for match in CANDIDATE.finditer(text):
        if match["gap"] is None or _ends(text, start, match, wrapped):
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def _ends(text: str, start: int, match: re.Match, wrapped: bool) -> bool:
    """Whether this stop ends the sentence that began at `start`."""
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
    """Whether a full stop behind the matched word of the sentence that began at `start` belongs to the word."""
    word = match[0]
    if len(word) == 1 and word.isupper() and word != "I":
        return True
    if word.isdigit():
        return not match.string[start : match.start()].strip()
    if "." in word and all(len(letter) == 1 and letter.isalpha() for letter in word.split(".")):
        return True
    return word.lower() in (_BEFORE_A_NUMBER if following.isdigit() else _ALWAYS)
