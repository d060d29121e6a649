"""The summary of a run of a task in sentences: what was trained, how well, and what to do next."""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from lmrep.analysis.report.metrics import baseline, baseline_title, declared
from lmrep.analysis.report.run_data import RunData
from lmrep.experiment.task_sources import data_of
from lmrep.metrics import COMMON, Metric, advice, baseline_names, beats


class Judged(NamedTuple):
    """A validation metric that has a baseline."""

    metric: Metric  # its definition
    value: float  # of the run
    base: float  # of the baseline
    low: float | None  # the 95 % interval begins here; None where it was not computed
    high: float | None  # and ends here

    @property
    def better(self) -> bool:
        """Whether the run is better than the baseline."""
        return beats(self.metric, self.value, self.base)

    @property
    def clearly_better(self) -> bool:
        """Whether so is the interval's end that is nearest to the baseline."""
        return self.low is not None and (
            self.low > self.base if self.metric.higher_is_better else self.high < self.base)


def judged(run: RunData) -> dict[str, Judged]:
    """The validation metrics that have a baseline."""
    found = {}
    for name, metric in declared(run).items():
        value, base = run.last("validation", name), baseline(run, metric)
        if name not in COMMON and value is not None and base is not None:
            low, high = run.task.interval(run.judged.get("step", 0), name) or (None, None)
            found[name] = Judged(metric, value, base, low, high)
    return found


def verdict(run: RunData) -> tuple[str, str, str]:
    """(mark, headline, text), by the baselines of validation metrics: that by which checkpoints are compared, where it
    has one, or else all that have one."""
    known = judged(run)
    decisive = [known[name] for name in (run.experiment.checkpoint.best,) if name in known] or [*known.values()]
    text = " ".join([*_sentences(run), *(["The best checkpoint is that of step "
                                          f"{run.judged['step']:,}."] if run.judged else [])])
    if not run.validation:
        return "unknown", "Nothing was measured on validation data." if run.train else "It has not been trained.", ""
    if not known:
        return *_against_first(run), text
    if below := _below_first(run):
        return "bad", below, text
    if not any(each.better for each in decisive):
        headline = ("This run failed: the model is no better than its baseline." if run.step >= run.experiment.steps
                    else "So far the model is no better than its baseline.")
        return "bad", headline, text
    if worse := sum(not each.better for each in decisive):
        return "some", (f"The model is better than its baseline by {len(decisive) - worse} of {len(decisive)} metrics."
                        ), text
    if all(each.clearly_better for each in decisive):
        return "good", "The model is clearly better than its baseline.", text
    if any(each.low is not None and not each.clearly_better for each in decisive):
        return "some", "The model is not clearly better than its baseline, which lies within the 95% interval.", text
    return "some", "The model is better than its baseline.", text


def _below_first(run: RunData) -> str:
    """That the run is worse than at its start, by the metric by which checkpoints are compared; "" where it is not."""
    name, first = run.experiment.checkpoint.best, run.validation[0]
    metric, now, before = declared(run).get(name), run.judged.get(name), first.get(name)
    if metric is None or now is None or before is None or run.judged is first or not beats(metric, before, now):
        return ""
    since = "before training" if not first["step"] else f"at step {first['step']:,}"
    return (f"This run ended below its start: {metric.title} was {before:{metric.format}} {since} and is "
            f"{now:{metric.format}}.")


def _against_first(run: RunData) -> tuple[str, str]:
    """(mark, headline) by the metric by which checkpoints are compared, now and before training."""
    name, first = run.experiment.checkpoint.best, run.validation[0]
    metric, now, before = declared(run).get(name), run.judged.get(name), first.get(name)
    if metric is None or now is None or before is None or run.judged is first:
        return "unknown", "Its metrics have no baseline."
    better = now > before if metric.higher_is_better else now < before
    since = "before training" if not first["step"] else f"at step {first['step']:,}"
    return ("some" if better else "bad",
            f"{metric.title} went from {before:{metric.format}} {since} to {now:{metric.format}}.")


