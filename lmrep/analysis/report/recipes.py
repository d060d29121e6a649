"""The recipe of the paper that a run is nearest to, field by field, and where the run departs from it.

Installed, lmrep has no experiments/ beside it, so that what the papers say stands here; a test holds it against those
pages.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from lmrep.analysis.report.facts import Facts, flat
from lmrep.data import corpora
from lmrep.data.formats import FORMATS
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, StagePlan, model_config
from lmrep.models import PRESETS
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.masked import RULES
from lmrep.training.optimizers import RECIPES
from lmrep.training.schedules import warmup_steps


class Paper(NamedTuple):
    """What a paper says beside its networks, which are PRESETS; a field that it does not publish is None.

    Attributes:
      authors: and year.
      objective: its name; the other fields are its defaults and, of the masking rule, RULES.
      form: the format's name; the other fields are its defaults.
      optimizer: its name in RECIPES, "" where it is not published.
      said: every other field, as a flat config has it.
      sizes: what differs from that for a preset.
    """

    authors: str
    objective: str
    form: str
    optimizer: str
    said: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, Any]] = {}


BOOKS_AND_WIKIPEDIA = "BooksCorpus and English Wikipedia, 3.3 billion words"
WIDER = "the text of XLNet, 33 billion tokens"
PAIRS = {"objective.sentence_pair": True, "objective.masking": "static"}

PAPERS = {
    "bert": Paper("Devlin et al., 2019", "masked", "segment_pair", "bert", PAIRS | {
        "data.corpus": BOOKS_AND_WIKIPEDIA, "tokenizer.name": "wordpiece", "tokenizer.lowercase": True,
        "steps": 1_000_000, "batch_size": 256, "length": "128 for 90%, then 512 for 10%", "format.duplicates": 10,
        "optimizer.learning_rate": 1e-4, "warm-up steps": 10_000},
        {name: {"tokenizer.lowercase": False} for name in ("bert_base_cased", "bert_large_cased")}),
    "roberta": Paper("Liu et al., 2019", "masked", "full_sentences", "roberta", {
        "data.corpus": "160 GB of English text", "tokenizer.name": "byte_level_bpe", "tokenizer.lowercase": False,
        "steps": 500_000, "batch_size": 8192, "length": "512",
        "optimizer.learning_rate": 6e-4, "warm-up steps": 24_000},
        {"roberta_large": {"optimizer.learning_rate": 4e-4, "warm-up steps": 30_000}}),
    "albert": Paper("Lan et al., 2019", "masked", "segment_pair", "lamb", PAIRS | {
        "data.corpus": BOOKS_AND_WIKIPEDIA, "tokenizer.name": "sentencepiece_unigram", "tokenizer.lowercase": True,
        "steps": 125_000, "batch_size": 4096, "length": "512", "format.duplicates": 40, "format.pairs": "sop",
        "optimizer.learning_rate": 1.76e-3, "warm-up steps": 3_125}),
    "spanbert": Paper("Joshi et al., 2019", "span_boundary", "doc_sentences", "adamw", {
        "data.corpus": BOOKS_AND_WIKIPEDIA, "tokenizer.name": "wordpiece", "tokenizer.lowercase": False,
        "steps": 2_400_000, "batch_size": 256, "length": "512", "objective.max_targets": 15,
        "optimizer.decay_skip": [], "optimizer.learning_rate": 1e-4, "warm-up steps": 10_000}),
    "electra": Paper("Clark et al., 2020", "replaced_token", "doc_sentences", "bert", {
        "data.corpus": BOOKS_AND_WIKIPEDIA, "tokenizer.name": "wordpiece", "tokenizer.lowercase": True,
        "optimizer.schedule.decay_from": "both", "warm-up steps": 10_000}, {
        "electra_small": {"steps": 1_000_000, "batch_size": 128, "length": "128", "optimizer.learning_rate": 5e-4},
        "electra_small_plus": {"steps": 4_000_000, "batch_size": 128, "length": "128", "objective.generator": 1.0,
                               "optimizer.learning_rate": 5e-4, "data.corpus": WIDER},
        "electra_base": {"steps": 766_000, "batch_size": 256, "length": "512", "objective.generator": 1 / 3,
                         "optimizer.learning_rate": 2e-4},
        "electra_large": {"steps": 400_000, "batch_size": 2048, "length": "512", "objective.rate": 0.25,
                          "optimizer.learning_rate": 2e-4, "data.corpus": WIDER}}),
    "gpt": Paper("Radford et al., 2018", "causal", "stream", "adamw", {
        "data.corpus": "BooksCorpus, 800 million words", "tokenizer.name": "bpe", "tokenizer.lowercase": True,
        "steps": 3_000_000, "batch_size": 64, "length": "512",
        "objective.across": None, "format.isolate": None, "optimizer.schedule.name": "cosine",
        "optimizer.learning_rate": 2.5e-4, "warm-up steps": 2_000}),
    "gpt2": Paper("Radford et al., 2019", "causal", "stream", "", {
        "data.corpus": "WebText, 40 GB of web pages", "tokenizer.name": "byte_level_bpe", "tokenizer.lowercase": False,
        "batch_size": 512, "length": "1024", "objective.across": None, "format.isolate": None}),
}
SMALLER = dict.fromkeys(("bert_tiny", "bert_mini", "bert_small", "bert_medium"), "Turc et al., 2019")
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


def compare(facts: Facts) -> Comparison:
    """Sets a run beside the recipe of the network that it is nearest to."""
    experiment, stage = facts.experiment, facts.stages[0]
    size = facts.network.tokenizer.size if facts.network else experiment.tokenizer.vocab_size
    network = experiments.model_config(experiment, size)
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
    authors = PAPERS[name.partition("_")[0]].authors
    if name in SMALLER:
        authors += f", with the network of {SMALLER[name]}"
    return Comparison(
        name, authors, [(field, ours[field], theirs[field], meaning.get(field, "")) for field in order
                        if field in differing], [field for field in order if field not in differing])


def published(name: str) -> dict[str, Any]:
    """The recipe of a preset, as a flat config: what is published of it, `data.corpus` for people."""
    paper = PAPERS[family := name.partition("_")[0]]
    said = {**paper.said, **paper.sizes.get(name, {})}
    tables = flat({
        "objective": {"name": paper.objective, **asdict(OBJECTIVES[paper.objective].config())},
        "format": {"name": paper.form, **asdict(FORMATS[paper.form].config())},
        "model": asdict(PRESETS[name].config),
        "optimizer": asdict(RECIPES[paper.optimizer]) if paper.optimizer else {"name": None},
    }) | {f"objective.{field}": value for field, value in RULES.get(family, {}).items()}
    # The warm-up is compared in steps, however it is given.
    return {field: value for field, value in ({name: None for name in said} | tables | said).items()
            if value is not None and field not in ("optimizer.schedule.warmup", "optimizer.schedule.warmup_fraction")}


def nearest(network: Any, objective: str, lowercase: bool = True) -> list[str]:
    """The presets that a network is nearest to: of those whose fields, and whose paper's objective, differ in least
    places, the ones of the nearest size."""
    def distance(name: str) -> tuple[int, float]:
        config = PRESETS[name].config
        kind = sum(getattr(network, f.name) != getattr(config, f.name) for f in fields(config) if f.name not in SIZES)
        sizes = ((getattr(network, s), getattr(config, s)) for s in ("layers", "width", "mlp", "vocab"))
        return (kind + (bool(network.embedding) != bool(config.embedding))
                + (objective != PAPERS[name.partition("_")[0]].objective),
                sum(abs(math.log(max(1, ours) / theirs)) for ours, theirs in sizes))

    names = [name for name in PRESETS if not (lowercase and name.endswith("_cased"))]
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
    """Tokens a row, over the stages."""
    if len({stage.length for stage in stages}) == 1:
        return str(stages[0].length)
    total = sum(stage.steps for stage in stages)
    return ", then ".join(f"{stage.length} for {stage.steps / total:.0%}" for stage in stages)


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
