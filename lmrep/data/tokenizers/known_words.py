"""Text without the words outside of the vocabulary, which the code that Dai (2016) published with colleagues leaves out
of sequences (adversarial_text in tensorflow/models; Dai and Le, 2015)."""

import copy
import functools
from collections.abc import Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.tokenizers.base import Encoding, Tokenizer


def without_unknown(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a copy of a tokenizer that gives no unknown token: a text has as many tokens fewer.

    Raises:
      UserError: it has no unknown token, or has the characters of words, by which networks read unknown ones.
    """
    if tokenizer.characters or tokenizer.vocabulary.unknown < 0:
        why = "networks read its unknown words by their characters" if tokenizer.characters else (
            "it has a token for all text")
        raise UserError(f"tokenizer.unknown is 'remove', and tokenizer.name={tokenizer.name} has no unknown token: "
                        f"{why}; set --config.tokenizer.unknown=keep")
    other = copy.copy(tokenizer)
    other.__class__ = _known_class(type(tokenizer))
    for cached in ("vocabulary", "fingerprint"):
        vars(other).pop(cached, None)
    return other


def refuse_missing_tokens(tokenizer: Tokenizer, what: str) -> None:
    """Raises UserError, which begins with `what` needs the tokens of all words, if `tokenizer` leaves some out."""
    if tokenizer.removes_unknown:
        raise UserError(f"{what} needs a token for each word of a text, and tokenizer.unknown is 'remove'; choose a "
                        "task of whole texts, or train with --config.tokenizer.unknown=keep")


@functools.cache
def _known_class(cls: type[Tokenizer]) -> type[Tokenizer]:
    return type(f"Known{cls.__name__}", (_Known, cls), {})


class _Known:
    """The methods that differ from those of a tokenizer."""

    removes_unknown = True
    published = False

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        unknown = self.vocabulary.unknown
        return [ids[ids != unknown] for ids in super().encode_batch(texts)]

    def encode_words(self, words: Sequence[str]) -> list[np.ndarray]:
        refuse_missing_tokens(self, "reading single words")

    def encode(self, text: str, specials: bool = False) -> Encoding:
        encoding = super().encode(text, specials)
        known = np.flatnonzero(encoding.ids != self.vocabulary.unknown)
        return Encoding(encoding.ids[known], *(
            [values[i] for i in known] for values in (encoding.tokens, encoding.offsets, encoding.words)))

    def identity(self) -> list:
        return [*super().identity(), "without unknown words"]

    def saved_config(self) -> dict:
        return super().saved_config() | {"unknown": "remove"}
