"""The tasks of GLUE (Wang et al. 2019): published files with labels, files of predictions, and metrics."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.metrics import files
from lmrep.metrics.files import Values

ENTAILMENT = ("entailment", "not_entailment")
NLI = ("entailment", "neutral", "contradiction")
BINARY = ("0", "1")


class GlueTask(NamedTuple):
    """A task of GLUE and its published files."""

    metrics: tuple[str, ...]  # names in `TASK_METRICS`
    labels: tuple[str, ...]  # as in the files; () if they are numbers
    column: str = "label"  # the name of the label's column in the header line
    file: str = "dev.tsv"  # the published file that has labels
    without_header: int | None = None  # the label's column, from 0, in files without header line; None: all have one


TASKS = {
    "CoLA": GlueTask(("matthews",), BINARY, without_header=1),
    "SST-2": GlueTask(("accuracy",), BINARY),
    "MRPC": GlueTask(("f1", "accuracy"), BINARY, "Quality"),
    "QQP": GlueTask(("f1", "accuracy"), BINARY, "is_duplicate"),
    "STS-B": GlueTask(("pearson", "spearman"), (), "score"),
    "MNLI-m": GlueTask(("accuracy",), NLI, "gold_label", "dev_matched.tsv"),
    "MNLI-mm": GlueTask(("accuracy",), NLI, "gold_label", "dev_mismatched.tsv"),
    "MNLI": GlueTask(("accuracy",), NLI, "gold_label"),
    "QNLI": GlueTask(("accuracy",), ENTAILMENT),
    "RTE": GlueTask(("accuracy",), ENTAILMENT),
    "WNLI": GlueTask(("accuracy",), BINARY),
    "AX": GlueTask(("matthews",), NLI, "Label", "diagnostic-full.tsv"),
}


AVERAGED = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI")


def average(figures: Mapping[str, Mapping[str, float]]) -> tuple[float, int]:
    """Computes GLUE's score: the mean over tasks of the mean of each task's metrics. MNLI-m and MNLI-mm are one task.

    Args:
      figures: task of `AVERAGED` -> metric -> value.

    Returns:
      (the score, the number of tasks, at most 9).
    """
    tasks = defaultdict(list)
    for name, values in figures.items():
        tasks[_folder(name)].append(np.mean(list(values.values())))
    return float(np.mean([np.mean(values) for values in tasks.values()])), len(tasks)


def gold_file(folder: str, name: str) -> str:
    """Returns the path of a task's labelled file in the folder of all published files."""
    return str(Path(folder, _folder(name), TASKS[name].file))


def _folder(name: str) -> str:
    return "MNLI" if name.startswith("MNLI") else name


def find(name: str) -> str:
    """Returns the name in `TASKS` of a task, however it is spelled: SST-2, sst2. Raises UserError if there is none."""
    plain = {key.replace("-", "").lower(): key for key in TASKS}
    key = name.replace("-", "").replace("_", "").lower()
    if key not in plain:
        raise UserError(f"GLUE has no task {name!r}{suggestion(name, TASKS) or '; there are ' + ', '.join(TASKS)}")
    return plain[key]


def read_gold(path: str, name: str) -> Values:
    """Reads the labels of a published file (dev.tsv, train.tsv; diagnostic-full.tsv of AX), with the ids of its index.
    Raises UserError, with file and line, if there is no column of labels, or a label is not one of the task's."""
    task, values, lines, ids = TASKS[name], [], [], []
    column, index, width = None, None, 0
    for number, cells in files.table(path):
        if column is None:
            width, headed = len(cells), task.column in cells
            column = cells.index(task.column) if headed else task.without_header
            if column is None or (not headed and width <= column + 1):
                raise UserError(f"{path}, line {number} has the columns {', '.join(cells[:12])}; expected one named "
                                f"{task.column!r}, as in {task.file} of {name} (test files of GLUE have no labels)")
            index = next((cells.index(key) for key in files.ID_FIELDS if headed and key in cells), None)
            if headed:
                continue
        if len(cells) != width:
            raise UserError(f"{path}, line {number} has {counted(len(cells), 'column')} and the first line {width}")
        values.append(cells[column])
        lines.append(number)
        ids.append(cells[index] if index is not None else str(len(ids)))
    return _checked(Values(path, values, lines, ids), name)


def read_predictions(path: str, name: str) -> Values:
    """Reads predictions as GLUE's server takes them (a header line, then index and prediction between tabs), or one
    label per line. Raises UserError as `read_gold`."""
    rows = list(files.table(path))
    if rows and len(rows[0][1]) == 2 and rows[0][1][0].lower() in files.ID_FIELDS:
        rows = rows[1:]
    width = len(rows[0][1]) if rows else 1
    for number, cells in rows:
        if len(cells) != width or width > 2:
            raise UserError(f"{path}, line {number} has {counted(len(cells), 'column')}; expected index and "
                            "prediction, or a prediction alone, on every line")
    values = Values(path, [cells[-1] for _, cells in rows], [number for number, _ in rows],
                    [cells[0] for _, cells in rows] if width == 2 else None)
    return _checked(values, name)


def _checked(values: Values, name: str) -> Values:
    labels = TASKS[name].labels
    if not values.values:
        raise UserError(f"{values.path} has no examples")
    for number, value in enumerate(values.values):
        if labels and value not in labels:
            raise UserError(f"{values.where(number)} has the label {value!r}; those of {name} are {', '.join(labels)}")
    return values
