"""Exact match and F1 of answers, as the scripts of SQuAD 1.1 and 2.0 compute them (Rajpurkar et al. 2016, 2018)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lmrep.metrics import inputs

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and the articles a, an, the; white space as single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, prediction: str) -> float:
    """1 where both are the same after `normalize_answer`, else 0."""
    return float(normalize_answer(answer) == normalize_answer(prediction))


def overlap(answer: str, prediction: str) -> float:
    """F1 of the words of both, as multisets; 0 where either has none. This is F1 of SQuAD 1.1."""
    gold, predicted = normalize_answer(answer).split(), normalize_answer(prediction).split()
    common = (Counter(gold) & Counter(predicted)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def overlap_or_empty(answer: str, prediction: str) -> float:
    """As `overlap`, but 1 where neither has words. This is F1 of SQuAD 2.0."""
    return overlap(answer, prediction) or float(not normalize_answer(answer) and not normalize_answer(prediction))


def exact_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str], version: str = "2.0") -> np.ndarray:
    """Whether the answer to each question is one of the gold answers, after `normalize_answer`.

    Args:
      gold: the gold answers of each question. In SQuAD 2.0 answers without words, such as "the", do not count where
        there are others, and a question without answers has "" as its only one. In SQuAD 1.1 each question has answers.
      predicted: an answer for each question; "" is no answer.
      version: of SQuAD, "1.1" or "2.0".

    Returns:
      float64 [n], 0 or 1.

    Raises:
      UserError: there are no questions, or other numbers of questions and predictions.
    """
    return _best(exact, gold, predicted, version)


def f1_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str], version: str = "2.0") -> np.ndarray:
    """F1 of the answer to each question, the largest over its gold answers, float64 [n]. Arguments and errors as of
    `exact_scores`."""
    return _best(overlap_or_empty if version == "2.0" else overlap, gold, predicted, version)


def _best(score: Callable[[str, str], float], gold: Sequence[Sequence[str]], predicted: Sequence[str],
          version: str) -> np.ndarray:
    inputs.check_lengths(gold, predicted)
    chosen = _with_words if version == "2.0" else list
    return np.asarray([max(score(answer, prediction) for answer in chosen(answers))
                       for answers, prediction in zip(gold, predicted, strict=True)], np.float64)


def _with_words(answers: Sequence[str]) -> list[str]:
    return [answer for answer in answers if normalize_answer(answer)] or [""]


def squad2_figures(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str],
                   null_scores: Mapping[str, float] | None = None, threshold: float = 1.0) -> dict[str, float]:
    """The figures of SQuAD 2.0's script, in percent, under its names and in its order.

    Args:
      gold: the answers of each question by its id; none where it has no answer.
      predicted: the predicted answer by id, "" for no answer. Questions without one are left out.
      null_scores: by id, a number that is the larger the likelier it is that there is no answer.
      threshold: of `null_scores`: where they are above it, no answer is what is predicted.

    Returns:
      exact, f1, total; the same with HasAns_ and NoAns_, where there are such questions; with `null_scores` also
      best_exact, best_exact_thresh, best_f1, best_f1_thresh, the best values that a threshold gives, which is chosen
      on these very questions.

    Raises:
      UserError: no question has a prediction.
    """
    ids = [key for key in gold if key in predicted]
    answerable = np.asarray([bool(gold[key]) for key in ids], bool)
    raw = {name: scores([gold[key] for key in ids], [predicted[key] for key in ids])
           for name, scores in (("exact", exact_scores), ("f1", f1_scores))}
    null = np.asarray([null_scores[key] for key in ids]) if null_scores else np.zeros(len(ids))
    kept = {name: np.where(null > threshold, ~answerable, scores) for name, scores in raw.items()}
    figures = {}
    for prefix, members in (("", np.ones(len(ids), bool)), ("HasAns_", answerable), ("NoAns_", ~answerable)):
        if members.any():
            figures |= {f"{prefix}{name}": 100 * sum(scores[members].tolist()) / int(members.sum())
                        for name, scores in kept.items()}
            figures[f"{prefix}total"] = int(members.sum())
    if null_scores:
        answered = np.asarray([bool(predicted[key]) for key in ids])
        number = {key: position for position, key in enumerate(ids)}
        order = [number[key] for key in null_scores if key in number]  # that of the file decides between equal scores
        for name, scores in raw.items():
            best, at = best_threshold(scores[order], null[order], answerable[order], answered[order])
            figures |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return figures


def best_threshold(scores: np.ndarray, null_scores: np.ndarray, answerable: np.ndarray, answered: np.ndarray
                   ) -> tuple[float, float]:
    """The largest mean score that a threshold of `null_scores` gives, in percent, and that threshold.

    The script's rule: the model answers one question after the other by increasing null score, from none (threshold 0)
    to all; of equal scores the first comes first.

    Args:
      scores: float [n], of the answers.
      null_scores: float [n].
      answerable, answered: bool [n], whether there is a gold answer, and a predicted one.
    """
    order = np.argsort(null_scores, kind="stable")
    gains = np.where(answerable, scores, np.where(answered, -1.0, 0.0))[order]
    totals = np.concatenate([[float(np.sum(~answerable))], gains]).cumsum()
    best = int(np.argmax(totals))
    return float(100 * totals[best] / len(scores)), float(null_scores[order[best - 1]]) if best else 0.0
