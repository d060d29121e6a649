"""BLEU (Papineni et al., 2002) and chrF (Popović, 2015) of generated texts, as sacreBLEU computes them (Post, 2018)."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric

from lmrep.metrics import inputs


def bleu(gold: Sequence[str], predicted: Sequence[str], tokenize: str = "13a", lowercase: bool = False) -> float:
    """BLEU of a corpus, 0 to 100, with one reference for each text.

    Args:
      gold: the references.
      predicted: the texts, without tokenization.
      tokenize: sacreBLEU's tokenization of both, such as "13a", "intl" or "char".
      lowercase: whether case is ignored.

    Raises:
      UserError: there are no texts, or other numbers of texts and references.
    """
    return _score(_bleu(tokenize, lowercase), gold, predicted)


def bleu_sums(
    gold: Sequence[str], predicted: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> np.ndarray:
    """float64 [n, 10]: of each text the n-grams that match for n from 1 to 4, all of them, and the lengths of text and
    reference."""
    metric = _bleu(tokenize, lowercase)
    scores = [metric.corpus_score([text], [[own]]) for own, text in zip(gold, predicted, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], float)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """BLEU of sums of `bleu_sums` [..., 10]."""
    def score(row: np.ndarray) -> float:
        counts = [int(value) for value in row]
        return BLEU.compute_bleu(counts[:4], counts[4:8], *counts[8:], smooth_method="exp").score

    return np.apply_along_axis(score, -1, sums)


def chrf(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """chrF of a corpus, 0 to 100: F2 of character n-grams, n from 1 to 6. Arguments and errors as of `bleu`."""
    return _score(CHRF(), gold, predicted)


def chrf_sums(gold: Sequence[str], predicted: Sequence[str]) -> np.ndarray:
    """float64 [n, 18]: for n from 1 to 6 the character n-grams of text and reference, and those that match."""
    return np.array(CHRF()._extract_corpus_statistics(list(predicted), [list(gold)]), float)


def chrf_of(sums: np.ndarray) -> np.ndarray:
    """chrF of sums of `chrf_sums` [..., 18]."""
    grams = sums.reshape(*sums.shape[:-1], 6, 3)
    present = (grams[..., 0] > 0) & (grams[..., 1] > 0)
    count = np.maximum(present.sum(-1), 1)
    precision, recall = (np.where(present, grams[..., 2] / np.maximum(grams[..., i], 1), 0).sum(-1) / count
                         for i in (0, 1))
    return 500 * precision * recall / np.maximum(4 * precision + recall, np.finfo(float).tiny)


def signature(tokenize: str = "13a", lowercase: bool = False) -> str:
    """sacreBLEU's signature of `bleu`, by which figures of papers are compared."""
    metric = _bleu(tokenize, lowercase)
    metric.corpus_score([""], [[""]])  # it has none before
    return str(metric.get_signature())


def _bleu(tokenize: str, lowercase: bool) -> BLEU:
    return BLEU(tokenize=tokenize, lowercase=lowercase)


def _score(metric: Metric, gold: Sequence[str], predicted: Sequence[str]) -> float:
    inputs.check_lengths(gold, predicted)
    return metric.corpus_score(list(predicted), [list(gold)]).score
