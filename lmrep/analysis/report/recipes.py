"""Compares a run with the closest published recipe. Recipes of pretraining are the configs of the package's pages."""

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
from lmrep.experiment.config import Experiment, ResolvedStage, model_config
from lmrep.experiment.fields import list_fields
from lmrep.experiment.pretraining import Paper
from lmrep.models import PRESETS
from lmrep.optimizers import warmup_steps
from lmrep.tasks.known import KNOWN

WARMUP = "warm-up steps"


class Recipe(NamedTuple):
    """A page that reproduces a paper, at one of its sizes."""

    page: str  # file name of the page, "bert.py"
    module: ModuleType  # the page
    objective: str  # name of the objective
    size: str  # the value of the page's argument `size`
    paper: Paper  # the paper that is reproduced at this size


@cache
def recipes() -> Mapping[str, Recipe]:
    """Returns {preset: recipe} of the package's pages that have `PAPERS`, in the order of the presets."""
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
    """Compares a pretraining run with the recipe of the closest network, or a fine-tuned run with the closest recipe of
    fine-tuning. Returns None if no preset has this type of network, and for a task trained from scratch."""
    if run.results is not None:
        return _compare_fine_tuning(run) if run.experiment.init else None
    experiment, stage = run.experiment, run.stages[0]
    size = run.network.tokenizer.size if run.network else experiment.tokenizer.vocab_size
    network = model_config(experiment.model, size)
    names = closest(network, stage.objective_name, experiment.tokenizer.lowercase)
    if not names:
        return None
    values = {"data.corpus": corpus(experiment)} | settings(experiment, size)
    # The config of a converted checkpoint describes its network alone.
    compared = [field for field in values if not run.source or field.startswith("model.")]

    def differing(name: str) -> list[str]:
        recipe = published(name)
        return [field for field in compared if field in recipe and not _same(values[field], recipe[field])]

    name = min(names, key=lambda name: len(differing(name)))
    recipe, meaning, fields = published(name), meanings(experiment), differing(name)
    return Comparison(
        name, recipes()[name].page, recipes()[name].paper.authors,
        [(field, values[field], recipe[field], meaning.get(field, "")) for field in fields],
        [field for field in compared if field in recipe and field not in fields])


def _compare_fine_tuning(run: RunData) -> Comparison:
    experiment, meaning = run.experiment, meanings(run.experiment)
    train = run.results.splits.get("train", {})
    sequences, per_step = train.get("sequences"), train.get("sequences_per_step", experiment.batch_size)
    values = flatten_config(checks.completed(experiment)) | {
        "epochs": sequences and experiment.steps * per_step / sequences}

    def same(field: str, value: Any) -> bool:
        if field == "epochs":  # full steps do not give a whole number of epochs
            return values[field] is None or abs(values[field] - value) <= per_step / sequences
        return _same(values[field], value)

    settings = {name: _fine_tuning_recipe(name, run.stage.objective_name, experiment.name)
                for name in fine_tuning.recipes()}
    differing = {name: [field for field, value in recipe.items() if field in values and not same(field, value)]
                 for name, recipe in settings.items()}
    name = min(differing, key=lambda name: len(differing[name]))
    recipe, fields = settings[name], differing[name]
    return Comparison(
        "", "", name, [(field, values[field], recipe[field], meaning.get(field, "")) for field in fields],
        [field for field in recipe if field in values and field not in fields])


@cache
def _fine_tuning_recipe(name: str, task: str, known: str) -> Mapping[str, Any]:
    """Returns the settings of a fine-tuning recipe, for the fields that any such recipe sets."""
    known = known if known in KNOWN and KNOWN[known].task == task else ""
    fields = {field for recipe in fine_tuning.recipes().values() for row in recipe.rows.values() for field in row}
    config = fine_tuning.compose_task(f"recipe={name},mesh=1x1x1", task, known)
    config = flatten_config(resolve.apply_overrides(config, ()).to_dict())
    return {field: value for field, value in config.items()
            if any(field == path or field.startswith(f"{path}.") for path in fields)
            and field != ("epochs" if config["steps"] else "steps") and not (field == "length" and not known)}


def settings(experiment: Experiment, vocab_size: int) -> dict[str, Any]:
    """Returns the hyperparameters that recipes are compared by, {dotted path: value}. The warm-up is in steps."""
    stages = experiments.resolve_stages(experiment)
    stage, tokenizer = stages[0], experiment.tokenizer
    values = flatten_config({
        "model": asdict(model_config(experiment.model, vocab_size)),
        "objective": {"name": stage.objective_name, **asdict(stage.objective)},
        "optimizer": asdict(stage.optimizer),
        "format": {"name": stage.format_name, **asdict(stage.format)},
        "tokenizer": {"name": tokenizer.name, "lowercase": tokenizer.lowercase},
    }) | {"steps": experiment.steps, "batch_size": stage.batch_size, "length": lengths(stages),
          WARMUP: warmup_steps(stage.optimizer.schedule, experiments.schedule_steps(stages, 0))}
    return {field: value for field, value in values.items()
            if field not in ("optimizer.schedule.warmup", "optimizer.schedule.warmup_fraction")}


@cache
def published(name: str) -> Mapping[str, Any]:
    """Returns the settings of a preset's recipe, without the fields that its paper does not give."""
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
    """Returns the presets of this type of network that differ least: in options and objective, then case, then size."""
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
    """Describes the corpus, or the corpora of a mixture."""
    def describe(data: corpora.Config) -> str:
        return corpora.CORPORA[data.corpus].describe(data)

    return " and ".join(describe(source.data) + f" (weight {source.weight:g})" * bool(experiment.sources)
                        for source in experiment.data_sets())


def lengths(stages: Sequence[ResolvedStage]) -> str:
    """Describes the number of tokens per sequence in each stage."""
    if len({stage.length for stage in stages}) == 1:
        return str(stages[0].length)
    total = sum(stage.steps for stage in stages)
    return ", then ".join(f"{stage.length} for {stage.steps / total:.0%}" for stage in stages)


def meanings(experiment: Experiment) -> Mapping[str, str]:
    """Returns {dotted path of a field: its help text}."""
    texts = {field.path: field.bounds.help for field in list_fields(asdict(experiment))}
    return texts | {"format.name": "how documents become sequences", "objective.name": "what is predicted",
                    WARMUP: "updates during which the learning rate rises"}
