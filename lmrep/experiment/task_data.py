"""Reads, checks and tokenizes the labelled examples of a task: one data set, or a mixture of several."""

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.files import digest
from lmrep.data import records as labelled_data
from lmrep.data import tokenizers
from lmrep.data.mixture import block_counts, mixing_weights
from lmrep.data.records import Record
from lmrep.data.records.encoding import InputLayout, input_layout
from lmrep.data.records.examples import Examples, arrange, mix, sizes
from lmrep.data.records.values import listed
from lmrep.data.tokenizers import Tokenizer
from lmrep.experiment import config as experiments
from lmrep.experiment import contracts, small_networks
from lmrep.experiment.config import Experiment, StagePlan
from lmrep.experiment.record import Data
from lmrep.models.base import Model
from lmrep.tasks import TASKS, word_features
from lmrep.tasks.base import TaskDef, TextEncoder, resolve_long
from lmrep.tasks.known import KNOWN
from lmrep.tasks.mixture import config_of_source, mixed

BOTH_ORDERS = {"text": "text2", "text2": "text", "span": "span2", "span2": "span"}
TFDS = "tfds:"  # begins the name of a TFDS data set and split, given in place of files
STATISTICS = "data.json"  # of a workdir: `inspection.label_statistics`
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
    expanded: list[Record] = []
    for _, stage, group in _sources(experiment, records):
        make = TASKS[stage.objective_name].templates.unlabelled(stage.objective)
        expanded += labelled_data.spread(make(group, _encoder(stage, model, tokenizer)), examples) if make else group
    return expanded


def tokenize_records(
    experiment: Experiment, model: Model, tokenizer: Tokenizer, records: Sequence[Record], name: str
) -> Examples:
    """Tokenizes records to examples; to `MixedExamples` for a mixture. `name` is the split; other names are for logs.

    Raises:
      UserError: a text is too long, or not Unicode; a record has an unknown source.
    """
    names, parts = [], []
    for source, stage, group in _sources(experiment, records):
        names.append(source)
        parts.append(_tokenize_source(stage, model, tokenizer, group, f"{name} of {source}" if source else name,
                                name == "train"))
    return mix(names, parts) if experiment.sources else parts[0]


def _sources(experiment: Experiment, records: Sequence[Record]) -> Iterator[tuple[str, StagePlan, list[Record]]]:
    """Yields (source, the stage with the task's config for it, its records) of each source."""
    stage = experiments.resolve_stages(experiment)[0]
    for source, group in itertools.groupby(records, key=lambda record: record.source):
        yield source, dataclasses.replace(stage, objective=config_of(experiment, source)), [*group]


def _tokenize_source(
    stage: StagePlan, model: Model, tokenizer: Tokenizer, records: Sequence[Record], name: str, training: bool
) -> Examples:
    """Tokenizes the records of one source, whose config is in `stage`. Only training examples get batches of at most
    `batch_tokens`, and only they are packed if the task generates texts."""
    task, config = contracts.checked_task(stage.objective_name, TASKS[stage.objective_name]), stage.objective
    encoder = _encoder(stage, model, tokenizer)
    layout, form = encoder.layout, encoder.format
    units, long = task.encode(config, records, encoder)
    if long:
        level, done = ((logging.WARNING, "truncated") if form.long == "truncate" else
                       (logging.INFO, "split into windows"))
        log.log(level, "%s: %s of %s examples are longer than %s tokens and were %s", name, f"{long:,}",
                f"{len(records):,}", stage.length, done)
    if task.reads.grouped and form.packed:
        raise UserError("config.format.packed is True, and this task reads several texts of an example together; set "
                        "it to False")
    if form.packed and sizes(units).max() > stage.length:
        raise UserError(f"an example has {sizes(units).max():,} tokens, and packed sequences {stage.length:,} "
                        "(config.length); raise it")
    changed = {name: value for name, value in _changed(form).items() if (name, value) != ("long", "refuse")}
    content = digest([tokenizer.fingerprint, stage.objective_name, _changed(config), changed, stage.length, layout,
                      labelled_data.fingerprint(records)])
    # Outside training, texts are generated, which takes one source text a sequence.
    packed = form.packed and (units.source is None or training)
    group = len(units.example) // len(records) if task.reads.grouped else 0
    return arrange(units, tokenizer.vocabulary, layout.pad, content, stage.length if packed else 0, group,
                   form.batch_tokens if training else 0)


