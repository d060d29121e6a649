"""The training compute of an experiment by three conventions, side by side."""

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from lmrep.core.sharding import make_mesh
from lmrep.core.vocabulary import Vocabulary
from lmrep.experiment import shapes
from lmrep.experiment.config import UNKNOWN_STEPS, Experiment, ResolvedStage
from lmrep.experiment.record import ALL_FORMATS
from lmrep.objectives.base import Objective
from lmrep.planning import conventions, flops, published

CONVENTIONS = {
    "electra_script": "ELECTRA's script",
    "six_n": "6 N + attention",
    "exact": "exact",
}
COUNTS = {
    "electra_script":
        "flops_computation.py of Clark et al. (2020), by which compute is published: every operation of the forward "
        "pass, products with one-hot vectors for embedding lookups among them, twice, for forward and backward pass; "
        "where tokens are masked, the output layer at {fraction:.6g} of the positions. It lacks a factor of the width "
        "in the layer norm after the attention, and so does this.",
    "six_n":
        "6 N + 12 l d t per token (Kaplan et al., 2020; Chowdhery et al., 2022): N weights of the layers, without "
        "embedding tables, output layer and heads, two operations each forward and four backward; 12 l d t for "
        "attention over t positions. Where a network reads a source, its tokens pass the encoder and give the keys and "
        "values of the attention to it, and tokens of the target pass the decoder.",
    "exact":
        "the matrix products of the traced training step: forward, backward, recomputation, heads, and the output "
        "layer at the positions that this config predicts. Not element-wise operations. What depends on the data, such "
        "as how many words of a batch are distinct, counts at its largest; words of an adaptive softmax by Zipf's law.",
}


class Figure(NamedTuple):
    """Floating-point operations of one training step; None, with a reason, where the convention does not apply."""

    flops: float | None
    reason: str = ""


class StageCompute(NamedTuple):
    """The compute of a stage."""

    name: str  # of the stage
    objective: str  # its name
    steps: int | None  # number of updates; None for a task whose data decide it
    batch_size: int  # sequences in a step
    length: int  # tokens in a sequence, with padding
    figures: dict[str, Figure]  # by convention, with the keys of `CONVENTIONS`

    @property
    def tokens(self) -> int:
        """Number of tokens in a step, with padding."""
        return self.batch_size * self.length

    def total(self, convention: str) -> float | None:
        """Returns the operations of all steps; None where they are not known."""
        per_step = self.figures[convention].flops
        return None if per_step is None or self.steps is None else per_step * self.steps


def of_experiment(
    experiment: Experiment, vocabulary: Vocabulary | None = None, fraction: float = conventions.MASKED_FRACTION
) -> list[StageCompute]:
    """Computes the operations of each stage. Nothing is read or compiled; the training step is traced.

    Args:
      experiment: any experiment, of pretraining or of a task.
      vocabulary: of the tokenizer; None if it is not trained yet.
      fraction: fraction of positions that ELECTRA's script counts as predicted masked tokens.

    Raises:
      UserError: parts of the experiment do not match each other.
    """
    mesh, stages = make_mesh(1, 1, 1), []
    for stage_shapes in shapes.without_data(experiment, vocabulary, mesh):
        fields, stage = stage_shapes.fields, stage_shapes.stage
        if ALL_FORMATS[fields.format_name].plan is None:
            exact = Figure(None, "the batches of a task are as long as their longest text; a run records what it did "
                                 "in cost.jsonl")
        else:
            exact = Figure(flops.of_train_step(
                stage.objective, stage.optimizer, shapes.batch(stage_shapes, mesh), fields.microbatches))
        figures = {name: figure if figure.flops is None else Figure(figure.flops * fields.batch_size) for name, figure
                   in by_formulas(stage.objective, fields, fraction).items()} | {"exact": exact}
        steps = None if fields.steps == UNKNOWN_STEPS else fields.steps
        stages.append(StageCompute(fields.name, fields.objective_name, steps, fields.batch_size, fields.length,
                                   figures))
    return stages


def by_formulas(
    objective: Objective, fields: ResolvedStage, fraction: float = conventions.MASKED_FRACTION
) -> dict[str, Figure]:
    """Computes the operations of training on one sequence, padding included, by the conventions that are formulas."""
    networks, reason, length = objective.uses.networks, "", fields.length
    if not networks:
        reason = f"the objective {objective.name!r} does not state which networks it trains"
    elif any(use.sizes is None for use in networks):
        reason = "the network does not state its number of weights (Model.sizes)"
    if reason:
        return dict.fromkeys(("electra_script", "six_n"), Figure(None, reason))
    target, source = (length, 0) if objective.uses.text_pairs is None else objective.uses.text_pairs.lengths(
        length, ALL_FORMATS[fields.format_name].packed(fields.format))
    six_n = sum(conventions.six_n_of_text(use.sizes, target, source) for use in networks)
    return {"electra_script": _by_script(objective, length, fraction), "six_n": Figure(six_n)}


