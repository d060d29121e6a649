"""Surprisals: how unexpected each word of a text is to a language model, given its context (Hale, 2001; Levy, 2008).

The surprisal of a word is -log2 of its probability, the sum over its tokens, in bits. A model that predicts from left
to right gives it given the words before, as the theory of reading times has it; a masked language model by its
pseudo-log-likelihood, given the words on both sides.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.inference import pairs
from lmrep.inference.run import Run
from lmrep.inference.scores import NONE
from lmrep.objectives.scoring import Views


class Word(NamedTuple):
    """A word of a text: what is between white space."""

    text: str
    tokens: int  # how many
    surprisal: float | None  # in bits; None where a token of it is not predicted, such as the first of a text


def surprisals(run: Run, texts: Sequence[str], pll: str = "", places: Sequence[str] = ()) -> list[list[Word]]:
    """Computes the surprisals of the words of texts, each by itself, in float32.

    Args:
      run: a run whose objective has `Uses.scorings`.
      texts: each with a token, and at most as many as the model takes.
      pll: another scoring of the objective, as in `pairs.evaluate`.
      places: file and line of each text, for messages.

    Raises:
      UserError: the objective has no such scoring, or one that is no probability of each token in turn; the model reads
        from right to left; a text is too long or has no token.
    """
    scoring = pairs.in_float32(run).uses.scorings[pairs.scoring_name(run, pll)]
    if reason := pairs.why_no_token_scores(run, scoring):
        raise UserError(f"{run.directory} gives words no surprisal: {reason}. Give a model that predicts from left to "
                        "right, or a masked one")
    tokenized = [pairs.tokenize(run, text, place) for text, place in zip(
        texts, places or [f"text {number}" for number in range(len(texts))], strict=True)]
    terms: list[list[float]] = [[] for _ in texts]

    def keep(views: Views, values: np.ndarray) -> None:
        for i, row, used in zip(views.text, values, views.predicted != NONE, strict=True):
            terms[i] += row[used].tolist()

    pairs.score(run, tokenized, scoring, each=keep)
    found = []
    for text, (ids, words, _), logs in zip(texts, tokenized, terms, strict=True):
        predicted = np.flatnonzero(words >= 0)[-len(logs):] if logs else []  # in order; the first token may have none
        at_tokens = np.full(len(ids), math.nan)
        at_tokens[predicted] = logs
        found.append(_words(run, text, at_tokens[words >= 0]))
    return found


def _words(run: Run, text: str, logs: np.ndarray) -> list[Word]:
    """Adds up the log probabilities, in nats, of the tokens of each word; NaN for tokens that are not predicted."""
    text = pairs.as_in_training(run, text)
    matches = [*re.finditer(r"\S+", text)]
    starts = [start for start, _ in run.tokenizer.encode(text).offsets]
    # A token that begins with the space before a word is one of that word.
    word = np.searchsorted([match.end() for match in matches], starts, side="right").clip(0, len(matches) - 1)
    sums = np.bincount(word, -logs / math.log(2), len(matches))
    return [Word(match[0], int(n), None if math.isnan(total) else float(total)) for match, n, total in zip(
        matches, np.bincount(word, minlength=len(matches)), sums, strict=True)]
