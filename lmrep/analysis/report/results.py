"""The results of a run on labelled examples, from its workdir: evaluations, a confusion table, the worst examples.

    data.json                     statistics of the examples
    results.json, eval.jsonl      metrics and intervals, from the end of training and from `lmrep evaluate`, a baseline
    predictions/validation.jsonl  validation examples with their predictions
"""

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

from lmrep.config import json_files
from lmrep.config.json_files import Count, Measured, Number
from lmrep.config.record import convert
from lmrep.core.errors import UserError
from lmrep.core.json_text import loads
from lmrep.data.records import SPLITS, Record
from lmrep.data.records.values import SPANS
from lmrep.experiment.config import Experiment, resolve_stages
from lmrep.experiment.data_sets import task_of
from lmrep.experiment.inspection import STATISTICS
from lmrep.inference.evaluate_task import FOLDER, RESULTS, bag_of_words_row
from lmrep.metrics.verdict import Row
from lmrep.tasks.base import Comparison
from lmrep.tasks.target_words import marked

WORST, TEXTS, RECORDS = 20, 3, 100  # lengths of `Results.worst`, `Results.texts` and `Results.records`
CHARACTERS = 300  # of a text that is shown
# Errors of values that are damaged or of another type.
DAMAGE = (AttributeError, KeyError, TypeError, ValueError, IndexError, StopIteration, OverflowError)


class Statistics(TypedDict):
    """The numbers of a split in data.json (`lmrep.experiment.inspection.label_statistics`)."""

    examples: Count
    tokens: Count
    longest: Count
    mean: Number
    sequences: Count
    classes: Count
    labels: dict[str, Count]
    records: NotRequired[str]
    sources: NotRequired[dict[str, dict[str, Number]]]
    sequences_per_step: NotRequired[Number]


Splits = Annotated[dict[str, Statistics], lambda splits: "" if splits.keys() <= {*SPLITS} else
                   f"the splits {', '.join(SPLITS)}"]


class Evaluation(TypedDict):
    """Metrics of a checkpoint on labelled data, in results.json and eval.jsonl."""

    step: Count
    examples: Count
    metrics: dict[str, Measured]
    intervals: dict[str, tuple[Measured, Measured]]
    split: NotRequired[str | None]
    files: NotRequired[str | None]
    source: NotRequired[str | None]


class Mix(TypedDict):
    """A learned mix of frozen layers: a softmax weight for each layer, and a factor gamma."""

    place: str
    layers: list[Count]
    weights: list[Number]
    gamma: Number


class ResultsFile(TypedDict, total=False):
    """results.json."""

    evaluations: list[Evaluation]
    mixes: list[Mix]
    comparison: list[Any]


class Confusion(NamedTuple):
    """The confusion table: how often a class was predicted for examples of another."""

    classes: Sequence[str] = ()  # all of them, in the order of the config where it has one; () for a task without
    counts: Mapping[tuple[str, str], int] = {}  # (gold, predicted) -> number

    def row(self, gold: str) -> list[int]:
        """Returns how often each class was predicted for examples of the class `gold`."""
        return [self.counts.get((gold, predicted), 0) for predicted in self.classes]


@dataclass(frozen=True)
class Results:
    """Evaluations and predictions of a run on labelled examples."""

    splits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # split -> `Statistics`
    evaluations: Sequence[Mapping[str, Any]] = ()  # the newest of equal ones; evaluations at the end of training first
    best_step: int | None = None  # the best checkpoint, evaluated at the end of training; None before the end
    examples: int = 0  # number of validation predictions
    step: int | None = None  # the checkpoint that made these predictions; None where it is not known
    confusion: Confusion = Confusion()
    # (texts by field, shortened, target, prediction) of the examples with the largest losses, the largest first
    worst: Sequence[tuple[Mapping[str, str], str, str]] = ()
    texts: Sequence[tuple[str, str]] = ()  # (source or "", text) of the first examples that are a single text
    records: Sequence[Record] = ()  # the first examples
    mixes: Sequence[Mapping[str, Any]] = ()  # a `Mix` for each learned mix of frozen layers
    bag: Row | None = None  # the bag of words that the run is compared with

    def interval(self, step: int, metric: str) -> Sequence[float] | None:
        """Returns the 95 % interval of a metric of the checkpoint `step` on all validation data."""
        return next((evaluation["intervals"].get(metric) for evaluation in self.evaluations
                     if _is_validation(evaluation) and evaluation["step"] == step), None)


