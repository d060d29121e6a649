"""The classes of the transformers library: the tensors of their heads, and the keys of config.json for tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lmrep.core.errors import UserError
from lmrep.interop.heads import FORM, HEADS, PublishedTask
from lmrep.interop.huggingface.tensors import Names, linear
from lmrep.tasks import TASKS
from lmrep.tasks.heads import Head

SEQUENCE = ("classification", "regression", "multilabel")  # the tasks of one class: `problem_type` says which
MAX_LABELS = 2**20
POOLINGS = {"cls": "position", "mean": "mean"}  # value of a key of config.json -> the field `pooling` of a task


@dataclass(frozen=True)
class HeadClass:
    """A class of the transformers library, for pretraining or for tasks."""

    name: str
    # its outputs besides hidden states, names in `HEADS`; of a class for tasks, those that it may have, one at a time
    heads: tuple[str, ...] = ()
    # key of config.json -> the activation that its head's transform has whatever that key says
    always: Mapping[str, str] = field(default_factory=dict)
    prefixed: bool = True  # whether the base model's tensors have the family's prefix
    # The fields below describe the head of a task.
    tensors: Names = field(default_factory=dict)  # name of a tensor or module -> path below the task's
    form: Head = Head()  # the config of its head; dropout rates apply if config.json has none of `dropout_keys`
    # keys of config.json for the head's dropout rate: the first one present is read, and the first one is written
    dropout_keys: tuple[str, ...] = ()
    requires: Mapping[str, Any] = field(default_factory=dict)  # key of config.json -> the only value that is supported
    # key of config.json -> a field of the task's config that is a number
    sizes: Mapping[str, str] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)  # fields of our network's config below this head
    pooling: str = ""  # the key of config.json with one of `POOLINGS`; "" for the vector at the first or last position
    # whether the rate of `dropout_keys` also applies before the dense layer, even if `form` has rate 0 there
    drops_input: bool = False
    # the id of the token that must end every text, unless eos_token_id is another; None for any token
    end: int | None = None

    def dropout_fields(self, rate: float) -> dict[str, float]:
        """Returns the head's dropout rates for a rate in config.json."""
        before = rate if self.form.input_dropout or self.drops_input else 0.0
        return {"dropout": rate} | ({"input_dropout": before} if self.form.dense else {})


def task_class(
    name: str, tasks: Sequence[str], *layers: str, dropout_keys: Sequence[str] = (), form: Head = Head(), **more: Any
) -> HeadClass:
    """Makes a class for tasks. `layers` are the names of the head's dense layer, if it has one, and output layer."""
    *dense, out = layers
    tensors = {**{name: linear("dense") for name in dense}, out: linear("out", bias=form.bias)}
    return HeadClass(name, tuple(tasks), tensors=tensors, form=replace(form, dense=bool(dense)),
                     dropout_keys=tuple(dropout_keys), **more)


def encoder_classes(
    start: str, sequence: tuple[str, str], choice: tuple[str, str], form: Head = Head(),
    keys: Sequence[str] = ("classifier_dropout", "hidden_dropout_prob"), choice_keys: Sequence[str] = (),
    choice_requires: Mapping[str, Any] = {},
) -> tuple[HeadClass, ...]:
    """Makes the classes for tasks of a family that reads both sides.

    Args:
      start: the start of their names, such as "Bert".
      sequence: the names of the dense and output layers of the head for classification and regression.
      choice: the same names for multiple choice.
      form: the config of the head for classification and regression; the head for multiple choice has its activation.
      keys: `HeadClass.dropout_keys`.
      choice_keys: `HeadClass.dropout_keys` for multiple choice, if they differ.
      choice_requires: `HeadClass.requires` for multiple choice.
    """
    return (
        task_class(f"{start}ForSequenceClassification", SEQUENCE, *sequence, dropout_keys=keys, form=form),
        task_class(f"{start}ForTokenClassification", ["tagging"], "classifier", dropout_keys=keys),
        task_class(f"{start}ForQuestionAnswering", ["span_extraction"], "qa_outputs", form=Head(dropout=0.0)),
        task_class(f"{start}ForMultipleChoice", ["multiple_choice"], *choice, dropout_keys=choice_keys or keys,
                   form=Head(activation=form.activation), requires=choice_requires))


# config.json


def read_task(classes: Mapping[str, HeadClass], config_json: Mapping[str, Any], path: str) -> PublishedTask | None:
    """Reads the task that a checkpoint was fine-tuned for from its config.json; None if its class is not in `classes`.

    Args:
      classes: name in `HEADS` -> the class for it.
      path: of config.json, for messages.

    Raises:
      UserError: the class is not supported with these keys, or its labels cannot be read.
    """
    architectures = config_json.get("architectures") or []
    names = [name for name, head_class in classes.items() if head_class.name in architectures]
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
    values = {name: getattr(task.form, name) for name in (*FORM, "dropout", "input_dropout", "end_of_text")}
    for key in task.dropout_keys:
        if (rate := config_json.get(key)) is not None:
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
                raise UserError(f"{path} has {key} {str(rate)[:60]}; expected a dropout rate, from 0 to less than 1")
            values |= task.dropout_fields(float(rate))
            break
    if (pooled := config_json.get(task.pooling, "cls")) not in POOLINGS:
        raise UserError(f"{path} has {task.pooling} {str(pooled)[:60]!r}; expected one of {', '.join(POOLINGS)}")
    values |= HEADS[names[0]].fields | ({"pooling": POOLINGS[pooled]} if task.pooling else {})
    for key, name in task.sizes.items():
        if config_json.get(key) is not None:
            values[name] = _number(config_json, key, path, "a whole number from 1 on")
    params = config_json.get("task_specific_params")
    params = params.get(names[0]) if isinstance(params, dict) else None
    if isinstance(params, dict):
        values |= {name: params[name] for name in HEADS[names[0]].specific_params if name in params}
    if not HEADS[names[0]].outputs:
        values["labels"] = labels
    # The task's config may lack fields of FORM, which are kept since they decide which parameters the head has.
    known = {*FORM, *(field.name for field in fields(TASKS[HEADS[names[0]].task].objective.config))}
    return PublishedTask(names[0], {name: value for name, value in values.items() if name in known})


