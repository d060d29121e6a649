"""Scores as official scripts compute and print them: SQuAD, `conlleval`, seqeval, sacreBLEU and rouge-score."""

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from lmrep.core.errors import UserError
from lmrep.metrics import entities, inputs, translation
from lmrep.metrics.answers import exact_scores, f1_scores

Report = tuple[str, dict[str, Any]]  # the text that the script prints, and its figures by name
Tags = Sequence[Sequence[str]]
ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def squad1(gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str]) -> Report:
    """Scores answers, by question id, as the script of SQuAD 1.1 does, in percent.

    A question without a prediction counts as wrong. Raises UserError if a question has no gold answers.
    """
    if unanswerable := [key for key, answers in gold.items() if not answers]:
        raise UserError(f"{len(unanswerable):,} questions have no answer, such as {unanswerable[0]!r}; SQuAD 1.1 has "
                        "none of these: use --metric=squad2")
    ids = [key for key in gold if key in predicted]
    totals = {}
    for name, scores in (("exact_match", exact_scores), ("f1", f1_scores)):
        values = scores([gold[key] for key in ids], [predicted[key] for key in ids], version="1.1")
        totals[name] = 100.0 * sum(values.tolist()) / len(gold)
    return json.dumps(totals), totals


def squad2(
    gold: Mapping[str, Sequence[str]], predicted: Mapping[str, str], null_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> Report:
    """Scores answers as the script of SQuAD 2.0 does, in percent. Questions without a prediction are left out.

    Args:
      gold: question id -> its answers; none if it is unanswerable.
      predicted: question id -> the predicted answer, "" for no answer.
      null_scores: question id -> the score of no answer. Above `threshold`, no answer is predicted.
      threshold: of `null_scores`.

    Returns:
      The figures exact, f1 and total of all questions, of answerable ones (HasAns_) and of unanswerable ones (NoAns_),
      where there are such; with `null_scores` also best_exact, best_f1 and their thresholds (`best_threshold`), which
      are chosen on these very questions.

    Raises:
      UserError: no question has a prediction.
    """
    ids = [key for key in gold if key in predicted]
    answerable = np.asarray([bool(gold[key]) for key in ids], bool)
    raw = {name: scores([gold[key] for key in ids], [predicted[key] for key in ids])
           for name, scores in (("exact", exact_scores), ("f1", f1_scores))}
    null = np.asarray([null_scores[key] for key in ids]) if null_scores else np.zeros(len(ids))
    corrected = {name: np.where(null > threshold, ~answerable, scores) for name, scores in raw.items()}
    figures = {}
    for prefix, members in (("", np.ones(len(ids), bool)), ("HasAns_", answerable), ("NoAns_", ~answerable)):
        if members.any():
            figures |= {f"{prefix}{name}": 100 * sum(scores[members].tolist()) / int(members.sum())
                        for name, scores in corrected.items()}
            figures[f"{prefix}total"] = int(members.sum())
    if null_scores:
        answered = np.asarray([bool(predicted[key]) for key in ids])
        number = {key: position for position, key in enumerate(ids)}
        order = [number[key] for key in null_scores if key in number]  # the file's order decides between equal scores
        for name, scores in raw.items():
            best, at = best_threshold(scores[order], null[order], answerable[order], answered[order])
            figures |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return json.dumps(figures, indent=2), figures


def best_threshold(scores: np.ndarray, null_scores: np.ndarray, answerable: np.ndarray, answered: np.ndarray
                   ) -> tuple[float, float]:
    """Finds the threshold of `null_scores` with the largest mean score, and returns (the mean in percent, threshold).

    As in the script, questions are answered in the order of increasing null scores, from none (threshold 0) to all.

    Args:
      scores: float [n], of the answers.
      null_scores: float [n].
      answerable, answered: bool [n], whether a question has a gold answer, and a predicted one.
    """
    order = np.argsort(null_scores, kind="stable")
    gains = np.where(answerable, scores, np.where(answered, -1.0, 0.0))[order]
    totals = np.concatenate([[float(np.sum(~answerable))], gains]).cumsum()
    best = int(np.argmax(totals))
    return float(100 * totals[best] / len(scores)), float(null_scores[order[best - 1]]) if best else 0.0


def conlleval(gold: Tags, predicted: Tags) -> Report:
    """Scores tags as `conlleval` (version of 2004) does, in percent, for each type of entity and for all."""
    by_type: dict[str, np.ndarray] = {}
    for a, b in zip(gold, predicted, strict=True):
        for type_, counts in entities.conll_counts(a, b).items():
            by_type[type_] = by_type.get(type_, 0) + counts
    correct, in_gold, in_predicted = map(int, sum(by_type.values(), np.zeros(3)))
    right, tokens = entities.token_sums(gold, predicted).sum(0)
    total = _percentages(correct, in_gold, in_predicted)
    lines = [f"processed {int(tokens)} tokens with {in_gold} phrases; found: {in_predicted} phrases; "
             f"correct: {correct}.", f"accuracy: {100 * right / tokens:6.2f}%; {_line(total)}"]
    figures = {"accuracy": 100 * right / tokens, **total, "tokens": int(tokens), "gold": in_gold,
               "found": in_predicted, "correct": correct, "types": {}}
    for type_ in sorted(by_type):
        correct, in_gold, in_predicted = map(int, by_type[type_])
        values = _percentages(correct, in_gold, in_predicted)
        lines.append(f"{type_:>17}: {_line(values)}  {in_predicted}")
        figures["types"][type_] = values | {"gold": in_gold, "found": in_predicted, "correct": correct}
    return "\n".join(lines), figures


def _percentages(correct: int, gold: int, predicted: int) -> dict[str, float]:
    precision = 100 * correct / predicted if predicted else 0.0
    recall = 100 * correct / gold if gold else 0.0
    return {"precision": precision, "recall": recall,
            "f1": 2 * precision * recall / (precision + recall) if correct else 0.0}


def _line(values: Mapping[str, float]) -> str:
    return f"precision: {values['precision']:6.2f}%; recall: {values['recall']:6.2f}%; FB1: {values['f1']:6.2f}"


def seqeval(gold: Tags, predicted: Tags, strict: bool, scheme: str) -> Report:
    """Scores tags as seqeval's `classification_report` does, 0 to 1. Raises UserError if there is no entity at all or,
    in strict mode, a tag is not in the scheme."""
    from seqeval import scheme as schemes
    from seqeval.metrics import classification_report

    if not entities.entity_sums(gold, predicted, scheme, strict).any():
        raise UserError("there is no entity, neither gold nor predicted; nothing can be reported")
    options: dict[str, Any] = {"zero_division": 0}
    if strict:
        options |= {"mode": "strict", "scheme": getattr(schemes, entities.scheme_name(scheme))}
    gold, predicted = [list(tags) for tags in gold], [list(tags) for tags in predicted]
    with warnings.catch_warnings(action="ignore"):  # one for each tag without prefix
        figures = classification_report(gold, predicted, output_dict=True, **options)
        text = classification_report(gold, predicted, **options)
    return text.rstrip("\n"), {
        name: {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}
        for name, values in figures.items()}


def sacrebleu(
    name: str, gold: translation.References, predicted: Sequence[str], tokenize: str = "13a", lowercase: bool = False,
    word_order: int = 0,
) -> Report:
    """Scores texts by "bleu" or "chrf" as sacreBLEU's command does, 0 to 100, with its signature. Options as of
    `translation.bleu_sums` and `translation.chrf_sums`. Raises UserError if there are no texts, or the numbers of
    texts and references differ."""
    metric = BLEU(tokenize=tokenize, lowercase=lowercase) if name == "bleu" else CHRF(
        word_order=word_order, lowercase=lowercase)
    inputs.check_lengths(gold, predicted)
    score = metric.corpus_score(list(predicted), translation.streams(gold))
    details = str(metric.get_signature())
    return score.format(width=1, signature=details), {name: score.score, "signature": details}


def rouge(gold: translation.References, predicted: Sequence[str], stemmer: bool = False, seed: int = 0) -> Report:
    """Scores texts by ROUGE (Lin, 2004) as Google's package rouge-score does: the F-measures of `ROUGE_TYPES`, 0 to 1.

    The package draws resamples of the texts; the figures are medians, and intervals from the 2.5 to the 97.5
    percentile.

    Args:
      gold: the references of each text; of several, the one with the best F-measure counts.
      predicted: the texts. For rougeLsum, line breaks separate their sentences.
      stemmer: whether words are compared without suffixes (Porter).
      seed: of the resamples.

    Raises:
      UserError: there are no texts, the numbers of texts and references differ, or the package is not installed.
    """
    try:
        from rouge_score import rouge_scorer, scoring
    except ImportError:
        raise UserError("ROUGE needs the package rouge-score: pip install rouge-score") from None
    inputs.check_lengths(gold, predicted)
    scorer, aggregator = rouge_scorer.RougeScorer([*ROUGE_TYPES], use_stemmer=stemmer), scoring.BootstrapAggregator()
    for references, text in zip(gold, predicted, strict=True):
        aggregator.add_scores(scorer.score_multi([references] if isinstance(references, str) else references, text))
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        aggregated = aggregator.aggregate()
    finally:
        np.random.set_state(state)
    lines, figures = ["score_type,low,mid,high"], {}
    for name, score in sorted(aggregated.items()):
        for letter, field in (("R", "recall"), ("P", "precision"), ("F", "fmeasure")):
            low, mid, high = (float(getattr(bound, field)) for bound in (score.low, score.mid, score.high))
            lines.append(f"{name}-{letter},{low:f},{mid:f},{high:f}")
        figures |= {name: mid, f"{name}_interval": (low, high)}
    return "\n".join(lines), figures
