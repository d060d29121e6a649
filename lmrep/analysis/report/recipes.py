"""The recipe of the paper that a run is nearest to, field by field, and where the run departs from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from lmrep import experiment as experiments
from lmrep.analysis.report.facts import Facts, flat
from lmrep.data import corpora
from lmrep.data.formats import FORMATS
from lmrep.experiment import Experiment, StagePlan
from lmrep.models import PRESETS, transformer
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.masked import RULES
from lmrep.training.optimizers import RECIPES
from lmrep.training.schedules import warmup_steps

# What the papers say beside network, masking rule and optimizer, which are tables of their rooms.
PAPERS = {
    "bert": ("Devlin et al., 2019", {
        "data.corpus": "BooksCorpus and English Wikipedia, 3.3 billion words",
        "steps": 1_000_000, "batch_size": 256, "length": "128 for 90%, then 512 for 10%",
        "format.name": "segment_pair", "format.duplicates": 10,
        "objective.masking": "static", "objective.sentence_pair": True,
        "optimizer.learning_rate": 1e-4, "warm-up steps": 10_000}),
    "roberta": ("Liu et al., 2019", {
        "data.corpus": "160 GB of English text",
        "steps": 500_000, "batch_size": 8192, "length": "512",
        "format.name": "full_sentences", "format.duplicates": 1,
        "objective.masking": "dynamic", "objective.sentence_pair": False,
        "optimizer.learning_rate": 6e-4, "warm-up steps": 24_000}),
}
SMALLER = dict.fromkeys(("bert_tiny", "bert_mini", "bert_small", "bert_medium"), "Turc et al., 2019")
LARGE = {"roberta_large": {"optimizer.learning_rate": 4e-4, "warm-up steps": 30_000}}


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


def compare(facts: Facts) -> Comparison:
    """Sets a run beside the recipe of the network that it is nearest to."""
    experiment, stage = facts.experiment, facts.stages[0]
    size = facts.network.tokenizer.size if facts.network else experiment.tokenizer.vocab_size
    network = experiments.model_config(experiment, size)
    name = nearest(network, experiment.tokenizer.lowercase)
    family = name.partition("_")[0]
    authors, said = PAPERS[family]
    form = FORMATS[said["format.name"]].config()
    theirs = flat({
        "model": asdict(PRESETS[name].config),
        "objective": {"name": "masked", **asdict(OBJECTIVES["masked"].config()), **RULES[family]},
        "optimizer": asdict(RECIPES[family]),
        "format": {"name": said["format.name"], **asdict(form)},
    }) | said | LARGE.get(name, {})
    ours = flat({
        "model": asdict(network),
        "objective": {"name": stage.objective_name, **asdict(stage.objective)},
        "optimizer": asdict(stage.optimizer),
        "format": {"name": stage.format_name, **asdict(stage.format)},
    }) | {
        "data.corpus": corpus(experiment), "steps": experiment.steps, "batch_size": stage.batch_size,
        "length": lengths(facts.stages),
        "warm-up steps": warmup_steps(stage.optimizer.schedule, experiments.span(facts.stages, 0))}
    meaning = meanings(experiment)
    # The warm-up stands resolved; what the other format alone has says no more than its name.
    names = [name for name in [*said, *theirs] if "schedule.warmup" not in name or name.endswith("warmup_from")]
    names = [name for name in dict.fromkeys(names) if name in ours]
    if facts.source:  # its config says nothing of how it was trained
        names = [name for name in names if name.startswith("model.")]
    differing = [(name, ours[name], theirs[name], meaning.get(name, ""))
                 for name in names if not _same(ours[name], theirs[name])]
    apart = {name for name, *_ in differing}
    if name in SMALLER:
        authors += f", with the network of {SMALLER[name]}"
    return Comparison(name, authors, differing, [name for name in names if name not in apart])


def nearest(network: transformer.Config, lowercase: bool = True) -> str:
    """The preset that a network is nearest to in its sizes, and then in its other fields."""
    def distance(name: str) -> float:
        config = PRESETS[name].config
        sizes = ("layers", "width", "mlp", "vocab")
        apart = sum(abs(math.log(max(1, getattr(network, s)) / getattr(config, s))) for s in sizes)
        return apart + 0.25 * sum(getattr(network, f.name) != getattr(config, f.name)
                                  for f in fields(config) if f.name not in sizes)

    return min((name for name in PRESETS if name.partition("_")[0] in PAPERS
                and not (lowercase and name.endswith("_cased"))), key=distance)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=1e-9)
    return a == b


def corpus(experiment: Experiment) -> str:
    """The corpus, or what is mixed of several, for people."""
    if mixed := experiments.sources(experiment):
        return " and ".join(f"{source.weight:g} part{'s' * (source.weight != 1)} of {_corpus(source.data)}"
                            for source in mixed)
    return _corpus(experiment.data)


def _corpus(data: corpora.Config) -> str:
    return {"python_docs": "the Python documentation that comes with the interpreter",
            "text_files": f"the text files {data.files}", "jsonl": f"the JSONL files {data.files}",
            "parquet": f"the Parquet files {data.files}", "tfds": f"the TFDS corpus {data.tfds_name}"}[data.corpus]


def lengths(stages: Sequence[StagePlan]) -> str:
    """Tokens a row, over the stages."""
    if len({stage.length for stage in stages}) == 1:
        return str(stages[0].length)
    total = sum(stage.steps for stage in stages)
    return ", then ".join(f"{stage.length} for {stage.steps / total:.0%}" for stage in stages)


def meanings(experiment: Experiment) -> Mapping[str, str]:
    """{dotted path of a field: what it means}, as its record says."""
    parts = {"model": transformer.Config, "objective": OBJECTIVES[experiment.objective["name"]].config,
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
