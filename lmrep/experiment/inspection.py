"""Makes the text that `lmrep inspect` prints: statistics of an experiment's data, and training examples."""

import itertools
import logging
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lmrep import optimizers
from lmrep.core.errors import UserError
from lmrep.data import loader
from lmrep.data import records as labelled_data
from lmrep.data.characters import known_ids
from lmrep.data.dataset import Dataset
from lmrep.data.mixture import Mixture
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples, MixedExamples
from lmrep.data.store.prepare import Prepared
from lmrep.data.store.scan import describe_anomalies
from lmrep.data.tokenizers import keeps_whitespace
from lmrep.experiment import build, frozen, unfreezing
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, ResolvedStage
from lmrep.experiment.record import UNKNOWN_STEPS, Data
from lmrep.objectives.base import Objective
from lmrep.optimizers.parameters import matches
from lmrep.tasks import TASKS
from lmrep.training.stages import locate_stage
from lmrep.training.step import prepare_keys

LABELS = 12  # values of a target that are listed
STORED = 50  # in `label_statistics`
STATISTICS = "data.json"  # of a workdir: `label_statistics`

log = logging.getLogger(__name__)


def report(
    experiment: Experiment, data_dir: Path, split: str = "train", examples: int = 5, step: int | None = None
) -> str:
    """Describes the corpus, the tokenizer and the examples of each stage, and shows the first `examples` of `split` as
    the model gets them. With a `step`, shows instead the first `examples` of what that step reads.

    Raises:
      UserError: there is no such split or step, or parts of the experiment do not fit each other or the data.
    """
    if examples < 0:
        raise UserError(f"examples is {examples}; expected at least 0")
    data = build.prepare_data(experiment, data_dir, log.info)
    if step is not None and (split != "train" or not 1 <= step <= data.experiment.steps):
        raise UserError(f"step is {step}; expected a step from 1 to {data.experiment.steps:,}, and the split train")
    if split not in data.splits:
        raise UserError(f"there is no split {split!r}; this corpus has {', '.join(data.splits)}")
    if data.records:
        sections = _labelled_step(data, examples, step) if step else _labelled(data, split, examples)
    else:
        sections = (_of_step(data, data_dir, examples, step) if step else
                    _text(data, data_dir, split, examples))
    return "\n\n".join(filter(None, sections))


def _text(data: Data, data_dir: Path, split: str, examples: int) -> list[str]:
    """Describes a corpus, its tokenizer and the examples of each stage, and shows the first `examples` of `split`."""
    experiment, prepared = data.experiment, data.corpus
    model = experiments.build_model(experiment, prepared.tokenizer.size)
    parts = frozen.load(experiment, prepared.tokenizer.tokens, values=False)
    sections, passes = [_corpus(data), _tokenizer(experiment, prepared)], 0.0
    stages = experiments.resolve_stages(experiment)
    for stage in stages:
        plan = build.plan(stage, prepared.stores[split], experiment.seed, data_dir)
        sections.append(_stage(stage, plan))
        passes += build.epochs(stage, plan, stage.steps)
        if isinstance(plan, Mixture) and stage.steps < UNKNOWN_STEPS:
            sections.append(_sources(plan, stage.steps * stage.batch_size))
        objective = build.objective(stage, model, prepared.tokenizer.vocabulary, parts)
        positions = np.arange(min(examples, plan.examples))
        sections += _examples(experiment, stage, plan, objective, prepared, positions, 0)
    if len(stages) > 1:
        sections.append(f"All stages: {experiment.steps:,} steps, {passes:,.2f} epochs of the {split} split")
    return [*sections, *frozen.describe(parts)]


