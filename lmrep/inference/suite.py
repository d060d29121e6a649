"""Evaluates a model on zero-shot tasks: which of several texts it gives the highest score, as in the pipeline of the
BabyLM challenge (Charpentier et al., 2025). The form of a line of a file says what is compared.

A minimal pair is a choice between two whole texts. In other forms, the part that follows a context is scored, given the
context: the log probabilities of its tokens, with the white space before it. Tables of reading times (`reading_times`)
are measured by a regression instead.
"""

import itertools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from lmrep.core import text_files
from lmrep.core.errors import UserError
from lmrep.core.files import write_json
from lmrep.core.json_text import json_object
from lmrep.core.messages import aligned, counted
from lmrep.inference import pairs, reading_times
from lmrep.inference.run import Run
from lmrep.inference.scores import Text
from lmrep.metrics.correlation import spearman
from lmrep.objectives.scoring import Scoring

ACCURACY, CORRELATION = KINDS = "accuracy", "spearman"

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """Texts of which the first is right."""

    options: tuple[tuple[str, str], ...]  # (context, "" for none; the part that is scored) of each text
    group: tuple[str, str, str]  # the task, the file, and a subset of it, "" for none
    where: str  # file and line, for messages
    ratio: float | None = None  # the fraction of people who prefer the first of two texts; None if it is simply right
    subset: str = ""  # the name that the challenge's pipeline gives its subset of the task


class Form(NamedTuple):
    """A form of lines."""

    fields: tuple[str, ...]  # that a line has
    subset: str  # the name of a line's subset of the file, a format of fields that it may have; "" for none
    options: Callable[[dict[str, Any]], list[tuple[str, str]]]  # of a line, as `Choice.options`
    # (a line, the name of its file) -> `Choice.subset`
    predicted: Callable[[dict[str, Any], str], str]


FORMS = {
    # Warstadt et al. (2020); the challenge's supplement (Warstadt et al., 2023) has the sentences alone.
    "BLiMP": Form((pairs.GOOD, pairs.BAD), "{UID}", lambda line: [("", line[pairs.GOOD]), ("", line[pairs.BAD])],
                  lambda line, file: line.get("UID") or file),
    # Ivanova et al. (2024) compare the probabilities of each target given the two contexts. As in the challenge, two
    # targets are compared given Context1; its files have each item a second time with contexts and targets swapped.
    "EWoK": Form(("Context1", "Context2", "Target1", "Target2"), "{Domain}", lambda line: [
        (f"{line['Context1']} ", line[target]) for target in ("Target1", "Target2")],
        lambda line, file: line.get("Domain") or file),
    # Misra et al. (2023): the probability of a property given the concept that has it, and another one.
    "COMPS": Form(("prefix_acceptable", "prefix_unacceptable", "property_phrase"), "", lambda line: [
        (f"{line[prefix]} ", line["property_phrase"]) for prefix in ("prefix_acceptable", "prefix_unacceptable")],
        lambda line, file: file.removeprefix("comps_").replace("-", "_")),
    # Kim and Schuster (2023) generate the contents of a box. As in the challenge, the right ones are chosen.
    "entity tracking": Form(("input_prefix", "options"), "numops {numops}", lambda line: [
        (line["input_prefix"], option) for option in line["options"]],
        lambda line, file: f"{file}_{line.get('numops')}_ops"),
    # Hofmann et al. (2024): how many people prefer the first of two words that are derived from a nonce adjective.
    "WUG": Form(("sentences", "ratio"), "", lambda line: [("", text) for text in line["sentences"].split("\t")],
                lambda line, file: "_".join(file.split("_")[:2])),
}
EXPECTED = "; or ".join(f"{', '.join(form.fields)} ({name})" for name, form in FORMS.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


# Other fields than texts that are not empty: (whether a value is valid, what is expected).
VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "options": (lambda value: isinstance(value, list) and len(value) > 1 and all(map(_is_text, value)),
                "a list of two or more texts"),
    "sentences": (lambda value: _is_text(value) and [*map(_is_text, value.split("\t"))] == [True, True],
                  "two sentences with a tab between them"),
    "ratio": (lambda value: bool(text_files.NUMBER.fullmatch(str(value))), "a number"),
}


