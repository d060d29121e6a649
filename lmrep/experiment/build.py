"""From a checked experiment and prepared data to what the trainer takes: model, objectives, plans and stages."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import jax
import numpy as np

from lmrep import optimizers
from lmrep.core.components import check_build, check_built, described, faults_of
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, map_paths
from lmrep.core.progress import ProgressReporter
from lmrep.core.remote_cache import local_data_dir
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import corpora, formats, in_memory, loader, tokenizers
from lmrep.data.dataset import Dataset
from lmrep.data.mixture import Mixture, Sources
from lmrep.data.records.examples import Examples
from lmrep.data.store.prepare import prepare_corpus
from lmrep.data.store.scan import Progress
from lmrep.data.store.sources import prepare_sources
from lmrep.data.store.token_store import Store
from lmrep.experiment import checks, contracts, data_sets, network_contracts, task_data
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, ResolvedStage
from lmrep.experiment.record import ALL_FORMATS, ALL_OBJECTIVES, Data
from lmrep.metrics import COMMON
from lmrep.models.base import Model
from lmrep.objectives.base import Batch, Carry, FrozenParts, Metrics, Objective
from lmrep.objectives.outputs import with_network_losses
from lmrep.storage.workdir import read_config
from lmrep.tasks import TASKS, word_features
from lmrep.tasks.base import collate
from lmrep.training.inputs import HostBatch
from lmrep.training.stages import Stage, check, locate_stage
from lmrep.training.state import FROZEN

PAIRS = 512  # whose labels are looked at before training

log = logging.getLogger(__name__)


def imbalanced_splits(data: Data) -> str:
    """Returns a warning if far more of the text is held out than the config says; otherwise ""."""
    facts = data.corpus.statistics
    return corpora.imbalanced({split: each["tokens"] for split, each in facts.items()},
                              sum(each["documents"] for each in facts.values()), data.experiment.data)


def unused_rows(rows: int, size: int) -> str:
    """Returns a warning if the model's table has far more rows than the tokenizer has ids; otherwise ""."""
    if rows < 2 * size:
        return ""
    return (f"the model's table has {rows:,} rows, and the tokenizer {size:,} ids: the rest is unused"
            "; model.vocab=0 takes the tokenizer's size")


def objective(
    stage: ResolvedStage, network: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})
) -> Objective:
    """Builds the objective of a stage, with the frozen parts that it reads."""
    definition = ALL_OBJECTIVES[stage.objective_name]
    what = described("objective", stage.objective_name, definition.config)
    with faults_of(what, definition.config):
        parts = definition.parts(stage.objective)
    check_build(what, definition.build, ("config", "model", "vocabulary", *(["frozen"] if parts else [])))
    read = {name: frozen[name] for name in parts if name in frozen}

    def make(model: Model) -> Objective:
        with faults_of(what, definition.config):
            built = definition.build(stage.objective, model, vocabulary, *([read] if read else []))
        check_built(what, built, Objective)
        check_build(what, built.prepare, ("keys", "batch"), "prepare")
        check_build(what, built.loss, ("params", "batch", "key", "carry"), "loss")
        return contracts.checked_predict(built, stage.objective_name) if stage.objective_name in TASKS else built

    return with_network_losses(make, network, stage.microbatches)


def without_frozen(built: Objective, optimizer: optimizers.OptimizerConfig) -> Objective:
    """Returns the objective with a loss that has no gradient for parameters with multiplier 0. It need not be computed
    for these, and the gradient's norm is without them."""
    if 0 not in optimizer.multipliers.values():
        return built
    fixed = {path for path, factor in optimizers.rate_factors(optimizer, built.specs).items() if not factor.any()}

    def loss(params: Tree, batch: Batch, key: Array | None, carry: Carry) -> tuple[Array, tuple[Metrics, Carry]]:
        params = map_paths(lambda path, x: jax.lax.stop_gradient(x) if path in fixed else x, params)
        return built.loss(params, batch, key, carry)

    return built._replace(loss=loss)


def with_data(experiment: Experiment, data: Mapping[str, Iterable], data_dir: Path) -> Experiment:
    """Returns an experiment that reads examples or texts given in memory, which are written to the data directory."""
    if experiment.sources:
        raise UserError("data is given, and config.sources names the files of a mixture; leave one out")
    if experiment.labelled:
        needed = data_sets.task_of(experiment).needed(data_sets.config_of(experiment))
        config = in_memory.store_records(data, experiment.data, needed, data_dir)
    else:
        config = in_memory.store_texts(data, experiment.data, data_dir)
    return dataclasses.replace(experiment, data=config)