def _of_step(data: Data, data_dir: Path, examples: int, step: int) -> list[str]:
    """Shows the first `examples` of the batch of a step, as far as no fault has made the run skip batches before it."""
    experiment, prepared, stages = data.experiment, data.corpus, experiments.resolve_stages(data.experiment)
    index, begin = locate_stage(stages, step - 1)
    stage, parts = stages[index], frozen.load(experiment, prepared.tokenizer.tokens, values=False)
    model = experiments.build_model(experiment, prepared.tokenizer.size)
    objective = build.objective(stage, model, prepared.tokenizer.vocabulary, parts)
    *earlier, plan = (build.plan(each, prepared.stores["train"], experiment.seed, data_dir)
                      for each in stages[: index + 1])
    first = build.first_batch(plan, stage.batch_size, [
        (each.steps * each.batch_size, shown.fingerprint) for each, shown in zip(stages, earlier, strict=False)])
    positions = (first + step - 1 - begin) * stage.batch_size + np.arange(stage.batch_size)
    return [f"Step {step:,}, of stage {stage.name}: {stage.batch_size} examples",
            *_examples(experiment, stage, plan, objective, prepared, positions, step - 1)[:examples]]


def _stage(stage: ResolvedStage, plan: Dataset) -> str:
    """Describes a stage: its size, its epochs, and the statistics of its examples."""
    statistics = "  ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}"
                           for name, value in plan.statistics().items())
    steps = (f"{stage.steps:,} steps are {build.epochs(stage, plan, stage.steps):,.2f} epochs"
             if stage.steps < UNKNOWN_STEPS else "config.budget decides the steps when the run starts")
    return (f"Stage {stage.name}: {stage.format_name} examples of {stage.length} tokens, {stage.batch_size} in a "
            f"batch; {steps}\n  {statistics}")


def _examples(
    experiment: Experiment, stage: ResolvedStage, plan: Dataset, objective: Objective, prepared: Prepared,
    positions: np.ndarray, updates: int,
) -> list[str]:
    """Describes the examples at some `positions` of a stage, as its objective prepares them after so many `updates`."""
    numbers = plan.numbers(positions, stage.batch_size, experiment.seed)
    numbers = numbers[numbers >= 0]
    if not len(numbers):
        return []
    batch = loader.gather(plan, numbers)
    batch = jax.device_get(jax.jit(lambda batch: objective.prepare(
        prepare_keys(objective, batch, experiment.seed, np.int32(updates)), batch))(batch))
    texts = objective.uses.describe(batch, prepared.tokenizer)
    texts = ["\n".join(textwrap.fill(line, 110) for line in text.split("\n")) for text in texts]
    return [f"Example {i:,}:\n" + textwrap.indent(text, "  ") for i, text in zip(numbers, texts, strict=True)]


def _corpus(data: Data) -> str:
    """Describes the corpus: a row for each split, and anomalies."""
    prepared = data.corpus
    lines = [f"Corpus {data.experiment.data.corpus}, prepared in {prepared.directory}",
             f"  {'split':12}{'documents':>12}{'sentences':>12}{'characters':>14}{'tokens':>14}"
             f"{'tokens/word':>13}{'unknown':>9}"]
    for split, facts in prepared.statistics.items():
        lines.append(f"  {split:12}{facts['documents']:12,}{facts['sentences']:12,}{facts['characters']:14,}"
                     f"{facts['tokens']:14,}{facts['tokens_per_word']:13.3f}{facts['unknown_fraction']:9.3%}")
    anomalies = prepared.text | {"words_of_over_1,000_characters": sum(
        facts.get("long_words", 0) for facts in prepared.statistics.values())}
    if prepared.sentences:
        lines.append(f"  sentences: {prepared.sentences}")
    if described := describe_anomalies(anomalies):
        lines.append(f"  in the text: {described}")
    if warning := build.imbalanced_splits(data):
        lines.append(f"  WARNING: {warning}")
    return "\n".join(lines)


def _sources(plan: Mixture, number: int) -> str:
    """Describes each source: its fraction of a stage's `number` examples, and its epochs."""
    weights, split = plan.store.block_counts, plan.store.split
    lines = [f"  {'source':20}{'fraction':>9}{f'tokens, {split}':>20}{'examples':>14}{'epochs':>9}"]
    for i, name in enumerate(plan.store.names):
        fraction, examples = weights[i] / sum(weights), plan.plans[i].examples
        lines.append(f"  {name:20}{fraction:9.2%}{plan.store.stores[i].tokens:20,}{examples:14,}"
                     f"{number * fraction / examples:9.2f}")
    return "\n".join(lines)


