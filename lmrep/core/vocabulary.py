"""What an objective needs to know of a tokenizer, as plain data."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of `size` ids.

    Attributes:
      size: number of ids, specials included.
      specials: role -> id, for the roles this tokenizer has, out of `pad unk cls sep mask bos eos`.
      starts_word: bool[size], False for pieces that continue the word before them ("##ing"); None where `ends_word`
        says what is a word.
      counts: int64[size], how often each id occurs in the training split; zeros where unknown.
      ends_word: bool[size], True for pieces after which a word starts (GPT's, with "</w>"); None where `starts_word`
        says what is a word.
    """

    size: int
    specials: dict[str, int]
    starts_word: np.ndarray | None = field(repr=False)
    counts: np.ndarray = field(repr=False)
    ends_word: np.ndarray | None = field(default=None, repr=False)
