"""The properties of a tokenizer that objectives need."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of `size` token ids."""

    size: int  # number of ids, including special tokens
    # role -> id, for those of the roles `pad unk cls sep mask bos eos eod` that the tokenizer has
    specials: dict[str, int]
    # bool[size], False for tokens that continue a word ("##ing"); None if `ends_word` defines words
    starts_word: np.ndarray | None = field(repr=False)
    # int64[size], number of occurrences of each id in the training split; zeros if unknown
    counts: np.ndarray = field(repr=False)
    # bool[size], True for tokens that end a word (GPT's, with "</w>"); None if `starts_word` defines words
    ends_word: np.ndarray | None = field(default=None, repr=False)
    # the `lmrep.data.characters.WordCharacters` of its words and of those outside of it; None for tokenizers without
    characters: Any = field(default=None, repr=False)
    # the ids of the sentinel tokens that replace spans, in the order of use; () for none
    sentinels: tuple[int, ...] = field(default=(), repr=False)

    @property
    def unknown(self) -> int:
        """The id of words outside of the vocabulary; -1 if there is none, as for GPT-2, whose `unk` ends documents."""
        unknown = self.specials.get("unk", -1)
        return -1 if list(self.specials.values()).count(unknown) > 1 else unknown

    @property
    def unigram_loss(self) -> float:
        """The loss in nats of predicting tokens by their frequency: the entropy of `counts`; 0 if these are unknown."""
        p = self.counts[self.counts > 0] / max(1, self.counts.sum())
        return float(-(p * np.log(p)).sum())