def prepare_data(
    experiment: Experiment, data_dir: Path, progress: Progress | None = None, tokenizer: tokenizers.Config | None = None
) -> Data:
    """Reads the experiment's text or labelled examples, tokenized by its tokenizer or by `tokenizer`.

    Raises:
      UserError: they cannot be read, or the objective cannot use them.
      RunFault: token stores cannot be written.
    """
    tokenizer = tokenizer or experiment.tokenizer
    if experiment.labelled:
        return task_data.prepare_examples(experiment, tokenizer)
    if experiment.sources:
        corpus = prepare_sources(experiment.data_sets(), experiment.temperature, tokenizer, data_dir, progress,
                                 experiment.size_cap)
    else:
        corpus = prepare_corpus(experiment.data, tokenizer, data_dir, progress)
    return Data(experiment, corpus.tokenizer, corpus.stores, corpus=corpus)


def prepare_split(
    directory: Path, experiment: Experiment, model: Model, tokenizer: tokenizers.Tokenizer, split: str, data_dir: Path,
    files: str = "", examples: int | None = None, source: str = "",
) -> Data:
    """Reads what a trained run is evaluated on: a split of the data that it was trained on (of parameters of another
    training loop, of those of their config), or other files of the same form. These are a split named `files`.

    Args:
      directory: the workdir.
      experiment, model, tokenizer: those of the run.
      split: "train", "validation" or "test".
      data_dir: the directory of token stores.
      files, examples, source: as for `data_sets.read_split`; text has all its examples, and no source.

    Raises:
      UserError: the run was converted, there is no such split, its text has changed, or data cannot be read.
      RunFault: token stores cannot be written.
    """
    record = read_config(directory)
    recorded, saved = record["data"], "saved" in record
    if not files and "train" not in recorded and not saved:
        raise UserError(f"{directory} was converted, not trained, and has no corpus of its own; give other data with "
                        "--files='texts/*.txt'")
    if experiment.labelled:
        return task_data.prepare_split(experiment, model, tokenizer, split, files, examples, source)
    if source:
        raise UserError(f"source is {source!r}, and {directory} was not trained on labelled data; leave it out")
    if files:
        copy = dataclasses.replace(experiment.tokenizer, vocab_file=str(directory / "tokenizer"))
        corpus = prepare_corpus(other_corpus(experiment.data, files), copy, data_dir, log.info)
        return Data(experiment, corpus.tokenizer, {files: corpus.stores["train"]}, corpus=corpus)
    if not saved:
        checks.check_rules(directory, recorded)
    data = prepare_data(experiment, data_dir, log.info, experiments.own_tokenizer(directory, experiment))
    if split not in data.splits:
        raise UserError(f"there is no split {split!r}; this run's corpus has {', '.join(data.splits)}")
    if data.splits[split].fingerprint != recorded.get(split) and not saved:
        raise UserError(f"the files of the corpus have changed since {directory} was trained; restore them, or "
                        "evaluate other files with --files")
    return data


def other_corpus(data: corpora.Config, files: str, documents: str = "") -> corpora.Config:
    """Returns the config of a corpus of other text files, a glob: all in one split, everything else as in `data`."""
    documents = documents or (data.documents if data.corpus == "text_files" else "auto")
    return dataclasses.replace(data, corpus="text_files", files=files, documents=documents, validation=0.0, test=0.0)


class NotBuilt(Exception):
    """Token stores that do not exist, or are damaged: the line that `prepare_data` logs before it builds them."""


def existing(experiment: Experiment, data_dir: Path) -> Data:
    """Reads data that is prepared already, as `prepare_data` does, and builds nothing. Raises NotBuilt."""
    def refuse(line: str) -> None:  # called before anything is built
        raise NotBuilt(line)

    return prepare_data(experiment, data_dir, refuse)