def read(
    directory: Path, experiment: Experiment, evaluations: Sequence[Mapping[str, Any]], notes: list[str]
) -> Results:
    """Reads the results of the run in `directory`; what is missing or damaged is added to the notes."""
    splits = intact(partial(json_files.read, Splits), directory / STATISTICS, notes) or {}
    written = intact(partial(json_files.read, ResultsFile), directory / RESULTS, notes) or {}
    ended, mixes = _evaluations(written.get("evaluations", [])), written.get("mixes", [])
    best_step = next((evaluation["step"] for evaluation in ended if _is_validation(evaluation)), None)
    known = _evaluations([*ended, *evaluations])
    bag, compared, damaged = bag_of_words_row(directory), [], 0
    for prediction in _compared(directory / FOLDER / "validation.jsonl", experiment):
        if prediction is None:
            damaged += 1
        else:
            compared.append(prediction)
    count = len(compared) + damaged
    if damaged:
        notes.append(f"{FOLDER}/validation.jsonl: {damaged:,} of {count:,} lines are damaged and left out.")
    step = next((evaluation["step"] for evaluation in known
                 if _is_validation(evaluation) and evaluation["examples"] == count), None)
    if not compared:
        return Results(splits, known, best_step, mixes=mixes, bag=bag)
    wrong = [(texts, comparison) for _, texts, comparison in compared if comparison.loss > 0]
    worst = heapq.nlargest(WORST, wrong, key=lambda pair: pair[1].loss)
    counts = Counter(pair for _, _, comparison in compared for pair in comparison.classes)
    present = {name for pair in counts for name in pair}
    ordered = [name for name in getattr(resolve_stages(experiment)[0].objective, "labels", ()) if name in present]
    confusion = Confusion([*ordered, *sorted(present.difference(ordered))], counts)
    singles = [(texts.get("source", ""), texts["text"]) for _, texts, _ in compared[:TEXTS]
               if texts.keys() - {"source"} == {"text"}]
    return Results(splits, known, best_step, count, step, confusion,
                       [(texts, _shortened(comparison.gold), _shortened(comparison.predicted))
                        for texts, comparison in worst],
                       singles, [record for record, _, _ in compared[:RECORDS]], mixes, bag)


def intact(read_file: Callable[[Path], Any], path: Path, notes: list[str]) -> Any:
    """Reads a file by `read_file`; None where it is missing or damaged. Adds to `notes` what is damaged."""
    try:
        return read_file(path)
    except UserError as error:
        notes.append(f"{error}.")
        return None


def _evaluations(lines: Sequence[Mapping[str, Any]]) -> list[Evaluation]:
    """Selects the evaluations of labelled data; of several of one checkpoint on the same examples, the newest."""
    newest: dict[tuple, Evaluation] = {}
    for line in lines:
        with contextlib.suppress(UserError):  # of minimal pairs
            evaluation = convert(Evaluation, line, "")
            evaluation |= {"metrics": {name: _number(value) for name, value in evaluation["metrics"].items()},
                           "intervals": {name: tuple(map(_number, ends))
                                         for name, ends in evaluation["intervals"].items()}}
            key = tuple(evaluation.get(name) for name in ("split", "files", "source", "step", "examples"))
            newest[key] = evaluation
    return list(newest.values())


def _number(value: float | str) -> float:
    """Returns a number, which files may have as a string, such as "nan"."""
    return float(value) if isinstance(value, str) else value


def _is_validation(evaluation: Mapping[str, Any]) -> bool:
    """Returns whether an evaluation used the validation examples from all sources."""
    return evaluation.get("split") == "validation" and not evaluation.get("source")


def _compared(
    path: Path, experiment: Experiment
) -> Iterator[tuple[Record, dict[str, str], Comparison] | None]:
    """Reads a file of predictions. Yields (record, texts, comparison) for each example, None for a damaged line, and
    nothing where examples have no targets."""
    task, config = task_of(experiment), resolve_stages(experiment)[0].objective
    if not path.is_file():
        return
    with open(path, encoding="utf8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                fields = loads(line)
                values = {name: value for name, value in fields.items() if name not in ("id", "source", "prediction")}
                record = Record(values, fields["id"], f"{path.name}, line {number:,}", source=fields.get("source", ""))
                if not all(name in record.fields for name in task.reads.targets):
                    return
                texts = {"source": record.source} if record.source else {}
                shown = {name: value for name, value in values.items() if name not in SPANS} | marked(record)
                texts |= {name: _text(name, shown[name]) for name in task.reads.inputs if name in shown}
                yield record, texts, task.compare(config, record, fields["prediction"])
            except DAMAGE:
                yield None


def _text(name: str, value: Any) -> str:
    """Returns the text of a field, shortened. The texts of a list, other than words, are numbered."""
    if not isinstance(value, str):
        value = " ".join(value if name == "words" else [f"({i}) {text}" for i, text in enumerate(value)])
    return _shortened(value)


def _shortened(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
