"""The sentence splitter `rules-2`: a few rules for text with punctuation, or one sentence a line.

The rules:

1. A blank line always ends a sentence. The text between two blank lines is a *block*.
2. A block with a line longer than 120 characters is not hard-wrapped: each line break ends a paragraph, and so a
   sentence (as in dumps of Wikipedia with a paragraph or a sentence per line). In other blocks a line break is a space
   (as in novels, docstrings and mail), except before a list item ("- ", "* ", "2. ").
3. A sentence ends after `.`, `!`, `?` or an ellipsis and any closing quotes and brackets, if white space follows and
   then, after any opening quotes and brackets, a letter that is not lower-case, or a digit. In a hard-wrapped block, a
   `.`, `!` or `?` at the end of a line ends a sentence whatever follows.
4. A full stop does not end a sentence after an abbreviation (`ABBREVIATIONS`; of `BEFORE_NUMBERS` only before a
   digit), after an initial ("J. Smith"), within letters and dots ("e.g. This", "U.S. Army"), or after the number of a
   list item ("2. Then").
5. The marks of other scripts (`UNSPACED`: the danda, the Arabic question mark, the full stops of Chinese
   and Japanese and others) end a sentence with or without a space, as in Unicode's UAX 29. A full-width full stop
   before a digit or a Latin letter does not.
6. A sentence of more than `MAX_LENGTH` characters is split, at white space if there is any in its second half, which
   bounds the memory for text without punctuation.

With `lines`, each line is a sentence, and rule 6 applies too.

All characters but white space survive, in order. Time is linear in the text.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

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


# The characters that end sentences: the property Sentence_Terminal of Unicode 17 (PropList.txt), in two sets, since
# some scripts put no space after a sentence, and the signs that Latin scripts share are used inside of sentences, too.

# The marks of many scripts, such as the danda (U+0964), U+061F, U+06D4, and the Armenian, Ethiopic, Khmer, Burmese,
# Chinese and Japanese full stops. The Tibetan shads (U+0F0D, U+0F0E), which the property lacks, are added.
UNSPACED = """
    0589 061D-061F 06D4 0700-0702 07F9 0837 0839 083D-083E 0964-0965 0F0D-0F0E 104A-104B 1362 1367-1368 166E 1735-1736
    17D4-17D5 1803 1809 1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F 1B7D-1B7F 1C3B-1C3C 1C7E-1C7F 2CF9-2CFB 3002
    A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE12 FE15-FE16 FE56-FE57 FF01
    FF0E FF1F FF61
"""
SUPPLEMENTARY = """
    10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239
    1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43
    11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16D6E-16D6F 16E98 1BC9F 1DA88
"""
# Shared by Latin scripts, with the ellipsis, which the property lacks.
SPACED = "0021 002E 003F 2024 2026 203C-203D 2047-2049 2E2E 2E3C 2E53-2E54 2E60-2E61 FE52"


def character_class(ranges: str) -> str:
    """Writes hexadecimal ranges as characters for a set [...] of a regular expression."""
    return "".join("-".join(rf"\U{int(end, 16):08x}" for end in bounds.split("-")) for bounds in ranges.split())


def _candidate(unspaced: str) -> re.Pattern:
    """Matches the end of a sentence, if `_ends` agrees. It begins with a set of characters, which the regular
    expression engine finds fast."""
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
    """Splits a text into sentences by the rules or by lines, in order, none empty, with each run of white space as one
    space."""
    return [clean for _, sentence in _sentences(text, lines) if (clean := _collapse(sentence))]


def split_verbatim(text: str, lines: bool = False) -> list[str]:
    """Splits a text into the same sentences, each with its white space and the white space before it, the last one also
    with the white space at the end of the text. They concatenate to `text`; a text of white space alone gives none."""
    ends = [start + len(stripped) for start, sentence in _sentences(text, lines) if (stripped := sentence.rstrip())]
    starts, ends = [0, *ends[:-1]], [*ends[:-1], len(text)] if ends else []
    return [text[start:end] for start, end in zip(starts, ends, strict=False)]


def _collapse(text: str) -> str:
    if text.isprintable() and "  " not in text:  # a space is the only white space that is printable
        return text.strip()
    return " ".join(text.split())


def _sentences(text: str, lines: bool) -> Iterator[tuple[int, str]]:
    """Yields (start, characters) of each sentence, which may be white space."""
    for start, paragraph, wrapped in _lines(text) if lines else _paragraphs(text):
        for sentence in [paragraph] if lines else _split_paragraph(paragraph, wrapped):
            for part in _split_long(sentence):
                yield start, part
                start += len(part)


def _lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields (start, characters, False) of each line."""
    start = 0
    for line in text.split("\n"):
        yield start, line, False
        start += len(line) + 1


