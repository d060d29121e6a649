"""Tokenizers implemented with the `tokenizers` library, which runs in threads of its own."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tokenizers

from lmrep.data.tokenizers.base import AddedToken, Encoding, Tokenizer


class LibraryTokenizer(Tokenizer):
    """Wraps two tokenizers of the library with the same vocabulary: only the second matches special tokens.

    Args:
      tokens: id i is token i.
      added: tokens that are matched before the text is split into words.
      specials: role -> text of that special token.
      default_specials: the special tokens of published vocabularies, unless their files name others.
    """

    def __init__(self, tokens: Sequence[str], added: Sequence[AddedToken], specials: Mapping[str, str],
                 default_specials: Mapping[str, str]):
        super().__init__(tokens, added, specials)
        self._default_specials = default_specials
        self._plain = self._build(match_specials=False)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens. Uses all cores."""
        encodings = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """As `Tokenizer.encode`."""
        encoder = self._with_specials if specials else self._plain
        encoding = encoder.encode(text, add_special_tokens=False)
        return Encoding(np.array(encoding.ids, np.int32), [self.id_to_token(i) for i in encoding.ids], encoding.offsets,
                        encoding.word_ids)

    def save(self, directory: str | Path) -> None:
        """As `Tokenizer.save`, and tokenizer.json."""
        super().save(directory)
        (Path(directory) / "tokenizer.json").write_text(self._with_specials.to_str(pretty=True), encoding="utf8")

    def _renamed_specials(self) -> list:
        """The special tokens as part of `_identity`; nothing if they are the default ones."""
        return [] if self.specials == self._default_specials else [sorted(self.specials.items())]

    # To be defined by subclasses

    def _model(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, without special and added tokens."""
        raise NotImplementedError

    def _special(self, role: str) -> tokenizers.AddedToken:
        """How a special token is matched in a text."""
        return tokenizers.AddedToken(self.specials[role], special=True, normalized=False)

    def _template(self) -> tokenizers.processors.PostProcessor | None:
        """What adds special tokens around a text when other libraries use tokenizer.json; None adds nothing."""
        raise NotImplementedError

    # The two tokenizers of the library

    @functools.cached_property
    def _with_specials(self) -> tokenizers.Tokenizer:
        return self._build(match_specials=True)

    def _build(self, match_specials: bool) -> tokenizers.Tokenizer:
        tokenizer = self._model()
        if match_specials:
            by_text = {self.specials[role]: self._special(role) for role in self.specials}
            tokenizer.add_special_tokens(list(by_text.values()))
            if template := self._template():
                tokenizer.post_processor = template
        for token in self.added:
            if match_specials or not token.special:
                tokenizer.add_tokens([tokenizers.AddedToken(**asdict(token))])
        return tokenizer
