"""What `lmrep inspect` prints: an experiment's data and questions as text."""

import logging
import textwrap
from pathlib import Path

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.data import loader
from lmrep.data.mixture import Mixture
from lmrep.data.store.prepare import Prepared
from lmrep.data.store.scan import describe_anomalies
from lmrep.data.tokenizers import keeps_whitespace
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.training.step import prepare_keys

log = logging.getLogger(__name__)


def report(experiment: Experiment, data_dir: Path, split: str = "train", examples: int = 5) -> str:
    """Statistics of the corpus, the tokenizer and each stage's rows, and `examples` corrupted rows of `split`.

    Raises:
      UserError: parts that do not fit each other or the data.
    """
    if examples < 0:
        raise UserError(f"examples is {examples}; expected at least 0")
    prepared = build.prepared(experiment, data_dir, log.info)
    if split not in prepared.stores:
        raise UserError(f"there is no split {split!r}; this corpus has {', '.join(prepared.stores)}")
    vocabulary = prepared.tokenizer.vocabulary
    model = build.model(experiment, vocabulary)
    parts = [_corpus(experiment, prepared), _tokenizer(experiment, prepared)]
    for stage in experiments.resolve_stages(experiment):
        plan = build.plan(stage, prepared.stores[split], experiment.seed, data_dir)
        facts = "  ".join(f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value:,}"
                          for name, value in plan.statistics().items())
        parts.append(f"Stage {stage.name}: {stage.format_name} rows of {stage.length} tokens, batch of "
                     f"{stage.batch_size}, {stage.steps:,} steps = "
                     f"{stage.steps * stage.batch_size / plan.examples:.2f} passes over the examples\n  {facts}")
        if isinstance(plan, Mixture):
            parts.append(_sources(plan, stage.steps * stage.batch_size))
        numbers = plan.numbers(np.arange(min(examples, plan.examples)), stage.batch_size, experiment.seed)
        numbers = numbers[numbers >= 0]
        batch = loader.gather(plan, numbers)
        objective = build.objective(stage, model, vocabulary)
        asked = jax.device_get(objective.prepare(
            prepare_keys(objective, batch, experiment.seed, np.int32(0)), batch))
        for number, text in zip(numbers, objective.describe(asked, prepared.tokenizer), strict=True):
            parts.append(f"Example {number:,}:\n" + textwrap.indent(textwrap.fill(text, 110), "  "))
    return "\n\n".join(parts)


def _corpus(experiment: Experiment, prepared: Prepared) -> str:
    lines = [f"Corpus {experiment.data.corpus}, prepared in {prepared.directory}",
             f"  {'split':12}{'documents':>12}{'sentences':>12}{'characters':>14}{'tokens':>14}"
             f"{'tokens/word':>13}{'unknown':>9}"]
    for split, facts in prepared.statistics.items():
        lines.append(f"  {split:12}{facts['documents']:12,}{facts['sentences']:12,}{facts['characters']:14,}"
                     f"{facts['tokens']:14,}{facts['tokens_per_word']:13.3f}{facts['unknown_share']:9.3%}")
    odd = prepared.text | {"words_of_over_1,000_characters": sum(
        facts.get("long_words", 0) for facts in prepared.statistics.values())}
    if said := describe_anomalies(odd):
        lines.append(f"  in the text: {said}")
    return "\n".join(lines)


def _sources(plan: Mixture, rows: int) -> str:
    """How the rows of a stage are dealt to the sources, and how often each is walked."""
    shares, split = plan.store.block_counts, plan.store.split
    lines = [f"  {'source':20}{'share':>9}{f'tokens, {split}':>20}{'examples':>14}{'epochs':>9}"]
    for i, name in enumerate(plan.store.names):
        share, examples = shares[i] / sum(shares), plan.plans[i].examples
        lines.append(f"  {name:20}{share:9.2%}{plan.store.stores[i].tokens:20,}{examples:14,}"
                     f"{rows * share / examples:9.2f}")
    return "\n".join(lines)


def _tokenizer(experiment: Experiment, prepared: Prepared) -> str:
    vocabulary = prepared.tokenizer.vocabulary
    order = np.argsort(-vocabulary.counts)[:12]
    total = max(1, int(vocabulary.counts.sum()))
    frequent = ", ".join(f"{prepared.tokenizer.id_to_token(int(i))} {vocabulary.counts[i] / total:.1%}" for i in order)
    mark, says = ("start", vocabulary.starts_word) if vocabulary.ends_word is None else ("end", vocabulary.ends_word)
    return (f"Tokenizer: {vocabulary.size:,} pieces, {int(says.sum()):,} of which {mark} a word; "
            f"{int((vocabulary.counts == 0).sum()):,} do not occur in the train split\n"
            f"  white space of documents: {'kept' if keeps_whitespace(experiment.tokenizer) else 'collapsed'}\n"
            f"  most frequent: {frequent}")
