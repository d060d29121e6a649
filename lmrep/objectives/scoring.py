"""Scores of texts: the views of a text that a network reads, and the log probabilities that are added up."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary


class Views(NamedTuple):
    """The inputs of a network that scores texts of one length: a text as it is, or several versions with masks."""

    text: np.ndarray  # int[k], the index of the text that each view belongs to
    tokens: np.ndarray  # int32[k, t]
    predicted: np.ndarray  # int32[k, m], positions
    targets: np.ndarray  # int32[k, m], the tokens that are predicted there


class Scoring(NamedTuple):
    """A score of how well a model accepts a text: the sum of log probabilities, in nats, over the targets of all views.
    It decides minimal pairs."""

    summary: str  # a description for tables and reports
    # (ids int32[n, t] of n texts with special tokens, words int32[n, t]) -> Views, in NumPy. `words` numbers the words
    # of each text; it is negative for the special tokens around it.
    views: Callable[[np.ndarray, np.ndarray], Views]
    # (params, batch) -> float32 [b, m], of `batch["targets"]` i32[b, m] at the positions `batch["predicted"]` i32[b,
    # m], given `batch["tokens"]` i32[b, t] with their `segment_ids`
    log_probabilities: Callable[[Tree, dict[str, Array]], Array]
    # the names of the heads that it needs, under `objective/`; a converted checkpoint may lack them
    heads: tuple[str, ...] = ()
    by_token: bool = True  # whether the terms are those of the tokens of a text, each once and in order


def pseudo_log_likelihoods(
    vocabulary: Vocabulary, log_probabilities: Callable, head: str = "masked"
) -> Mapping[str, Scoring]:
    """Makes the scorings of masked language models, by `Scoring.log_probabilities` of the parameters `head`.

    `pll` (Salazar et al., 2020) masks one token at a time and adds up the log probabilities of the masked tokens given
    all others; the special tokens around a text are not scored. It favours rare words that are split into many tokens,
    which predict each other. `pll_word_l2r` (Kauf and Ivanova, 2023) masks the later tokens of the same word too.
    """
    def scoring(summary: str, word_l2r: bool) -> Scoring:
        return Scoring(summary, partial(masked_views, mask=vocabulary.specials["mask"], word_l2r=word_l2r),
                       log_probabilities, (head,))

    return {"pll": scoring("pseudo-log-likelihood (Salazar et al., 2020)", False),
            "pll_word_l2r": scoring("pseudo-log-likelihood, words from left to right (Kauf and Ivanova, 2023)", True)}


def masked_views(ids: np.ndarray, words: np.ndarray, *, mask: int, word_l2r: bool) -> Views:
    """Makes a view for each token of a text but special ones, with this token masked and, if `word_l2r`, the later
    tokens of its word too."""
    text, position = np.nonzero(words >= 0)
    tokens, at = ids[text], np.arange(ids.shape[1])
    hidden = at == position[:, None]
    if word_l2r:
        hidden |= (words[text] == words[text, position][:, None]) & (at > position[:, None])
    return Views(text, np.where(hidden, np.int32(mask), tokens), position[:, None].astype(np.int32),
                 ids[text, position][:, None])


def next_token_views(ids: np.ndarray, words: np.ndarray) -> Views:
    """Makes a single view of each text, whose tokens are predicted at the position before them, all but the first."""
    n, t = ids.shape
    predicted = np.broadcast_to(np.arange(t - 1, dtype=np.int32), (n, t - 1))
    return Views(np.arange(n), ids, predicted, ids[:, 1:])


def token_views(ids: np.ndarray, words: np.ndarray) -> Views:
    """Makes a single view of each text, whose tokens but special ones are judged at their positions."""
    positions = np.flatnonzero(words[0] >= 0).astype(np.int32)  # the same in all texts of one length
    return Views(np.arange(len(ids)), ids, np.broadcast_to(positions, (len(ids), len(positions))), ids[:, positions])
