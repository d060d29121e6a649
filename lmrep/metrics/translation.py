"""BLEU (Papineni et al., 2002) and chrF (Popović, 2015) of generated texts, as sacreBLEU computes them (Post, 2018)."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

References = Sequence[str | Sequence[str]]  # one reference or several for each text, the same number for all


def bleu_sums(
    gold: References, predicted: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> np.ndarray:
    """Returns float64 [n, 10]: for each text the numbers of matching n-grams and of all n-grams, n from 1 to 4, and the
    lengths of the text and of its closest reference.

    Args:
      gold: the references.
      predicted: the texts, without tokenization.
      tokenize: sacreBLEU's tokenization of both, such as "13a", "intl" or "char".
      lowercase: whether case is ignored.
    """
    metric = BLEU(tokenize=tokenize, lowercase=lowercase)
    scores = [metric.corpus_score([text], streams([references]))
              for references, text in zip(gold, predicted, strict=True)]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores], float)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """Computes BLEU [...], 0 to 100, from sums [..., 10] of `bleu_sums`."""
    def score(row: np.ndarray) -> float:
        counts = [int(value) for value in row]
        return BLEU.compute_bleu(counts[:4], counts[4:8], *counts[8:], smooth_method="exp").score

    return np.apply_along_axis(score, -1, sums)


def chrf_sums(gold: References, predicted: Sequence[str], word_order: int = 0) -> np.ndarray:
    """Returns float64 [n, 18 + 3 word_order]: for each text and each n the numbers of n-grams of the text, of its best
    reference, and of both. chrF is F2 of character n-grams, n from 1 to 6, and of word n-grams, n up to `word_order`
    (2: chrF++)."""
    return np.array(CHRF(word_order=word_order)._extract_corpus_statistics(list(predicted), streams(gold)), float)


def chrf_of(sums: np.ndarray) -> np.ndarray:
    """Computes chrF [...], 0 to 100, from sums [..., 18 + 3 word_order] of `chrf_sums`."""
    metric = CHRF(word_order=sums.shape[-1] // 3 - 6)
    return np.apply_along_axis(lambda row: metric._compute_f_score(row.astype(int).tolist()), -1, sums)


def signature(tokenize: str = "13a", lowercase: bool = False) -> str:
    """Returns sacreBLEU's signature of BLEU with these options, which makes published figures comparable."""
    metric = BLEU(tokenize=tokenize, lowercase=lowercase)
    metric.corpus_score([""], [[""]])  # it has none before
    return str(metric.get_signature())


def streams(gold: References) -> list[list[str]]:
    """Transposes references as sacreBLEU takes them: a list of the first reference of each text, and so on."""
    return [*map(list, zip(*([text] if isinstance(text, str) else text for text in gold), strict=True))]