def read(path: str | Path, examples: int | None = None, words: Sequence[reading_times.Words] = ()) -> list[Choice]:
    """Reads the choices in all files *.jsonl of a directory and its subdirectories, or in one such file.

    Args:
      path: a line has the fields of one of the `FORMS`; other fields and empty lines are ignored. The files of a
        subdirectory are a task; a file beside them is one by itself.
      examples: the number of choices to read of each subset, from the first on; None for all.
      words: the reading times of the same directory. If there are some, there may be no choice.

    Raises:
      UserError: there is no such file, or no choice; a line is not JSON, has no known form, or a field has another
        value than expected; a task has both accuracies and correlations.
    """
    path = Path(path)
    root, files = (path, sorted(path.rglob("*.jsonl"))) if path.is_dir() else (path.parent, [path] * (not words))
    choices, number, kinds = [], Counter(), {}
    for choice in itertools.chain.from_iterable(_read_file(file, root) for file in files):
        task, measured = choice.group[0], choice.ratio is None
        if kinds.setdefault(task, measured) != measured:
            raise UserError(f"{choice.where}: the task {task} has lines with a ratio, which give a correlation, and "
                            "lines without, which give an accuracy; put them into two directories")
        number[choice.group] += 1
        if examples is None or number[choice.group] <= examples:
            choices.append(choice)
    if clash := {choice.group[0] for choice in choices} & {table.task for table in words}:
        raise UserError(f"{path}: the task {', '.join(clash)} has choices and reading times; put them into two "
                        "directories")
    if not choices and not words:
        raise UserError(f"{path} holds nothing to choose from; expected files *.jsonl, in subdirectories too, whose "
                        f"lines have the fields {EXPECTED}; or a table of reading times, such as reading_data.csv")
    return choices


