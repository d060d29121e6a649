"""Scores of files of predictions that any program made, in the formats of the tasks' official scripts."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.messages import counted
from lmrep.metrics import files, glue, scripts
from lmrep.metrics.bootstrap import bootstrap
from lmrep.metrics.tasks import TASK_METRICS

_log = logging.getLogger(__name__)


class Sample(NamedTuple):
    """The arguments of `bootstrap` for the interval of a figure. `scale` is 100 for figures in percent."""

    metric: str
    gold: Sequence
    predicted: Sequence
    scale: float = 1.0
    options: Mapping[str, Any] = MappingProxyType({})


class Scores(NamedTuple):
    """The result of `score`."""

    text: str  # what the official script prints
    figures: dict[str, Any]  # name -> value, in the units of the text
    samples: dict[str, Sample]  # figure -> what its interval is computed from

    def intervals(self, resamples: int, seed: int = 0) -> dict[str, tuple[float, float]]:
        """Computes the 95 % bootstrap interval of each figure of `samples`."""
        return {name: tuple(sample.scale * bound for bound in bootstrap(
            TASK_METRICS[sample.metric], sample.gold, sample.predicted, resamples, seed, **sample.options))
            for name, sample in self.samples.items()}


def score(metric: str, gold: str | None, predictions: str | None, **options: Any) -> Scores:
    """Scores a file of predictions.

    Args:
      metric: squad, squad2, conlleval, seqeval, glue:TASK, glue, bleu, chrf, rouge, or a metric of `LABEL_METRICS`.
      gold: the file of gold values; for bleu, chrf and rouge one or several between commas; for glue, the folder of all
        tasks' published files. None for conlleval and seqeval, if one file has gold and predicted tags.
      predictions: the file of predictions; for glue, a folder of files named after tasks.
      **options: those that `SCORERS` names for the metric, with their defaults in `DEFAULTS`.

    Raises:
      UserError: there is no such metric, it does not have such an option, or the files do not fit each other.
    """
    name, _, task = metric.partition(":")
    if name == "glue":
        if not task and not all(path and Path(path).is_dir() for path in (gold, predictions)):
            raise UserError(f"glue needs a task: {', '.join(f'glue:{key}' for key in glue.TASKS)}; or folders "
                            "as --gold and --predictions, for all tasks")
        task = task and glue.find(task)
    elif metric not in SCORERS:
        known = ["glue:TASK" if key == "glue" else key for key in SCORERS]
        raise UserError(f"there is no metric {metric!r}"
                        + (suggestion(metric, known) or f"; there are {', '.join(known)}"))
    scorer, known_options = SCORERS[name]
    for key, value in options.items():
        if key not in known_options and value != DEFAULTS[key]:
            users = [other for other, (_, names) in SCORERS.items() if key in names]
            raise UserError(f"--{key} is an option of {', '.join(users)}, not of {metric}; leave it out")
    if not (gold and predictions) and name not in ("conlleval", "seqeval"):
        raise UserError(f"--metric={metric} needs --gold=FILE and --predictions=FILE")
    if not (gold or predictions):
        raise UserError(f"--metric={metric} needs --predictions=FILE with gold and predicted tags in the last two "
                        "columns, or --gold=FILE too")
    arguments = {key: value for key, value in (DEFAULTS | options).items() if key in known_options}
    return scorer(gold, predictions, **arguments, **({"task": task} if name == "glue" else {}))


def _squad(gold: str, predictions: str) -> Scores:
    answers, predicted = _read_squad(gold, predictions, "will receive score 0")
    return Scores(*scripts.squad1(answers, predicted), _answer_samples(
        ("exact_match", "f1"), list(answers.values()), [predicted.get(key, "") for key in answers], "1.1"))


def _squad2(gold: str, predictions: str, null_scores: str, na_prob_thresh: float) -> Scores:
    answers, predicted = _read_squad(gold, predictions, "is left out")
    null = files.read_by_id(null_scores, float) if null_scores else None
    ids = [key for key in answers if key in predicted]
    if null is not None and (missing := [key for key in ids if key not in null]):
        raise UserError(f"{null_scores} has no null score for {len(missing):,} questions, such as {missing[0]!r}; "
                        "expected a number for each prediction")
    corrected = ["" if null and null[key] > na_prob_thresh else predicted[key] for key in ids]
    return Scores(*scripts.squad2(answers, predicted, null, na_prob_thresh),
                  _answer_samples(("exact", "f1"), [answers[key] for key in ids], corrected, "2.0"))


def _answer_samples(names: Sequence[str], gold: Sequence, predicted: Sequence, version: str) -> dict[str, Sample]:
    return {name: Sample(metric, gold, predicted, 100, {"version": version})
            for name, metric in zip(names, ("exact_match", "answer_f1"), strict=True)}


def _read_squad(gold: str, predictions: str, consequence: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Reads answers and predictions by id. Like the official scripts, warns of questions without a prediction, and of
    predictions for other questions, which do not count."""
    answers, predicted = files.read_squad(gold), files.read_by_id(predictions, str)
    extra = [key for key in predicted if key not in answers]
    if extra and len(extra) == len(predicted):
        raise UserError(f"{predictions} has predictions for other questions than {gold}, such as {extra[0]!r}; "
                        "expected predictions for this file")
    if extra:
        _log.warning("%s has %s predictions for questions that %s does not have, such as %s; they are left out",
                     predictions, f"{len(extra):,}", gold, extra[0])
    if missing := [key for key in answers if key not in predicted]:
        _log.warning("%s has no prediction for %s of %s questions, such as %s; each %s", predictions,
                     f"{len(missing):,}", f"{len(answers):,}", missing[0], consequence)
    return answers, predicted


