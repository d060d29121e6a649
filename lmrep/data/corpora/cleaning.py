"""What every text gets before it is a document: one kind of line break, no NUL, no byte order mark, a longest length.

Each function counts what it meets in a tally, under the names of the package's docstring.
"""

import re
from collections import Counter
from collections.abc import Callable

from lmrep.core.errors import UserError

LONGEST = 2**24  # characters of a document: bounds the memory whatever a file holds, and is ten novels

SURROGATE = re.compile("[\ud800-\udfff]")


def plain(text: str, tally: Counter[str]) -> str:
    """A text with `\\n` for every line break and without NUL: it is no character of any language but what a torn disk
    block or fixed-width field leaves, BERT's cleaning drops it, and SentencePiece's trainer skips lines that have it.
    """
    if "\r" in text:
        tally["carriage_returns"] += text.count("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        tally["nul_characters"] += text.count("\0")
        text = text.replace("\0", "")
    return text


def unmarked(text: str, tally: Counter[str]) -> str:
    """A text without the byte order mark that may begin it."""
    if not text.startswith("\ufeff"):
        return text
    tally["byte_order_marks"] += 1
    return text[1:]


def decoded(data: bytes, policy: str, place: Callable[[], str], tally: Counter[str]) -> str:
    """UTF-8 as text. What is none raises UserError, naming `place()`, or is U+FFFD where the policy is "replace"."""
    try:
        return data.decode("utf8")
    except UnicodeDecodeError as error:
        if policy == "refuse":
            bad = data[error.start : error.start + 1].hex()
            raise UserError(f"{place()}: byte 0x{bad} is not UTF-8 text; mend it, or set "
                            "--config.data.undecodable=replace") from error
    text = data.decode("utf8", "replace")
    tally["replaced_characters"] += text.count("\ufffd") - data.count("\ufffd".encode())
    return text


def record(text: str, policy: str, place: Callable[[], str], tally: Counter[str]) -> list[str]:
    """The document that the field of a record holds; none of a blank one, several of one longer than LONGEST.

    JSON's escapes can spell half of a surrogate pair, which is no text in UTF-8: it is treated as `decoded` does.
    """
    if not text.isascii() and SURROGATE.search(text):
        if policy == "refuse":
            raise UserError(f"{place()}: the text has half of a surrogate pair, which is no character; mend it, or set "
                            "--config.data.undecodable=replace")
        text, count = SURROGATE.subn("\ufffd", text)
        tally["replaced_characters"] += count
    documents = bounded(plain(unmarked(text, tally), tally), tally)
    tally["empty_documents"] += not documents
    return documents


def bounded(text: str, tally: Counter[str]) -> list[str]:
    """A text without white space at its ends, in pieces of at most LONGEST characters; none of a blank one."""
    found, text = [], text.strip()
    while len(text) > LONGEST:
        head, text = cut(text, tally)
        found.append(head)
    return found + [text] * bool(text)


def cut(text: str, tally: Counter[str]) -> tuple[str, str]:
    """A text longer than LONGEST in two, at the last line break before that, else space; both without white space."""
    tally["cut_documents"] += 1
    half = LONGEST // 2
    at = max(text.rfind("\n", half, LONGEST), 0) or max(text.rfind(" ", half, LONGEST), 0) or LONGEST
    return text[:at].rstrip(), text[at:].lstrip()
