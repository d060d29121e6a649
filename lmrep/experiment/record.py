"""An experiment: its config as frozen records, the tables of choices, and its data."""

import dataclasses
import math
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ml_collections

from lmrep.config.record import read, setting
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path
from lmrep.core.progress import parse_duration
from lmrep.core.sharding import axis_names
from lmrep.data import corpora, records, tokenizers
from lmrep.data.formats import FORMATS
from lmrep.data.formats.base import FormatDef
from lmrep.data.mixture import DataSource, Sources
from lmrep.data.records import Record
from lmrep.data.records.examples import Examples
from lmrep.data.store.prepare import Prepared
from lmrep.data.store.token_store import Store
from lmrep.layers.stack import Execution
from lmrep.metrics import Metric
from lmrep.models import pretrained_models
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Capability, ObjectiveDef
from lmrep.optimizers import OptimizerConfig, adamw
from lmrep.tasks import TASKS
from lmrep.tasks.base import FORMAT
from lmrep.tasks.mixture import mixed
from lmrep.training.config import CheckpointConfig, CostConfig, EvaluationConfig, LogConfig
from lmrep.training.faults import FaultsConfig

AUTO = "auto"  # the recipe of a task whose numbers `small_networks` chooses
UNKNOWN_STEPS = 2**31 - 1  # of a run whose data or speed decides them, before it starts

# Fields that may change when a run is resumed, since they change its numbers by rounding at most.
RESUMABLE_FIELDS = (
    "name", "frozen.*", "steps", "mesh.*", "execution.remat", "execution.scan", "execution.attention", "checkpoint.*",
    "evaluation.every", "evaluation.patience", "log.*", "faults.*", "cost.*", "samples", "samples.*", "data.files",
    "data.damaged_records", "sources.*.name", "sources.*.data.files", "sources.*.data.damaged_records")
TASK_RESUMABLE_FIELDS = ("epochs", "recipe", "cache_features", *(
    f"{data}.{split}" for data in ("data", "sources.*.data") for split in ("train", "validation", "test")))


SOURCE_NAME = re.compile(r"[\w.+-]+")


class _TaskObjectives(Mapping):
    """The objectives of `TASKS`, looked up when read, so that tasks added later are included."""

    def __getitem__(self, name: str) -> ObjectiveDef:
        return TASKS[name].objective

    def __iter__(self) -> Iterator[str]:
        return iter(TASKS)

    def __len__(self) -> int:
        return len(TASKS)


TASK_OBJECTIVES: Mapping[str, ObjectiveDef] = _TaskObjectives()
EXAMPLES = {"examples": FORMAT}  # the format of labelled examples
ALL_OBJECTIVES: Mapping[str, ObjectiveDef] = ChainMap(TASK_OBJECTIVES, OBJECTIVES)
ALL_FORMATS: Mapping[str, FormatDef] = ChainMap(FORMATS, EXAMPLES)


@dataclass(frozen=True)
class MeshConfig:
    """The size of each axis of the device mesh (see `lmrep.core.sharding`)."""

    data: int = setting(-1, "data parallelism: copies of the model; -1: all remaining devices", at_least=-1)
    fsdp: int = setting(1, "shards of parameters and batch, gathered before use; -1: all remaining devices",
                        at_least=-1)
    tensor: int = setting(1, "shards of heads, feed-forward width and vocabulary", at_least=1)
    sequence: int = setting(1, "shards of each sequence, for long inputs; attention gathers keys and values",
                            at_least=1)

    def sizes(self, devices: int) -> tuple[int, ...]:
        """Returns the sizes of the axes (data, fsdp, tensor), and of sequence if that is above 1, on `devices` devices.
        Raises UserError if they do not fit."""
        sizes = [self.data, self.fsdp, self.tensor, *([self.sequence] if self.sequence > 1 else [])]
        rest = sizes.count(-1) == 1 and 0 not in sizes
        if rest:
            sizes[sizes.index(-1)] = devices // -math.prod(sizes)
        used = math.prod(sizes)
        if min(sizes) < 1 or used > devices or (rest and used < devices):
            axes = ", ".join(f"{name}={getattr(self, name)}" for name in axis_names(sizes))
            raise UserError(f"mesh is {axes}, and there are {devices} device(s); expected sizes whose product is the "
                            "number of devices (one may be -1: the remaining ones)")
        return tuple(sizes)


