"""The published recipe that a run is nearest to, field by field, and the fields in which the run differs from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from lmrep.analysis.report.facts import Facts, flat
from lmrep.data import corpora
from lmrep.data.formats import FORMATS
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, StagePlan, model_config
from lmrep.experiment.recipes import PAIR_FORMATS
from lmrep.experiment.recipes import RECIPES as PUBLISHED
from lmrep.models import PRESETS
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.masked import RULES
from lmrep.training.optimizers import RECIPES
from lmrep.training.schedules import warmup_steps

# Fields of a network by which presets of one kind differ.
SIZES = ("layers", "width", "heads", "mlp", "vocab", "length", "embedding", "dropout", "attention_dropout")


@dataclass(frozen=True)
class Comparison:
    """A run beside the nearest published recipe.

    Attributes:
      preset: its network's name in PRESETS.
      paper: authors and year.
      differing: (field, the run's value, the paper's, what the field means).
      same: names of the fields that agree.
    """

    preset: str
    paper: str
    differing: Sequence[tuple[str, Any, Any, str]]
    same: Sequence[str]


def compare(facts: Facts) -> Comparison | None:
    """Compares a run with the published recipe of the nearest network; None where its architecture has none."""
    experiment, stage = facts.experiment, facts.stages[0]
    size = facts.network.tokenizer.size if facts.network else experiment.tokenizer.vocab_size
    network = experiments.model_config(experiment, size)
    if not any(isinstance(network, type(preset.config)) for preset in PRESETS.values()):
        return None
    ours = flat({
        "model": asdict(network),
        "objective": {"name": stage.objective_name, **asdict(stage.objective)},
        "optimizer": asdict(stage.optimizer),
        "format": {"name": stage.format_name, **asdict(stage.format)},
        "tokenizer": asdict(experiment.tokenizer),
    }) | {
        "data.corpus": corpus(experiment), "steps": experiment.steps, "batch_size": stage.batch_size,
        "length": lengths(facts.stages),
        "warm-up steps": warmup_steps(stage.optimizer.schedule, experiments.schedule_steps(facts.stages, 0))}

    def apart(name: str) -> list[str]:
        theirs = published(name)
        return [field for field in compared if field in theirs and not _same(ours[field], theirs[field])]

    # Of a checkpoint the config says nothing of how it was trained.
    compared = [field for field in ours if not facts.source or field.startswith("model.")]
    name = min(nearest(network, stage.objective_name, experiment.tokenizer.lowercase), key=lambda n: len(apart(n)))
    theirs, meaning, differing = published(name), meanings(experiment), apart(name)
    order = [field for field in theirs if field in compared]
    return Comparison(
        name, PUBLISHED[name].authors, [(field, ours[field], theirs[field], meaning.get(field, "")) for field in order
                        if field in differing], [field for field in order if field not in differing])


def published(name: str) -> dict[str, Any]:
    """The published recipe of a preset as a flat config, `data.corpus` for people; without what is not published."""
    recipe, preset = PUBLISHED[name], PRESETS[name]
    has_optimizer = "optimizer" not in recipe.unpublished
    tables = flat({
        "objective": {"name": recipe.objective, **asdict(OBJECTIVES[recipe.objective].config())},
        "format": {"name": recipe.format, **asdict(FORMATS[recipe.format].config())},
        "model": asdict(preset.config),
        "optimizer": asdict(RECIPES[recipe.optimizer]) if has_optimizer else {},
    }) | {f"objective.{field}": value for field, value in RULES.get(preset.family, {}).items()}
    numbers = {"steps": "steps", "batch_size": "batch_size", "learning_rate": "optimizer.learning_rate",
               "warmup": "warm-up steps"}
    stated = {
        "data.corpus": recipe.corpus, "tokenizer.name": preset.tokenizer, "tokenizer.lowercase": preset.lowercase,
        "length": _stage_lengths(recipe.lengths),
        **{path: getattr(recipe, field) for field, path in numbers.items() if field not in recipe.unpublished},
        **{path: list(value) if isinstance(value, tuple) else value for path, value in recipe.fields.items()
           if path in tables},
    }
    if recipe.sentence_pair and recipe.format in PAIR_FORMATS:
        stated["objective.sentence_pair"] = True
    # The warm-up is compared in steps, however it is configured.
    left_out = {*recipe.unpublished, "optimizer.schedule.warmup", "optimizer.schedule.warmup_fraction"}
    return {path: value for path, value in (dict.fromkeys(stated) | tables | stated).items() if path not in left_out}


def nearest(network: Any, objective: str, lowercase: bool = True) -> list[str]:
    """The presets that a network is nearest to: of those whose fields, and whose paper's objective, differ in least
    places, the ones of the nearest size."""
    def distance(name: str) -> tuple[int, float]:
        config = PRESETS[name].config
        differing = sum(getattr(network, f.name, None) != getattr(config, f.name)
                        for f in fields(config) if f.name not in SIZES)
        sizes = ((getattr(network, s, 0), getattr(config, s)) for s in ("layers", "width", "mlp", "vocab"))
        return (differing + (bool(getattr(network, "embedding", 0)) != bool(config.embedding))
                + (objective != PUBLISHED[name].objective),
                sum(abs(math.log(max(1, ours) / theirs)) for ours, theirs in sizes))

    names = [name for name, preset in PRESETS.items()
             if isinstance(network, type(preset.config)) and not (lowercase and name.endswith("_cased"))]
    least = min(map(distance, names))
    return [name for name in names if distance(name) == least]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=1e-9)
    return a == b


def corpus(experiment: Experiment) -> str:
    """The corpus, or what is mixed of several, for people."""
    def describe(data: corpora.Config) -> str:
        return corpora.CORPORA[data.corpus].describe(data)

    if mixed := experiments.sources(experiment):
        return " and ".join(f"{source.weight:g} part{'s' * (source.weight != 1)} of {describe(source.data)}"
                            for source in mixed)
    return describe(experiment.data)


def lengths(stages: Sequence[StagePlan]) -> str:
    """Tokens in a sequence, over the stages."""
    total = sum(stage.steps for stage in stages)
    return _stage_lengths([(stage.steps / total, stage.length) for stage in stages])


def _stage_lengths(stages: Sequence[tuple[float, int]]) -> str:
    """(fraction of the steps, length) of each stage, for people."""
    if len({length for _, length in stages}) == 1:
        return str(stages[0][1])
    return ", then ".join(f"{length} for {fraction:.0%}" for fraction, length in stages)


def meanings(experiment: Experiment) -> Mapping[str, str]:
    """{dotted path of a field: what it means}, as its record says."""
    parts = {"model": type(model_config(experiment)), "objective": OBJECTIVES[experiment.objective["name"]].config,
             "format": FORMATS[experiment.format["name"]].config}
    found = {}

    def walk(cls: Any, path: str) -> None:
        for field in fields(cls):
            inner = field.type if path else parts.get(field.name, field.type)
            where = f"{path}{field.name}"
            if isinstance(inner, type) and is_dataclass(inner):
                walk(inner, where + ".")
            elif "bounds" in field.metadata:
                found[where] = field.metadata["bounds"].help

    walk(Experiment, "")
    return found | {"format.name": "how documents become rows", "objective.name": "what is asked",
                    "warm-up steps": "updates while the learning rate rises"}
