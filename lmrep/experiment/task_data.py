"""Reads, checks and tokenizes the labelled examples of a task: one data set, or a mixture of several."""

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.data import records as labelled_data
from lmrep.data import tokenizers
from lmrep.data.mixture import block_counts, mixing_weights
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples, mix
from lmrep.data.records.values import listed
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment import config as experiments
from lmrep.experiment import contracts, small_networks
from lmrep.experiment.config import Experiment
from lmrep.experiment.data_sets import config_of, files, read_split, splits, task_of
from lmrep.experiment.record import Data
from lmrep.models.base import Model
from lmrep.tasks import TASKS
from lmrep.tasks.base import TaskDef, TextEncoder
from lmrep.tasks.encoding import encode, text_encoder
from lmrep.tasks.mixture import texts_in_proportion

BOTH_ORDERS = {"text": "text2", "text2": "text", "span": "span2", "span2": "span"}
CHARACTERS = 4  # in a token, about: estimates the examples of unlabelled text before there is a tokenizer

log = logging.getLogger(__name__)


def prepare_examples(experiment: Experiment, tokenizer: tokenizers.Config) -> Data:
    """Reads, checks and tokenizes the training examples of an experiment and those of its other splits.

    Raises:
      UserError: the task cannot use the data; the message names file and line.
    """
    task = task_of(experiment)
    limits = {"validation": experiment.evaluation.examples}
    records = {split: read_split(experiment, split, limits.get(split))
               for split in dict.fromkeys(("train", *splits(experiment)))}
    stage = experiments.resolve_stages(experiment)[0]
    if experiment.init:
        _check_labels(experiment, task, stage.objective, records["train"])
    config = task.resolve(stage.objective, records["train"])
    for split in records:
        if split == "validation":
            _check_known(experiment, task, config, records[split])
        for record in records[split]:
            task.check(config, record)
    if tokenizer.vocab_file:
        loaded = tokenizers.from_vocab_file(tokenizer)
    else:
        log.info("training the tokenizer %s on the training examples", tokenizer.name)
        loaded = tokenizers.train(tokenizer, lambda: iter(training_texts(experiment, task, config, records["train"])))
    model = experiments.build_model(experiment, loaded.size)
    records = {split: expand_unlabelled(experiment, model, loaded, unexpanded, limits.get(split))
               for split, unexpanded in records.items()}
    counts = ", ".join(f"{split} {len(expanded):,}" for split, expanded in records.items())
    log.info("%s examples: %s", experiment.objective["name"], counts)
    objective = experiment.objective | dataclasses.asdict(config)
    checkpoint = dataclasses.replace(experiment.checkpoint, best=_best(experiment, task, config))
    experiment = dataclasses.replace(experiment, objective=objective, checkpoint=checkpoint)
    if stage.format.both_orders:
        records["train"] = _both_orders(records["train"])
    examples = {split: tokenize_records(experiment, model, loaded, records[split], split) for split in records}
    if experiment.sources:
        # The proportions count examples: a source with more examples in a packed sequence gives fewer sequences.
        sequences = np.diff(examples["train"].bounds)
        counts = [len(group) for group in _by_source(experiment, records["train"])]
        weights = _weights(experiment, counts)
        examples["train"] = examples["train"].with_counts(block_counts(
            [float(weight * n / count) for weight, n, count in zip(weights, sequences, counts, strict=True)]))
    return Data(_with_steps(experiment, examples["train"]), loaded, examples, records)


def prepare_split(
    experiment: Experiment, model: Model, tokenizer: Tokenizer, split: str, files: str = "",
    examples: int | None = None, source: str = "",
) -> Data:
    """Reads, checks and tokenizes the examples that a trained run is evaluated on. The split of the result is named
    `split`, or `files` if these are given. Arguments are as for `read_split`.

    Raises:
      UserError: there is no such split, or the task cannot use the data; the message names file and line.
    """
    if not files and split not in (known := splits(experiment, source)):
        raise UserError(f"there is no split {split!r}; this run has {', '.join(known)}: give another --split, or "
                        f"--files{suggestion(split, known)}")
    records = expand_unlabelled(experiment, model, tokenizer, read_split(experiment, split, examples, source, files),
                                examples)
    task, config, name = task_of(experiment), experiments.resolve_stages(experiment)[0].objective, files or split
    for record in records:
        task.check(config, record)
    return Data(experiment, tokenizer, {name: tokenize_records(experiment, model, tokenizer, records, name)},
                {name: records})


def best_metric(experiment: Experiment) -> str:
    """Returns the validation metric that checkpoints are compared by. If neither `checkpoint.best` nor the task names
    one, the training data is read and decides.

    Raises:
      UserError: as `prepare_examples`.
    """
    task, config = task_of(experiment), experiments.resolve_stages(experiment)[0].objective
    if not (experiment.checkpoint.best or task.best or config.metrics):
        config = task.resolve(config, read_split(experiment, "train"))
    return _best(experiment, task, config)


def _best(experiment: Experiment, task: TaskDef, config: Any) -> str:
    return experiment.checkpoint.best or task.best or config.metrics[0]


def _check_labels(experiment: Experiment, task: TaskDef, config: Any, training: Sequence[Record]) -> None:
    """Refuses training data with labels that the head of `init` lacks."""
    labels = getattr(config, "labels", ())
    in_data = task.resolve(dataclasses.replace(config, labels=()), training).labels if labels else ()
    if new := [label for label in in_data if label not in labels]:
        what = (f"where these are the labels of init ({experiment.init}), a new head takes those of the data: head=new "
                "after the colon, or --config.head=new" if experiment.head == "auto" else
                "--config.objective.labels='()' takes those of the data")
        raise UserError(f"{experiment.data.train} has the labels {', '.join(new[:20])}, and config.objective.labels is "
                        f"{', '.join(labels[:20])}; {what}")