def _tokenizer(experiment: Experiment, prepared: Prepared) -> str:
    """Describes the vocabulary, how the tokenizer changes a text, and the most frequent tokens."""
    vocabulary = prepared.tokenizer.vocabulary
    order = np.argsort(-vocabulary.counts)[:12]
    total = max(1, int(vocabulary.counts.sum()))
    frequent = ", ".join(f"{prepared.tokenizer.id_to_token(int(i))} {vocabulary.counts[i] / total:.1%}"
                         for i in order).replace("\n", "\\n")
    mark, at_mark = ("start", vocabulary.starts_word) if vocabulary.ends_word is None else ("end", vocabulary.ends_word)
    lines = [f"Tokenizer {prepared.tokenizer.name}: {vocabulary.size:,} tokens, {int(at_mark.sum()):,} of which {mark} "
             f"a word; {int((vocabulary.counts == 0).sum()):,} do not occur in the train split",
             f"white space of documents: {'kept' if keeps_whitespace(experiment.tokenizer) else 'collapsed'}"]
    if prepared.tokenizer.lowercase:
        plain, accented = (list(ids) for ids in prepared.tokenizer.encode_batch(["cafe", "caf\u00e9"]))
        accents = " and stripped of accents: caf\u00e9 becomes cafe" if accented == plain else ""
        lines.append(f"text is lower-cased{accents}")
    if unused := build.unused_rows(experiments.model_config(experiment.model, vocabulary.size).vocab, vocabulary.size):
        lines.append(f"WARNING: {unused}")
    return "\n  ".join([*lines, f"most frequent: {frequent}"])


# Labelled examples


def _labelled(data: Data, split: str, examples: int) -> list[str]:
    """Describes every split and the values of the target, and shows the first `examples` of `split`."""
    experiment, records, train = data.experiment, data.records[split], data.splits["train"]
    table = [f"Task {experiment.objective['name']}",
             f"  {'split':12}{'examples':>12}{'tokens':>14}{'longest':>9}{'mean':>8}{'sequences':>12}"]
    table += [f"  {name:12}{facts['examples']:12,}{facts['tokens']:14,}{facts['longest']:9,}{facts['mean']:8.1f}"
              f"{facts['sequences']:12,}" for name, facts in label_statistics(data).items()]
    tokenizer = f"Tokenizer {data.tokenizer.name}: {data.tokenizer.size:,} tokens"
    if (unknown := data.tokenizer.vocabulary.unknown) >= 0:
        texts = [units.tokens for units in (train.units, train.units.source) if units is not None]
        ids = known_ids(np.concatenate(texts), data.tokenizer.vocabulary)
        tokenizer += f"; {np.mean(ids == unknown):.3%} of the text is unknown"
    sequences = train.sequences_per_step(experiment.batch_size)
    steps = (f"{experiment.steps:,} steps of {sequences:.4g} sequences are "
             f"{experiment.steps * sequences / train.examples:,.2f} epochs; validation every "
             f"{experiment.evaluation.every:,} steps, best by {experiment.checkpoint.best}")
    return ["\n".join(table), _label_sources(data), tokenizer,
            _targets(experiment, data.records["train"]), steps, _rates(data),
            *frozen.describe(frozen.load(experiment, data.tokenizer.tokens, values=False)),
            *(_labelled_example(records[i], i, data.splits[split], data) for i in _first(records, examples))]


def _labelled_step(data: Data, examples: int, step: int) -> list[str]:
    """Shows the first `examples` of the batch of a step, as `_of_step`."""
    experiment, train = data.experiment, data.splits["train"]
    positions = (step - 1) * experiment.batch_size + np.arange(experiment.batch_size)
    numbers = train.numbers(positions, experiment.batch_size, experiment.seed)
    units = train.gather(numbers[numbers >= 0])["unit"]
    shown = [*dict.fromkeys(train.units.example[units[units >= 0]].tolist())]
    return [f"Step {step:,}: {len(shown)} examples",
            *(_labelled_example(data.records["train"][i], i, train, data) for i in shown[:examples])]


