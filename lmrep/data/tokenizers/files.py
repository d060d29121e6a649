"""The files of tokenizers, read without trust: what does not fit gives a UserError."""

import json
from pathlib import Path
from typing import Any

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import CONFIG

MAP = "special_tokens_map.json"
LARGEST = 256 * 10**6  # bytes of a file of a tokenizer
ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


def read_text(path: str | Path, expected: str) -> str:
    """A file of UTF-8 text. Raises UserError where it is none, or more than LARGEST bytes."""
    path = Path(path).expanduser()
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= LARGEST):
            raise UserError(f"{path} is no file of at most {LARGEST // 10**6} MB; expected {expected}")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; expected {expected}") from error
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror}") from error


def read_lines(path: str | Path, expected: str = "text, one entry a line") -> list[str]:
    """The lines of a file. Raises UserError where it has none, and as `read_text`."""
    lines = read_text(path, expected).split("\n")
    lines = lines[: len(lines) - (lines[-1] == "")]
    if not lines:
        raise UserError(f"{path} is empty; expected {expected}")
    return lines


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object. Raises UserError where the file is none."""
    try:
        found = json.loads(read_text(path, "JSON"))
        json.dumps(found, ensure_ascii=False).encode()  # lone surrogates are no text
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is no JSON object; expected one, {{...}}")
    return found


def read_bytes(path: str | Path, expected: str) -> bytes:
    """A file's bytes. Raises UserError where it cannot be read, or has more than LARGEST."""
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= LARGEST):
            raise UserError(f"{path} is no file of at most {LARGEST // 10**6} MB; expected {expected}")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror}") from error


def special_names(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """role -> name of the special tokens that a directory's tokenizer_config.json (`config`) and
    special_tokens_map.json name. Raises UserError where they name them differently, or by what is no name."""
    path = directory / MAP
    found: dict[str, str] = {}
    for place, facts in ((directory / CONFIG, config), (path, read_json(path) if path.exists() else {})):
        for role in ROLES:
            named = facts.get(f"{role}_token")
            name = named.get("content") if isinstance(named, dict) else named
            if named is None:
                continue
            if not (isinstance(name, str) and 0 < len(name) <= 100):
                raise UserError(f"{place}: its {role}_token is {str(named)[:60]}; expected the text of a piece")
            if found.setdefault(role, name) != name:
                raise UserError(f"{directory / CONFIG} calls its {role}_token {found[role][:60]!r}, and {MAP} beside "
                                f"it {name[:60]!r}; keep the one that is the model's")
    return found
