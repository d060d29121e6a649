"""Reads a run's files as plain data. Unknown values are None, with the reason in `notes`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep import optimizers
from lmrep.analysis import heads, probes
from lmrep.analysis.heads import HeadsRecord
from lmrep.analysis.probes import ProbeRecord
from lmrep.analysis.report import results
from lmrep.analysis.report.attention import Attention
from lmrep.analysis.report.results import Results
from lmrep.config import json_files
from lmrep.core import params as P
from lmrep.core.errors import RunFault, UserError
from lmrep.data import tokenizers
from lmrep.data.store.prepare import Prepared
from lmrep.experiment import build, checks, frozen
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, ResolvedStage, stage_at
from lmrep.experiment.record import ALL_FORMATS
from lmrep.models.base import Model
from lmrep.objectives.base import Objective
from lmrep.planning import flops, run_cost
from lmrep.planning import table as plans
from lmrep.planning.run_cost import Cost
from lmrep.planning.table import PlanRecord
from lmrep.storage import provenance
from lmrep.storage.workdir import read_config
from lmrep.training import goodput
from lmrep.training import metrics_log as logs

OTHER_LOOP = "another training loop"  # whose parameters `lmrep.save` has written
NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # in metrics.jsonl


@dataclass(frozen=True)
class Network:
    """The network and its objectives, without parameter values."""

    tokenizer: tokenizers.Tokenizer
    model: Model
    objectives: Sequence[Objective]  # by stage
    parameters: int  # number of all trained parameters, heads included
    encoder: int  # number of the encoder's parameters
    optimizer_bytes: int  # of the optimizer state in the stage that was reached
    flops: Sequence[int]  # floating-point operations of a step of each stage; () for a task, whose batches differ
    frozen: Sequence[str] = ()  # a description of each frozen part


class Sample(NamedTuple):
    """Predictions for one prompt."""

    view: str  # the macro of templates/predictions.html.j2 that shows them
    prompt: tuple[str, str, str]  # the text before the predicted position, the symbol shown there, and the text after
    before: Any  # prediction of the untrained network; None where there is none
    now: Any  # prediction of the trained network; None where there is none
    target: str | None = None  # the token of the text, where it is known


@dataclass(frozen=True)
class Predictions:
    """Predictions and attention of one run's network."""

    step: int | None = None  # of the checkpoint; None where there is none
    samples: Sequence[Sample] = ()  # for the config's sample texts, or else sentences of the run's text
    held_out: Mapping[str, Any] = field(default_factory=dict)  # {view: predictions for validation text}
    attention: Sequence[Attention] = ()  # of some of these texts
    notes: Sequence[str] = ()  # sentences about what could not be predicted
    complete: bool = False  # whether the checkpoint has all parameters of its objective; a converted one may not