def _rates(data: Data) -> str:
    """Describes the stages: the steps, and the peak learning rate of each group of parameters, - for 0; "" where all
    parameters have one rate in a single stage."""
    experiment, columns, uniform = data.experiment, [], True
    parts = frozen.load(experiment, data.tokenizer.tokens, values=False)
    for stage in experiments.resolve_stages(experiment):
        model = experiments.build_model(experiment, data.tokenizer.size, stage)
        specs = build.objective(stage, model, data.tokenizer.vocabulary, parts).specs
        factors = optimizers.rate_factors(stage.optimizer, specs)
        rows = {"steps": f"{stage.steps:,}"}
        for group in (*unfreezing.groups(model.specs), [unfreezing.HEAD]):
            chosen = {float(x) for path, mask in matches(group, specs, optional=group).items() if mask.any()
                      for x in np.atleast_1d(factors[path])[np.atleast_1d(mask)]}
            if chosen:
                rows[", ".join(group)] = " to ".join(f"{stage.optimizer.learning_rate * factor:.3g}" if factor else "-"
                                                     for factor in sorted({min(chosen), max(chosen)}))
            uniform &= chosen <= {1.0}
        columns.append((stage.name, rows))
    if uniform and len(columns) == 1:
        return ""
    lines = [["stage", *(name for name, _ in columns)]]
    lines += [[row, *(rows[row] for _, rows in columns)] for row in columns[0][1]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(["Stages, and learning rates", *("  " + "  ".join(
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))])
        for line in lines)])


def label_statistics(data: Data) -> dict[str, dict[str, Any]]:
    """Returns the statistics of each split, {split: {name: value}}:

      examples, tokens, sequences: their numbers.
      longest, mean: the tokens of the longest text, and of the mean one.
      classes: the number of classes of the target; 0 where it has none.
      labels: {class: number of examples, or of words}, of the most frequent classes.
      sequences_per_step: where it differs from the batch size.
      records: except for training data, a fingerprint of the records that does not depend on the names of classes.
      sources: for a mixture, the same numbers of each source; for training data also its `fraction` of the examples
        that are trained on, and its `epochs`.
    """
    statistics = {}
    for split, store in data.splits.items():
        lengths, counts = store.units.lengths, _target_counts(data.experiment, data.records[split])
        statistics[split] = {
            "examples": len(data.records[split]), "tokens": int(lengths.sum()), "longest": int(lengths.max()),
            "mean": float(lengths.mean()), "sequences": store.examples, "classes": len(counts),
            "labels": dict(counts.most_common(STORED))}
        if isinstance(store, MixedExamples):
            statistics[split]["sources"] = _of_sources(data, split)
        if store.batch_tokens:
            statistics[split]["sequences_per_step"] = store.sequences_per_step(data.experiment.batch_size)
        if split != "train":
            statistics[split]["records"] = _fingerprint(data.experiment, data.records[split])
    return statistics


def _fingerprint(experiment: Experiment, records: Sequence[Record]) -> str:
    """Returns the fingerprint of records, with classes numbered in the order in which they occur: a run that calls them
    0 and 1 is measured on the same examples as one that generates their names."""
    task, numbers = TASKS[experiment.objective["name"]], {}
    # Leaves out a `target` that was made from other targets.
    records = [record._replace(fields={name: value for name, value in record.fields.items() if name != "target"})
           if {*labelled_data.TARGETS} & record.fields.keys() > {"target"} else record for record in records]
    names = experiment.objective.get("metrics") or task.objective.metrics
    classes = {"accuracy", "f1", "macro_f1", "matthews"} & {*names}
    if not classes or "choices" in records[0].fields or not _counts([_target(record) for record in records]):
        return labelled_data.fingerprint(records)
    return labelled_data.fingerprint(record._replace(fields={
        name: value for name, value in record.fields.items() if name not in labelled_data.TARGETS} | {
        "label": str(numbers.setdefault(str(_target(record)), len(numbers)))}) for record in records)


def _target(record: Record) -> Any:
    return next((record.fields[name] for name in labelled_data.TARGETS if name in record.fields), None)