def _by_script(objective: Objective, length: int, fraction: float) -> Figure:
    if any(use.sizes.transformer is None for use in objective.uses.networks):
        return Figure(None, "the script counts only Transformers like BERT's, and this network is another")
    if any(use.predicts == "other" for use in objective.uses.networks):
        return Figure(None, f"the script does not have the head of the objective {objective.name!r}")
    return Figure(sum(conventions.electra_script(use.sizes.transformer, length, use.predicts, fraction)
                      for use in objective.uses.networks))


def totals(stages: Sequence[StageCompute]) -> dict[str, float | None]:
    """Returns the operations of all stages by each convention; None where those of a stage are not known."""
    by_stage = {name: [stage.total(name) for stage in stages] for name in CONVENTIONS}
    return {name: None if None in values else sum(values) for name, values in by_stage.items()}


def to_json(stages: Sequence[StageCompute]) -> dict[str, Any]:
    """Returns all figures as `lmrep flops --json` prints them."""
    def figures(stage: StageCompute) -> dict[str, Any]:
        return {name: {"per_token": flops and flops / stage.tokens, "per_step": flops, "total": stage.total(name)}
                | ({"reason": reason} if reason else {}) for name, (flops, reason) in stage.figures.items()}

    tokens = None if any(stage.steps is None for stage in stages) else sum(s.steps * s.tokens for s in stages)
    return {"tokens": tokens, "total": totals(stages), "stages": [
        {"name": stage.name, "objective": stage.objective, "steps": stage.steps, "batch_size": stage.batch_size,
         "length": stage.length, "tokens_per_step": stage.tokens, "flops": figures(stage)} for stage in stages]}


def table(
    name: str, stages: Sequence[StageCompute], done: tuple[int, float] | None = None,
    fraction: float = conventions.MASKED_FRACTION,
) -> str:
    """Formats the figures as text.

    Args:
      name: name of the experiment.
      stages: made by `of_experiment`.
      done: step of the run in the workdir, and the operations that it has recorded; None without one.
      fraction: as in `of_experiment`.
    """
    lines = []
    for stage in stages:
        title = f"{name}, stage {stage.name}" if len(stages) > 1 else name
        steps = f"{stage.steps:,} steps" if stage.steps is not None else "steps (as many as the data decide)"
        lines += [f"{title}: {stage.objective}, {steps} of {stage.batch_size:,} x {stage.length:,} tokens",
                  f"  {'FLOPs':18}{'per token':>14}{'per step':>14}{'total':>16}{'of exact':>10}"]
        exact = stage.figures["exact"].flops
        for key, title in CONVENTIONS.items():
            (flops, reason), total = stage.figures[key], stage.total(key)
            lines.append(f"  {title:18}" + (f"  not defined: {reason}" if flops is None else (
                f"{flops / stage.tokens:14.4e}{flops:14.4e}{'unknown' if total is None else f'{total:.6e}':>16}"
                f"{f'{flops / exact:.3f}' if exact else '':>10}")))
        lines.append("")
    if all(stage.steps is not None for stage in stages):
        tokens = sum(stage.steps * stage.tokens for stage in stages)
        sums = "; ".join(f"{CONVENTIONS[key]} {value:.6e}" for key, value in totals(stages).items()
                          if value is not None)
        lines.append(f"All {sum(stage.steps for stage in stages):,} steps, {tokens:,} tokens with padding: {sums} "
                     "FLOPs.")
    if done:
        lines.append(f"Done by the run in its workdir, to step {done[0]:,}: {done[1]:.6e} FLOPs, exact.")
    lines += ["", "What is counted:", *(textwrap.fill(
        f"{title}: {COUNTS[key].format(fraction=fraction)}", 100, initial_indent="  ", subsequent_indent="    ")
        for key, title in CONVENTIONS.items())]
    return "\n".join(lines)



def published_table() -> str:
    """Formats a table of the published compute of language models beside the compute by the formulas here."""
    lines = [f"{'':20}{'published':>14}{'computed':>16}{'difference':>13}{CONVENTIONS['six_n']:>18}"]
    for name, run in published.PUBLISHED.items():
        value, six_n = published.computed(run).values()
        lines.append(f"{name + ' *' * run.derived:20}{run.flops:14.6e}{value:16.6e}{value / run.flops - 1:13.4%}"
                     f"{six_n:18.6e}")
    lines += [f"{name:20}{value:14.6e}{'by a profiler':>16}" for name, value in published.PROFILED.items()]
    return "\n".join([*lines, "", *map(textwrap.fill, (
        "Published: FLOPs of pretraining by ELECTRA's script (google-research/electra, flops_computation.py). "
        "Computed: the same formula here, from the presets. * A fifth of RoBERTa 500K: the script has no such run.",
        "The script omits a factor of the width in the layer norm after the attention, and so do these figures. ELMo "
        "and XLNet were measured with a profiler there; these two are stated, not computed."))])