def _paragraphs(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields (start, characters, whether it is hard-wrapped) of the text between boundaries of rules 1 and 2."""
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
    """Tells whether the matched stop ends the sentence that starts at `start`."""
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
    """Tells whether the full stop after the matched word, in the sentence from `start` on, is part of the word."""
    word = match[0]
    if len(word) == 1 and word.isupper() and word != "I":
        return True
    if word.isdigit():
        return not match.string[start : match.start()].strip()
    if "." in word and all(len(letter) == 1 and letter.isalpha() for letter in word.split(".")):
        return True
    return word.lower() in (_BEFORE_A_NUMBER if following.isdigit() else _ALWAYS)


# One sentence a line

MIN_LINES = 16  # with fewer line breaks nothing is decided
MARKED = 0.5  # least fraction of line breaks that follow the end of a sentence
DIVIDED, DIVIDED_UNMARKED = 1.25, 1.02  # a line is a sentence where the rules find fewer in a line
FULL = 0.5  # least fraction of line breaks of hard-wrapped text before a word that did not fit
LONG_WORD = 12  # characters at which words are cut: some scripts have no spaces

END = re.compile(rf"[{character_class(SPACED + UNSPACED + SUPPLEMENTARY)}]['\"’”»)\]*_」』）\s]*\Z")


def one_a_line(texts: Iterable[str]) -> tuple[bool, str]:
    """Returns (whether documents have one sentence a line, as the inputs of BERT's, ALBERT's and NVIDIA's scripts; the
    reason, for people).

    Only line breaks that another line follows, without a blank line between, count. A text has one sentence a line if

    - half of these line breaks or more follow the mark that ends a sentence (0.9 and more in such text, 0.03 to 0.2 in
      hard-wrapped novels), and the rules seldom divide a line, or
    - they find nothing to divide, and lines end where the next word would have fitted, as in text without punctuation;
      lines of hard-wrapped text end where it would not.

    Other texts, whose lines are paragraphs or parts of one, are split by the rules.
    """
    breaks, marked, lines, divided = [], 0, 0, 0
    for text in texts:
        for block in BLANK_LINE.split(text):
            block_lines = [line.strip() for line in block.strip().split("\n")]
            lines += len(block_lines)
            divided += sum(len(split(line)) for line in block_lines)
            marked += sum(END.search(line[-20:]) is not None for line in block_lines[:-1])
            breaks += [(len(line), len(line) + 1 + min(len(following.split(" ", 1)[0]), LONG_WORD))
                       for line, following in itertools.pairwise(block_lines)]
    count = len(breaks)
    if count < MIN_LINES:
        return False, f"{count} line breaks within paragraphs"
    width = sorted(length for length, _ in breaks)[int(0.95 * (count - 1))]
    full = sum(needed > width for _, needed in breaks) / count
    why = f"{marked / count:.0%} of line breaks follow the end of a sentence, {divided / lines:.2f} sentences in a line"
    if marked >= MARKED * count:
        return divided < DIVIDED * lines, why
    if full >= FULL:
        return False, f"{why}, wrapped near {width} characters"
    return divided < DIVIDED_UNMARKED * lines, f"{why}, not wrapped to one width"
