"""The published recipe that is closest to a run, and the fields in which the run differs from it. The recipes of
pretraining are the configs of the package's pages."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from lmrep.analysis.report.run_data import RunData
from lmrep.config import loading
from lmrep.config.record import flatten_config
from lmrep.data import corpora
from lmrep.experiment import checks, fine_tuning, page_files, resolve
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, StagePlan, model_config
from lmrep.experiment.fields import list_fields
from lmrep.experiment.pretraining import Paper
from lmrep.models import PRESETS
from lmrep.optimizers import warmup_steps
from lmrep.tasks.known import KNOWN

WARMUP = "warm-up steps"


class Recipe(NamedTuple):
    """A page that reproduces a paper, at one of its sizes."""

    page: str  # its name, "bert.py"
    module: ModuleType  # the page
    objective: str  # that it trains with
    size: str  # as its argument names it
    paper: Paper  # that it reproduces at this size


@cache
def recipes() -> Mapping[str, Recipe]:
    """{preset: recipe} of the pages of the package that have `PAPERS`, in the order of the presets."""
    by_preset = {}
    for name, file in page_files.installed().items():
        module = loading.load_module(file)
        if papers := getattr(module, "PAPERS", ()):
            objective = module.get_config().objective.name
            by_preset |= {
                preset: Recipe(name, module, objective, size, next(p for p in papers if size in (p.sizes or (size,))))
                for size, preset in module.SIZES.items()}
    return {preset: by_preset[preset] for preset in PRESETS if preset in by_preset}


@dataclass(frozen=True)
class Comparison:
    """A run compared with the closest published recipe."""

    preset: str  # its network's name in PRESETS; "" for fine-tuning
    page: str  # the page with the recipe; "" for fine-tuning
    paper: str  # authors and year; for fine-tuning the name of the recipe
    differing: Sequence[tuple[str, Any, Any, str]]  # (field, the run's value, the paper's, help text of the field)
    same: Sequence[str]  # names of the fields that agree


def compare(run: RunData) -> Comparison | None:
    """Compares a run with the recipe of the closest network; None where no preset is of its type of network. A
    fine-tuned run is compared with the closest recipe of fine-tuning; one of a task from scratch with none."""
    if run.results is not None:
        return _compare_fine_tuning(run) if run.experiment.init else None
    experiment, stage = run.experiment, run.stages[0]
    size = run.network.tokenizer.size if run.network else experiment.tokenizer.vocab_size
    network = model_config(experiment, size)
    names = closest(network, stage.objective_name, experiment.tokenizer.lowercase)
    if not names:
        return None
    ours = {"data.corpus": corpus(experiment)} | settings(experiment, size)
    # The config of a converted checkpoint describes its network alone.
    compared = [field for field in ours if not run.source or field.startswith("model.")]

    def differing(name: str) -> list[str]:
        theirs = published(name)
        return [field for field in compared if field in theirs and not _same(ours[field], theirs[field])]

    name = min(names, key=lambda name: len(differing(name)))
    theirs, meaning, fields = published(name), meanings(experiment), differing(name)
    recipe = recipes()[name]
    return Comparison(
        name, recipe.page, recipe.paper.authors,
        [(field, ours[field], theirs[field], meaning.get(field, "")) for field in fields],
        [field for field in compared if field in theirs and field not in fields])


def _compare_fine_tuning(run: RunData) -> Comparison:
    experiment, meaning = run.experiment, meanings(run.experiment)
    train = run.results.splits.get("train", {})
    sequences, shown = train.get("sequences"), train.get("sequences_per_step", experiment.batch_size)
    ours = flatten_config(checks.completed(experiment)) | {"epochs": sequences and experiment.steps * shown / sequences}

    def same(field: str, value: Any) -> bool:
        if field == "epochs":  # which full steps cannot give exactly
            return ours[field] is None or abs(ours[field] - value) <= shown / sequences
        return _same(ours[field], value)

    settings = {name: _fine_tuning_recipe(name, run.stage.objective_name, experiment.name)
                for name in fine_tuning.RECIPES}
    found = {name: [field for field, value in recipe.items() if field in ours and not same(field, value)]
             for name, recipe in settings.items()}
    name = min(found, key=lambda name: len(found[name]))
    return Comparison(
        "", "", name, [(field, ours[field], settings[name][field], meaning.get(field, "")) for field in found[name]],
        [field for field in settings[name] if field in ours and field not in found[name]])


@cache
def _fine_tuning_recipe(name: str, task: str, known: str) -> Mapping[str, Any]:
    """The settings of a fine-tuning recipe, for the fields that any such recipe sets."""
    known = known if known in KNOWN and KNOWN[known].task == task else ""
    fields = {field for recipe in fine_tuning.RECIPES.values() for each in recipe.values() for field in each}
    config = fine_tuning.compose_task(f"recipe={name},mesh=1x1x1", task, known)
    config = flatten_config(resolve.apply_overrides(config, ()).to_dict())
    return {field: value for field, value in config.items()
            if any(field == path or field.startswith(f"{path}.") for path in fields)
            and field != ("epochs" if config["steps"] else "steps") and not (field == "length" and not known)}


def settings(experiment: Experiment, vocab_size: int) -> dict[str, Any]:
    """The hyperparameters that recipes are compared by, {dotted path: value}; the warm-up is in steps."""
    stages = experiments.resolve_stages(experiment)
    stage, tokenizer = stages[0], experiment.tokenizer
    found = flatten_config({
        "model": asdict(model_config(experiment, vocab_size)),
        "objective": {"name": stage.objective_name, **asdict(stage.objective)},
        "optimizer": asdict(stage.optimizer),
        "format": {"name": stage.format_name, **asdict(stage.format)},
        "tokenizer": {"name": tokenizer.name, "lowercase": tokenizer.lowercase},
    }) | {"steps": experiment.steps, "batch_size": stage.batch_size, "length": lengths(stages),
          WARMUP: warmup_steps(stage.optimizer.schedule, experiments.schedule_steps(stages, 0))}
    return {field: value for field, value in found.items()
            if field not in ("optimizer.schedule.warmup", "optimizer.schedule.warmup_fraction")}


@cache
def published(name: str) -> Mapping[str, Any]:
    """The settings of a preset's recipe, without what its paper leaves open."""
    recipe = recipes()[name]
    config = recipe.module.get_config(f"size={recipe.size},data=files")
    config.data.files = "*.txt"
    experiment = experiments.parse(config)
    values = {**settings(experiment, experiment.tokenizer.vocab_size), "data.corpus": recipe.paper.corpus,
              **recipe.paper.published}

    def is_open(field: str) -> bool:
        path = "optimizer.schedule.warmup" if field == WARMUP else field
        return any(path == name or path.startswith(f"{name}.") for name in recipe.paper.unpublished)

    return {field: value for field, value in values.items() if not is_open(field)}