def _encoder(stage: StagePlan, model: Model, tokenizer: Tokenizer) -> TextEncoder:
    task, config = TASKS[stage.objective_name], stage.objective
    context = task.objective.conditions_on(config)
    layout = layout_of(model, tokenizer, context, getattr(config, "end_of_text", True))
    if getattr(config, "start_of_text", False) and context == "left":
        layout = layout._replace(lead=layout.lead or layout_of(model, tokenizer, context).tail)
    return TextEncoder(tokenizer, layout, stage.length, resolve_long(stage.format, task.reads.fields),
                       {} if word_features.fields(config) else None)


def layout_of(model: Model, tokenizer: Tokenizer, context: str, end_of_text: bool = True) -> InputLayout:
    """Returns the special tokens that a network and its tokenizer put around texts and pairs of texts."""
    one_separator = "token_type_ids" in model.inputs or tokenizer.one_separator
    return input_layout(tokenizer.vocabulary, context, one_separator, end_of_text,
                        cls_last=model.head_style.pooling == "last")


def _changed(config: Any) -> dict[str, Any]:
    """Returns the fields that differ from their defaults, so that adding a field does not change fingerprints."""
    defaults = dataclasses.asdict(type(config)())
    return {name: value for name, value in dataclasses.asdict(config).items() if value != defaults[name]}


def _with_steps(experiment: Experiment, train: Examples) -> Experiment:
    """Returns the experiment with its number of steps, and with intervals of 0, an epoch, converted to steps."""
    epoch = train.steps_per_epoch(experiment.batch_size)
    epochs = experiment.epochs or small_networks.epochs(epoch)
    steps = experiment.steps or max(1, round(epochs * epoch))
    evaluation = dataclasses.replace(experiment.evaluation, every=experiment.evaluation.every or min(epoch, steps))
    # Only a checkpoint at a validation can be the best one.
    checkpoint = dataclasses.replace(experiment.checkpoint, every=experiment.checkpoint.every or evaluation.every)
    return dataclasses.replace(experiment, steps=steps, epochs=epochs, evaluation=evaluation, checkpoint=checkpoint)


# Data sets and their mixtures


def task_of(experiment: Experiment) -> TaskDef:
    """Returns the experiment's task; for a mixture, a task that uses the config of each record's source."""
    name = experiment.objective["name"]
    task = contracts.checked_task(name, TASKS[name])
    return mixed(task, _configs(experiment)) if experiment.sources else task


def config_of(experiment: Experiment, source: str = "") -> Any:
    """Returns the task's config for the records of a source; "" for the shared one. Raises UserError for an unknown
    source."""
    if source and not experiment.sources:
        raise UserError(f"the source {source!r} is given, and the run has a single data set; leave it out")
    return config_of_source(_configs(experiment), source, experiments.resolve_stages(experiment)[0].objective)


def _configs(experiment: Experiment) -> dict[str, Any]:
    return {data_set.name: data_set.objective for data_set in experiment.data_sets()}


def data_of(experiment: Experiment, source: str = "") -> dict[str, labelled_data.Config]:
    """Returns {source: its data config} of one source, or of all for ""; {"": config} without a mixture. Raises
    UserError for an unknown source."""
    if source:
        config_of(experiment, source)  # refuses an unknown one
    return {data_set.name: data_set.data for data_set in experiment.data_sets() if source in ("", data_set.name)}


def splits(experiment: Experiment, source: str = "") -> tuple[str, ...]:
    """Returns the splits that the data set, the source, or any of the sources, has."""
    configs = data_of(experiment, source).values()
    return tuple(split for split in labelled_data.SPLITS
                 if any(labelled_data.files_of(config, split) for config in configs))


def files(experiment: Experiment, split: str) -> str:
    """Lists the files of a split, for people."""
    return ", ".join(filter(None, (labelled_data.files_of(data, split) for data in data_of(experiment).values())))