def _of_problem_type(names: Sequence[str], config_json: Mapping[str, Any], labels: int, path: str) -> list[str]:
    """Selects the task of a class by `problem_type`, or else by the number of labels: one label means regression."""
    default = "regression" if labels == 1 else "single_label_classification"
    named = config_json.get("problem_type") or default
    fitting = [name for name in names if HEADS[name].problem_type == named]
    if not fitting or (named != "multi_label_classification" and (named == "regression") != (labels == 1)):
        raise UserError(f"{path} has problem_type {str(named)[:60]!r} and {labels} labels; supported are "
                        "'single_label_classification' with two labels or more, 'multi_label_classification' with any "
                        "number, and 'regression' with one")
    return fitting


def _labels(config_json: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """Reads the names of the outputs as the library does: `id2label`, or else LABEL_0, LABEL_1, ..."""
    names = config_json.get("id2label")
    if names is None:
        count = 2 if not config_json.get("num_labels") else _number(config_json, "num_labels", path,
                                                                    "a number of labels")
        return tuple(f"LABEL_{i}" for i in range(count))
    numbered = isinstance(names, dict) and bool(names) and names.keys() == {str(i) for i in range(len(names))}
    if not numbered or len({*map(str, names.values())}) < len(names):
        raise UserError(f'{path} has id2label {str(names)[:80]}; expected a different name for each output, such as '
                        '{"0": "negative", "1": "positive"}')
    if config_json.get("num_labels", len(names)) not in (len(names), None):
        raise UserError(f"{path} has num_labels {str(config_json['num_labels'])[:60]} and id2label of {len(names)} "
                        "labels; correct one of them")
    return tuple(str(names[str(i)]) for i in range(len(names)))


def _number(config_json: Mapping[str, Any], key: str, path: str, expected: str) -> int:
    value = config_json[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_LABELS:
        raise UserError(f"{path} has {key} {str(value)[:60]}; expected {expected}")
    return value


def label_remarks(config_json: Mapping[str, Any], task: PublishedTask | None) -> list[str]:
    """Returns a warning if config.json contradicts itself on the order of labels, a known cause of wrong results."""
    ids = config_json.get("label2id")
    if not task or not task.labels or not isinstance(ids, dict):
        return []
    wrong = [label for i, label in enumerate(task.labels) if ids.get(label, i) != i]
    return [f"label2id of config.json has other numbers than id2label for {', '.join(wrong[:5])}; the labels are those "
            "of id2label, as in the library: check some predictions"] if wrong else []


def config_json(task: PublishedTask, head_class: HeadClass) -> dict[str, Any]:
    """Returns the keys of a config.json that describe a task's head."""
    head = HEADS[task.name]
    keys: dict[str, Any] = {}
    if head.problem_type:
        keys["problem_type"] = head.problem_type
    if not head.outputs or head.problem_type:
        labels = task.labels or ("LABEL_0",)
        keys |= {"num_labels": len(labels), "id2label": {str(i): label for i, label in enumerate(labels)},
                 "label2id": {label: i for i, label in enumerate(labels)}}
    params = {name: task.fields[name] for name in head.specific_params if name in task.fields
              and task.fields[name] != getattr(head_class.form, name, None)}
    if params:
        keys["task_specific_params"] = {task.name: params}
    keys |= {key: task.fields[name] for key, name in head_class.sizes.items() if name in task.fields}
    if head_class.pooling:
        keys[head_class.pooling] = next(key for key, value in POOLINGS.items() if value == task.pooling)
    if head_class.dropout_keys and "dropout" in task.fields:
        keys[head_class.dropout_keys[0]] = task.fields["dropout"]
    return keys


def mismatches(task: PublishedTask, head_class: HeadClass | None) -> list[str]:
    """Lists the fields, as "objective.field=value", because of which a class cannot hold a head."""
    if head_class is None:
        return [f"no class for {task.name}"]
    form, expected = task.head, head_class.form
    poolings = POOLINGS.values() if head_class.pooling else ["position"]
    other = [] if task.pooling in poolings else [f"objective.pooling={task.pooling}"]
    return other + [f"objective.{name}={getattr(form, name)}" for name in FORM
            if (name != "activation" or expected.dense) and getattr(form, name) != getattr(expected, name)]


def head_remarks(task: PublishedTask, head_class: HeadClass, config_json: Mapping[str, Any]) -> list[str]:
    """Lists the dropout rates of a head that its class cannot hold; they only matter in training."""
    rates = head_class.dropout_fields(config_json[head_class.dropout_keys[0]] if head_class.dropout_keys
                                      else head_class.form.dropout)
    return [f"left out, since {head_class.name} has another: objective.{name} {task.fields[name]:g}"
            for name, value in rates.items() if task.fields.get(name, value) != value]