def _check_known(experiment: Experiment, task: TaskDef, config: Any, records: Sequence[Record]) -> None:
    """Refuses validation data that shares no class or tag with the training data: all checkpoints would be equally
    bad."""
    if not (labels := getattr(config, "labels", ())):
        return
    target = task.reads.targets[0]
    values = [record.fields[target] for record in records if target in record.fields]
    present = {label for value in values for label in ([value] if isinstance(value, str) else value)}
    if present and present.isdisjoint(labels):
        raise UserError(f"{files(experiment, 'validation')} has the labels {listed(sorted(present))}, and "
                        f"the training data {listed(labels)}, none of which is the same; check config.data.columns and "
                        "config.data.label_map")


def _both_orders(records: Sequence[Record]) -> list[Record]:
    """Returns the records, each pair of texts followed by the same pair in the other order."""
    doubled = []
    for record in records:
        doubled.append(record)
        if "text2" in record.fields:
            swapped = {BOTH_ORDERS.get(name, name): value for name, value in record.fields.items()}
            doubled.append(record._replace(fields=swapped))
    if len(doubled) == len(records):
        raise UserError(f"config.format.both_orders is True, and {records[0].where} has no second text; set it to "
                        "False")
    return doubled


def expand_unlabelled(
    experiment: Experiment, model: Model, tokenizer: Tokenizer, records: Sequence[Record], examples: int | None = None
) -> list[Record]:
    """Replaces the records of unlabelled sources by examples with targets made from their texts
    (`Templates.unlabelled`), and keeps all other records. Keeps at most `examples` of such a source, at equal
    distances; 0 or None: all.

    Raises:
      UserError: the tokenizer or the texts do not allow it.
    """
    expanded, templates = [], TASKS[experiment.objective["name"]].templates
    for _, config, encoder, group in _sources(experiment, model, tokenizer, records):
        make = templates.unlabelled(config)
        expanded += labelled_data.spread(make(group, encoder), examples) if make else group
    return expanded


def tokenize_records(
    experiment: Experiment, model: Model, tokenizer: Tokenizer, records: Sequence[Record], name: str
) -> Examples:
    """Tokenizes records to examples; to `MixedExamples` for a mixture. `name` is the split; other names are for logs.

    Raises:
      UserError: a text is too long, or not Unicode; a record has an unknown source.
    """
    names, parts, task_name = [], [], experiment.objective["name"]
    task = contracts.checked_task(task_name, TASKS[task_name])
    for source, config, encoder, group in _sources(experiment, model, tokenizer, records):
        names.append(source)
        parts.append(encode(task, task_name, config, encoder, group, f"{name} of {source}" if source else name,
                            name == "train"))
    return mix(names, parts) if experiment.sources else parts[0]


def _sources(
    experiment: Experiment, model: Model, tokenizer: Tokenizer, records: Sequence[Record]
) -> Iterator[tuple[str, Any, TextEncoder, list[Record]]]:
    """Yields (source, the task's config for it, the encoder of its texts, its records) of each source."""
    stage, task = experiments.resolve_stages(experiment)[0], TASKS[experiment.objective["name"]]
    for source, group in itertools.groupby(records, key=lambda record: record.source):
        config = config_of(experiment, source)
        yield source, config, text_encoder(task, config, stage.format, stage.length, model, tokenizer), [*group]


def _with_steps(experiment: Experiment, train: Examples) -> Experiment:
    """Returns the experiment with its number of steps, and with intervals of 0, an epoch, converted to steps."""
    epoch = train.steps_per_epoch(experiment.batch_size)
    epochs = experiment.epochs or (0.0 if experiment.steps else small_networks.epochs(epoch))
    steps = experiment.steps or max(1, round(epochs * epoch))
    evaluation = dataclasses.replace(experiment.evaluation, every=experiment.evaluation.every or min(epoch, steps))
    # Only a checkpoint at a validation can be the best one.
    checkpoint = dataclasses.replace(experiment.checkpoint, every=experiment.checkpoint.every or evaluation.every)
    return dataclasses.replace(experiment, steps=steps, epochs=epochs, evaluation=evaluation, checkpoint=checkpoint)


def training_texts(experiment: Experiment, task: TaskDef, config: Any, records: Sequence[Record]) -> list[str]:
    """Returns the texts that a tokenizer is trained on; of a mixture, in the proportions of its sources."""
    by_source = _by_source(experiment, records)
    groups = [[text for record in group for text in task.texts(config, record)] for group in by_source]
    if not experiment.sources:
        return groups[0]
    unlabelled = task.templates.unlabelled
    counts = [sum(map(len, texts)) // (CHARACTERS * experiment.length) + 1 if unlabelled(source.objective) else
              len(group)
              for source, group, texts in zip(experiment.data_sets(), by_source, groups, strict=True)]
    return texts_in_proportion(groups, _weights(experiment, counts))


def _by_source(experiment: Experiment, records: Sequence[Record]) -> list[list[Record]]:
    return [[record for record in records if record.source == source.name] for source in experiment.data_sets()]


def _weights(experiment: Experiment, counts: Sequence[int]) -> list[float]:
    """Returns the mixing weights of sources with these numbers of examples, not normalized."""
    return mixing_weights([source.weight for source in experiment.data_sets()], counts, experiment.temperature,
                          experiment.size_cap)
