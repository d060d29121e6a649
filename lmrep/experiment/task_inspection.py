"""What `lmrep inspect` prints for a task: its data, and its examples as the network reads them."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmrep.data import records
from lmrep.data.characters import known_ids
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.data.records.mixture import MixedExamples
from lmrep.experiment import frozen
from lmrep.experiment.config import TaskExperiment
from lmrep.experiment.task_data import PreparedTask
from lmrep.experiment.task_sources import task_sources
from lmrep.tasks import TASKS

LABELS = 12  # values of a target that are listed
STORED = 50  # in `statistics`


def report(prepared: PreparedTask, split: str, examples: int) -> str:
    """Statistics of every split, the values of the target, and the first `examples` of `split`."""
    experiment = prepared.experiment
    sections = [_splits(prepared), _sources(prepared), _tokenizer(prepared),
                _targets(experiment, prepared.records["train"]), _steps(experiment, prepared.stores["train"]),
                *frozen.describe(frozen.load(experiment, prepared.tokenizer.tokens, values=False))]
    own, store = prepared.records[split], prepared.stores[split]
    sections += [_example(own[i], i, store, prepared) for i in _first(own, examples)]
    return "\n\n".join(filter(None, sections))


def statistics(prepared: PreparedTask) -> dict[str, dict[str, Any]]:
    """For each split, the numbers of its `examples`, `tokens` and `sequences`, the tokens of its `longest` text, and of
    the `mean` one; and of its target, where that has classes, how many `classes` there are, and `labels`, the number of
    examples, or words, of the most frequent ones. `records` is a fingerprint of those that are not trained on, whatever
    their classes are called. `sequences_per_step` is given where it is not the batch size. Of a mixture, `sources` has
    the numbers of each source, and its `fraction` of the examples that are trained on."""
    found = {}
    for split, store in prepared.stores.items():
        lengths, counts = store.units.lengths, _target_counts(prepared.experiment, prepared.records[split])
        found[split] = {
            "examples": len(prepared.records[split]), "tokens": int(lengths.sum()), "longest": int(lengths.max()),
            "mean": float(lengths.mean()), "sequences": store.examples, "classes": len(counts),
            "labels": dict(counts.most_common(STORED))}
        if isinstance(store, MixedExamples):
            found[split]["sources"] = _of_sources(prepared, split)
        if store.batch_tokens:
            found[split]["sequences_per_step"] = store.sequences_per_step(prepared.experiment.batch_size)
        if split != "train":
            found[split]["records"] = _fingerprint(prepared.experiment, prepared.records[split])
    return found


def _fingerprint(experiment: TaskExperiment, own: Sequence[Record]) -> str:
    """`records.fingerprint`, with classes numbered as they occur: a run that calls them 0 and 1 is measured on the same
    examples as one that generates their names."""
    task, numbers = TASKS[experiment.objective["name"]], {}
    own = [_as_read(record) for record in own]
    names = experiment.objective.get("metrics") or task.objective.metrics
    classes = {"accuracy", "f1", "macro_f1", "matthews"} & {*names}
    if not classes or "choices" in own[0].fields or not _counts([_target(record) for record in own]):
        return records.fingerprint(own)
    return records.fingerprint(record._replace(fields={
        name: value for name, value in record.fields.items() if name not in records.TARGETS} | {
        "label": str(numbers.setdefault(str(_target(record)), len(numbers)))}) for record in own)


def _as_read(record: Record) -> Record:
    """Without a target that was made of other ones."""
    made = "target" in record.fields and {*records.TARGETS} & record.fields.keys() != {"target"}
    return record._replace(fields={name: value for name, value in record.fields.items()
                                   if name != "target" or not made})


def _target(record: Record) -> Any:
    return next((record.fields[name] for name in records.TARGETS if name in record.fields), None)


def _splits(prepared: PreparedTask) -> str:
    lines = [f"Task {prepared.experiment.objective['name']}",
             f"  {'split':12}{'examples':>12}{'tokens':>14}{'longest':>9}{'mean':>8}{'sequences':>12}"]
    lines += [f"  {split:12}{each['examples']:12,}{each['tokens']:14,}{each['longest']:9,}{each['mean']:8.1f}"
              f"{each['sequences']:12,}" for split, each in statistics(prepared).items()]
    return "\n".join(lines)


def _of_sources(prepared: PreparedTask, split: str) -> dict[str, dict[str, float]]:
    """The numbers of each source of a mixture; `epochs` are those of the run."""
    store, counts = prepared.stores[split], Counter(record.source for record in prepared.records[split])
    found = {}
    for name, first, last in zip(store.names, store.bounds, store.bounds[1:], strict=False):
        lengths = store.lengths[first:last]
        found[name] = {"examples": counts[name], "sequences": last - first, "tokens": int(lengths.sum()),
                       "longest": int(lengths.max())}
    if store.block_counts:
        shown = prepared.experiment.steps * prepared.experiment.batch_size
        epochs = {name: shown * fraction / each["sequences"]
                  for (name, each), fraction in zip(found.items(), store.fractions().tolist(), strict=True)}
        total = sum(epochs[name] * each["examples"] for name, each in found.items())
        for name, each in found.items():
            each |= {"fraction": epochs[name] * each["examples"] / total, "epochs": epochs[name]}
    return found


def _sources(prepared: PreparedTask) -> str:
    """The sizes and proportions of the sources of a mixture."""
    experiment = prepared.experiment
    if not experiment.sources:
        return ""
    cap = f" of at most {experiment.size_cap:,}" * bool(experiment.size_cap)
    rates = (f"weight x size{cap}^(1/{experiment.temperature:g}), the size in examples" if experiment.temperature
             else "weight alone")
    lines = [f"{len(experiment.sources)} sources, mixed by {rates}",
             f"  {'source':20}{'fraction':>9}{'examples':>12}{'sequences':>12}{'longest':>9}{'epochs':>9}  template"]
    templates = {source.name: getattr(source.objective, "template", "") for source in task_sources(experiment)}
    lines += [f"  {name:20}{each['fraction']:9.2%}{each['examples']:12,}{each['sequences']:12,}{each['longest']:9,}"
              f"{each['epochs']:9.2f}  {templates[name]}" for name, each in _of_sources(prepared, "train").items()]
    return "\n".join(lines)


def _first(own: Sequence[Record], examples: int) -> list[int]:
    """The numbers of the first examples; of a mixture, of every source in turn."""
    turns: Counter[str] = Counter()
    ranked = []
    for i, record in enumerate(own):
        ranked.append((turns[record.source], i))
        turns[record.source] += 1
    return [i for _, i in sorted(ranked)[:examples]]


def _tokenizer(prepared: PreparedTask) -> str:
    tokenizer, units = prepared.tokenizer, prepared.stores["train"].units
    unknown = tokenizer.vocabulary.unknown
    text = f"Tokenizer {tokenizer.name}: {tokenizer.size:,} tokens"
    if unknown < 0:
        return text
    tokens = units.tokens if units.source is None else np.concatenate([units.tokens, units.source.tokens])
    return f"{text}; {np.mean(known_ids(tokens, tokenizer.vocabulary) == unknown):.3%} of the text is unknown"


def _targets(experiment: TaskExperiment, own: Sequence[Record]) -> str:
    """The values of a target and how often each occurs, where it is a class."""
    if not (counts := _target_counts(experiment, own)):
        return ""
    target = TASKS[experiment.objective["name"]].reads.targets[0]
    shown = ", ".join(f"{value} {count / counts.total():.1%}" for value, count in counts.most_common(LABELS))
    scheme = experiment.objective.get("scheme", "none") if target == "tags" else "none"
    return (f"{target}{f' ({scheme})' * (scheme != 'none')}: {len(counts):,} values: {shown}"
            + ", ..." * (len(counts) > LABELS))


def _target_counts(experiment: TaskExperiment, own: Sequence[Record]) -> Counter[str]:
    """The values of the target of records, as `_counts`; answers, and what is made of unlabelled text, do not count."""
    targets = TASKS[experiment.objective["name"]].reads.targets[:1]
    return _counts([record.fields[target] for record in own for target in targets
                    if target in record.fields and not record.tokens and "answers" not in record.fields])


def _counts(values: Sequence[Any]) -> Counter[str]:
    """How often each value occurs; none where they are not strings, or lists of strings, or most of them are different,
    as translations."""
    values = [value for each in values for value in each] if values and isinstance(values[0], list) else values
    counts = Counter(values if all(isinstance(value, str) for value in values) else ())
    return counts if len(counts) <= max(STORED, counts.total() // 2) else Counter()


def _steps(experiment: TaskExperiment, train: Examples) -> str:
    sequences = train.sequences_per_step(experiment.batch_size)
    epochs = experiment.steps * sequences / train.examples
    return (f"{experiment.steps:,} steps of {sequences:.4g} sequences are {epochs:,.2f} epochs; validation "
            f"every {experiment.evaluation.every:,} steps, best by {experiment.checkpoint.best}")


def _example(record: Record, number: int, store: Examples, prepared: PreparedTask) -> str:
    """A record's fields, and the tokens of its units."""
    lines = [f"Example {number:,} ({f'{record.source}, ' * bool(record.source)}{record.where}):"]
    for name, value in record.fields.items():
        lines.append(textwrap.fill(f"{name}: {value}", 110, initial_indent="  ", subsequent_indent="    "))
    texts = {"tokens": store.units} if store.units.source is None else {
        "source tokens": store.units.source, "target tokens": store.units}
    for unit in np.flatnonzero(store.units.example == number):
        for name, own in texts.items():
            span = slice(own.offsets[unit], own.offsets[unit + 1])
            tokens = " ".join(prepared.tokenizer.id_to_token(int(i)) for i in own.tokens[span])
            lines.append(textwrap.fill(f"{name}: {tokens}", 110, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)
