"""BLEU (Papineni et al., 2002) and chrF (Popović, 2015) of generated texts, as sacreBLEU computes them (Post, 2018)."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from lmrep.metrics import inputs

References = Sequence[str | Sequence[str]]  # of each text, one or several, the same number for all


def bleu_sums(
    gold: References, predicted: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> np.ndarray:
    """float64 [n, 10]: of each text the n-grams that match for n from 1 to 4, all of them, and the lengths of text and
    reference, of several the one of the closest length.

    Args:
      gold: the references.
      predicted: the texts, without tokenization.
      tokenize: sacreBLEU's tokenization of both, such as "13a", "intl" or "char".
      lowercase: whether case is ignored.
    """
    metric = _bleu(tokenize, lowercase)
    scores = [metric.corpus_score([text], _streams([references]))
              for references, text in zip(gold, predicted, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], float)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """BLEU, 0 to 100, of sums of `bleu_sums` [..., 10]."""
    def score(row: np.ndarray) -> float:
        counts = [int(value) for value in row]
        return BLEU.compute_bleu(counts[:4], counts[4:8], *counts[8:], smooth_method="exp").score

    return np.apply_along_axis(score, -1, sums)


def chrf_sums(gold: References, predicted: Sequence[str], word_order: int = 0) -> np.ndarray:
    """float64 [n, 18 + 3 word_order]: for each n the n-grams of text and reference, and those that match; of several
    references those of the best one. chrF is F2 of character n-grams, n from 1 to 6, and of word n-grams, n up to
    `word_order` (2: chrF++)."""
    return np.array(CHRF(word_order=word_order)._extract_corpus_statistics(list(predicted), _streams(gold)), float)


def chrf_of(sums: np.ndarray) -> np.ndarray:
    """chrF, 0 to 100, of sums of `chrf_sums` [..., 18 + 3 word_order]."""
    metric = CHRF(word_order=sums.shape[-1] // 3 - 6)
    return np.apply_along_axis(lambda row: metric._compute_f_score(row.astype(int).tolist()), -1, sums)


def signature(tokenize: str = "13a", lowercase: bool = False) -> str:
    """sacreBLEU's signature of `bleu`, by which figures of papers are compared."""
    metric = _bleu(tokenize, lowercase)
    metric.corpus_score([""], [[""]])  # it has none before
    return str(metric.get_signature())


def printed(
    name: str, gold: References, predicted: Sequence[str], tokenize: str = "13a", lowercase: bool = False,
    word_order: int = 0,
) -> tuple[str, dict[str, float | str]]:
    """(the line that sacreBLEU's command prints, the figures) of "bleu" or "chrf". Arguments and errors as of these."""
    metric = _bleu(tokenize, lowercase) if name == "bleu" else CHRF(word_order=word_order, lowercase=lowercase)
    inputs.check_lengths(gold, predicted)
    score = metric.corpus_score(list(predicted), _streams(gold))
    details = str(metric.get_signature())
    return score.format(width=1, signature=details), {name: score.score, "signature": details}


def _streams(gold: References) -> list[list[str]]:
    """References as sacreBLEU takes them: the first of each text, the second, and so on."""
    return [*map(list, zip(*([own] if isinstance(own, str) else own for own in gold), strict=True))]


def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    return BLEU(tokenize=tokenize, lowercase=lowercase)
