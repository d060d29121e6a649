"""What an objective needs to know of a tokenizer, as plain data."""

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary of `size` ids.

    Attributes:
      size: number of ids, specials included.
      specials: role -> id, for the roles this tokenizer has, out of `pad unk cls sep mask bos eos`.
      starts_word: bool[size], False for pieces that continue the word before them ("##ing").
      counts: int64[size], how often each id occurs in the training split; zeros where unknown.
    """

    size: int
    specials: dict[str, int]
    starts_word: np.ndarray = field(repr=False)
    counts: np.ndarray = field(repr=False)