def read_split(
    experiment: Experiment, split: str, examples: int | None = 0, source: str = "", files: str = ""
) -> list[Record]:
    """Reads the records of a split, source after source. `expand_unlabelled` adds the targets of unlabelled sources.

    Args:
      split: "train", "validation" or "test"; sources that lack a split other than "train" are skipped.
      examples: the most records of each source, taken at equal distances; 0 or None: all.
      source: the only source to read; "" for all.
      files: other files of the same form to read in place of the split: a path or glob, several between commas, or a
        split of a TFDS data set, as tfds:glue/ax:test; "" for none. They may lack targets.

    Raises:
      UserError: as `labelled_data.read`, there is no training data, or files are given without a mixture's source.
    """
    records, task, data_sets = [], task_of(experiment), data_of(experiment, source)
    if files and len(data_sets) > 1:
        raise UserError(f"--files is {files!r}, and the run was trained on {', '.join(data_sets)}; give the one that "
                        "the files are like: --source=NAME")
    for i, (name, data) in enumerate(data_sets.items()):
        if files:
            data, split = other_files(data, files, experiment.name), "test"
        if not labelled_data.files_of(data, split):
            if split == "train":
                where = f"sources.{i}.data" if name else "data"
                raise UserError(f"{where}.train is empty; give the training examples: --config.{where}.train=train.tsv")
            continue
        config = config_of(experiment, name)
        # Unlabelled texts are read in full, since `expand_unlabelled` needs them.
        read = labelled_data.spread(labelled_data.read(data, split, task.needed(config)),
                                    0 if task.templates.unlabelled(config) else examples)
        records += [task.templates.convert(config, record._replace(source=name)) for record in read]
    return records


def other_files(data: labelled_data.Config, files: str, name: str = "") -> labelled_data.Config:
    """Returns the config of other files, as the test split of `data`. They have the columns of the run's files, or of
    its test file if they are named like it; a TFDS set of a known task, `name`, has the columns of that set."""
    if files.startswith(TFDS):
        dataset, split = tfds_split(files)
        form = (KNOWN[name].tfds if name in KNOWN else None) or {}
        fields = {field: form[field] for field in ("columns", "label_map") if field in form}
        return dataclasses.replace(data, tfds=dataset, format="auto", test=split, test_columns={}, **fields)
    known = data if not data.tfds else dataclasses.replace(data, tfds="", columns={}, format="auto")
    columns = known.test_columns if known.test_columns and Path(files).name == Path(known.test).name else {}
    return dataclasses.replace(known, test=files, test_columns=columns)


def tfds_split(files: str) -> tuple[str, str]:
    """Returns the data set and the split of tfds:DATA_SET:SPLIT. Raises UserError for another form."""
    dataset, _, split = files.removeprefix(TFDS).rpartition(":")
    if not dataset or not split:
        raise UserError(f"--files is {files!r}; expected a TFDS data set and a split of it, such as tfds:glue/ax:test")
    return dataset, split


def training_texts(experiment: Experiment, task: TaskDef, config: Any, records: Sequence[Record]) -> list[str]:
    """Returns the texts that a tokenizer is trained on. Of a mixture, sources that exceed their proportion of all
    characters give only that part of their texts, at equal distances."""
    by_source = _by_source(experiment, records)
    groups = [[*_texts(task, config, group)] for group in by_source]
    if not experiment.sources:
        return groups[0]
    characters = [sum(map(len, texts)) for texts in groups]
    unlabelled = task.templates.unlabelled
    counts = [size // (CHARACTERS * experiment.length) + 1 if unlabelled(source.objective) else len(group)
              for source, group, size in zip(experiment.data_sets(), by_source, characters, strict=True)]
    weights = np.array(_weights(experiment, counts))
    budgets = weights / weights.sum() * sum(characters)
    return [text for texts, budget, size in zip(groups, budgets, characters, strict=True)
            for text in labelled_data.spread(texts, max(1, round(min(1.0, budget / max(1, size)) * len(texts))))]


def _texts(task: TaskDef, config: Any, records: Sequence[Record]):
    reads = task.reads
    names = reads.texts or reads.inputs + tuple(name for name in reads.targets if name in labelled_data.TEXTS)
    for record in records:
        if task.templates.texts:
            yield from task.templates.texts(config, record)
            continue
        for name in names:
            value = record.fields.get(name, ())
            yield from [value] if isinstance(value, str) else [" ".join(map(str, value))] if value else []


def _by_source(experiment: Experiment, records: Sequence[Record]) -> list[list[Record]]:
    return [[record for record in records if record.source == source.name] for source in experiment.data_sets()]


def _weights(experiment: Experiment, counts: Sequence[int]) -> list[float]:
    """Returns the mixing weights of sources with these numbers of examples, not normalized."""
    return mixing_weights([source.weight for source in experiment.data_sets()], counts, experiment.temperature,
                          experiment.size_cap)