def _read_file(file: Path, root: Path) -> Iterator[Choice]:
    task = file.stem if file.parent == root else file.parent.relative_to(root).as_posix()
    for number, line in enumerate(text_files.lines(file), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        record = json_object(line, where, f"an object with the fields {EXPECTED}")
        form = next((form for form in FORMS.values() if record.keys() >= {*form.fields}), None)
        if form is None:
            raise UserError(f"{where} has the fields {', '.join(record)}; expected {EXPECTED}")
        for field in form.fields:
            is_valid, expected = VALUES.get(field, (_is_text, "text that is not empty"))
            if not is_valid(record[field]):
                raise UserError(f"{where}: {field} is {record[field]!r}; expected {expected}")
        ratio = float(record["ratio"]) if "ratio" in form.fields else None
        options = tuple(form.options(record))
        yield Choice(options, (task, file.stem, form.subset.format_map(defaultdict(str, record))), where, ratio,
                     str(form.predicted(record, file.stem)))


def evaluate(
    run: Run, choices: Sequence[Choice], pll: str = "", words: Sequence[reading_times.Words] = ()
) -> dict[str, Any]:
    """Computes the accuracies and correlations of a run on choices, and the scores of reading times.

    Texts are scored in float32, whatever the dtype of training; texts of equal tokens are scored once, and tied.

    Args:
      run, pll: as in `pairs.evaluate`.

    Returns:
      score, summary: the name of the scoring and its description.
      accuracy, low, high, chance: the mean over the tasks that have an accuracy, its 95 % interval, and the accuracy of
        chance; of `spearman`, if no task has one. Absent without choices.
      items, ties: the numbers of choices of these tasks, and of those whose first text is tied with others.
      TASK/accuracy or TASK/spearman: of each task; TASK/eye_tracking and TASK/self_paced of reading times.
      tasks: {task: {accuracy or spearman, low, high, chance, items, ties, parts}}. `parts` has the same of the files of
        the task, or of the subsets of a single file; a value is the mean over them. Of reading times, the result of
        `reading_times.evaluate`.
      predictions: {task: the content of a predictions.json of the challenge's pipeline}.
      unscored: {TASK/FILE, or the task where it is one file: {"items", "reason"}} of the files that have a text longer
        than the network takes. All that is above is of the others.

    Raises:
      UserError: as `pairs.evaluate`; a part of a text is scored, and the run's score is no sum over tokens; a text of
        every file is too long.
      RunFault: a score is not finite.
    """
    name = pairs.scoring_name(run, pll)
    scoring = pairs.in_float32(run).uses.scorings[name]
    times, unscored = {}, {}
    for rows in words:
        try:
            times[rows.task] = reading_times.evaluate(run, rows, pll)
        except pairs.TooLong as error:
            unscored[rows.task] = {"items": len(rows.texts), "reason": error.problem}
    texts, too_long = _tokenized(run, choices, scoring)
    items = Counter(choice.group[:2] for choice in choices)
    for (task, file), reason in too_long.items():
        single = task.rpartition("/")[2] == file
        unscored[task if single else f"{task}/{file}"] = {"items": items[task, file], "reason": reason}
    choices = [choice for choice in choices if choice.group[:2] not in too_long]
    if not choices and not times:
        reason = next(iter(unscored.values()))["reason"]
        raise UserError(f"no file is scored, since each has a text that is too long, such as {reason}: give files with "
                        "shorter texts, or a run with more positions (model.max_length)")
    scored = _score_choices(run, choices, texts, scoring) if choices else []
    tasks = {task: _summary(members, 1) for task, members in _groups(scored, 0).items()}
    values = {f"{task}/{kind}": entry[kind] for task, entry in (tasks | times).items()
              for kind in (*KINDS, *reading_times.SCORES) if kind in entry}
    mean = _mean(tasks.values()) if tasks else {}
    predicted = {task: {"reading": {"predictions": entry.pop("predictions")}} for task, entry in times.items()}
    return {"score": name, "summary": scoring.summary} | mean | values | {
        "tasks": tasks | times, "predictions": _predictions(scored) | predicted, "unscored": unscored}


def _predictions(scored: Sequence["Scored"]) -> dict[str, dict[str, Any]]:
    """Returns `predictions` of `evaluate`: of each subset, in the order of its lines, the text with the highest score,
    the first of tied ones, without a context that all have; and with a ratio the probability of the first text."""
    tasks: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(lambda: {"predictions": []}))
    for choice, scores in scored:
        lines = tasks[choice.group[0]][choice.subset]["predictions"]
        context, part = choice.options[int(scores.argmax())]
        text = part if len({part for _, part in choice.options}) > 1 else context + part
        prob = {} if choice.ratio is None else {"prob": float(expit(scores[0] - scores[1]))}
        lines.append({"id": f"{choice.subset}_{len(lines)}", "pred": text} | prob)
    return tasks


# The beginning of the name of a data set of the challenge -> the folder of its predictions.
FOLDERS = {"blimp": "blimp", "supplement": "blimp", "ewok": "ewok", "entity_tracking": "entity_tracking",
           "wug_adj": "wug_adj", "wug_past": "wug_past", "comps": "comps"}


def write_predictions(predictions: Mapping[str, Any], directory: Path) -> None:
    """Writes `predictions` of `evaluate` as the challenge's pipeline does, such as blimp/blimp_filtered/
    predictions.json."""
    for task, content in predictions.items():
        folder = next((f"{name}/" for start, name in FOLDERS.items() if task.startswith(start)), "")
        target = directory / f"{folder}{task}"
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / "predictions.json", content)


Option = tuple[str, str]  # as in `Choice.options`