def examples(
    data: Data, stage: ResolvedStage, split: str, data_dir: Path, frozen: FrozenParts, once: bool = False
) -> Dataset:
    """Makes the examples of a split for a stage: those of `plan`, or labelled ones with all columns of the task. Those
    of training have the seed of the run, and those `once`, for evaluation, that of evaluations."""
    if data.records:
        return add_columns(data.splits[split], stage, frozen)
    experiment = data.experiment
    return plan(stage, data.splits[split], experiment.evaluation.seed if once else experiment.seed, data_dir, once)


def plan(stage: ResolvedStage, store: Store | Sources, seed: int, data_dir: Path, once: bool = False) -> Dataset:
    """Makes the examples of one split in a stage's format; with `once`, for evaluation, each text once, whatever
    `duplicates` is."""
    if isinstance(store, Sources):
        return Mixture(tuple(plan(stage, each, seed, data_dir, once) for each in store.stores), store)
    reporter = ProgressReporter(log.info)

    def report(done: int, total: int) -> None:
        reporter.report(done, lambda _: f"planning {stage.format_name} examples: {done / total:.0%}")

    plans = local_data_dir(data_dir) / "plans"
    form = dataclasses.replace(stage.format, duplicates=1) if once else stage.format
    return formats.plan(stage.format_name, form, store, stage.length, seed, plans, report)


def epochs(stage: ResolvedStage, plan: Dataset, steps: int) -> float:
    """Passes over the text of a plan's split in `steps` of a stage, whether or not its format makes several examples of
    the same text (`duplicates`)."""
    return steps * stage.batch_size / plan.examples * getattr(stage.format, "duplicates", 1)


def comparable(lines: Sequence[dict], stages: Sequence[ResolvedStage]) -> list[dict]:
    """Selects the validation lines of metrics.jsonl that can be compared with the last one: their stages have the same
    objective, format and length as its stage."""
    def measured(stage: ResolvedStage) -> tuple:
        form = {name: value for name, value in dataclasses.asdict(stage.format).items() if name != "duplicates"}
        return stage.objective_name, stage.objective, stage.format_name, form, stage.length

    if not lines:
        return []
    reached, begin = locate_stage(stages, max(lines[-1]["step"] - 1, 0))
    while reached and measured(stages[reached - 1]) == measured(stages[reached]):
        reached -= 1
        begin -= stages[reached].steps
    return [line for line in lines if line["step"] > begin or not begin]  # a stage's last step is validated in it


def stages(data: Data, data_dir: Path, frozen: FrozenParts = MappingProxyType({})) -> list[Stage]:
    """Builds the stages of a run, with their frozen parts (`experiment.frozen.load`).

    Raises:
      UserError: the config does not fit the data, or stages do not fit each other.
    """
    resolved = experiments.resolve_stages(data.experiment)
    networks = [experiments.build_model(data.experiment, data.tokenizer.size, stage, jax.default_backend())
                for stage in resolved]
    built: list[Stage] = []
    for i, (stage, network) in enumerate(zip(resolved, networks, strict=True)):
        built.append(_stage(data, stage, experiments.schedule_steps(resolved, i), built, network, data_dir, frozen))
    check(built)
    return built


