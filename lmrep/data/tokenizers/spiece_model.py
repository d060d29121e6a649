"""The properties of a SentencePiece model that the `sentencepiece` library does not expose, read from its protocol
buffer. The classes that the library generates need one version of the protobuf library. The classes made here, with
only the fields that are read, do not."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from lmrep.core.errors import UserError

ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
CONTROL, USER_DEFINED = 3, 4  # types of pieces
TO_CONTROL = b"\x18\x03"  # appended to a piece, overrides its type
NO_PREFIX = b"\x1a\x02\x18\x00"  # appended to a model, overrides the option: no space before the text

BYTES, INTEGER = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES, descriptor_pb2.FieldDescriptorProto.TYPE_INT32
SCHEMA = {  # message -> field -> its number and type, and the default of one that is not repeated
    "Model": {"pieces": (1, BYTES), "training": (2, BYTES), "normalization": (3, BYTES)},
    "Piece": {"text": (1, BYTES, ""), "type": (3, INTEGER, "1")},
    "Training": {"algorithm": (3, INTEGER, "1"), "unk": (40, INTEGER, "0"), "bos": (41, INTEGER, "1"),
                 "eos": (42, INTEGER, "2"), "pad": (43, INTEGER, "-1")},  # ids; -1 means none
    "Normalization": {"characters": (2, BYTES, ""), "space_before_text": (3, INTEGER, "1")}}


def _messages() -> list[type]:
    """Makes the message classes of SCHEMA."""
    file = descriptor_pb2.FileDescriptorProto(name="spiece.proto", package="sentencepiece", syntax="proto2")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, *default) in fields.items():
            message.field.add(name=field, number=number, type=kind, label=1 if default else 3,  # optional, repeated
                              default_value=default[0] if default else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sentencepiece.{name}")) for name in SCHEMA]


Model, Piece, Training, Normalization = _messages()


class Declarations(NamedTuple):
    """The properties that a model declares."""

    model: bytes  # the model, changed so that no special token is matched in ordinary text
    algorithm: str  # "unigram" or "bpe"
    dummy_prefix: bool  # whether a space is put before a text
    characters: bytes  # the table by which characters are replaced; empty for none
    tokens: list[str]  # the pieces, by id
    specials: dict[str, str]  # role -> piece of the special tokens that it declares


def read(content: bytes, specials: Iterable[str] = ()) -> Declarations:
    """Parses the bytes of a spiece.model whose special tokens are `specials`. Raises UserError if it is not a model, or
    of another algorithm."""
    try:
        model = Model.FromString(content)
        pieces = list(map(Piece.FromString, model.pieces))
        training = Training.FromString(b"".join(model.training))
        normalization = Normalization.FromString(b"".join(model.normalization))
        tokens = [piece.text.decode() for piece in pieces]
        if not tokens:
            raise ValueError("no pieces")
        check_characters(normalization.characters)
    except (DecodeError, ValueError, IndexError) as error:
        raise UserError(f"it is not a SentencePiece model: {error}") from None
    if training.algorithm not in (1, 2):
        raise UserError(f"it is a model of algorithm {ALGORITHMS.get(training.algorithm, training.algorithm)}; "
                        "expected unigram or bpe")
    for i, piece in enumerate(pieces):
        if piece.type == USER_DEFINED and tokens[i] in specials:
            model.pieces[i] += TO_CONTROL
    roles = {role: getattr(training, role) for role in ("unk", "bos", "eos", "pad")}
    return Declarations(model.SerializeToString(), ALGORITHMS[training.algorithm],
                        bool(normalization.space_before_text), normalization.characters, tokens,
                        {role: tokens[i] for role, i in roles.items() if 0 <= i < len(tokens)})


def check_characters(table: bytes) -> None:
    """Raises ValueError if the table by which characters are replaced is damaged: the size of a double array in bytes,
    the array, and texts that end in \\0, to which the values of the array point. The libraries do not check it."""
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
