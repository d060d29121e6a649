"""The classes of checkpoints that were fine-tuned for a task: the tensors of their heads, and keys of config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.heads import TASK_HEADS, PublishedTask, task_of
from lmrep.tasks import TASKS
from lmrep.tasks.heads import Head

FORM = ("context", "dense", "activation", "bias")  # the fields of `Head` that decide what a head computes
SEQUENCE = ("classification", "regression", "multilabel")  # the tasks of one class: `problem_type` says which
MAX_LABELS = 2**20


@dataclass(frozen=True)
class TaskClass:
    """A family's class for a task.

    Attributes:
      name: in the transformers library.
      dense, out: names of the tensors of the dense layer, "" for none, and of the output layer.
      head: the form of its head; dropout rates are those of a config.json without `dropout_keys`.
      dropout_keys: keys of config.json; the first that is there has the dropout rate of the head. The first is written.
      requires: key of config.json -> the only value that is supported.
      sizes: key of config.json -> a field of the task's config that is a number.
      tensors: path under the task's -> name, of a head that is no `Head`.
      network: fields of our network's config below this head.
      prefixed: whether the base model's tensors have the family's prefix.
      drops_input: whether the rate of `dropout_keys` holds before the dense layer, too, even where that of `head` is 0.
      end: the id, unless eos_token_id is another, of the token that has to end every text; None for any.
    """

    name: str
    dense: str
    out: str
    head: Head
    dropout_keys: tuple[str, ...] = ()
    requires: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    prefixed: bool = True
    drops_input: bool = False
    end: int | None = None

    def names(self, task: str) -> dict[tuple[str, ...], tuple[str, ...]]:
        """The names of its head's tensors, by our paths; `task` is that of the head in `TASK_HEADS`."""
        start = f"objective/{task_of(task)}"
        if self.tensors:
            return {(f"{start}/{path}",): (name,) for path, name in self.tensors.items()}
        layers = [("dense", self.dense, True)] if self.dense else []
        return {(f"{start}/{own}/{ours}",): (f"{name}.{theirs}",)
                for own, name, bias in (*layers, ("out", self.out, self.head.bias))
                for ours, theirs in (("kernel", "weight"), *([("bias", "bias")] if bias else []))}

    def dropout_fields(self, rate: float) -> dict[str, float]:
        """The head's dropout rates, where its config.json has that one."""
        before = {"input_dropout": rate if self.head.input_dropout or self.drops_input else 0.0} if self.dense else {}
        return {"dropout": rate, **before}


def encoder_classes(
    start: str, sequence: tuple[str, str], choice: tuple[str, str], activation: str = "tanh",
    input_dropout: float = 0.0, keys: Sequence[str] = ("classifier_dropout", "hidden_dropout_prob"),
    choice_keys: Sequence[str] = (), choice_requires: Mapping[str, Any] = {},
) -> dict[str, TaskClass]:
    """The classes of a family that reads both sides.

    Args:
      start: of their names, "Bert".
      sequence: the names of dense and output layer of its head for classification and regression.
      choice: and of that for multiple choice.
      activation: of the dense layers.
      input_dropout: the dropout rate before the dense layer of classification and regression.
      keys: as `TaskClass.dropout_keys`.
      choice_keys: those of multiple choice, where they differ.
      choice_requires: as `TaskClass.requires`, of multiple choice.
    """
    head, keys = Head(activation=activation, input_dropout=input_dropout), tuple(keys)
    by_token = Head(dense=False)
    found = {
        **dict.fromkeys(SEQUENCE,
                        TaskClass(f"{start}ForSequenceClassification", *sequence, head, keys)),
        "tagging": TaskClass(f"{start}ForTokenClassification", "", "classifier", by_token, keys),
        "span_extraction": TaskClass(f"{start}ForQuestionAnswering", "", "qa_outputs", Head(dense=False, dropout=0.0)),
        "multiple_choice": TaskClass(f"{start}ForMultipleChoice", *choice, Head(activation=activation),
                                     tuple(choice_keys) or keys, choice_requires),
    }
    return {name: each for name, each in found.items() if name in TASKS}


def decoder_classes(start: str, tasks: Sequence[str]) -> dict[str, TaskClass]:
    """The classes of a family that reads from left to right: no dense layer, and no dropout but for tagging."""
    plain = Head(context="left", dense=False, dropout=0.0, end_of_text=False)
    score = TaskClass(f"{start}ForSequenceClassification", "", "score", replace(plain, bias=False))
    found = {
        **dict.fromkeys(SEQUENCE, score),
        "tagging": TaskClass(f"{start}ForTokenClassification", "", "classifier", replace(plain, dropout=0.1),
                             ("classifier_dropout",)),
        "span_extraction": TaskClass(f"{start}ForQuestionAnswering", "", "qa_outputs", plain),
    }
    return {name: found[name] for name in tasks if name in TASKS}


# config.json