@dataclass(frozen=True)
class StageConfig:
    """A stage of training; fields that are None have the values of the experiment."""

    name: str = setting("main", "for logs")
    fraction: float = setting(1.0, "fraction of the experiment's steps; the last stage takes the rest", above=0,
                              at_most=1)
    length: int | None = setting(None, "tokens in a sequence", at_least=1)
    batch_size: int | None = setting(None, "examples in a step", at_least=1)
    microbatches: int | None = setting(None, "microbatches of a batch", at_least=1)
    format: dict[str, Any] = setting({}, "fields of the format that differ")
    objective: dict[str, Any] = setting({}, "fields of the objective that differ")
    optimizer: dict[str, Any] = setting({}, "fields of the optimizer that differ")
    start: dict[str, str] | None = setting(None, "new path -> path in the previous stage where parameters start; none: "
                                          "all continue")


@dataclass(frozen=True)
class SourceConfig:
    """A corpus of a mixture."""

    name: str = setting("", "for messages; empty: its number")
    weight: float = setting(1.0, "number of its examples, in proportion to the other sources'", above=0)
    data: dict[str, Any] = setting({}, "fields of config.data that differ")


@dataclass(frozen=True)
class TaskSourceConfig(SourceConfig):
    """A labelled data set of a mixture."""

    data: dict[str, Any] = setting({}, "fields of config.data that differ: its files, columns, label_map")
    objective: dict[str, Any] = setting({}, "fields of config.objective that differ; of text_to_text: template, "
                                        "target, round_to, metrics, positive, scheme, denoise")


