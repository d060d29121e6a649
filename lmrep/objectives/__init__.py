"""Training objectives: one file per objective, looked up by name in `OBJECTIVES`."""

from lmrep.core.components import component_table
from lmrep.objectives import (
    bidirectional,
    causal,
    causal_distillation,
    distillation,
    masked,
    masked_next_token,
    permutation,
    replaced_token,
    sequence_autoencoder,
    span_boundary,
    span_corruption,
)
from lmrep.objectives.base import Objective, ObjectiveDef, check_capabilities

__all__ = ["OBJECTIVES", "Objective", "ObjectiveDef"]

OBJECTIVES: dict[str, ObjectiveDef] = component_table(ObjectiveDef, {
    "masked": masked.DEFINITION,
    "causal": causal.DEFINITION,
    "masked_next_token": masked_next_token.DEFINITION,
    "bidirectional": bidirectional.DEFINITION,
    "permutation": permutation.DEFINITION,
    "replaced_token": replaced_token.DEFINITION,
    "sequence_autoencoder": sequence_autoencoder.DEFINITION,
    "span_boundary": span_boundary.DEFINITION,
    "span_corruption": span_corruption.DEFINITION,
    "distillation": distillation.DEFINITION,
    "causal_distillation": causal_distillation.DEFINITION,
})
check_capabilities(OBJECTIVES)
