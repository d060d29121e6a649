"""Word vectors and the characters of words, beside the vectors of encoders.

The word vectors are `config.frozen["words"]`. Every token has the vector and the characters of its word. Words are
those that are tagged; in texts, what the tokenizer splits a text into before subword tokenization. Special tokens have
zeros.
"""

import logging
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.data.formats.base import Field
from lmrep.data.records.encoding import Units
from lmrep.layers import char_cnn
from lmrep.objectives.base import Batch, FrozenPart, FrozenParts

log = logging.getLogger(__name__)

NAME = "words"  # the name in config.frozen
LOOKUPS = {  # word -> the forms that are looked up, in order
    "exact": lambda word: (word,), "lower": lambda word: (word.lower(),), "both": lambda word: (word, word.lower())}
UNKNOWN, SPECIAL = -1, -2  # values of `vector` for tokens without a row of the word vectors


@dataclass(frozen=True)
class WordVectors:
    """The lookup of word vectors in config.frozen.words, a text file like GloVe's."""

    lookup: str = setting("", "none: no word vectors; exact: the vector of the word as it is written; lower: that of "
                          "the word in lower case; both: the first, or else the second. All unknown words share one "
                          "vector, which is trained and begins at 0", choices=("", *LOOKUPS))
    trained: bool = setting(False, "whether the vectors are trained with the task: they only start from the file")


@dataclass(frozen=True)
class Characters:
    """A convolution over the characters of a word (Ma and Hovy, 2016), which are its UTF-8 bytes."""

    filters: int = setting(0, "width of the result; 0: no characters (Ma and Hovy: 30)", at_least=0)
    width: int = setting(30, "of the characters' vectors", at_least=1)
    window: int = setting(3, "characters that a filter reads", at_least=1)
    max_length: int = setting(24, "bytes of a word at most; the rest is cut", at_least=1)
    dropout: float = setting(0.5, "dropout rate on the characters' vectors", at_least=0, below=1)


def fields(c: Any) -> dict[str, Field]:
    """Returns the fields that `columns` adds to batches; {} for a task that reads no words."""
    if not hasattr(c, "words"):
        return {}
    vector = {"vector": Field("bt", np.int32, "row of the word's vector; -1 for unknown words, -2 for special tokens")}
    word_bytes = {"word_bytes": Field("bty", np.int32, "bytes of the word plus 1; 0 after them")}
    return (vector if c.words.lookup else {}) | (word_bytes if c.characters.filters else {})


def columns(c: Any, units: Units, frozen: FrozenParts) -> Units:
    """Adds the columns `vector` int32[n], the row of each token's word in the word vectors, `UNKNOWN` or `SPECIAL`, and
    `word_bytes` int32[n, y], the bytes of the word plus 1, and 0 after them, to units, if the task reads them and they
    are missing.

    Args:
      c: the config.
      units: with the details `distinct`, the different words, and `number` [n], the word of each token, or -1.
      frozen: the word vectors.
    """
    if fields(c).keys() <= units.columns.keys():
        return units
    words, columns = units.details["distinct"], {}
    if c.words.lookup:
        rows, lookup = {word: i for i, word in enumerate(frozen[NAME].tokens)}, LOOKUPS[c.words.lookup]
        columns["vector"] = np.array([next((rows[form] for form in lookup(word) if form in rows), UNKNOWN)
                                      for word in words], np.int32)
        log.info("%s of %s different words have no word vector", f"{(columns['vector'] < 0).sum():,}",
                 f"{len(words):,}")
    if c.characters.filters:
        columns["word_bytes"] = np.zeros((len(words), c.characters.max_length), np.int32)
        for row, word in zip(columns["word_bytes"], words, strict=True):
            values = np.frombuffer(word.encode()[: len(row)], np.uint8)
            row[: len(values)] = values.astype(np.int32) + 1
    special = {"vector": SPECIAL, "word_bytes": 0}
    added = {name: np.concatenate([values, np.full_like(values, special[name], shape=(1, *values.shape[1:]))])[
        units.details["number"]] for name, values in columns.items()}  # -1 takes the last
    return units._replace(columns=units.columns | added, token_columns=(*units.token_columns, *added))


def width(c: Any, part: FrozenPart | None) -> int:
    """Returns the width of all vectors of `apply` together; `part` has the word vectors, if there are any."""
    return c.characters.filters + (part.specs["vectors"].shape[1] if part else 0)


def specs(c: Any, part: FrozenPart | None) -> Tree:
    """Declares the parameters `words`, of the word vectors, and `characters`, if the task reads them."""
    tree: dict[str, Any] = {}
    if part is not None:
        spec = part.specs["vectors"]
        tree["words"] = {"unknown": ParamSpec(spec.shape[1:], (None,), zeros)}
        if c.words.trained:
            values = part.values.get("vectors")  # None where shapes alone are needed
            tree["words"]["vectors"] = spec._replace(init=zeros if values is None else lambda *_: jnp.asarray(values))
    if c.characters.filters:
        tree["characters"] = char_cnn.specs(c.characters.width, c.characters.filters, c.characters.window)
    return tree


def apply(c: Any, params: Tree, frozen: Tree | None, batch: Batch, key: Array | None = None) -> list[Array]:
    """Returns the word vectors and the character features [b, t, d] of tokens' words, as far as the task reads them.

    Args:
      c: the config.
      params: laid out as `specs`.
      frozen: `vectors` [v, d], if they are not trained.
      batch: has `fields`.
      key: for dropout, None for none.
    """
    vectors = []
    if c.words.lookup:
        trained, row = params["words"], batch["vector"][..., None]
        table = (trained if c.words.trained else frozen)["vectors"]
        other = jnp.where(row == UNKNOWN, trained["unknown"], 0)
        vectors.append(jnp.where(row >= 0, jnp.take(table, jnp.maximum(batch["vector"], 0), axis=0), other))
    if c.characters.filters:
        vectors.append(char_cnn.apply(params["characters"], batch["word_bytes"], key, c.characters.dropout))
    return vectors
