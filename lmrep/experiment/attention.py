"""The implementation of attention of each stage: what it has to honour, and what `execution.attention` means."""

from typing import Any

from lmrep.core.errors import UserError
from lmrep.experiment.choices import ALL_FORMATS, ALL_OBJECTIVES
from lmrep.layers.attention_backends import AUTO, Choice, Needs, resolve
from lmrep.layers.stack import Execution
from lmrep.models.base import Context


def needs(own: Needs, execution: Execution, stage: Any) -> Needs:
    """What the attention of a stage (a `StagePlan`) has to honour, for a network that needs `own`."""
    return own._replace(
        dtype=execution.dtype, length=stage.length, packed=ALL_FORMATS[stage.format_name].packed(stage.format),
        causal=ALL_OBJECTIVES[stage.objective_name].conditions_on(stage.objective) == Context.LEFT)


def choose(own: Needs | None, execution: Execution, stage: Any, platform: str | None = None) -> Choice | None:
    """The backend of a stage, or None for a network without attention. The platform is not checked where it is None,
    and `auto` is then xla.

    Raises:
      UserError: `execution.attention` names a backend that does not honour what the stage needs.
    """
    if own is None and execution.attention != AUTO:
        raise UserError(f"execution.attention is {execution.attention}, and the network has no choice of attention; "
                        f"set it to {AUTO}")
    return None if own is None else resolve(execution.attention, needs(own, execution, stage), platform)


def describe(choices: dict[str, Choice]) -> str:
    """One line about the backends of all stages, by name of the stage."""
    lines = {stage: choice.name + "".join(f" ({name}, which is expected to be faster, {reason})"
                                          for name, reason in choice.ruled_out.items())
             for stage, choice in choices.items()}
    if len(set(lines.values())) == 1:
        return "attention: " + next(iter(lines.values()))
    return "attention: " + "; ".join(f"{line} in stage {stage!r}" for stage, line in lines.items())