@dataclass(frozen=True)
class Experiment:
    """The top level of an experiment config. Sections with a `name` are entries of a table of choices."""

    # whether it is trained on labelled examples, which decide unset fields: labels, steps, best metric
    labelled: ClassVar[bool] = False
    objectives: ClassVar[Mapping[str, ObjectiveDef]] = OBJECTIVES
    formats: ClassVar[Mapping[str, FormatDef]] = FORMATS
    resumable: ClassVar[tuple[str, ...]] = RESUMABLE_FIELDS  # fields that a resumed run may change
    evaluated_split: ClassVar[str] = "test"  # the default split of `lmrep evaluate`

    name: str = setting("experiment", "for logs")
    seed: int = setting(0, "of initial parameters, the order of examples and all random draws", at_least=0,
                        at_most=2**32 - 1)
    init: str = setting("", "a workdir or published directory whose parameters the run starts from; empty: random",
                        path=as_path)
    init_mapping: dict[str, str] = setting({}, "path of this run -> path of `init`, for parameters that start from "
                                           "others: {'encoder/layers': 'encoder/layers[0,2,4]'}; '' for random ones")
    init_vocabulary: str = setting("same", "same: the tokenizer of `init`; match: the tokenizer of this config, whose "
                                   "tokens start from their rows in `init`, and those that it lacks from the mean row",
                                   choices=("same", "match"))
    init_vectors: dict[str, str] = setting({}, "path of a table of tokens -> a text file of word vectors that it "
                                           "starts from, such as {'encoder/source_embedding/token': 'glove.txt'}; "
                                           "tokens that the file lacks start from 0", path=as_path)
    frozen: dict[str, str] = setting({}, "name -> a workdir, a published directory or a file of word vectors, whose "
                                     "parameters the objective reads and no update changes; {'teacher': 'runs/bert'}",
                                     path=as_path)
    steps: int = setting(1000, "updates", at_least=1, at_most=UNKNOWN_STEPS)
    budget: str = setting("", "the time that pretraining may take, such as 20m or 1h30m: steps, and for a network of "
                          "width 512 or less batch size, learning rate, dropout and the rate of masks, are chosen for "
                          "it when the run starts; empty: `steps`")
    batch_size: int = setting(256, "examples in a step, over all devices", at_least=1)
    microbatches: int = setting(1, "microbatches that gradients are accumulated over", at_least=1)
    length: int = setting(128, "tokens in a sequence", at_least=4)
    overfit: int = setting(0, "for debugging: train on only this many batches, without validation; the loss must fall "
                           "to nearly 0; 0: all the data", at_least=0)
    model: dict[str, Any] = setting({}, "the network")
    objective: dict[str, Any] = setting({}, "the objective")
    format: dict[str, Any] = setting({}, "how documents become training examples")
    data: corpora.Config = setting(corpora.Config(), "the corpus")
    sources: tuple[SourceConfig, ...] = setting((), "corpora that are mixed example by example; none: data alone")
    temperature: float = setting(0.0, "T: sources are weighted by weight * tokens^(1/T); 0: by their weights alone",
                                 at_least=0)
    size_cap: int = setting(0, "K: with a temperature, a source counts as if it had at most so many tokens, or, of a "
                            "task, examples (T5's artificial limit, with temperature=1); 0: no limit", at_least=0)
    tokenizer: tokenizers.Config = setting(tokenizers.Config(), "the tokenizer")
    optimizer: OptimizerConfig = setting(adamw.Config("adamw"), "the optimizer and its schedule")
    mesh: MeshConfig = setting(MeshConfig(), "the layout over devices")
    execution: Execution = setting(Execution(), "precision, rematerialization, attention")
    checkpoint: CheckpointConfig = setting(CheckpointConfig(), "saving")
    evaluation: EvaluationConfig = setting(EvaluationConfig(), "validation")
    log: LogConfig = setting(LogConfig(), "logging")
    faults: FaultsConfig = setting(FaultsConfig(), "how to handle faults in a long run")
    cost: CostConfig = setting(CostConfig(), "assumptions about energy, CO2 and price")
    stages: tuple[StageConfig, ...] = setting((), "stages, in order; none: a single one")
    samples: tuple[str, ...] = setting((), "texts that the trained model is tried on at its end")

    def data_sets(self) -> list[DataSource]:
        """Returns the data sets that are mixed, with every field resolved; without a mixture only `data`, named ""."""
        if not self.sources:
            return [DataSource("", 1.0, self.data)]
        base = dataclasses.asdict(self.data)
        return [DataSource(source.name or str(i), source.weight,
                           read(type(self.data), base | source.data, f"config.sources.{i}.data"))
                for i, source in enumerate(self.sources)]

    def check_files(self, path: str = "config") -> None:
        """Raises UserError if files of the data are missing; `path` is that of the config, for the message."""
        for data_set in self.data_sets():
            corpora.check_files(data_set.data, f"{path}.data")

    def metrics(self, objective: str) -> dict[str, Metric]:
        """Returns the metrics of an objective of the experiment, by name."""
        return dict(ALL_OBJECTIVES[objective].metrics)

    def check(self) -> None:
        """Checks the fields that only this kind of experiment, pretraining or a task, has. Raises UserError."""
        if self.model["name"] not in pretrained_models():
            raise UserError(f"config.model.name is {self.model['name']}, which is for tasks; choose another network")
        sources = self.data_sets() if self.sources else []
        for data in (self.data, *(source.data for source in sources)):
            if (held_out := data.validation + data.test) >= 1:
                raise UserError(f"data.validation + data.test is {held_out:g}; leave documents for training")
        if not self.checkpoint.best:
            raise UserError("config.checkpoint.best is empty; expected a metric of the objective, such as loss")
        if self.budget:
            parse_duration(self.budget, "config.budget")
            if len(self.stages) > 1:
                raise UserError(f"config.budget is {self.budget}, and there are {len(self.stages)} stages; it is for "
                                "runs of one stage: give steps in its place")
        for name in ("checkpoint", "evaluation"):
            if not getattr(self, name).every:
                raise UserError(f"{name}.every is 0, once an epoch, which only labelled examples have; expected at "
                                "least 1")


