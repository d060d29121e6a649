"""Reading the files of tokenizers. Unreadable, oversized or malformed files raise UserError."""

from pathlib import Path
from typing import Any

from lmrep.core.errors import UserError
from lmrep.core.input_files import HEAD, check_head
from lmrep.core.json_text import json_object
from lmrep.data.tokenizers.base import CONFIG

SPECIAL_TOKENS_MAP = "special_tokens_map.json"
MAX_BYTES = 256 * 10**6  # of a tokenizer's file
ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos", "eod")


def read_bytes(path: str | Path, expected: str) -> bytes:
    """Reads the content of a file. Raises UserError if it cannot be read or has more than MAX_BYTES; `expected` says in
    the message what the file should be."""
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= MAX_BYTES):
            raise UserError(f"{path} is not a file of at most {MAX_BYTES // 10**6} MB; expected {expected}")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    check_head(content[:HEAD], str(path))
    return content


def read_text(path: str | Path, expected: str) -> str:
    """Reads a UTF-8 file, with \\n for \\r\\n. Raises UserError as `read_bytes`, and for other encodings."""
    try:
        text = read_bytes(path, expected).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; expected {expected}") from error
    return text.replace("\r\n", "\n")


def read_lines(path: str | Path, expected: str = "text with one entry per line") -> list[str]:
    """Reads the lines of a file, which end at \\n and \\r\\n alone: vocabularies have other line breaks among their
    tokens, such as U+2028 and U+0085. Raises UserError as `read_text`, and for an empty file."""
    lines = read_text(path, expected).split("\n")
    lines = lines[: len(lines) - (lines[-1] == "")]
    if not lines:
        raise UserError(f"{path} is empty; expected {expected}")
    return lines


def read_tokens(path: str | Path, expected: str) -> list[str]:
    """Reads the lines of a vocabulary, without white space around a token. Keeps one that is white space as it is.
    Raises UserError as `read_lines`, and for a line that is empty or has spaces alone, with its number."""
    lines = read_lines(path, expected)
    if blank := [number for number, line in enumerate(lines, 1) if not line.strip(" \t")]:
        raise UserError(f"{path}, line {blank[0]} is empty; expected {expected}")
    return [line.strip() or line for line in lines]


def read_json(path: str | Path) -> dict[str, Any]:
    """Reads the JSON object of a file. Raises UserError as `read_text`, and if it holds anything else."""
    return json_object(read_text(path, "JSON"), str(path))


def special_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Reads role -> text of the special tokens that tokenizer_config.json (`config`) and special_tokens_map.json name.
    Raises UserError if the two disagree or a name is not text."""
    other = directory / SPECIAL_TOKENS_MAP
    specials: dict[str, str] = {}
    for path, content in ((directory / CONFIG, config), (other, read_json(other) if other.exists() else {})):
        for role in ROLES:
            entry = content.get(f"{role}_token")
            if entry is None:
                continue
            text = entry.get("content") if isinstance(entry, dict) else entry
            if not (isinstance(text, str) and 0 < len(text) <= 100):
                raise UserError(f"{path}: {role}_token is {str(entry)[:60]}; expected the text of a token")
            if specials.setdefault(role, text) != text:
                raise UserError(f"{role}_token is {specials[role][:60]!r} in {directory / CONFIG} and {text[:60]!r} in "
                                f"{SPECIAL_TOKENS_MAP}; correct the file that does not match the model")
    return specials
