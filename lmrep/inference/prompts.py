"""Prompts of a trained model: sample texts, and the token before a document's first one."""

from collections.abc import Sequence

from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import StagePlan
from lmrep.objectives.base import Capability


def sample_prompts(samples: Sequence[str], capabilities: Sequence[Capability]) -> list[str]:
    """The sample texts that one of these capabilities accepts, or the last capability's example if none is: samples may
    be left over from another objective. [] without samples or capabilities."""
    if not samples or not capabilities:
        return []
    accepted = [text for text in samples if any(each.accepts(text) for each in capabilities)]
    return accepted or [capabilities[-1].example]


def example(samples: Sequence[str], capabilities: Sequence[Capability]) -> str:
    """A text for `lmrep predict`; "" without capabilities."""
    return next(iter(sample_prompts(samples, capabilities)), capabilities[-1].example if capabilities else "")


def start_token(stage: StagePlan | None, vocabulary: Vocabulary) -> int | None:
    """The token before a document's first one, as in training; None where there is none.

    That is the special token that the stage's format puts there, [CLS] for example, or the token that ends the previous
    document, where the first token attends to it. `stage` is None for a converted checkpoint: [CLS], or the token that
    begins or ends its texts.
    """
    if stage is None:
        return next((vocabulary.specials[role] for role in ("cls", "bos", "eos") if role in vocabulary.specials), None)
    layout = FORMATS[stage.format_name].layout(stage.format, vocabulary)
    if layout.lead is not None:
        return layout.lead
    across = layout.spans_per_segment == 0 or getattr(stage.objective, "across", False)
    return layout.tail if across else None