@dataclass(frozen=True)
class RunData:
    """The contents of a run's workdir."""

    directory: Path  # the workdir
    label: str  # name of the run on the page
    experiment: Experiment  # the content of config.json, checked
    stages: Sequence[ResolvedStage]  # the resolved stages of `experiment`
    train: Sequence[dict]  # the lines of metrics.jsonl of this split, by step
    validation: Sequence[dict]  # likewise
    timing: Sequence[dict]  # the lines of timing.jsonl
    starts: Sequence[dict]  # the lines of provenance.jsonl, one for each start
    step: int  # the last logged step
    network: Network | None = None  # None where the tokenizer is missing
    prepared: Prepared | None = None  # the token stores; None where they are not on this machine, and for a task
    notes: Sequence[str] = ()  # sentences about what could not be read
    # the published directory that a run was converted from, or OTHER_LOOP; "" for one that was trained here
    source: str = ""
    evaluations: Sequence[dict] = ()  # the lines of eval.jsonl
    results: Results | None = None  # on labelled examples; None for pretraining
    cost: Cost | None = None  # what is recorded in cost.jsonl; None where nothing is
    probes: Sequence[ProbeRecord] = ()  # the results of `lmrep probe`
    heads: HeadsRecord | None = None  # written by `lmrep heads`
    plan: PlanRecord | None = None  # written by `lmrep plan`
    epochs: float | None = None  # passes over the training text up to `step`; None without `prepared`
    predictions: Predictions = Predictions()  # filled by `predictions.predict`

    @property
    def stage(self) -> ResolvedStage:
        """The stage of the last step."""
        return stage_at(self.experiment, self.step)

    @property
    def tokens(self) -> int | None:
        """Tokens trained on, without padding, up to the last line that logs them."""
        return next((int(line["tokens"]) for line in reversed(self.train)
                     if math.isfinite(line.get("tokens", math.nan))), None)

    @property
    def devices(self) -> Mapping[str, Any] | None:
        """The devices of the last start: `platform`, `kind`, `count`, `processes`."""
        return self.starts[-1].get("devices") if self.starts else None

    @cached_property
    def judged(self) -> Mapping[str, Any]:
        """The validation line by which the run is judged: with labelled examples the best checkpoint's, otherwise the
        last one; {} where there is none."""
        if not self.validation:
            return {}
        if self.results is None or self.experiment.checkpoint.load != "best":
            return self.validation[-1]
        name, sign = self.experiment.checkpoint.best, 1 if experiments.best_direction(self.experiment) == "max" else -1
        known = [line for line in self.validation if line["step"] and math.isfinite(line.get(name, math.nan))]
        best = max(known, key=lambda line: sign * line[name], default=self.validation[-1])  # of equal ones the first
        return next((line for line in known if line["step"] == self.results.best_step), best)

    def last(self, split: str, name: str) -> float | None:
        """Returns the value of a metric on the "train" or the "validation" split: in `judged`, or else the latest."""
        lines = [*getattr(self, split), *([self.judged] if split == "validation" else [])]
        return next((line[name] for line in reversed(lines) if isinstance(line.get(name), int | float)), None)

    @property
    def comparable(self) -> Sequence[dict]:
        """The validation lines that measured the same as the last one."""
        return build.comparable(self.validation, self.stages)

    def flops_at(self, step: float) -> float | None:
        """Returns the floating-point operations of all steps up to `step`; None where they are not known. If the
        operations of a step are not known, scales the recorded operations by the number of steps."""
        if self.network is None or not self.network.flops:
            return self.cost.flops * step / self.cost.steps if self.cost else None
        steps = steps_done(self.stages, step)
        return sum((flops * done for flops, done in zip(self.network.flops, steps, strict=True)), 0.0)


def steps_done(stages: Sequence[ResolvedStage], step: float) -> list[float]:
    """Returns the number of steps of each stage among the first `step` ones of a run."""
    begins = accumulate((stage.steps for stage in stages), initial=0)
    return [min(max(step - begin, 0), stage.steps) for stage, begin in zip(stages, begins, strict=False)]


def read(directory: Path, label: str, data_dir: Path) -> RunData:
    """Reads the run in `directory`, with what its network and its text tell.

    Raises:
      UserError: there is no run, or its config is not of this version.
      RunFault: its config.json is damaged.
    """
    run = read_logs(directory, label)
    experiment, notes, network, prepared = run.experiment, [*run.notes], None, None
    try:
        network = _network(directory, experiment, run.step, notes)
    except (UserError, RunFault, OSError, ValueError) as error:
        notes.append(f"The tokenizer or the network could not be rebuilt: {error}")
    data = read_config(directory)["data"]
    if "train" in data and run.results is None:
        prepared = _prepared(experiment, data, data_dir, notes)
    return replace(run, network=network, prepared=prepared, notes=tuple(notes),
                   epochs=prepared and _epochs(experiment, run.stages, prepared, run.step, data_dir))