def _read_tags(gold: str | None, predictions: str | None) -> tuple[list[list[str]], list[list[str]]]:
    tags = files.read_tags(gold, predictions)
    others = {tag for side in tags for sentence in side for tag in sentence if not ENTITY_TAG.fullmatch(tag)}
    if others:
        _log.warning("%d tags, such as %s, are not of the form O, B-TYPE or I-TYPE: entities may not be found in them",
                     len(others), min(others))
    return tags


def _conlleval(gold: str | None, predictions: str | None) -> Scores:
    tags = _read_tags(gold, predictions)
    if any(tag.startswith(("S-", "E-", "U-", "L-")) for side in tags for sentence in side for tag in sentence):
        _log.warning("conlleval does not know S-, U- and L- tags and joins B- to an E- before it; score BIOES tags "
                     "with --metric=seqeval --strict --scheme=BIOES")
    text, figures = scripts.conlleval(*tags)
    return Scores(text, figures, {name: Sample(f"conll_{name}", *tags, 100) for name in ("precision", "recall", "f1")})


def _seqeval(gold: str | None, predictions: str | None, strict: bool, scheme: str) -> Scores:
    tags = _read_tags(gold, predictions)
    text, figures = scripts.seqeval(*tags, strict, scheme)
    options = {"strict": strict, "scheme": scheme}
    return Scores(text, figures, {name: Sample(f"entity_{name}", *tags, 1, options)
                                  for name in ("precision", "recall", "f1")})


def _glue(gold: str, predictions: str, task: str) -> Scores:
    if not task:
        return _glue_folders(gold, predictions)
    truth, predicted = glue.read_gold(gold, task), glue.read_predictions(predictions, task)
    names = glue.TASKS[task].metrics
    return _labels(truth, predicted, names, {name: {} for name in names} | {"f1": {"positive": "1"}})


def _glue_folders(gold: str, predictions: str) -> Scores:
    """Scores the tasks that have a file of predictions, such as CoLA.tsv, and averages them as GLUE does."""
    by_task = {task: _glue(glue.gold_file(gold, task), str(path), task) for task in glue.AVERAGED
               if (path := Path(predictions, f"{task}.tsv")).is_file()}
    if not by_task:
        raise UserError(f"{predictions} has no predictions; expected a file of each task, such as "
                        f"{glue.AVERAGED[0]}.tsv")
    values = {task: {name: scores.figures[name] for name in scores.samples} for task, scores in by_task.items()}
    score, tasks = glue.average(values)
    lines = [f"{task}: {', '.join(scores.text.splitlines()[:-1])}" for task, scores in by_task.items()]
    return Scores("\n".join([*lines, f"Average of {tasks} tasks of 9: {100 * score:.1f}"]),
                  {**values, "average": score, "tasks": tasks},
                  {f"{task} {name}": sample for task, scores in by_task.items() for name, sample in
                   scores.samples.items()})


