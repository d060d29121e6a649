"""Tokenizers whose work the `tokenizers` library does, in its own threads."""

import functools
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tokenizers

from lmrep.data.tokenizers.base import Added, Encoding, Tokenizer


class MachineTokenizer(Tokenizer):
    """A tokenizer with two of the library's over the same pieces: one that knows no special tokens, and one that does.

    Args:
      pieces: id i is piece i.
      added: pieces that are found before the rules cut a text.
      specials: role -> the text of that special token.
      usual: the names that the kind's special tokens have where nothing names them.
    """

    def __init__(self, pieces: Sequence[str], added: Sequence[Added], specials: dict[str, str],
                 usual: dict[str, str]):
        super().__init__(pieces, added, specials)
        self._usual = usual
        self._plain = self._machine(marked=False)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of each text, without special tokens. The library uses all cores for one call."""
        encodings = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """As `Tokenizer.encode`."""
        encoding = (self._marked if specials else self._plain).encode(text, add_special_tokens=False)
        return Encoding(np.array(encoding.ids, np.int32), [self.id_to_token(i) for i in encoding.ids], encoding.offsets,
                        encoding.word_ids)

    def save(self, directory: str | Path) -> None:
        """As `Tokenizer.save`, with tokenizer.json."""
        super().save(directory)
        (Path(directory) / "tokenizer.json").write_text(self._marked.to_str(pretty=True), encoding="utf8")

    def _named(self) -> list:
        """What special tokens of other names than usual add to the facts of a fingerprint."""
        return [] if self.specials == self._usual else [sorted(self.specials.items())]

    # What a kind gives

    def _rules(self) -> tokenizers.Tokenizer:
        """The library's tokenizer with the rules over the pieces."""
        raise NotImplementedError

    def _special(self, role: str) -> tokenizers.AddedToken:
        """How a special token is found in a text."""
        return tokenizers.AddedToken(self.specials[role], special=True, normalized=False)

    def _around(self) -> tokenizers.processors.PostProcessor | None:
        """What puts special tokens around what it is given, in other libraries' hands; None where none stand there."""
        raise NotImplementedError

    # The two encoders

    @functools.cached_property
    def _marked(self) -> tokenizers.Tokenizer:
        return self._machine(marked=True)

    def _machine(self, marked: bool) -> tokenizers.Tokenizer:
        machine = self._rules()
        if marked:
            names = {self.specials[role]: self._special(role) for role in self.specials}
            machine.add_special_tokens(list(names.values()))
            if around := self._around():
                machine.post_processor = around
        for added in self.added:
            if marked or not added.special:
                machine.add_tokens([tokenizers.AddedToken(**asdict(added))])
        return machine
