"""A tokenizer that lmrep does not know: each character is a token."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lmrep.data.tokenizers.base import Encoding, Tokenizer, TokenizerDef, Trained

SPECIALS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
FILE = "characters.json"


class Characters(Tokenizer):
    """Every character of the training text is a token; others are [UNK]."""

    name = "characters"
    lowercase = False

    def __init__(self, tokens: Sequence[str]):
        super().__init__(tokens, (), SPECIALS)

    def encode(self, text: str, specials: bool = False) -> Encoding:
        """As `Tokenizer.encode`."""
        tokens, start = [], 0
        while start < len(text):
            special = next((s for s in SPECIALS.values() if specials and text.startswith(s, start)), text[start])
            tokens.append((special, (start, start + len(special))))
            start += len(special)
        unknown = self.ids[SPECIALS["unk"]]
        ids = np.array([self.ids.get(token, unknown) for token, _ in tokens], np.int32)
        words = np.cumsum([token == " " for token, _ in tokens]).tolist()
        return Encoding(ids, [self.tokens[i] for i in ids], [span for _, span in tokens], words)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `Tokenizer.encode_batch`."""
        return [self.encode(text).ids for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """As `Tokenizer.decode`."""
        return "".join(self.tokens[i] for i in ids)

    def id_to_token(self, token: int) -> str:
        """As `Tokenizer.id_to_token`."""
        return self.tokens[token]

    def starts_word(self, token: str) -> bool:
        return token == " " or token in self.atomic

    def identity(self) -> list:
        return [self.name, self.tokens]

    def saved_config(self) -> dict:
        return {"tokenizer_class": "Characters"}

    def save_vocabulary(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(self.tokens), encoding="utf8")


def train(vocab_size: int, lowercase: bool, texts: Callable[[], Iterator[str]]) -> Characters:
    """The most frequent characters."""
    counts = Counter()
    for text in texts():
        counts.update(text)
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[: vocab_size - len(SPECIALS)]
    return Characters([*SPECIALS.values(), *sorted(frequent)])


def load(files) -> Characters | None:
    """The tokenizer that `Characters.save` wrote; None if the directory holds another."""
    if FILE not in files.names:
        return None
    return Characters(json.loads((files.directory / FILE).read_text(encoding="utf8")))


DEFINITION = TokenizerDef(train, load, "characters-1", Trained(SPECIALS), lowercase=False)