def read_logs(directory: Path, label: str) -> RunData:
    """Reads the config of the run in `directory` and what was logged, but no network and no text. Raises like
    `read`."""
    (experiment, record), notes = experiments.read_run(directory), []
    lines, starts, timing = [], [], []
    if "train" in record["data"]:  # not converted
        lines = _lines(logs.MetricsLine, directory / logs.METRICS, notes)
        starts = _lines(provenance.Start, directory / provenance.FILE, notes)
        timing = [line for line in _lines(logs.TimingLine, directory / logs.TIMING, notes)
                  if line.get("split") != goodput.GOODPUT]
    evaluations, costs = (_lines(type_, directory / name, notes) if (directory / name).exists() else []
                          for type_, name in ((logs.Step, "eval.jsonl"), (run_cost.Line, run_cost.FILE)))
    train, validation = (sorted((line for line in lines if line["split"] == split), key=lambda line: line["step"])
                         for split in ("train", "validation"))
    return RunData(
        directory, label, experiment, experiments.resolve_stages(experiment), train, validation, timing, starts,
        max((line["step"] for line in lines), default=0),
        source=OTHER_LOOP if "saved" in record else str(record.get("source", "")), evaluations=evaluations,
        results=results.read(directory, experiment, evaluations, notes) if experiment.labelled else None,
        cost=run_cost.summed(costs), probes=probes.read(directory / probes.FILE, notes),
        heads=results.intact(heads.read, directory / heads.FILE, notes),
        plan=results.intact(plans.read, directory / plans.FILE, notes), notes=tuple(notes))


def _epochs(experiment: Experiment, stages: Sequence[ResolvedStage], prepared: Prepared, step: int,
            data_dir: Path) -> float | None:
    """Computes `RunData.epochs`. Tables of examples that the run has not left in `data_dir` are made again."""
    total = 0.0
    for stage, steps in zip(stages, steps_done(stages, step), strict=True):
        if steps:
            try:
                plan = build.plan(stage, prepared.stores["train"], experiment.seed, data_dir)
            except RunFault:  # it cannot be written
                return None
            total += build.epochs(stage, plan, steps)
    return total


def _lines(type_: Any, path: Path, notes: list[str]) -> list[dict]:
    """Reads a JSON Lines file, in which NaN and infinities are strings. Damaged lines are counted in the notes."""
    try:
        lines = json_files.read_lines(type_, path)
    except UserError as error:
        notes.append(f"{error}.")
        return []
    if lines is None:
        notes.append(f"{path.name} is missing.")
        return []
    if lines.damaged:
        notes.append(f"{path.name}: {lines.note}.")
    return [{name: NUMBERS.get(value, value) if isinstance(value, str) else value for name, value in line.items()}
            for line in lines.records]


def _network(directory: Path, experiment: Experiment, step: int, notes: list[str]) -> Network:
    tokenizer = tokenizers.load(directory / "tokenizer")
    model = experiments.build_model(experiment, tokenizer.size)
    stages = experiments.resolve_stages(experiment)
    try:
        parts = frozen.load(experiment, values=False)
    except (UserError, RunFault, OSError) as error:
        notes.append(f"Frozen parts could not be read: {error}")
        parts = {}
    objectives = [build.objective(stage, model, tokenizer.vocabulary, parts) for stage in stages]
    built = [optimizers.build(stage.optimizer, objective.specs, experiments.schedule_steps(stages, i))
             for i, (stage, objective) in enumerate(zip(stages, objectives, strict=True))]
    batches = [ALL_FORMATS[stage.format_name].shapes(
        stage.format, bool(tokenizer.characters), b=stage.batch_size, t=stage.length) for stage in stages]
    reached = stages.index(stage_at(experiment, step))
    specs = objectives[reached].specs
    state = jax.eval_shape(built[reached].init, P.abstract(specs))
    return Network(
        tokenizer, model, objectives, P.count(specs), P.count(model.specs),
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)),
        [flops.of_train_step(objective, optimizer, batch, stage.microbatches)
         for stage, objective, optimizer, batch in zip(stages, objectives, built, batches, strict=True) if batch],
        frozen.describe(parts))


