"""ROUGE (Lin, 2004) of generated texts, as Google's package rouge-score computes it."""

from collections.abc import Sequence

import numpy as np

from lmrep.core.errors import UserError
from lmrep.metrics import inputs

TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def printed(
    gold: Sequence[str | Sequence[str]], predicted: Sequence[str], stemmer: bool = False, seed: int = 0
) -> tuple[str, dict[str, float]]:
    """(the table that the package's command prints, the F-measures of `TYPES`, 0 to 1, and their intervals).

    The package draws resamples of the texts; the figures are the medians, and the 2.5 and 97.5 percentiles.

    Args:
      gold: the references of each text; of several, that with the best F-measure counts.
      predicted: the texts. For rougeLsum, line breaks separate their sentences.
      stemmer: whether words are compared without suffixes (Porter).
      seed: of the resamples.

    Raises:
      UserError: there are no texts, or other numbers of texts and references; the package is not installed.
    """
    try:
        from rouge_score import rouge_scorer, scoring
    except ImportError:
        raise UserError("ROUGE needs the package rouge-score: pip install rouge-score") from None
    inputs.check_lengths(gold, predicted)
    scorer, aggregator = rouge_scorer.RougeScorer([*TYPES], use_stemmer=stemmer), scoring.BootstrapAggregator()
    for references, text in zip(gold, predicted, strict=True):
        aggregator.add_scores(scorer.score_multi([references] if isinstance(references, str) else references, text))
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        found = aggregator.aggregate()
    finally:
        np.random.set_state(state)
    lines, figures = ["score_type,low,mid,high"], {}
    for name, score in sorted(found.items()):
        for letter, field in (("R", "recall"), ("P", "precision"), ("F", "fmeasure")):
            low, mid, high = (float(getattr(bound, field)) for bound in (score.low, score.mid, score.high))
            lines.append(f"{name}-{letter},{low:f},{mid:f},{high:f}")
        figures |= {name: mid, f"{name}_interval": (low, high)}
    return "\n".join(lines), figures
