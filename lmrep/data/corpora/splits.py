"""Splits: SHA-256 maps a document's text to a number in [0, 1), and the splits cut that range.

So a document's copies stay together, and neither the order of the documents nor new ones among them move any other.
"""

import hashlib
from collections.abc import Mapping

import numpy as np

from lmrep.core.errors import UserError
from lmrep.data.corpora.base import Config

SPLITS = ("test", "validation", "train")  # in the order in which they cut [0, 1)


def place(text: str) -> int:
    """Where a document falls in the splits' range: 64 bits of its SHA-256, a uint64."""
    return int.from_bytes(hashlib.sha256(text.encode("utf8", "surrogatepass")).digest()[:8], "big")


def assign(places: np.ndarray, config: Config) -> np.ndarray:
    """The split of each document, as int8 indices into SPLITS, from the uint64 `place` of each.

    The documents in order of place are cut at `test` and at `test + validation` of the range. A cut that would leave
    a split empty that was asked for moves by one document, the one nearest to it: only then, in corpora of few
    documents, can a new document change another's split. Raises UserError where there are too few for that.
    """
    if config.test + config.validation >= 1:
        raise UserError(f"data.validation {config.validation:g} and data.test {config.test:g} leave nothing to train "
                        "on; expected a sum below 1")
    distinct, which = np.unique(places, return_inverse=True)
    shares = np.array([config.test, config.validation], float)
    asked = (shares > 0).astype(int)
    if len(distinct) <= asked.sum():
        raise UserError(_too_few(len(places), len(distinct), config))
    limits = [int(share * 2**64) for share in np.cumsum(shares)]
    cuts = np.searchsorted(distinct, np.array(limits, np.uint64))
    cuts[0] = max(cuts[0], asked[0])
    cuts[1] = min(max(cuts[1], cuts[0] + asked[1]), len(distinct) - 1)
    cuts[0] = min(cuts[0], cuts[1] - asked[1])
    return np.searchsorted(cuts, which, side="right").astype(np.int8)


def imbalanced(sizes: Mapping[str, int], documents: int, config: Config) -> str:
    """What to tell where far more of the text, of which `sizes` says how much each split has, is held out than was
    asked for, as in corpora of few documents; "" elsewhere."""
    whole, asked = sum(sizes.values()), config.test + config.validation
    held = whole - sizes.get("train", 0)
    if held <= (2 * asked + 0.05) * whole:
        return ""
    return (f"{held / whole:.0%} of the text is held out, where {asked:.0%} was asked for: {_number(documents)}, each "
            f"whole in one split; {_more(config)}")


def _too_few(documents: int, distinct: int, config: Config) -> str:
    found = _number(documents) + ("" if documents == distinct else f", {distinct} of them distinct")
    return (f"{found}: too few for the splits asked for; {_more(config)}, or set --config.data.validation=0 and "
            "test=0")


def _number(documents: int) -> str:
    return f"the corpus has {documents:,} document{'' if documents == 1 else 's'}"


def _more(config: Config) -> str:
    if config.corpus == "text_files" and config.documents != "line":
        return "--config.data.documents=blank_line or =line makes a document of each paragraph or line"
    return "give it more documents"
