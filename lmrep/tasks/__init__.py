"""Tasks that networks are fine-tuned for: one file per task, looked up by name in `TASKS`."""

from lmrep.core.components import component_table
from lmrep.objectives.base import check_capabilities
from lmrep.tasks import (
    classification,
    multilabel,
    multiple_choice,
    regression,
    span_extraction,
    tagging,
    text_to_text,
    word_in_context,
    word_senses,
)
from lmrep.tasks.base import TaskDef

__all__ = ["TASKS", "TaskDef"]

TASKS: dict[str, TaskDef] = component_table(TaskDef, {
    "classification": classification.DEFINITION,
    "multilabel": multilabel.DEFINITION,
    "multiple_choice": multiple_choice.DEFINITION,
    "regression": regression.DEFINITION,
    "span_extraction": span_extraction.DEFINITION,
    "tagging": tagging.DEFINITION,
    "text_to_text": text_to_text.DEFINITION,
    "word_in_context": word_in_context.DEFINITION,
    "word_senses": word_senses.DEFINITION,
})
check_capabilities({name: task.objective for name, task in TASKS.items()})
