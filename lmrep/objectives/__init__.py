"""What a network is trained to predict: one file per objective, looked up by name in `OBJECTIVES`."""

from lmrep.core.errors import UserError
from lmrep.objectives import causal, masked, replaced_token, span_boundary
from lmrep.objectives.base import Capability, Objective, ObjectiveDef

__all__ = ["OBJECTIVES", "Objective", "ObjectiveDef", "capability"]

OBJECTIVES: dict[str, ObjectiveDef] = {
    "masked": masked.DEFINITION,
    "causal": causal.DEFINITION,
    "replaced_token": replaced_token.DEFINITION,
    "span_boundary": span_boundary.DEFINITION,
}


def capability(objective: str, name: str) -> Capability:
    """The capability `name` of the models of an objective. Raises UserError if they do not have it."""
    able = {key: each for key, row in OBJECTIVES.items() for each in row.capabilities if each.name == name}
    if objective not in able:
        summary = next((each.summary for each in able.values()), "unknown")
        raise UserError(f"the run was trained with objective {objective!r}, which has no capability {name!r} "
                        f"({summary}); objectives that have it: {', '.join(able) or 'none'}")
    return able[objective]