def closest(network: Any, objective: str, lowercase: bool = True) -> list[str]:
    """The presets of the same type of network, objective and case that differ least: first in options, then in size."""
    def distance(name: str) -> tuple[int, bool, float]:
        pairs = [(getattr(network, field.name), getattr(PRESETS[name].config, field.name)) for field in fields(network)]
        options = sum(bool(a) != bool(b) if type(a) is int else a != b for a, b in pairs if not isinstance(a, float))
        sizes = [abs(math.log(a / b)) for a, b in pairs if type(a) is int and type(b) is int and min(a, b) > 0]
        return (options + (objective != recipes()[name].objective), lowercase != PRESETS[name].lowercase, sum(sizes))

    names = [name for name in recipes() if type(PRESETS[name].config) is type(network)]
    least = min(map(distance, names), default=None)
    return [name for name in names if distance(name) == least]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=1e-9)
    return a == b


def corpus(experiment: Experiment) -> str:
    """A description of the corpus, or of the corpora of a mixture."""
    def describe(data: corpora.Config) -> str:
        return corpora.CORPORA[data.corpus].describe(data)

    return " and ".join(describe(one.data) + f" (weight {one.weight:g})" * bool(experiment.sources)
                        for one in experiment.data_sets())


def lengths(stages: Sequence[StagePlan]) -> str:
    """Tokens per sequence, over the stages."""
    if len({stage.length for stage in stages}) == 1:
        return str(stages[0].length)
    total = sum(stage.steps for stage in stages)
    return ", then ".join(f"{stage.length} for {stage.steps / total:.0%}" for stage in stages)


def meanings(experiment: Experiment) -> Mapping[str, str]:
    """{dotted path of a field: its help text}."""
    found = {field.path: field.bounds.help for field in list_fields(asdict(experiment))}
    return found | {"format.name": "how documents become sequences", "objective.name": "what is predicted",
                    "warm-up steps": "updates during which the learning rate rises"}
