"""Cleans every text: uniform line breaks, no NUL, no byte order mark, a maximum length.

Each function updates a tally with the counters of the package's docstring.
"""

import re
from collections import Counter

from lmrep.core.errors import ConfigError

MAX_CHARACTERS = 2**24  # of a document (ten novels); bounds the memory for any file

SURROGATE = re.compile("[\ud800-\udfff]")


def normalize_characters(text: str, tally: Counter[str]) -> str:
    """Replaces every line break by `\\n`, and removes NUL, which comes from damaged blocks and fixed-width fields.
    BERT's code removes it, and SentencePiece's trainer skips lines with it."""
    if "\r" in text:
        tally["carriage_returns"] += text.count("\r")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        tally["nul_characters"] += text.count("\0")
        text = text.replace("\0", "")
    return text


def remove_byte_order_mark(text: str, tally: Counter[str]) -> str:
    """Removes a byte order mark from the start of a text."""
    if not text.startswith("\ufeff"):
        return text
    tally["byte_order_marks"] += 1
    return text[1:]


def decode(data: bytes, policy: str, location: str, tally: Counter[str]) -> str:
    """Decodes UTF-8. Invalid bytes raise UserError with the location, or become U+FFFD if the policy is "replace"."""
    try:
        return data.decode("utf8")
    except UnicodeDecodeError as error:
        if policy == "refuse":
            bad = data[error.start : error.start + 1].hex()
            raise ConfigError(f"{location}: byte 0x{bad} is not UTF-8 text",
                              "correct it, or set --config.data.undecodable=replace") from error
    text = data.decode("utf8", "replace")
    tally["replaced_characters"] += text.count("\ufffd") - data.count("\ufffd".encode())
    return text


def field_documents(text: str | bytes, policy: str, location: str, tally: Counter[str]) -> list[str]:
    """Makes the documents of a record's field: none if it is blank, several if it has more than MAX_CHARACTERS.
    Unpaired surrogates, which JSON can contain as escapes, are treated as invalid bytes are by `decode`."""
    if isinstance(text, bytes):
        text = decode(text, policy, location, tally)
    if not text.isascii() and SURROGATE.search(text):
        if policy == "refuse":
            raise ConfigError(f"{location}: the text has half of a surrogate pair, which is not a character",
                              "correct it, or set --config.data.undecodable=replace")
        text, count = SURROGATE.subn("\ufffd", text)
        tally["replaced_characters"] += count
    documents = split_long(normalize_characters(remove_byte_order_mark(text, tally), tally), tally)
    tally["empty_documents"] += not documents
    return documents


def split_long(text: str, tally: Counter[str]) -> list[str]:
    """Strips a text and splits it into texts of at most MAX_CHARACTERS; returns [] if it is blank."""
    texts, text = [], text.strip()
    while len(text) > MAX_CHARACTERS:
        head, text = split_at_limit(text, tally)
        texts.append(head)
    return texts + [text] * bool(text)


def split_at_limit(text: str, tally: Counter[str]) -> tuple[str, str]:
    """Splits a text of more than MAX_CHARACTERS at the last line break before the limit, or else at the last space,
    if that is in the second half; otherwise at the limit."""
    tally["cut_documents"] += 1
    half, limit = MAX_CHARACTERS // 2, MAX_CHARACTERS
    at = max(text.rfind("\n", half, limit), 0) or max(text.rfind(" ", half, limit), 0) or limit
    return text[:at].rstrip(), text[at:].lstrip()