def read_task(classes: Mapping[str, TaskClass], config_json: Mapping[str, Any], path: str) -> PublishedTask | None:
    """What the checkpoint of a config.json was fine-tuned for; None where it is none of `classes`.

    Raises:
      UserError: it is a task of that class that is not supported, or its labels cannot be read.
    """
    architectures = config_json.get("architectures") or []
    names = [name for name, each in classes.items() if each.name in architectures]
    if not names:
        return None
    labels = _labels(config_json, path)
    if len(names) > 1:
        names = _of_problem_type(names, config_json, len(labels), path)
    task = classes[names[0]]
    for key, value in task.requires.items():
        if config_json.get(key, value) != value:
            raise UserError(f"{path} has {key} {str(config_json[key])[:60]}; the head of {task.name} is supported with "
                            f"{value} alone")
    found = {name: getattr(task.head, name) for name in (*FORM, "dropout", "input_dropout", "end_of_text")}
    for key in task.dropout_keys:
        if config_json.get(key) is not None:
            found |= task.dropout_fields(_rate(config_json[key], key, path))
            break
    found |= TASK_HEADS[names[0]].fields
    for key, name in task.sizes.items():
        size = config_json.get(key)
        if size is not None:
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_LABELS:
                raise UserError(f"{path} has {key} {str(size)[:60]}; expected a whole number from 1 on")
            found[name] = size
    kept = config_json.get("task_specific_params")
    kept = kept.get(names[0]) if isinstance(kept, dict) else None
    if isinstance(kept, dict):
        found |= {name: kept[name] for name in TASK_HEADS[names[0]].kept if name in kept}
    return PublishedTask(names[0], _known(names[0], found, labels))


def _known(task: str, values: Mapping[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    """Those of these fields that the config of a task has."""
    own = fields(TASKS[task_of(task)].objective.config)
    known = {*FORM, *(each.name for each in own)}  # the form decides on parameters
    named = {} if TASK_HEADS[task].outputs else {"labels": labels}
    return {name: value for name, value in {**values, **named}.items() if name in known}


def _of_problem_type(names: Sequence[str], config_json: Mapping[str, Any], labels: int, path: str) -> list[str]:
    """Of tasks with the same class, the one that config.json means: regression where there is one output."""
    default = "regression" if labels == 1 else "single_label_classification"
    found = config_json.get("problem_type") or default
    fitting = [name for name in names if TASK_HEADS[name].problem_type == found]
    if not fitting or (found != "multi_label_classification" and (found == "regression") != (labels == 1)):
        raise UserError(f"{path} has problem_type {str(found)[:60]!r} and {labels} labels; supported are "
                        "'single_label_classification' with two labels or more, 'multi_label_classification' with any "
                        "number, and 'regression' with one")
    return fitting


def _labels(config_json: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The names of the outputs. As in the library, those of `id2label`, or LABEL_0, LABEL_1, ..."""
    found = config_json.get("id2label")
    if found is None:
        count = config_json.get("num_labels") or 2
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_LABELS:
            raise UserError(f"{path} has num_labels {str(count)[:60]}; expected a number of labels")
        return tuple(f"LABEL_{i}" for i in range(count))
    named = isinstance(found, dict) and bool(found) and found.keys() == {str(i) for i in range(len(found))}
    if not named or len({*map(str, found.values())}) < len(found):
        raise UserError(f'{path} has id2label {str(found)[:80]}; expected a different name for each output, such as '
                        '{"0": "negative", "1": "positive"}')
    if config_json.get("num_labels", len(found)) not in (len(found), None):
        raise UserError(f"{path} has num_labels {str(config_json['num_labels'])[:60]} and id2label of {len(found)} "
                        "labels; correct one of them")
    return tuple(str(found[str(i)]) for i in range(len(found)))


def _rate(value: Any, key: str, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{path} has {key} {str(value)[:60]}; expected a dropout rate, from 0 to less than 1")
    return float(value)


def label_remarks(config_json: Mapping[str, Any], task: PublishedTask | None) -> list[str]:
    """For people: whether config.json contradicts itself on the order of labels, a known cause of wrong results."""
    ids = config_json.get("label2id")
    if not task or not task.labels or not isinstance(ids, dict):
        return []
    wrong = [label for i, label in enumerate(task.labels) if ids.get(label, i) != i]
    return [f"label2id of config.json has other numbers than id2label for {', '.join(wrong[:5])}; the labels are those "
            "of id2label, as in the library: check some predictions"] if wrong else []


def config_json(task: PublishedTask, own: TaskClass) -> dict[str, Any]:
    """The keys of a config.json that describe a task's head."""
    head = TASK_HEADS[task.name]
    found: dict[str, Any] = {}
    if head.problem_type:
        found["problem_type"] = head.problem_type
    if not head.outputs or head.problem_type:
        labels = task.labels or ("LABEL_0",)
        found |= {"num_labels": len(labels), "id2label": {str(i): label for i, label in enumerate(labels)},
                  "label2id": {label: i for i, label in enumerate(labels)}}
    kept = {name: task.fields[name] for name in head.kept if name in task.fields}
    if kept := {name: value for name, value in kept.items() if value != getattr(own.head, name, None)}:
        found["task_specific_params"] = {task.name: kept}
    found |= {key: task.fields[name] for key, name in own.sizes.items() if name in task.fields}
    return found | ({own.dropout_keys[0]: task.fields["dropout"]} if own.dropout_keys and "dropout" in task.fields
                    else {})


def misfits(task: PublishedTask, own: TaskClass | None) -> list[str]:
    """Why a class cannot hold a head: "objective.field=value" each."""
    if own is None:
        return [f"no class for {task.name}"]
    return [f"objective.{name}={getattr(task.head, name)}" for name in FORM
            if (name != "activation" or own.dense) and getattr(task.head, name) != getattr(own.head, name)]


def head_remarks(task: PublishedTask, own: TaskClass, config_json: Mapping[str, Any]) -> list[str]:
    """For people: the dropout rates of a head that its class does not have, which matter for training alone."""
    rates = own.dropout_fields(config_json[own.dropout_keys[0]] if own.dropout_keys else own.head.dropout)
    return [f"left out, since {own.name} has another: objective.{name} {task.fields[name]:g}"
            for name, value in rates.items() if task.fields.get(name, value) != value]
