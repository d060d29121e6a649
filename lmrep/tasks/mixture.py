"""A task on a mixture of data sets, which have their own prefixes and metrics (Raffel et al., 2019)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lmrep.config.record import choose
from lmrep.data.records import Record, spread
from lmrep.data.records.encoding import Units, take
from lmrep.metrics import Metric, baseline_names
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks.base import Outputs, Result, TaskDef

SCORE = "score"


def mixed(task: TaskDef, configs: Mapping[str, Any]) -> TaskDef:
    """Returns the task on records of several sources, which are checked, scored and compared with the config of their
    source.

    Metrics are those of each source, `sst2/accuracy`; the mean over the sources of metrics that all of them have; and
    `score`, the mean over the sources of their first metrics, from 0 to 100.

    Args:
      task: the task; its `templates` have `source_fields`.
      configs: source -> its config; records without a source have the run's config.
    """
    def by_source(function: Callable | None) -> Callable | None:
        """Returns a function (config, record, ...) of the task, called with the config of the record's source."""
        return function and (lambda base, record, *others: function(
            config_of_source(configs, record.source, base), record, *others))

    def resolve(base: Any, records: Sequence[Record]) -> Any:
        for source, numbers in _by_source(records).items():
            task.resolve(config_of_source(configs, source, base), [records[i] for i in numbers])
        return base

    def score(base: Any, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
        predictions: list = [None] * len(records)
        results = {}
        for source, numbers in _by_source(records).items():
            of_source = np.flatnonzero(np.isin(units.example, numbers))
            arrays = {name: [values[i] for i in of_source] for name, values in outputs.items()}
            results[source] = task.score(config_of_source(configs, source, base), [records[i] for i in numbers],
                                         take(units, of_source), arrays)
            for i, prediction in zip(numbers, results[source].predictions, strict=True):
                predictions[i] = prediction
        return Result(_metrics(results, configs), predictions, sources=results)

    def submission(base: Any, records: Sequence[Record], result: Result) -> dict[str, str]:
        return {f"{source}-{file}": text for source, numbers in _by_source(records).items()
                for file, text in task.submission(
                    config_of_source(configs, source, base), [records[i] for i in numbers],
                    result.sources[source]).items()}

    metrics = {SCORE: Metric("Score, the mean over sources", "score", True, ".2f", headline=True)}
    metrics |= {name: metric._replace(headline=False) for name, metric in task.objective.metrics.items()}
    for source, config in configs.items():
        for name, metric in task.objective.metrics.items():
            baseline = "".join(f"{metric.baseline.removesuffix(other)}{source}/{other}"
                               for other in baseline_names(metric))
            metrics[f"{source}/{name}"] = metric._replace(
                title=f"{source}: {metric.title}", headline=name in config.metrics, perplexity=False, baseline=baseline)
    return task._replace(
        objective=task.objective._replace(metrics=metrics), resolve=resolve, check=by_source(task.check),
        compare=by_source(task.compare), score=score, submission=task.submission and submission, best=SCORE,
        templates=task.templates._replace(texts=by_source(task.templates.texts)))


def config_of_source(configs: Mapping[str, Any], source: str, base: Any) -> Any:
    """Returns the config of a source, or `base` for the name "". Raises UserError if there is no such source."""
    return choose(configs, source, "the source") if source else base


def texts_in_proportion(groups: Sequence[Sequence[str]], weights: Sequence[float]) -> list[str]:
    """Returns the texts of sources, group after group. A source that exceeds its proportion of all characters gives
    only that part of its texts, at equal distances."""
    characters = [sum(map(len, texts)) for texts in groups]
    budgets = np.array(weights) / sum(weights) * sum(characters)
    return [text for texts, budget, size in zip(groups, budgets, characters, strict=True)
            for text in spread(texts, max(1, round(min(1.0, budget / max(1, size)) * len(texts))))]


def _by_source(records: Sequence[Record]) -> dict[str, list[int]]:
    """Returns {source: the numbers of its records}."""
    numbers: dict[str, list[int]] = {}
    for i, record in enumerate(records):
        numbers.setdefault(record.source, []).append(i)
    return numbers


def _metrics(results: Mapping[str, Result], configs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of the sources whose examples have targets, and their means."""
    measured = {source: result.metrics for source, result in results.items() if source and result.metrics}
    if not measured:
        return {}
    first, *others = measured.values()
    means = {name: float(np.mean([values[name] for values in measured.values()]))
             for name in first if all(name in values for values in others)}
    firsts = [(configs[source].metrics[0], metrics) for source, metrics in measured.items() if configs[source].metrics]
    score = {SCORE: float(np.mean([100 * metrics[name] / TASK_METRICS[name].metric.maximum
                                   for name, metrics in firsts]))} if firsts else {}
    return score | means | {f"{source}/{name}": value for source, metrics in measured.items()
                            for name, value in metrics.items() if name != "loss"}