def _sentences(run: RunData) -> Iterator[str]:
    """Headline metrics with their intervals and baselines."""
    known = judged(run)
    for name, metric in declared(run).items():
        value = run.last("validation", name)
        if value is None or name in COMMON or not (metric.headline or name in known) or is_baseline(run, name):
            continue
        interval = run.task.interval(run.judged.get("step", 0), name)
        within = f" (95% interval {between(interval, metric)})" if interval else ""
        against = ""
        if name in known:
            against = f", against {known[name].base:{metric.format}} for {baseline_title(run, metric)}"
        yield f"{metric.title}: {value:{metric.format}}{within}{against}."


def is_baseline(run: RunData, name: str) -> bool:
    """Whether a metric is the baseline of another one."""
    return any(name in baseline_names(metric) for metric in declared(run).values())


def between(interval: tuple[float, float], metric: Metric) -> str:
    """An interval: 54.7% to 67.7%."""
    form = ".1%" if metric.format.endswith("%") else metric.format
    return " to ".join(format(end, form) for end in interval)


def subject(run: RunData) -> str:
    """What it was trained for, on what and for how long, after the description of the network."""
    experiment, train = run.experiment, run.task.splits.get("train", {})
    start = f", from the parameters of {experiment.init}" if experiment.init else ", from random parameters"
    examples = f"{train['examples']:,} examples of " if train.get("examples") else ""
    source = experiment.data.tfds or experiment.data.train
    if experiment.sources:
        source = f"{len(experiment.sources)} sources ({', '.join(data_of(experiment))})"
    extent = f"{run.step:,} steps" + ("" if run.step >= experiment.steps else f" of {experiment.steps:,} planned")
    if train.get("sequences"):
        sequences = train.get("sequences_per_step", experiment.batch_size)
        extent += f" ({run.step * sequences / train['sequences']:.1f} epochs)"
    return f"trained for the task {run.stage.objective_name} on {examples}{source} for {extent}{start}."


def training_advice(run: RunData, command: str) -> list[tuple[str, str]]:
    """(advice, command or "")."""
    found, ended = [], run.step >= run.experiment.steps
    if not ended and run.starts:
        found.append((f"Training stopped at step {run.step:,} of {run.experiment.steps:,}. The same command resumes "
                      "from the latest checkpoint:", command))
    if run.train and not run.validation:
        found.append(("Give validation data, so that the next run can be evaluated and its best checkpoint is kept: "
                      "--config.data.validation=FILE.", ""))
    if ended and verdict(run)[0] == "bad":
        losses = [line["loss"] for line in run.validation if isinstance(line.get("loss"), int | float)]
        text = advice(*(losses[0], losses[-1]) if len(losses) > 1 else (None, None))
        found.append((f"{text} On small data sets, try other seeds and recipe=mosbach, which trains for 20 epochs.",
                      ""))
    elif ended and len(run.validation) > 2 and run.judged == run.validation[-1]:
        found.append((f"{declared(run)[run.experiment.checkpoint.best].title} was best at the last step: train longer, "
                      "in another workdir, with a larger --config.epochs.", ""))
    return found


def usage(run: RunData) -> list[tuple[str, str]]:
    """What can be done with the trained network: (advice, command)."""
    workdir, found = shlex.quote(str(run.directory)), []
    # A quote is what the shell would need quoted.
    for source, text in sorted(run.task.texts, key=lambda pair: "'" in pair[1])[:1]:
        option = f" --source={source}" * bool(source)
        found.append(("Make predictions:", f"lmrep predict --workdir={workdir}{option} {shlex.quote(text)}"))
    option = " --source=NAME" * bool(run.experiment.sources)
    found.append(("Evaluate on other labelled files:", f"lmrep evaluate --workdir={workdir}{option} --files=FILE"))
    return found
