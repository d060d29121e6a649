"""The protocol that the loader reads: numbered examples. A position determines its example in O(1)."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from lmrep.core.vocabulary import Vocabulary
from lmrep.data.order import contiguous_numbers

Batch = dict[str, Any]  # arrays by name; a second text is a batch of its own: `batch["source"]["tokens"]`


@runtime_checkable
class Dataset(Protocol):
    """Examples numbered 0, 1, ... and gathered a batch at a time; example -1 is empty: all padding.

    Plans of a corpus (`formats.Plan`, and plans without a table of spans), mixtures and labelled examples subclass it;
    the defaults that most of them share are defined here.

    Attributes:
      examples: the number of examples, repetitions included.
      length: tokens of the longest example.
      vocabulary: the tokenizer's, against which ids are checked.
      fingerprint: a hash of everything that decides the batches.
      contiguous: whether each example continues the one at the same index of the previous batch.
      fills: whether training batches may hold empty examples, so that fewer examples than a batch suffice.
    """

    examples: int
    length: int
    vocabulary: Vocabulary
    fingerprint: str
    contiguous = False
    fills = False

    @property
    def evaluation_examples(self) -> int:
        """The number of examples that a complete evaluation shows."""
        return self.examples

    def numbers(self, positions: np.ndarray, batch_size: int, seed: int) -> np.ndarray:
        """Returns the examples at some positions of training, in O(1) each.

        Args:
          positions: int64, any shape; index r of batch i is position i * batch_size + r. Stages with the same dataset
            number its batches one after the other (`experiment.build.first_batch`).
          batch_size: examples of the global batch.
          seed: decides the order of the examples.

        Returns:
          int64 of the shape of `positions`; -1 for an empty example.
        """

    def evaluation_numbers(self, positions: np.ndarray, batch_size: int, count: int) -> np.ndarray:
        """Returns the examples at some positions of an evaluation of the first `count` examples.
        Shapes are as in `numbers`."""
        if self.contiguous:
            return contiguous_numbers(count, 1, batch_size, positions)
        return np.where(positions < count, positions, -1)

    def continues(self, previous: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns bool of the shape of `numbers`: whether the text of each example directly follows the text of the
        example at the same index of `previous`."""
        return np.zeros(np.shape(numbers), bool)

    def batch_length(self, numbers: np.ndarray) -> int | tuple[int, int]:
        """Returns the length of a batch of these examples in tokens; a second number is the length of their sources."""
        return self.length

    def batch_rows(self, length: int | tuple[int, int], batch_size: int) -> int:
        """Returns the number of examples of a full training batch of that `batch_length`."""
        return batch_size

    def gather(self, numbers: np.ndarray, length: int | tuple[int, int] = 0) -> Batch:
        """Returns the batch of these examples.

        Args:
          numbers: int64[b], each in [0, examples), or -1 for an empty example: all padding, segment 0, label 0. Code
            that counts examples must therefore count those with `example >= 0`.
          length: the length of the batch, from `batch_length`; 0: the `length` of the dataset.

        Raises:
          IndexError: a number is out of range.
        """

    def checked(self, numbers: np.ndarray) -> np.ndarray:
        """Returns numbers of examples as int64. Raises IndexError if one is outside of [-1, examples)."""
        numbers = np.asarray(numbers, np.int64)
        if numbers.size and not -1 <= numbers.min() <= numbers.max() < self.examples:
            raise IndexError(f"examples {numbers.min()} to {numbers.max()} of a plan that has {self.examples}")
        return numbers

    def statistics(self) -> dict[str, float]:
        """Returns `examples`; `tokens_per_example`, the mean number of tokens per example without padding, special
        tokens included; `padding`, the fraction of positions that are padding; and the mean of each column."""
