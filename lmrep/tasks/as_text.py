"""Any task as text to text (Raffel et al., 2019, section 2.4): its template, its targets and its metrics."""

from collections.abc import Mapping
from typing import Any

from lmrep.core.errors import UserError
from lmrep.tasks import TASKS, text_templates
from lmrep.tasks.known import KNOWN

TASK, NETWORK = "text_to_text", "encoder_decoder"  # a name in `TASKS`, and one in `MODELS` by default
# task -> fields of `TASK` that turn its targets into texts, and measure them
FORMS: Mapping[str, Mapping[str, Any]] = {
    "classification": {"target": "{label}", "metrics": ("accuracy",)},
    "multiple_choice": {"target": "{label}", "metrics": ("accuracy",)},
    "regression": {"target": "{label}", "round_to": 0.2, "metrics": ("spearman", "pearson")},
    "span_extraction": {"target": "{answers}", "metrics": ("answer_f1", "exact_match")},
    "tagging": {"target": "{tags}", "max_target": 256, "metrics": ("token_accuracy",)},
    "word_in_context": {"target": "{label}", "metrics": ("accuracy",)},
}


def text_form(task: str, known: str = "", tfds: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns (fields of `TASK`, fields of `config.data`) for a task in `TASKS`, or a set in `KNOWN`.

    The template has the name, and each input after its name in TFDS: "mnli premise: {text} hypothesis: {text2}".
    Classes that files number become words.

    Args:
      task: the name of the task.
      known: the name of the data set; "" for other data, whose `text2` is not read.
      tfds: whether the set is read from TFDS, where classes are words.

    Raises:
      UserError: the task has no form as text.
    """
    reads, published = TASKS[task].reads, KNOWN.get(known)
    if task not in FORMS:
        raise UserError(f"the task {task} has no form as text; leave as_text=true out")
    columns = ((published.tfds or published.data).get("columns", {})) if published else {}
    inputs = [name for name in (*reads.fields, *(name for name in reads.optional if name in columns))
              if name in text_templates.INPUTS]
    template = " ".join([known or task, *(  # choices have names of their own
        "{choices}" if name == "choices" else f"{columns.get(name, name)}: {{{name}}}" for name in inputs)])
    objective = {"template": template, **FORMS[task]}
    if not published:
        return objective, {}
    objective |= {name: value for name, value in published.objective.items() if name == "metrics"}
    objective |= published.text
    if "f1" in objective["metrics"]:
        objective["positive"] = published.labels[1] if published.labels else "1"
    labels = {} if tfds else {str(i): label for i, label in enumerate(published.labels)}
    return objective, {"label_map": labels} if published.labels else {}
