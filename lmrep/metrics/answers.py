"""Exact match and F1 of answers, as the scripts of SQuAD 1.1 and 2.0 compute them (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from lmrep.metrics import inputs

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lowercases a text, removes ASCII punctuation and the articles a, an, the, and collapses white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, prediction: str) -> float:
    """Returns 1 if both are the same after `normalize_answer`, else 0."""
    return float(normalize_answer(answer) == normalize_answer(prediction))


def overlap(answer: str, prediction: str) -> float:
    """Computes F1 of SQuAD 1.1: that of the two multisets of words; 0 if one of them is empty."""
    gold, predicted = normalize_answer(answer).split(), normalize_answer(prediction).split()
    common = (Counter(gold) & Counter(predicted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def overlap_or_empty(answer: str, prediction: str) -> float:
    """Computes F1 of SQuAD 2.0: `overlap`, but 1 if neither answer has words."""
    return overlap(answer, prediction) or float(not normalize_answer(answer) and not normalize_answer(prediction))


def exact_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str], version: str = "2.0") -> np.ndarray:
    """Tells whether the answer to each question is one of the gold answers, after `normalize_answer`.

    Args:
      gold: the gold answers of each question. In SQuAD 2.0 answers without words, such as "the", do not count if there
        are others, and a question without answers has "" as its only one. In SQuAD 1.1 each question has answers.
      predicted: an answer for each question; "" is no answer.
      version: of SQuAD, "1.1" or "2.0".

    Returns:
      float64 [n], 0 or 1.

    Raises:
      UserError: there are no questions, or the numbers of questions and predictions differ.
    """
    return _best(exact, gold, predicted, version)


def f1_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str], version: str = "2.0") -> np.ndarray:
    """Computes F1 of the answer to each question, float64 [n]: the largest over its gold answers. Arguments and errors
    are those of `exact_scores`."""
    return _best(overlap_or_empty if version == "2.0" else overlap, gold, predicted, version)


def _best(score: Callable[[str, str], float], gold: Sequence[Sequence[str]], predicted: Sequence[str],
          version: str) -> np.ndarray:
    inputs.check_lengths(gold, predicted)
    if version == "2.0":
        gold = [[answer for answer in answers if normalize_answer(answer)] or [""] for answers in gold]
    return np.asarray([max(score(answer, prediction) for answer in answers)
                       for answers, prediction in zip(gold, predicted, strict=True)], np.float64)
