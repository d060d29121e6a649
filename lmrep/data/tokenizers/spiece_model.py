"""What the library does not say about a SentencePiece model, read from its protocol buffer:

    1: a piece (repeated)  {1: text, 2: score, 3: type}
    2: training            {3: algorithm, 40 to 43: ids of <unk> <s> </s> <pad>}
    3: normalization       {2: table of characters, 3: whether a space is put before the text}

The library's reader for it needs a matching version of the protobuf library.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError

ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
CONTROL, USER_DEFINED = 3, 4  # types of pieces
ROLES = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, 2**64 - 1)}  # field and default; -1 means none
NO_PREFIX = b"\x1a\x02\x18\x00"  # appended to a model, overrides the option: no space before the text


class Facts(NamedTuple):
    """The declarations of a model.

    Attributes:
      model: its bytes, changed so that no special token is matched in ordinary text.
      algorithm: "unigram" or "bpe".
      dummy_prefix: whether a space is put before a text.
      characters: the table by which characters are replaced; empty for none.
      tokens: the pieces, by id.
      specials: role -> piece of the special tokens that it declares.
    """

    model: bytes
    algorithm: str
    dummy_prefix: bool
    characters: bytes
    tokens: list[str]
    specials: dict[str, str]


def read(model: bytes, specials: Iterable[str] = ()) -> Facts:
    """Parses the bytes of a spiece.model whose special tokens are `specials`. Raises UserError if it is not a model, or
    of another algorithm."""
    try:
        output, pieces, trainer, normalizer = [], [], {}, {}
        for field, value, raw in _fields(model):
            if field == 1:
                piece = _record(value)
                pieces.append(piece[1].decode())
                if piece.get(3) == USER_DEFINED and pieces[-1] in specials:
                    value += bytes([3 << 3, CONTROL])
                    raw = b"\x0a" + _varint(len(value)) + value
            elif field == 2:
                trainer |= _record(value)
            elif field == 3:
                normalizer |= _record(value)
            output.append(raw)
        if not pieces:
            raise ValueError("no pieces")
        roles = {role: trainer.get(field, default) for role, (field, default) in ROLES.items()}
        check_characters(bytes(normalizer.get(2, b"")))
        named = {role: pieces[i] for role, i in roles.items() if i < len(pieces)}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it is not a SentencePiece model: {str(error) or 'a field is missing'}") from None
    algorithm = trainer.get(3, 1)
    if algorithm not in (1, 2):
        raise UserError(f"it is a model of algorithm {ALGORITHMS.get(algorithm, str(algorithm)[:20])}; expected "
                        "unigram or bpe")
    return Facts(b"".join(output), ALGORITHMS[algorithm], bool(normalizer.get(3, 1)),
                 bytes(normalizer.get(2, b"")), pieces, named)


def check_characters(table: bytes) -> None:
    """Checks the table by which characters are replaced: the size of a double array in bytes, the array, and texts that
    end in \\0, at which the values of the array point. The libraries follow it unchecked.

    Raises:
      ValueError: it is damaged.
    """
    if not table:
        return
    size, texts = int.from_bytes(table[:4], "little"), table[4:]
    if len(table) < 4 or size % 1024 or size > len(texts):
        raise ValueError("the table of characters is truncated")
    units, texts = np.frombuffer(texts[:size], "<u4").astype(np.int64), texts[size:]
    is_value, values = units >> 31 == 1, units & (2**31 - 1)
    children = np.arange(len(units)) ^ (units >> 10 << ((units & 2**9) >> 6))  # they are in one block of 256 units
    starts = np.frombuffer(texts, np.uint8) & 0xC0 != 0x80  # of characters
    texts.decode()
    if (children[~is_value] >= len(units)).any() or not starts[values[is_value]].all():
        raise ValueError("the table of characters points outside")


def _record(data: bytes) -> dict[int, int | bytes]:
    return {field: value for field, value, _ in _fields(data)}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """(number, value, bytes including the number) of each field. Raises ValueError or IndexError if malformed."""
    position = 0
    while position < len(data):
        start = position
        key, position = _read_varint(data, position)
        wire_type = key & 7
        if wire_type == 0:
            value, position = _read_varint(data, position)
        elif wire_type in (1, 2, 5):
            size, position = _read_varint(data, position) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], position)
            value, position = data[position : position + size], position + size
        else:
            raise ValueError(f"byte {start:,} is not the start of a field")
        if position > len(data):
            raise ValueError(f"truncated in the field at byte {start:,}")
        yield key >> 3, value, data[start:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("truncated in a number")
        byte, position = data[position], position + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"byte {position:,} is not part of a number")


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded, value = encoded + bytes([value & 0x7F | 0x80]), value >> 7
    return encoded + bytes([value])
