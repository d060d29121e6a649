"""Word vectors in the text format of GloVe (Pennington et al., 2014): a word and its numbers on each line, between
spaces. The first line may give the numbers of words and of dimensions, as in word2vec's text format."""

import os
import re
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core import text_files
from lmrep.core.errors import UserError


class WordVectors(NamedTuple):
    """Words and their vectors."""

    words: list[str]  # distinct
    vectors: np.ndarray  # float32 [v, d]


def read(path: str | os.PathLike, words: Container[str] | None = None) -> WordVectors:
    """Reads the vectors of a file, or of its `words` alone, in the order of the file. The first vector of a word that
    occurs twice counts. Words may contain spaces, as some of GloVe's do. Raises UserError if the file cannot
    be read, is not UTF-8, or has no vectors; a line has other than the first line's number of values, or one that is
    not a finite number. The message has file and line."""
    vectors: dict[str, np.ndarray] = {}
    size = 0
    for number, line in enumerate(text_files.lines(path), 1):
        text = line.rstrip()
        if not text or (number == 1 and re.fullmatch(r"\d+ \d+", text)):  # word2vec's header
            continue
        size = size or text.count(" ")
        word, *values = text.rsplit(" ", size) if size else [text]
        if not size or len(values) != size or not word:
            raise UserError(f"{path}:{number}: expected a word and {size or 'its'} numbers between single spaces; got "
                            f"{text[:60]!r}")
        if word not in vectors and (words is None or word in words):
            try:
                vector = vectors[word] = np.asarray(values, np.float32)
            except ValueError as error:
                raise UserError(f"{path}:{number}: {error}; expected numbers after the word") from None
            if not np.isfinite(vector).all():
                wrong = values[int(np.argmin(np.isfinite(vector)))]
                raise UserError(f"{path}:{number}: {wrong} is not a finite float32 number")
    if not size:
        raise UserError(f"{path} has no vectors; expected a word and its numbers on each line")
    return WordVectors(list(vectors), np.stack([*vectors.values()]) if vectors else np.zeros((0, size), np.float32))


def table(path: str | os.PathLike, tokens: Sequence[str], shape: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Returns (the vectors of tokens, float32[v, d], with zeros for tokens that a file lacks; how many it has).

    Args:
      path: the file.
      tokens: the vocabulary, by id.
      shape: (v, d); v may be above the number of tokens.

    Raises:
      UserError: as `read`; the file's vectors have another width, or it has no token.
    """
    (words, vectors), rows = read(path, set(tokens)), np.zeros(shape, np.float32)
    if (width := vectors.shape[1]) != shape[1]:
        raise UserError(f"{path} has vectors of {width} numbers, and the table's are of {shape[1]}; give the model's "
                        f"embeddings the width of the file, such as config.model.embedding={width}")
    if not words:
        raise UserError(f"{path} has none of the tokenizer's {len(tokens):,} tokens; expected words, as those of "
                        "tokenizer.name=words")
    ids = {token: i for i, token in enumerate(tokens)}
    rows[[ids[word] for word in words]] = vectors
    return rows, len(words)