def _of_sources(data: Data, split: str) -> dict[str, dict[str, float]]:
    """Returns the statistics of each source of a mixture, as `label_statistics` does."""
    store, counts = data.splits[split], Counter(record.source for record in data.records[split])
    numbers = {}
    for name, first, last in zip(store.names, store.bounds, store.bounds[1:], strict=False):
        lengths = store.lengths[first:last]
        numbers[name] = {"examples": counts[name], "sequences": last - first, "tokens": int(lengths.sum()),
                       "longest": int(lengths.max())}
    if store.block_counts:
        shown = data.experiment.steps * data.experiment.batch_size
        epochs = {name: shown * fraction / facts["sequences"]
                  for (name, facts), fraction in zip(numbers.items(), store.fractions().tolist(), strict=True)}
        total = sum(epochs[name] * facts["examples"] for name, facts in numbers.items())
        for name, facts in numbers.items():
            facts |= {"fraction": epochs[name] * facts["examples"] / total, "epochs": epochs[name]}
    return numbers


def _label_sources(data: Data) -> str:
    """Describes the sizes and proportions of the sources of a mixture; "" for a single data set."""
    experiment = data.experiment
    if not experiment.sources:
        return ""
    cap = f" of at most {experiment.size_cap:,}" * bool(experiment.size_cap)
    rates = (f"weight x size{cap}^(1/{experiment.temperature:g}), the size in examples" if experiment.temperature
             else "weight alone")
    lines = [f"{len(experiment.sources)} sources, mixed by {rates}",
             f"  {'source':20}{'fraction':>9}{'examples':>12}{'sequences':>12}{'longest':>9}{'epochs':>9}  template"]
    templates = {source.name: getattr(source.objective, "template", "") for source in experiment.data_sets()}
    lines += [f"  {name:20}{facts['fraction']:9.2%}{facts['examples']:12,}{facts['sequences']:12,}"
              f"{facts['longest']:9,}{facts['epochs']:9.2f}  {templates[name]}"
              for name, facts in _of_sources(data, "train").items()]
    return "\n".join(lines)


def _first(records: Sequence[Record], examples: int) -> list[int]:
    """Returns the indices of the first `examples` records; for a mixture, taken from the sources in turn."""
    turns = {record.source: itertools.count() for record in records}
    return [i for _, i in sorted((next(turns[record.source]), i) for i, record in enumerate(records))[:examples]]


def _targets(experiment: Experiment, records: Sequence[Record]) -> str:
    """Describes the values of a target and how often each occurs; "" where it has no classes."""
    if not (counts := _target_counts(experiment, records)):
        return ""
    target = TASKS[experiment.objective["name"]].reads.targets[0]
    shown = ", ".join(f"{value} {count / counts.total():.1%}" for value, count in counts.most_common(LABELS))
    scheme = experiment.objective.get("scheme", "none") if target == "tags" else "none"
    return (f"{target}{f' ({scheme})' * (scheme != 'none')}: {len(counts):,} values: {shown}"
            + ", ..." * (len(counts) > LABELS))


def _target_counts(experiment: Experiment, records: Sequence[Record]) -> Counter[str]:
    """Counts the values of the target of records, without answers and without examples made from unlabelled text."""
    targets = TASKS[experiment.objective["name"]].reads.targets[:1]
    return _counts([record.fields[target] for record in records for target in targets
                    if target in record.fields and not record.tokens and "answers" not in record.fields])


def _counts(values: Sequence[Any]) -> Counter[str]:
    """Counts how often each value occurs. Counts nothing where values are neither strings nor lists of strings, or are
    mostly different, as translations are."""
    values = [value for items in values for value in items] if values and isinstance(values[0], list) else values
    counts = Counter(values if all(isinstance(value, str) for value in values) else ())
    return counts if len(counts) <= max(STORED, counts.total() // 2) else Counter()


def _labelled_example(record: Record, number: int, store: Examples, data: Data) -> str:
    """Describes a record: its fields, and the tokens of its units."""
    lines = [f"Example {number:,} ({f'{record.source}, ' * bool(record.source)}{record.where}):"]
    for name, value in record.fields.items():
        lines.append(textwrap.fill(f"{name}: {value}", 110, initial_indent="  ", subsequent_indent="    "))
    texts = {"tokens": store.units} if store.units.source is None else {
        "source tokens": store.units.source, "target tokens": store.units}
    for unit in np.flatnonzero(store.units.example == number):
        for name, units in texts.items():
            span = slice(units.offsets[unit], units.offsets[unit + 1])
            tokens = " ".join(data.tokenizer.id_to_token(int(i)) for i in units.tokens[span])
            lines.append(textwrap.fill(f"{name}: {tokens}", 110, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines)
