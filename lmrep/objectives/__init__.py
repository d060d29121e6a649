"""What is asked of a network: one file an objective, looked up by name in `OBJECTIVES`."""

from collections.abc import Callable
from typing import NamedTuple

from lmrep.objectives import causal, masked, replaced_token, span_boundary


class Kind(NamedTuple):
    """An objective as a choice of an experiment config."""

    config: type  # its record
    fields: Callable  # config -> the batch fields that it needs of a format
    check: Callable  # config -> None; raises UserError where its fields do not fit each other
    build: Callable  # (config, model, vocabulary) -> Objective
    answers: str = ""
    # What a trained model can be asked in words: "masks", to fill them; "texts", to continue them; "replaced", which
    # words of a text were, and to fill masks.


OBJECTIVES = {
    "masked": Kind(masked.Config, masked.fields, masked.check, masked.build, "masks"),
    "causal": Kind(causal.Config, causal.fields, causal.check, causal.build, "texts"),
    "replaced_token": Kind(
        replaced_token.Config, replaced_token.fields, replaced_token.check, replaced_token.build, "replaced"),
    "span_boundary": Kind(
        span_boundary.Config, span_boundary.fields, span_boundary.check, span_boundary.build, "masks"),
}
