"""Assigns documents to splits: SHA-256 maps the words of a document to a number, and each split is a range of numbers.

Copies of a document, even with other white space, are therefore in the same split, and neither the order of the
documents nor additions to the corpus change the split of a document.
"""

import hashlib
from collections.abc import Mapping

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.data.corpora.base import CORPORA, Config

VERSION = "splits-2"  # change it when a change of the code moves documents
SPLITS = ("test", "validation", "train")  # in the order of their ranges


def hash_position(text: str) -> int:
    """Computes the number of a document, uint64: the first 64 bits of the SHA-256 of its words, joined by spaces."""
    return int.from_bytes(hashlib.sha256(" ".join(text.split()).encode("utf8", "surrogatepass")).digest()[:8], "big")


def assign(positions: np.ndarray, config: Config) -> np.ndarray:
    """Assigns documents to splits: returns int8 indices into SPLITS for uint64 `hash_position`s.

    The ranges end at the fractions `test` and `test + validation` of all numbers. If a requested split would be empty,
    it gets the nearest document of the next one. Only then, in corpora of few documents, can a new document change the
    split of another one. Raises UserError if there are too few documents, or the fractions leave none to train on.
    """
    if config.test + config.validation >= 1:
        raise UserError(f"data.validation {config.validation:g} and data.test {config.test:g} leave nothing to train "
                        "on; expected a sum below 1")
    distinct, indices = np.unique(positions, return_inverse=True)
    fractions = np.array([config.test, config.validation], float)
    minimum = (fractions > 0).astype(int)
    if len(distinct) <= minimum.sum():
        copies = "" if len(distinct) == len(positions) else f", {len(distinct)} of them distinct"
        raise UserError(f"the corpus has {counted(len(positions), 'document')}{copies}: too few for the splits; "
                        f"{_more(config)}, or set --config.data.validation=0 and --config.data.test=0")
    limits = [int(fraction * 2**64) for fraction in np.cumsum(fractions)]
    ends = np.searchsorted(distinct, np.array(limits, np.uint64))
    ends[0] = max(ends[0], minimum[0])
    ends[1] = min(max(ends[1], ends[0] + minimum[1]), len(distinct) - 1)
    ends[0] = min(ends[0], ends[1] - minimum[1])
    return np.searchsorted(ends, indices, side="right").astype(np.int8)


def imbalanced(sizes: Mapping[str, int], documents: int, config: Config) -> str:
    """Returns a warning if far more text is held out than the config's fractions, as in corpora of few documents;
    otherwise "". `sizes` maps splits to their amounts of text."""
    total, fraction = sum(sizes.values()), config.test + config.validation
    held_out = total - sizes.get("train", 0)
    if held_out <= (2 * fraction + 0.05) * total:
        return ""
    return (f"{held_out / total:.0%} of the text is held out instead of {fraction:.0%}: the corpus has "
            f"{counted(documents, 'document')}, and none is divided between splits; {_more(config)}")


def _more(config: Config) -> str:
    """Advises how to get more documents."""
    if CORPORA[config.corpus].has_units and config.documents != "line":
        return "--config.data.documents=blank_line or =line makes a document of each paragraph or line"
    return "give it more documents"
