"""What the figures of each objective mean to people, and which of them may stand on one axis."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lmrep.analysis.report.facts import Facts
from lmrep.experiment.config import StagePlan


class Measure(NamedTuple):
    """What a network trained with an objective is judged by.

    Attributes:
      task: what it was trained to do.
      guessed: what `right` is the share of.
      where: where these stand, in a sentence about all of them.
      context: what it answers from.
      right: the metric that is the share of them which it guesses.
      nats: the metric that is the mean of -log of the probability it gives them.
    """

    task: str
    guessed: str
    where: str
    context: str
    right: str
    nats: str


MEASURES = {
    "masked": Measure("to guess hidden words", "hidden words guessed", "hidden in text that it never saw",
                      "the text around a word", "mlm_accuracy", "mlm_loss"),
    "span_boundary": Measure("to guess hidden spans of words", "words of hidden spans guessed",
                             "of the spans hidden in text that it never saw", "the text around a span",
                             "mlm_accuracy", "mlm_loss"),
    "causal": Measure("to foretell each next word", "next words foretold", "of text that it never saw",
                      "the text before a word", "lm_accuracy", "lm_loss"),
    "replaced_token": Measure("to tell another network's words from the text's own",
                              "hidden words guessed by the generator", "hidden from it", "the text around a word",
                              "generator_accuracy", "generator_loss"),
}
OWN = {  # metric of some objectives alone: title
    "replaced_accuracy": "Replaced tokens found",
    "original_accuracy": "The text's own tokens let pass",
    "pair_accuracy": "Pairs told apart",
    "boundary_accuracy": "Guessed from the tokens around a span alone",
}
RUNNING = {"learning_rate": "Learning rate", "gradient_norm": "Norm of the gradient",
           "tokens_per_second": "Tokens a second"}


class Chart(NamedTuple):
    """One pair of axes.

    Attributes:
      title: of the figure.
      lines: {number of a run: its metric}.
      share: whether values are shares.
      base: the metric that is drawn dashed, as what costs nothing to know.
      about: a note under it.
    """

    title: str
    lines: Mapping[int, str]
    share: bool = False
    base: str = ""
    about: str = ""


def question(stage: StagePlan) -> str:
    """What is asked, in a word or two. Losses of one question compare; those of different ones do not."""
    kind = getattr(stage.objective, "variant", "electra")  # which is the objective itself; the others are ablations of it
    named = stage.objective_name if kind == "electra" else f"{stage.objective_name} ({kind})"
    return f"{named} with pairs" if getattr(stage.objective, "sentence_pair", False) else named


def is_nats(stage: StagePlan) -> bool:
    """Whether the loss is the nats of a token, and nothing more."""
    return stage.objective_name in ("masked", "causal") and not getattr(stage.objective, "sentence_pair", False)


def charts(runs: Sequence[Facts]) -> dict[str, Chart]:
    """The figures of several runs by name: what they share on one pair of axes, what is a question's own on its own."""
    recorded = [{name for lines in (run.train, run.validation, run.timing) for line in lines for name in line}
                for run in runs]
    asked: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        asked.setdefault(question(run.stage), []).append(i)

    def lines(of, numbers=range(len(runs))) -> dict[int, str]:
        return {i: of(runs[i]) for i in numbers if of(runs[i]) in recorded[i]}

    def of_tokens(field: str) -> dict[int, str]:
        return lines(lambda run: getattr(MEASURES.get(run.stage.objective_name), field, ""))

    kinds: dict[str, list[str]] = {}
    for run in runs:
        if measure := MEASURES.get(run.stage.objective_name):
            kinds.setdefault(measure.guessed, []).append(run.label)
    about = ". ".join(f"{', '.join(dict.fromkeys(labels))}: {words}" for words, labels in kinds.items())
    several, title = len(kinds) > 1, next(iter(kinds), "tokens guessed").capitalize()
    found = {"guessed": Chart("Tokens guessed" if several else title, of_tokens("right"), True, "most_frequent_accuracy",
                              f"{about}." * several)}
    if len(asked) > 1 or not all(is_nats(run.stage) for run in runs):
        found["nats"] = Chart("Nats of such a token", of_tokens("nats"), False, "by_frequency", f"{about}." * several)
    for name, numbers in asked.items():
        if len(asked) == 1:
            found["loss"] = Chart("Loss, nats", lines(lambda _: "loss", numbers))
        elif not is_nats(runs[numbers[0]].stage):
            found[f"loss of {name}"] = Chart(f"Loss: {name}", lines(lambda _: "loss", numbers))
    for name, title in (OWN | RUNNING).items():
        found[name] = Chart(title, lines(lambda _, name=name: name), name in OWN)
    return {name: chart for name, chart in found.items() if chart.lines}