def _prepared(experiment: Experiment, recorded: Mapping[str, Any], data_dir: Path, notes: list[str]) -> Prepared | None:
    """Opens the token stores that the run was trained on; None, with a note, where they do not exist or differ."""
    try:
        checks.check_rules(Path("the run"), recorded)
        prepared = build.existing(experiment, data_dir).corpus
    except build.NotBuilt:
        notes.append(f"The tokenized corpus is not in {data_dir}; its statistics and predictions for validation text "
                     "are left out. Give --data_dir.")
    except (UserError, RunFault, OSError) as error:
        notes.append(f"The corpus could not be opened; its statistics and predictions for validation text are left "
                     f"out: {error}")
    else:
        if prepared.stores["train"].fingerprint == recorded.get("train"):
            return prepared
        notes.append("The corpus has changed since this run; its statistics and predictions for validation text are "
                     "left out.")
    return None


def validated(run: RunData, name: str) -> bool:
    """Returns whether a metric was measured on validation data."""
    return any(isinstance(line.get(name), int | float) for line in run.validation)


def unigram_loss(run: RunData) -> float | None:
    """Returns `Vocabulary.unigram_loss` of the training split; None where token counts are not known."""
    return None if run.prepared is None else run.prepared.tokenizer.vocabulary.unigram_loss


# Time


def seconds(run: RunData) -> float | None:
    """Returns the time of all starts: that of cost.jsonl, up to the last checkpoint with compilation and validation, or
    else each to the last step logged before the next one; None if no time was logged."""
    if run.cost:
        return run.cost.seconds
    begins = [_epoch(start["time"]) for start in run.starts]
    times = [line["time"] for line in run.timing if "time" in line]
    total = None
    for begin, end in pairwise([*begins, math.inf]):
        if inside := [t for t in times if begin <= t < end]:
            total = (total or 0.0) + max(inside) - begin
    return total


def _epoch(text: str) -> float:
    """Returns seconds since 1970; infinity where `text` is not a time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (TypeError, ValueError):
        return math.inf


# Curves


def curves(run: RunData, max_points: int = 600) -> dict[str, dict[str, list]]:
    """Returns the data of the charts: {"train": {"step": [...], "tokens": [...], "flop": [...], metric: [...]},
    "validation": ..., "timing": ...}.

    "validation" also has `unigram_loss`, a constant. More than `max_points` lines are averaged in groups of neighbours.
    Tokens are interpolated between the lines that log them.
    """
    known = [(0, 0), *((line["step"], line["tokens"]) for line in run.train
                       if math.isfinite(line.get("tokens", math.nan)))]
    steps, tokens = zip(*known, strict=True)
    charts = {}
    for source in ("train", "validation", "timing"):
        lines = getattr(run, source)
        names = sorted({name for line in lines for name in line} - {"step", "split", "time", "tokens"})
        size = max(1, math.ceil(len(lines) / max_points))
        groups = [lines[i : i + size] for i in range(0, len(lines), size)]
        ends = [group[-1]["step"] for group in groups]
        charts[source] = {
            "step": ends,
            "tokens": [round(float(x)) for x in np.interp(ends, steps, tokens)] if len(known) > 1 else [],
            "flop": [_short(run.flops_at(step)) for step in ends] if run.flops_at(0) is not None else [],
            **{name: [_mean(group, name) for group in groups] for name in names},
        }
    if (loss := unigram_loss(run)) is not None:
        charts["validation"]["unigram_loss"] = [_short(loss)] * len(charts["validation"]["step"])
    return charts


def _mean(lines: Sequence[dict], name: str) -> float | None:
    values = [line[name] for line in lines if isinstance(line.get(name), int | float) and math.isfinite(line[name])]
    return _short(sum(values) / len(values)) if values else None


def _short(x: float) -> float:
    """Rounds to five digits, more than a chart shows."""
    return float(f"{x:.5g}")