def _tokenized(
    run: Run, choices: Sequence[Choice], scoring: Scoring
) -> tuple[dict[Option, Text], dict[tuple[str, str], str]]:
    """Returns {option: text} and {(task, file): why a text of it is too long}."""
    part = next((choice for choice in choices if any(context for context, _ in choice.options)), None)
    if part and (reason := pairs.why_no_token_scores(run, scoring)):
        raise UserError(f"{part.where}: only a part of a text is scored, and {run.directory} gives tokens no score: "
                        f"{reason}. Leave such files out, or give a left-to-right or a masked model")
    texts: dict[Option, Text] = {}
    too_long: dict[tuple[str, str], str] = {}
    for choice in choices:
        try:
            for option in choice.options:
                if option not in texts:
                    texts[option] = pairs.tokenize(run, "".join(option), choice.where, start=len(option[0]))
        except pairs.TooLong as error:
            too_long.setdefault(choice.group[:2], error.problem)
    return texts, too_long


def _score_choices(
    run: Run, choices: Sequence[Choice], texts: Mapping[Option, Text], scoring: Scoring
) -> list["Scored"]:
    """Returns the choices with the scores of their options."""
    keys: dict[Option, tuple] = {}  # by content, since texts of equal tokens are scored once
    sources: dict[tuple, tuple[Text, tuple[str, str]]] = {}  # {content: (text, (its characters, file and line))}
    for choice in choices:
        for option in choice.options:
            text = texts[option]
            keys[option] = text.ids.tobytes(), text.words.tobytes(), text.scored
            sources.setdefault(keys[option], (text, ("".join(option), choice.where)))
    log.info("%s choices, %s different texts; score: %s", f"{len(choices):,}", f"{len(sources):,}", scoring.summary)
    scores = pairs.checked_scores(run, *zip(*sources.values(), strict=True), scoring)
    sums = dict(zip(sources, scores.sums, strict=True))
    return [(choice, np.array([sums[keys[option]] for option in choice.options])) for choice in choices]


Scored = tuple[Choice, np.ndarray]  # with the scores of its options, float64[k]


def credit(scores: np.ndarray) -> float:
    """Returns 1 if the first of scores [k] is the highest, 1/n if it is one of n that are tied as in `pairs.outcomes`,
    and 0 otherwise. The challenge's pipeline takes the first of tied texts, the right one."""
    best = scores.max()
    tied = np.abs(scores - best) <= pairs.ROUNDING * np.maximum(np.abs(scores), np.abs(best))
    return float(tied[0] / tied.sum())


def preferences(scores: np.ndarray) -> np.ndarray:
    """Returns float64[n] in the order of the differences between the two columns of scores [n, 2]. Differences that are
    equal but for float32 rounding, as those of a model that does not see the context, are equal."""
    differences = scores[:, 0] - scores[:, 1]
    order = np.argsort(differences)
    steps = np.diff(differences[order], prepend=-np.inf) > pairs.ROUNDING * np.abs(scores).max()
    return np.cumsum(steps)[np.argsort(order)].astype(np.float64)


def _groups(scored: Sequence[Scored], level: int) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = {}
    for choice, scores in scored:
        groups.setdefault(choice.group[level], []).append((choice, scores))
    return groups


def _summary(scored: Sequence[Scored], level: int) -> dict[str, Any]:
    """Summarizes choices of one group at the level before `level` of `Choice.group`: as the mean over the groups at
    `level`, if there are several, as in the challenge."""
    if level < len(scored[0][0].group):
        parts = {name: _summary(members, level + 1) for name, members in _groups(scored, level).items()}
        return _mean([*parts.values()]) | {"parts": parts} if len(parts) > 1 else next(iter(parts.values()))
    n = len(scored)
    if scored[0][0].ratio is not None:
        rho = spearman([choice.ratio for choice, _ in scored], preferences(np.array([scores for _, scores in scored])))
        kind, value, interval, chance, ties = CORRELATION, rho, correlation_interval(rho, n), 0.0, 0
    else:
        credits = np.array([credit(scores) for _, scores in scored])
        kind, value, interval = ACCURACY, float(credits.mean()), pairs.wilson(float(credits.mean()), n)
        chance, ties = float(np.mean([1 / len(scores) for _, scores in scored])), int(np.sum(credits % 1 > 0))
    low, high = interval
    return {kind: value, "low": low, "high": high, "chance": chance, "items": n, "ties": ties, "parts": {}}


