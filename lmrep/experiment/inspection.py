"""What `lmrep inspect` prints: the data of an experiment and its training examples, as text."""

import logging
import textwrap
from pathlib import Path

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import loader
from lmrep.data.formats import Plan
from lmrep.data.mixture import Mixture
from lmrep.data.store.prepare import Prepared
from lmrep.data.store.scan import describe_anomalies
from lmrep.data.tokenizers import keeps_whitespace
from lmrep.experiment import build, frozen, task_inspection
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, StagePlan
from lmrep.experiment.task_data import PreparedTask
from lmrep.objectives.base import Objective
from lmrep.training.step import prepare_keys

log = logging.getLogger(__name__)


def report(experiment: Experiment, data_dir: Path, split: str = "train", examples: int = 5) -> str:
    """Statistics of corpus, tokenizer and each stage's examples, and the first `examples` of `split` as the model gets
    them.

    Raises:
      UserError: there is no such split, or parts of the experiment do not fit each other or the data.
    """
    if examples < 0:
        raise UserError(f"examples is {examples}; expected at least 0")
    prepared = build.prepared(experiment, data_dir, log.info)
    if split not in prepared.stores:
        raise UserError(f"there is no split {split!r}; this corpus has {', '.join(prepared.stores)}")
    if isinstance(prepared, PreparedTask):
        return task_inspection.report(prepared, split, examples)
    model = build.model(experiment, prepared.tokenizer.vocabulary)
    parts = frozen.load(experiment, prepared.tokenizer.tokens, values=False)
    sections, passes = [_corpus(experiment, prepared), _tokenizer(experiment, prepared)], 0.0
    stages = experiments.resolve_stages(experiment)
    for stage in stages:
        plan = build.plan(stage, prepared.stores[split], experiment.seed, data_dir)
        sections.append(_stage(stage, plan))
        passes += build.epochs(stage, plan, stage.steps)
        if isinstance(plan, Mixture):
            sections.append(_sources(plan, stage.steps * stage.batch_size))
        objective = build.objective(stage, model, prepared.tokenizer.vocabulary, parts)
        sections += _examples(experiment, stage, plan, objective, prepared, examples)
    if len(stages) > 1:
        sections.append(f"All stages: {experiment.steps:,} steps, {passes:,.2f} epochs of the {split} split")
    return "\n\n".join([*sections, *frozen.describe(parts)])


def _stage(stage: StagePlan, plan: Plan | Mixture) -> str:
    """The size of a stage, its epochs, and the statistics of its examples."""
    statistics = "  ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}"
                           for name, value in plan.statistics().items())
    return (f"Stage {stage.name}: {stage.format_name} examples of {stage.length} tokens, {stage.batch_size} in a "
            f"batch; {stage.steps:,} steps are {build.epochs(stage, plan, stage.steps):,.2f} epochs\n  {statistics}")


def _examples(
    experiment: Experiment, stage: StagePlan, plan: Plan | Mixture, objective: Objective, prepared: Prepared,
    number: int,
) -> list[str]:
    """The first examples of a stage, prepared by its objective."""
    numbers = plan.numbers(np.arange(min(number, plan.examples)), stage.batch_size, experiment.seed)
    numbers = numbers[numbers >= 0]
    if not len(numbers):
        return []
    batch = loader.gather(plan, numbers)
    batch = jax.device_get(jax.jit(lambda batch: objective.prepare(
        prepare_keys(objective, batch, experiment.seed, np.int32(0)), batch))(batch))
    texts = objective.uses.describe(batch, prepared.tokenizer)
    texts = ["\n".join(textwrap.fill(line, 110) for line in text.split("\n")) for text in texts]
    return [f"Example {i:,}:\n" + textwrap.indent(text, "  ") for i, text in zip(numbers, texts, strict=True)]


def _corpus(experiment: Experiment, prepared: Prepared) -> str:
    """The corpus: a row for each split, and what looks wrong."""
    lines = [f"Corpus {experiment.data.corpus}, prepared in {prepared.directory}",
             f"  {'split':12}{'documents':>12}{'sentences':>12}{'characters':>14}{'tokens':>14}"
             f"{'tokens/word':>13}{'unknown':>9}"]
    for split, facts in prepared.statistics.items():
        lines.append(f"  {split:12}{facts['documents']:12,}{facts['sentences']:12,}{facts['characters']:14,}"
                     f"{facts['tokens']:14,}{facts['tokens_per_word']:13.3f}{facts['unknown_fraction']:9.3%}")
    anomalies = prepared.text | {"words_of_over_1,000_characters": sum(
        facts.get("long_words", 0) for facts in prepared.statistics.values())}
    if prepared.sentences:
        lines.append(f"  sentences: {prepared.sentences}")
    if described := describe_anomalies(anomalies):
        lines.append(f"  in the text: {described}")
    if warning := build.imbalanced_splits(experiment, prepared):
        lines.append(f"  WARNING: {warning}")
    return "\n".join(lines)


def _sources(plan: Mixture, number: int) -> str:
    """The fraction of a stage's `number` examples that each source gives, and its epochs."""
    weights, split = plan.store.block_counts, plan.store.split
    lines = [f"  {'source':20}{'fraction':>9}{f'tokens, {split}':>20}{'examples':>14}{'epochs':>9}"]
    for i, name in enumerate(plan.store.names):
        fraction, examples = weights[i] / sum(weights), plan.plans[i].examples
        lines.append(f"  {name:20}{fraction:9.2%}{plan.store.stores[i].tokens:20,}{examples:14,}"
                     f"{number * fraction / examples:9.2f}")
    return "\n".join(lines)


def _tokenizer(experiment: Experiment, prepared: Prepared) -> str:
    """The vocabulary, what the tokenizer does to a text, and the most frequent tokens."""
    vocabulary = prepared.tokenizer.vocabulary
    order = np.argsort(-vocabulary.counts)[:12]
    total = max(1, int(vocabulary.counts.sum()))
    frequent = ", ".join(f"{prepared.tokenizer.id_to_token(int(i))} {vocabulary.counts[i] / total:.1%}"
                         for i in order).replace("\n", "\\n")
    mark, at_mark = ("start", vocabulary.starts_word) if vocabulary.ends_word is None else ("end", vocabulary.ends_word)
    lines = [f"Tokenizer {prepared.tokenizer.name}: {vocabulary.size:,} tokens, {int(at_mark.sum()):,} of which {mark} "
             f"a word; {int((vocabulary.counts == 0).sum()):,} do not occur in the train split",
             f"white space of documents: {'kept' if keeps_whitespace(experiment.tokenizer) else 'collapsed'}"]
    if prepared.tokenizer.lowercase:
        plain, accented = (list(ids) for ids in prepared.tokenizer.encode_batch(["cafe", "caf\u00e9"]))
        accents = " and stripped of accents: caf\u00e9 becomes cafe" if accented == plain else ""
        lines.append(f"text is lower-cased{accents}")
    if unused := build.unused_rows(experiments.model_config(experiment, vocabulary.size), vocabulary.size):
        lines.append(f"WARNING: {unused}")
    return "\n  ".join([*lines, f"most frequent: {frequent}"])
