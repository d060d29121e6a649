"""What is asked of a network: one file an objective, looked up by name in `OBJECTIVES`."""

from collections.abc import Callable
from typing import NamedTuple

from lmrep.objectives import masked


class Kind(NamedTuple):
    """An objective as a choice of an experiment config."""

    config: type  # its record
    fields: Callable  # config -> the batch fields that it needs of a format
    build: Callable  # (config, model, vocabulary) -> Objective


OBJECTIVES = {"masked": Kind(masked.Config, masked.fields, masked.build)}