def _mean(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the mean of the entries with an accuracy or, if there are none, of correlations, with its interval."""
    kind, entries = next((kind, some) for kind in KINDS if (some := [entry for entry in entries if kind in entry]))
    numbers = np.array([[entry[name] for name in (kind, "low", "high", "chance")] for entry in entries])
    value, _, _, chance = numbers.mean(0).tolist()
    low, high = pairs.combined(numbers[:, 0], numbers[:, 1:3])
    return {kind: value, "low": low, "high": high, "chance": chance,
            **{name: sum(entry[name] for entry in entries) for name in ("items", "ties")}}


def correlation_interval(rho: float, n: int) -> tuple[float, float]:
    """Computes the 95 % interval of a Spearman correlation of n pairs (Bonett and Wright, 2000)."""
    if n <= 3:
        return -1.0, 1.0
    center, width = np.arctanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12)), math.sqrt((1 + rho**2 / 2) / (n - 3))
    return float(np.tanh(center - pairs.NORMAL * width)), float(np.tanh(center + pairs.NORMAL * width))


def table(values: Mapping[str, Any]) -> str:
    """Formats the result of `evaluate` as a table: each task with its parts, and the mean over tasks."""
    def rows(name: str, entry: Mapping[str, Any], depth: int = 0) -> Iterator[list[str]]:
        low, high = entry["low"], entry["high"]
        value, interval = (f"{entry[ACCURACY]:.1%}", f"{100 * low:.1f} to {100 * high:.1f}") if ACCURACY in entry else (
            f"rho {entry[CORRELATION]:.3f}", f"{low:.3f} to {high:.3f}")
        yield ["  " * depth + name, f"{entry['items']:,}", value, interval, f"{100 * entry['chance']:.1f}"]
        for part, inner in entry.get("parts", {}).items():
            yield from rows(part, inner, depth + 1)

    times = {task: entry for task, entry in values["tasks"].items() if reading_times.EYE_TRACKING in entry}
    tasks = {task: entry for task, entry in values["tasks"].items() if task not in times}
    averaged = [entry for entry in tasks.values() if values.keys() & entry.keys() & {*KINDS}]
    lines = [["", "items", ACCURACY, "95 % interval", "chance"]]
    lines += [row for task, entry in tasks.items() for row in rows(task, entry)]
    if tasks:
        lines += rows(f"mean over {counted(len(averaged), 'task')}", values)
    lines += [row for task, entry in times.items() for row in reading_times.table_rows(task, entry)]
    lines += [[name, f"{entry['items']:,}", "not scored", "", ""] for name, entry in values["unscored"].items()]
    notes = [f"Score: {values['summary']}, in nats; of a text with a context, of the part after it."]
    if tasks:
        notes.append("Intervals: Wilson's, and of means Zou et al.'s (2009).")
    if any(CORRELATION in entry for entry in tasks.values()):
        notes.append("rho: Spearman's correlation with human ratios, with Bonett and Wright's (2000) interval"
                     + "; the mean leaves it out" * (len(averaged) < len(tasks)) + ".")
    if values.get("ties"):
        notes.append(f"In {counted(values['ties'], 'item')}, the first of n tied texts counts 1/n.")
    if times:
        notes.append("Reading times: the fraction that surprisal explains of the variance that frequency, length and "
                     "position leave unexplained; the mean leaves it out.")
    notes += not_scored(values)
    width = max(len(line[0]) for line in lines)
    return "\n".join([aligned([[line[0].ljust(width), *line[1:]] for line in lines], str.rjust), "", *notes])


def not_scored(values: Mapping[str, Any]) -> list[str]:
    """Returns a line for each file that `evaluate` did not score, with the reason."""
    return [f"Not scored, and left out of means: {entry['reason']}." for entry in values["unscored"].values()]