def _stage(
    data: Data, stage: ResolvedStage, schedule_steps: int, before: Sequence[Stage], network: Model, data_dir: Path,
    frozen: FrozenParts,
) -> Stage:
    """Builds one stage; `stage` is of the experiment that the data completed. It continues with the examples after
    those of the stages `before` it, if they have the same."""
    experiment, vocabulary = data.experiment, data.tokenizer.vocabulary
    metrics = COMMON | experiment.metrics(stage.objective_name)
    shapes = ALL_FORMATS[stage.format_name].shapes(
        stage.format, vocabulary.characters is not None, b=stage.batch_size, t=stage.length)
    built = without_frozen(objective(stage, network, vocabulary, frozen), stage.optimizer)
    held_out, limit, score = data.splits.get("validation"), experiment.evaluation.examples or None, None
    train = examples(data, stage, "train", data_dir, frozen)
    if held_out is not None:
        held_out = None if experiment.overfit or not (data.records or held_out.tokens) else examples(
            data, stage, "validation", data_dir, frozen, once=True)
    if data.records:
        limit, task = None, data_sets.task_of(experiment)  # of validation, as many were read
        numbers = np.array([0, *[-1] * 6])  # more than units of an example: no axis passes for another
        first = train.gather(numbers, train.batch_length(numbers))
        contracts.check_objective(
            stage.objective_name, lambda: objective(stage, network_contracts.checked_network(
                network, experiment.model["name"], experiments.model_def(experiment.model)), vocabulary, frozen),
            jax.eval_shape(lambda: first),
            task.objective.metrics, every=False)

        def score(outputs: list[dict]) -> dict[str, float]:
            collated = collate(outputs, held_out.units)
            return task.score(stage.objective, data.records["validation"], held_out.units, collated).metrics
    else:
        contracts.check_plan(stage.format_name, stage.format, stage.length, train)
        if train.examples < stage.batch_size:
            raise UserError(f"the training split makes {train.examples:,} examples of length {stage.length}, fewer "
                            f"than batch_size={stage.batch_size}; give more text, or lower batch_size or length")
        if "pair_label" in ALL_OBJECTIVES[stage.objective_name].batch_fields(stage.objective):
            check_pairs(train, stage.objective_name, stage.format_name)
    optimizer = optimizers.build(stage.optimizer, built.specs, schedule_steps)  # of parameters that were checked
    data_shards, fsdp, *_ = experiment.mesh.sizes(jax.device_count())
    multiple = data_shards * fsdp * stage.microbatches
    begin = 0 if experiment.overfit else first_batch(
        train, stage.batch_size, [(each.steps * each.batch_size, each.fingerprint) for each in before])
    read = partial(loader.batches, train, batch_size=stage.batch_size, seed=experiment.seed, multiple=multiple,
                   begin=begin)
    return Stage(
        name=stage.name, steps=stage.steps, objective=built, optimizer=optimizer,
        batches=partial(_batches, read, experiment.overfit), batch_size=stage.batch_size,
        microbatches=stage.microbatches,
        validation=held_out and (lambda indices: loader.evaluation_batches(
            held_out, batch_size=stage.batch_size, indices=indices, limit=limit)),
        schedule=optimizers.schedule(stage.optimizer, schedule_steps),
        validation_rule=optimizers.validation_rule(stage.optimizer), start=stage.start, score=score,
        init_values=frozen_values(built, frozen), metrics=metrics, batch_struct=shapes, fingerprint=train.fingerprint)


def first_batch(train: Dataset, batch_size: int, before: Iterable[tuple[int, str]]) -> int:
    """Returns the number of the first batch that a stage shows of its dataset: the first whole one after the examples
    of earlier stages with the same. `before` are these stages: (number of examples, fingerprint of their dataset)."""
    return -(-sum(shown for shown, fingerprint in before if fingerprint == train.fingerprint) // batch_size)


def check_pairs(train: Dataset, objective: str, format: str) -> None:
    """Refuses examples for an objective that predicts the label of pairs where all have the same one. Raises
    UserError."""
    sample = np.unique(np.linspace(0, train.examples - 1, PAIRS).astype(np.int64))
    labels = np.unique(train.gather(sample, train.batch_length(sample))["pair_label"])
    if len(labels) < 2:
        raise UserError(f"objective {objective!r} predicts which of two classes a pair of texts is of, and all of the "
                        f"{len(sample):,} pairs of format {format!r} that were looked at have label {labels[0]}: the "
                        "text has too few documents, or documents of one sentence; see `lmrep inspect`, set "
                        "data.documents or data.sentences to what the files are, or objective.sentence_pair=False")


def frozen_values(built: Objective, frozen: FrozenParts) -> dict[str, np.ndarray]:
    """Returns the values of an objective's frozen parameters, by path."""
    return {f"{FROZEN}/{name}/{path}": value for name in built.frozen for path, value in frozen[name].values.items()}


def add_columns(examples: Examples, stage: ResolvedStage, frozen: FrozenParts) -> Examples:
    """Adds the columns that a task computes from its frozen parts to its examples."""
    units = word_features.columns(stage.objective, examples.units, frozen)
    return examples if units is examples.units else dataclasses.replace(examples, units=units)


def _batches(
    read: Callable[..., Iterator[HostBatch]], overfit: int, indices: np.ndarray, first: int, last: int
) -> Iterator[HostBatch]:
    """Reads the batches of steps [first, last) of a stage, or repeats its first `overfit` batches."""
    if not overfit:
        return read(indices=indices, first_step=first, last_step=last)
    repeated = list(read(indices=indices, first_step=0, last_step=overfit))
    return (repeated[step % overfit] for step in range(first, last))
