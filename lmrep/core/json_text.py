"""Parses JSON of unknown origin: as `json.loads`, but rejects values that later code cannot process."""

import json
import re
from collections import Counter
from typing import Any

from lmrep.core.errors import UserError

MAX_DEPTH = 100  # nested objects and arrays; recursive code over the value stays far from Python's limit
MAX_DIGITS = 300  # of an integer, so that it does not overflow float64
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class InvalidJSON(ValueError):
    """A text is not JSON, or JSON that cannot be processed. The message continues "FILE is not JSON: "."""


def loads(text: str | bytes, surrogates: bool = False) -> Any:
    """Parses a JSON text. NaN and infinities, which are not JSON but are common, are accepted as by `json.loads`.

    Args:
      text: the JSON; bytes in UTF-8, UTF-16 or UTF-32.
      surrogates: whether strings may have halves of surrogate pairs.

    Raises:
      InvalidJSON: a syntax error, bytes that do not decode, a key that occurs twice in an object, more than `MAX_DEPTH`
        nested values, an integer of more than `MAX_DIGITS` digits, or half of a surrogate pair.
    """
    try:
        if isinstance(text, str):
            text.encode()
        else:
            text = text.decode(json.detect_encoding(text))
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(value)
        if not surrogates and "\\u" in text and SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in error.doc.strip() else ""
        raise InvalidJSON(f"{error.msg.removesuffix(' at')} at {line}character {error.colno}") from None
    except UnicodeDecodeError as error:
        raise InvalidJSON(f"byte {error.start} is not {error.encoding.upper()}") from None
    except UnicodeEncodeError:
        raise InvalidJSON("a string has half of a surrogate pair, which is not text") from None
    except RecursionError:
        raise InvalidJSON(f"it nests deeper than {MAX_DEPTH} levels") from None
    return value


def json_object(text: str | bytes, where: str, expected: str = "a JSON object",
                surrogates: bool = False) -> dict[str, Any]:
    """Parses a JSON object. Raises UserError, which begins with `where`, for any other text, and unless `surrogates`
    for strings with halves of surrogate pairs."""
    try:
        value = loads(text, surrogates)
    except InvalidJSON as error:
        raise UserError(f"{where} is not JSON: {error}; expected {expected}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where} is {json.dumps(value, ensure_ascii=False)[:60]}; expected {expected}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidJSON(f"the key {key[:60]!r} occurs twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InvalidJSON(f"an integer has {len(digits):,} digits, more than {MAX_DIGITS}")
    return int(digits)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level if isinstance(parent, dict | list)
                 for item in (parent.values() if isinstance(parent, dict) else parent)]
        if not level:
            return
    if any(isinstance(item, dict | list) for item in level):
        raise InvalidJSON(f"it nests deeper than {MAX_DEPTH} levels")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer)


def type_name(value: Any) -> str:
    """Returns the JSON type of a value, for messages."""
    return {dict: "an object", list: "a list", str: "a string", bool: "a Boolean", type(None): "null"}.get(
        type(value), "a number")
