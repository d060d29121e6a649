"""The bytes of a SentencePiece model, as far as the library does not tell: a protocol buffer of

    1: a piece, again and again    {1: text, 2: score, 3: type}
    2: how it was trained          {3: algorithm, 40 to 43: ids of <unk> <s> </s> <pad>}
    3: how text is normalised      {3: whether a space is put before the text}

They are read here, in a few lines, for the library's own reader of them needs another library of the right version.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lmrep.core.errors import UserError

ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
CONTROL, USER_DEFINED = 3, 4  # types of pieces
ROLES = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, 2**64 - 1)}  # field and default; -1 is none
NO_PREFIX = b"\x1a\x02\x18\x00"  # after a model, says that no space is put before the text: what is said last counts


class Facts(NamedTuple):
    """What a model says of itself.

    Attributes:
      model: its bytes, in which no special token is a symbol that stands for itself in every text.
      algorithm: "unigram" or "bpe".
      dummy_prefix: whether a space is put before a text.
      tokens: by id.
      specials: role -> piece, of the special tokens that it says it has.
    """

    model: bytes
    algorithm: str
    dummy_prefix: bool
    tokens: list[str]
    specials: dict[str, str]


def read(model: bytes, specials: Iterable[str] = ()) -> Facts:
    """What the bytes of a model say.

    Args:
      model: a spiece.model.
      specials: the names of special tokens.

    Raises:
      UserError: they are no model, or of another algorithm.
    """
    try:
        found, pieces, trainer, normalizer = [], [], {}, {}
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
            found.append(raw)
        if not pieces:
            raise ValueError("it has no pieces")
        roles = {role: trainer.get(field, usual) for role, (field, usual) in ROLES.items()}
        named = {role: pieces[i] for role, i in roles.items() if i < len(pieces)}
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it is no SentencePiece model: {str(error) or 'a field is missing'}") from None
    algorithm = trainer.get(3, 1)
    if algorithm not in (1, 2):
        raise UserError(f"its pieces are of algorithm {ALGORITHMS.get(algorithm, str(algorithm)[:20])}; expected "
                        "unigram or bpe")
    return Facts(b"".join(found), ALGORITHMS[algorithm], bool(normalizer.get(3, 1)), pieces, named)


def _record(data: bytes) -> dict[int, int | bytes]:
    return {field: value for field, value, _ in _fields(data)}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """(number, value, bytes with the number) of each field. Raises ValueError or IndexError where there is none."""
    place = 0
    while place < len(data):
        begin = place
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _read_varint(data, place)
        elif kind in (1, 2, 5):
            size, place = _read_varint(data, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            value, place = data[place : place + size], place + size
        else:
            raise ValueError(f"byte {begin:,} begins no field")
        if place > len(data):
            raise ValueError(f"it ends within the field at byte {begin:,}")
        yield key >> 3, value, data[begin:place]


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise ValueError("it ends within a number")
        byte, place = data[place], place + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError(f"byte {place:,} is of no number")


def _varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])
