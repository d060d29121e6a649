"""Text that is read from its end to its start, by the backward language model of ULMFiT (Howard and Ruder, 2018)."""

import copy
from collections.abc import Iterable, Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import Encoding, Tokenizer


def backward(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a copy of a tokenizer that gives the same tokens in reverse order. Documents are reversed as a whole
    (`data.store.tokenize`).

    Raises:
      UserError: it has the characters of words; their networks read both directions themselves.
    """
    if tokenizer.characters:
        raise UserError(f"tokenizer.direction is 'backward', and tokenizer.name={tokenizer.name} is for networks that "
                        "read both directions; set --config.tokenizer.direction=forward")
    other, cls = copy.copy(tokenizer), type(tokenizer)
    # The token that starts a word of the text is the last one of the word that is read.
    other.__class__ = type(f"Backward{cls.__name__}", (_Backward, cls),
                           {"starts_word": cls.ends_word, "ends_word": cls.starts_word})
    for cached in ("vocabulary", "fingerprint"):
        vars(other).pop(cached, None)
    return other


class _Backward:
    """The methods that differ from those of a tokenizer."""

    backward = True
    published = False

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [ids[::-1] for ids in super().encode_batch(texts)]

    def encode_words(self, words: Sequence[str]) -> list[np.ndarray]:
        raise UserError("tokenizer.direction is 'backward', and single words are not read in reverse order; choose a "
                        "task of whole texts, or a checkpoint that reads forward")

    def encode(self, text: str, specials: bool = False) -> Encoding:
        encoding = super().encode(text, specials)
        last = max((word for word in encoding.words if word is not None), default=0)
        words = [word if word is None else last - word for word in encoding.words[::-1]]
        return Encoding(encoding.ids[::-1], encoding.tokens[::-1], encoding.offsets[::-1], words)

    def decode(self, ids: Iterable[int]) -> str:
        return super().decode([*ids][::-1])

    def identity(self) -> list:
        return [*super().identity(), "backward"]

    def saved_config(self) -> dict:
        return super().saved_config() | {"direction": "backward"}