@dataclass(frozen=True)
class TaskExperiment(Experiment):
    """The top level of the config of a task, which is trained on labelled examples."""

    labelled: ClassVar[bool] = True
    objectives: ClassVar[Mapping[str, ObjectiveDef]] = TASK_OBJECTIVES
    formats: ClassVar[Mapping[str, FormatDef]] = EXAMPLES
    resumable: ClassVar[tuple[str, ...]] = (*RESUMABLE_FIELDS, *TASK_RESUMABLE_FIELDS)
    evaluated_split: ClassVar[str] = "validation"

    steps: int = setting(0, "updates; 0: those of `epochs`", at_least=0, at_most=UNKNOWN_STEPS)
    epochs: float = setting(3.0, "passes over the training examples, where steps is 0; 0: chosen by their number",
                            at_least=0)
    recipe: str = setting("", "the page's choice of learning rate, batch size and epochs; auto: they are chosen for "
                          "the width of the network and the number of examples")
    batch_size: int = setting(32, "examples in a step, over all devices", at_least=1)
    objective: dict[str, Any] = setting({}, "the task")
    format: dict[str, Any] = setting({}, "how examples become sequences")
    data: records.Config = setting(records.Config(), "the labelled examples")
    sources: tuple[TaskSourceConfig, ...] = setting((), "data sets that are mixed example by example, where the task "
                                                    "is text_to_text; none: data alone")
    temperature: float = setting(0.0, "T: sources are weighted by weight * examples^(1/T); 0: by their weights alone; "
                                 "T5: 1, or 2", at_least=0)
    checkpoint: CheckpointConfig = setting(CheckpointConfig(every=0, keep=1, load="best"), "saving")
    evaluation: EvaluationConfig = setting(EvaluationConfig(every=0, examples=0), "validation")
    log: LogConfig = setting(LogConfig(every=20), "logging")
    head: str = setting("auto", "where the head starts: auto: from that of `init`, if it has one for this task; new: "
                        "random", choices=("auto", "new"))
    cache_features: bool = setting(False, "write the vectors of the frozen encoder (config.frozen.features) once, for "
                                   "all epochs and later runs, and read them from there")
    unfreezing: str = setting("full", "what is trained. full: everything. last: the head. gradual (ULMFiT): the head "
                              "for an epoch, then one layer more in each epoch, from the top, and all in the rest "
                              "(with fewer epochs than stages, stages of equal length). gradual_released: the head, "
                              "the head and the last layer, all. chain_thaw: the head, then each layer by itself from "
                              "the bottom at a tenth of the rate, then all at this rate, in stages of equal length. "
                              "Each stage has a schedule and moments of its own",
                              choices=("full", "last", "gradual", "gradual_released", "chain_thaw"))
    new_layers: int = setting(0, "how many top layers start from random values, not from `init`", at_least=0)

    def data_sets(self) -> list[DataSource]:
        """Returns the data sets as `Experiment.data_sets`, each with the task's config for it as `objective`."""
        config = TASKS[self.objective["name"]].objective.config
        shared = {name: value for name, value in self.objective.items() if name != "name"}
        changes = [(source.objective, f"config.sources.{i}.objective") for i, source in enumerate(self.sources)]
        return [data_set._replace(objective=read(config, shared | fields, path)) for data_set, (fields, path) in zip(
            super().data_sets(), changes or [({}, "config.objective")], strict=True)]

    def check_files(self, path: str = "config") -> None:
        """Raises UserError as `Experiment.check_files`."""
        for data_set in self.data_sets():
            records.check_files(data_set.data, f"{path}.data")

    def metrics(self, objective: str) -> dict[str, Metric]:
        """Returns the metrics of the task, for a mixture also those of each source."""
        if not self.sources:
            return super().metrics(objective)
        return dict(mixed(TASKS[objective], {source.name: source.objective for source in self.data_sets()})
                    .objective.metrics)

    def check(self) -> None:
        """Checks the fields that only a task has. Raises UserError."""
        if len(self.stages) > 1 or self.overfit:
            name = "stages" if self.stages else "overfit"
            raise UserError(f"config.{name} is set, and a task has the stages of config.unfreezing, and no overfit; "
                            "remove it")
        self._check_sources()
        if self.budget:
            raise UserError(f"config.budget is {self.budget}, which is for pretraining; give a task epochs or steps")
        if limit := self.format.get("batch_tokens", 0):
            if limit < self.length:
                raise UserError(f"config.format.batch_tokens is {limit:,}, and one sequence may have {self.length:,} "
                                "(config.length); raise it, or lower length")
            if self.format.get("packed") or self.sources:
                raise UserError("config.format.batch_tokens is set, and "
                                + ("packed sequences have equal lengths" if self.format.get("packed") else
                                   "the sequences of a mixture stay in proportion in every batch (config.sources)")
                                + "; remove it, and set batch_size, with format.packed=True, to the tokens of a batch "
                                "over config.length")
        features = self.objective.get("features") or {}
        if self.cache_features and not features.get("layers"):
            raise UserError("config.cache_features is True, and config.model is trained, so its vectors change; give a "
                            "frozen encoder (features=runs/bert after the colon), or set it to False")

    def _check_sources(self) -> None:
        """Raises UserError if the task cannot be trained on its data set or mixture."""
        task = TASKS[self.objective["name"]]
        source_fields = task.templates.source_fields
        if self.sources and not source_fields:
            able = ", ".join(other for other, row in TASKS.items() if row.templates.source_fields)
            raise UserError(f"config.sources is set, and the task {self.objective['name']} has a head for one data "
                            f"set; tasks that data sets can be mixed for: {able}. Remove sources, or give the task's "
                            "data as config.data")
        data_sets = self.data_sets()
        names = [data_set.name for data_set in data_sets]
        for i, source in enumerate(self.sources):
            if not SOURCE_NAME.fullmatch(names[i]) or names.index(names[i]) < i:
                raise UserError(f"config.sources.{i}.name is {names[i]!r}; expected another name for each source, of "
                                "letters, digits and _.+-, for its metrics")
            if differing := sorted(source.objective.keys() - {*source_fields}):
                raise UserError(f"config.sources.{i}.objective.{differing[0]} is set, which all sources share; fields "
                                f"that may differ: {', '.join(source_fields)}. Set config.objective.{differing[0]}")
            task.objective.check(data_sets[i].objective)
        if all(task.templates.unlabelled(data_set.objective) for data_set in data_sets):
            raise UserError("no source of config.sources has targets, so that there is no task; add one, or pretrain "
                            "on this text with an objective such as span_corruption" if self.sources else
                            "the data has no targets (config.objective.denoise is True), and a task's only data set "
                            "must have them; make it one of config.sources, or pretrain on it")