def _label_metric(gold: str, predictions: str, metric: str, gold_field: str, prediction_field: str,
                  positive: str | None = None) -> Scores:
    truth = files.read_values(gold, gold_field, files.GOLD_FIELDS)
    predicted = files.read_values(predictions, prediction_field, files.PREDICTED_FIELDS)
    if metric not in NUMBERS:
        known = set(truth.values)
        if metric == "f1" and positive not in known:
            raise UserError(f"no gold value of {gold} is the positive class {positive!r}; set --positive to one of "
                            f"{', '.join(sorted(known)[:12])}")
        for number, value in enumerate(predicted.values):
            if value not in known:
                raise UserError(f"{predicted.where(number)} has the label {value!r}, which {gold} lacks; there are "
                                f"{', '.join(sorted(known)[:12])}")
    return _labels(truth, predicted, (metric,), {metric: {"positive": positive} if metric == "f1" else {}})


def _labels(gold: files.Values, predicted: files.Values, names: Sequence[str], options: dict[str, dict]) -> Scores:
    """Scores labels, which are aligned by id if both files have ids."""
    order = files.align(gold, predicted)
    read = files.floats if set(names) & NUMBERS else lambda values: values.values
    a, b = read(gold), read(predicted)
    b = [b[number] for number in order]
    lines, figures, samples = [], {"total": len(a)}, {}
    for name in names:
        metric = TASK_METRICS[name]
        constant = " and ".join(kind for kind, values in (("gold values", a), ("predictions", b))
                                if len({*values}) == 1)
        if constant and name in ("matthews", *NUMBERS):
            _log.warning("the %s are constant: the %s is not defined, and reported as 0", constant, metric.metric.title)
        figures[name] = metric.function(a, b, **options[name])
        lines.append(f"{metric.metric.title}: {figures[name]:{metric.metric.format}}")
        samples[name] = Sample(name, a, b, 1, options[name])
    return Scores("\n".join([*lines, f"Examples: {len(a):,}"]), figures, samples)


def _texts(gold: str, predictions: str, gold_field: str, prediction_field: str) -> tuple[list, list[str]]:
    """Reads (the reference of each text, a tuple if `gold` has several files between commas; the texts)."""
    streams = [files.read_texts(path, gold_field, files.REFERENCE_FIELDS) for path in gold.split(",")]
    texts = files.read_texts(predictions, prediction_field, files.TEXT_FIELDS)
    for path, stream in zip(gold.split(","), streams, strict=True):
        if len(stream) != len(texts):
            raise UserError(f"{path} has {counted(len(stream), 'text')}, and {predictions} {len(texts):,}; "
                            "expected a reference for each text")
    return (streams[0] if len(streams) == 1 else [*zip(*streams, strict=True)]), texts


def _sacrebleu(
    gold: str, predictions: str, metric: str, gold_field: str, prediction_field: str, **options: Any
) -> Scores:
    references, texts = _texts(gold, predictions, gold_field, prediction_field)
    text, figures = scripts.sacrebleu(metric, references, texts, **options)
    return Scores(text, figures, {metric: Sample(metric, references, texts, 1, options)})


def _rouge(gold: str, predictions: str, gold_field: str, prediction_field: str, stemmer: bool) -> Scores:
    return Scores(*scripts.rouge(*_texts(gold, predictions, gold_field, prediction_field), stemmer), {})


ENTITY_TAG = re.compile(r"O|[BIESUL](-.*)?|[][.]-?.*")
NUMBERS = {"pearson", "spearman"}
LABEL_METRICS = ("accuracy", "matthews", "f1", "macro_f1", "pearson", "spearman")
DEFAULTS = {"null_scores": "", "na_prob_thresh": 1.0, "strict": False, "scheme": "IOB2", "positive": "1",
            "gold_field": "", "prediction_field": "", "tokenize": "13a", "lowercase": False, "word_order": 0,
            "stemmer": False}
_FIELDS = ("gold_field", "prediction_field")

# metric -> the function and the options that it takes
SCORERS: dict[str, tuple[Callable[..., Scores], tuple[str, ...]]] = {
    "squad": (_squad, ()),
    "squad2": (_squad2, ("null_scores", "na_prob_thresh")),
    "conlleval": (_conlleval, ()),
    "seqeval": (_seqeval, ("strict", "scheme")),
    "glue": (_glue, ()),
    "bleu": (partial(_sacrebleu, metric="bleu"), (*_FIELDS, "tokenize", "lowercase")),
    "chrf": (partial(_sacrebleu, metric="chrf"), (*_FIELDS, "word_order")),
    "rouge": (_rouge, (*_FIELDS, "stemmer")),
    **{name: (partial(_label_metric, metric=name), (*_FIELDS, "positive") if name == "f1" else _FIELDS)
       for name in LABEL_METRICS},
}
