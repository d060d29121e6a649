"""Bytes: every byte of the UTF-8 text is a token, as in language models of enwik8 and text8 (Al-Rfou et al., 2019; Dai
et al., 2019). Nothing is learned. The special tokens are ids 0 to 4, and byte i is id 5 + i."""

from collections.abc import Callable, Iterator

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import TokenizerDef, Trained
from lmrep.data.tokenizers.byte_level import BYTES, ByteLevel
from lmrep.data.tokenizers.library import BPE_SPECIALS as SPECIALS
from lmrep.data.tokenizers.published import PublishedFiles

TOKENS = [*SPECIALS.values(), *sorted(BYTES, key=BYTES.__getitem__)]


class Bytes(ByteLevel):
    """Byte-level BPE without a merge: its files are the same as for `byte_level_bpe`."""

    name = "bytes"
    rules = "bytes-1"

    def __init__(self):
        super().__init__(TOKENS, ())


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> Bytes:
    """Makes the tokenizer of bytes; reads no text."""
    return Bytes()


def load(files: PublishedFiles) -> Bytes | None:
    """Loads a vocabulary of the special tokens and the bytes in this order. Raises UserError if it has added tokens."""
    if files.bpe != {token: i for i, token in enumerate(TOKENS)}:
        return None
    if added := files.added_tokens(SPECIALS):
        raise UserError(f"{files.directory} adds the token {added[0].content!r} to the bytes; remove it")
    return Bytes()


DEFINITION = TokenizerDef(train, load, Bytes.rules, Trained(SPECIALS, len(BYTES) - 1, size_is_limit=True), "keep",
                          lowercase=False)
