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

Everything but white space survives, in order: the sentences hold each other character of the text exactly once.
"""

import re
from collections.abc import Iterator

VERSION = "rules-1"  # names the rules in fingerprints: raise it when a change moves a boundary

WRAPPED = 120  # characters: no hard-wrapped text has longer lines

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
LINE_BREAK = re.compile(r"\n")
LONG_LINE = re.compile(rf"^[^\n]{{{WRAPPED + 1}}}", re.MULTILINE)
LIST_ITEM = re.compile(r"\n(?=[^\S\n]*(?:[-*+•–]|\d{1,3}[.)])[^\S\n])")
CANDIDATE = re.compile(r"""
    (?<![.!?…]) (?P<stop>[.!?…]++) (?P<close>['"’”»)\]*_]*+) (?P<gap>\s++) (?=(?P<open>['"‘“«(\[*_]*)(?P<next>\w?))
  | [。！？]+[」』”’）]*
""", re.VERBOSE)
LAST_WORD = re.compile(r"(?:[^\W_]|[.])+\Z")


def split(text: str) -> list[str]:
    """The sentences of a text, in order, none empty, with one space for each run of white space."""
    found = []
    for block in BLANK_LINE.split(text):
        wrapped = LONG_LINE.search(block) is None
        for part in (LIST_ITEM if wrapped else LINE_BREAK).split(block):
            found += [clean for piece in _pieces(part, wrapped) if (clean := " ".join(piece.split()))]
    return found


def _pieces(text: str, wrapped: bool) -> Iterator[str]:
    """Cuts after each candidate that ends a sentence (rules 3 to 5)."""
    start = 0
    for match in CANDIDATE.finditer(text):
        if match["stop"] is None or _ends(text, start, match, wrapped):
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def _ends(text: str, start: int, match: re.Match, wrapped: bool) -> bool:
    """Whether this stop ends the sentence that began at `start`."""
    stop, following = match["stop"], match["next"]
    opens = following.isalnum() and not following.islower()
    if not opens and not (wrapped and not match["close"] and match["gap"].startswith("\n")):
        return False
    if stop != ".":
        return True
    word = LAST_WORD.search(text, max(start, match.start() - 16), match.start())
    return word is None or not _abbreviates(word[0], following, text[start : match.start()])


def _abbreviates(word: str, following: str, sentence: str) -> bool:
    """Whether a full stop behind `word` belongs to the word."""
    if len(word) == 1 and word.isupper() and word != "I":
        return True
    if word.isdigit():
        return sentence.strip() == word
    if "." in word and all(len(letter) == 1 and letter.isalpha() for letter in word.split(".")):
        return True
    return word.lower() in (_BEFORE_A_NUMBER if following.isdigit() else _ALWAYS)
