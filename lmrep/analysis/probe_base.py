"""What a kind of probe is: a row of `lmrep.analysis.probes.PROBES`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lmrep.core.params import Tree
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.metrics import Metric
from lmrep.models.base import Model

Result = Mapping[str, Any]  # a `ProbeRecord` of probes.json
Columns = Mapping[str, Metric]  # metrics by name
Splits = Mapping[str, tuple[list[Record], Examples]]  # records and what `ProbeDef.prepare` tokenizes of them


def table(result: Result, columns: Columns) -> tuple[list[str], list[list[str]]]:
    """Returns (headings, rows of cells): for each layer the metrics of `columns`, their intervals and, where they were
    measured, the scores of an untrained network."""
    head = ["layer"]
    rows = [[f"{layer} (embeddings)" if not layer else str(layer)] for layer in range(len(result["layers"]))]
    measured = [result["layers"], *([result["untrained"]] if result.get("untrained") else [])]
    for name, metric in columns.items():
        head += [metric.title, "untrained network", "difference"] if len(measured) > 1 else [metric.title]
        for row, entries in zip(rows, zip(*measured, strict=True), strict=True):
            values = [float(entry["metrics"][name]) for entry in entries]
            for value, entry in zip(values, entries, strict=True):
                ends = [format(float(end), metric.format) for end in entry["intervals"].get(name) or ()]
                row.append(format(value, metric.format) + (f" ({' to '.join(ends)})" if ends else ""))
            if len(values) > 1:
                row.append(f"{values[0] - values[1]:+{metric.format}}")
    return head, rows


class ProbeDef(NamedTuple):
    """A kind of probe: what is read from the vectors of each layer."""

    method: str  # what is measured on the layers, for titles
    prepare: Callable[..., Data]  # experiment -> its records, tokenized; nothing is stored
    # (experiment, model, params of the encoder, `Splits`) -> for each layer `metrics` and `intervals`, the embeddings
    # first
    measure: Callable[[Experiment, Model, Tree, Splits], list[dict[str, Any]]]
    shown: Callable[[Result], Columns]  # the metrics that tables have; {} if the result's own are unknown
    describe: Callable[[Result, str], str]  # (result, its network) -> a sentence
    best: str = ""  # the metric that layers are compared by; empty: that of the task
    splits: tuple[str, ...] = ("train", "validation")
    trained: bool = True  # whether something is trained, on a number of examples that can be chosen
    table: Callable[[Result, Columns], tuple[list[str], list[list[str]]]] = table