@dataclass(frozen=True)
class ResolvedStage:
    """A stage with every field resolved."""

    name: str
    steps: int
    length: int
    batch_size: int
    microbatches: int
    format_name: str
    format: Any
    objective_name: str
    objective: Any
    optimizer: OptimizerConfig
    start: dict[str, str] | None


@dataclass(frozen=True)
class Data:
    """Text or labelled examples, tokenized: the result of `build.prepare_data`."""

    experiment: Experiment  # with the fields that the training data decides: labels, and steps from epochs
    tokenizer: tokenizers.Tokenizer  # loaded, or trained on the training text
    # split -> its tokens, from which a stage's format makes examples; for a task, its labelled examples
    splits: Mapping[str, Store | Sources | Examples] = field(repr=False)
    # split -> its labelled examples before tokenization; {} for text
    records: Mapping[str, list[Record]] = field(default_factory=dict, repr=False)
    corpus: Prepared | None = None  # the prepared text with its statistics; None for labelled examples


def record_of(config: Mapping[str, Any]) -> type[Experiment]:
    """Returns the class of a config's record: `TaskExperiment` if its objective is a task, otherwise `Experiment`."""
    objective = config.get("objective")
    task = isinstance(objective, Mapping | ml_collections.ConfigDict) and objective.get("name") in [*TASKS]
    return TaskExperiment if task else Experiment


def formats_for(objective: str) -> Mapping[str, FormatDef]:
    """Returns the formats that an objective may be combined with."""
    return record_of({"objective": {"name": objective}}).formats


def capability(objective: str, name: str) -> Capability:
    """Returns the capability `name` of models trained with an objective. Raises UserError if they do not have it."""
    able = {key: other for key, row in ALL_OBJECTIVES.items() for other in row.capabilities if other.name == name}
    if objective not in able:
        summary = next((other.summary for other in able.values()), "unknown")
        raise UserError(f"the run was trained with objective {objective!r}, which has no capability {name!r} "
                        f"({summary}); objectives that have it: {', '.join(able) or 'none'}")
    return able[objective]


def parse_mesh(text: str) -> dict[str, int]:
    """Parses the `mesh=` of a page to the size of each axis: "data", "fsdp", or sizes such as "2x2x2" (data x fsdp x
    tensor) and "2x1x1x4" (data x fsdp x tensor x sequence). Raises UserError for anything else."""
    named = {"data": (-1, 1, 1), "fsdp": (1, -1, 1)}
    sizes = named.get(text) or tuple(int(n) if n.isdecimal() else 0 for n in text.split("x"))
    if len(sizes) not in (3, 4) or 0 in sizes:
        raise UserError(f"mesh is {text!r}; expected data, fsdp, or sizes data x fsdp x tensor such as 2x2x2, or "
                        "data x fsdp x tensor x sequence such as 2x1x1x4")
    data, fsdp, tensor, sequence = (*sizes, 1)[:4]
    return {"data": data, "fsdp": fsdp, "tensor": tensor, "sequence": sequence}
