"""Sentences about a run: what was trained, how well, at what cost, and what to do next."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from lmrep.analysis.report import run_data
from lmrep.analysis.report.metrics import advice, compared, declared, headlines, interval, intervals, judged
from lmrep.analysis.report.recipes import compare, corpus
from lmrep.analysis.report.run_data import RunData
from lmrep.core.progress import parse_duration
from lmrep.experiment.config import model_def
from lmrep.experiment.data_sets import data_of
from lmrep.experiment.record import ALL_OBJECTIVES, Experiment
from lmrep.inference import prompts
from lmrep.metrics import COMMON, Judgement, Metric, baseline_names, beats, is_token_loss
from lmrep.metrics.verdict import BAG_OF_WORDS, lost, sentence

# Factors between a metric and its baseline: of accuracies or error rates, and of perplexities.
GOOD = 2.0  # from here on, training worked
SOME = 1.1  # from here on, training has begun to work
MARGIN = 0.1  # by which an accuracy must also exceed its baseline
IMPROVING = 0.01  # relative fall of the validation loss over the last quarter from which training longer is advised
OVERFIT = 0.2  # nats of difference between training and validation loss from which more text is advised


class Verdict(NamedTuple):
    """Whether training worked."""

    mark: str  # "good", "some", "bad" or "unknown"
    headline: str
    text: str = ""


def subject(run: RunData) -> str:
    """Describes what was trained, on what and for how long."""
    network, experiment = run.network, run.experiment
    name = experiment.model.get("name", "network")
    sizes = ", ".join(f"{field} {value:,}" for field in model_def(experiment.model).tiny
                      if type(value := experiment.model.get(field)) is int and value)
    facts = "; ".join(filter(None, [sizes, f"{number(network.parameters)} parameters" if network else ""]))
    text = f"Network {name}" + f" ({facts})" * bool(facts)
    if run.source:
        made = "are those of" if run.source == run_data.OTHER_LOOP else "were converted from"
        return f"{text}. Its parameters {made} {run.source}."
    if not run.train and not run.validation:
        return f"{text}. No training step is logged."
    extent = f"{run.step:,} steps" + ("" if run.step >= experiment.steps else f" of {experiment.steps:,} planned")
    if run.results is not None:
        train = run.results.splits.get("train", {})
        start = f"the parameters of {experiment.init}" if experiment.init else "random parameters"
        examples = f"{train['examples']:,} examples of " if train.get("examples") else ""
        source = experiment.data.tfds or experiment.data.train
        if experiment.sources:
            source = f"{len(experiment.sources)} sources ({', '.join(data_of(experiment))})"
        if train.get("sequences"):
            sequences = train.get("sequences_per_step", experiment.batch_size)
            extent += f" ({run.step * sequences / train['sequences']:.1f} epochs)"
        return (f"{text}, trained for the task {run.stage.objective_name} on {examples}{source} for {extent}, from "
                f"{start}.")
    if run.tokens:
        extent += f", {number(run.tokens)} tokens"
        if run.epochs:
            extent += f" ({run.epochs:,.1f} epochs)"
    objectives = ", then ".join(dict.fromkeys(stage.objective_name for stage in run.stages))
    return f"{text}, trained with the objective {objectives} on {corpus(experiment)} for {extent}."


def cost(run: RunData) -> str:
    """Describes the time, device-hours and operations of training; "" where there was no step."""
    if not run.step:
        return ""
    seconds, devices = run_data.seconds(run), run.devices
    done = run.flops_at(run.step)
    operations = f"{number(done)} floating-point operations" if done is not None else ""
    if seconds is None:
        return f"Training time was not logged{operations and f'; training did {operations}'}."
    text = f"Training took {duration(seconds)}{' with compilation and validation' if run.cost else ''}"
    if devices:
        cores, count = run.starts[-1].get("cores") if devices["platform"] == "cpu" else None, devices["count"]
        text += (f", over {len(run.starts)} starts" * (len(run.starts) > 1)
                 + f" on {count} {devices['kind']} device{'s' * (count > 1)}{f' ({cores} cores)' if cores else ''}: "
                 + device_hours(run))
    return f"{text}{operations and f' and {operations}'}."


def device_hours(run: RunData) -> str:
    """Formats the training time times the number of devices; "" where either is not known."""
    if run.cost:
        return f"{run.cost.device_hours:.3g} device-hours"
    seconds = run_data.seconds(run)
    return f"{seconds * run.devices['count'] / 3600:.3g} device-hours" if seconds is not None and run.devices else ""


def verdict(run: RunData) -> Verdict:
    """Judges whether training worked, by the validation metrics that have a baseline."""
    return _pretraining_verdict(run) if run.results is None else _task_verdict(run)


def _pretraining_verdict(run: RunData) -> Verdict:
    known = [*judged(run).values()]
    text = " ".join(_sentence(run, name, metric) for name, metric in headlines(run).items())
    if known:
        worse = [judgement.metric.title.lower() for judgement in known if not judgement.better]
        if len(worse) == len(known):
            return Verdict("bad", "The model is not better than its baselines.", text)
        if worse:
            return Verdict("bad", f"The model is better than its baselines by {len(known) - len(worse)} of "
                           f"{len(known)} metrics, but not by {' and '.join(worse)}.", text)
        if all(map(_is_good, known)):
            return Verdict("good", "Training worked: the model is far better than its baselines.", text)
        if all(_gain(judgement) >= SOME for judgement in known):
            return Verdict("some", "Training has begun to work: the model is slightly better than its baselines.", text)
        return Verdict("some", "Training has hardly begun to work: the model is only just better than its baselines.",
                       text)
    first, last = run.comparable[:1], run.last("validation", "loss")
    if first and last is not None and run.step > first[0]["step"]:
        start, since = first[0].get("loss", last), first[0]["step"]
        return Verdict("some" if last < start else "bad",
                       f"The validation loss went from {start:.3f}{f' at step {since:,}' * bool(since)} to {last:.3f}.",
                       text)
    if run.train:
        losses = [line.get("loss") for line in (run.train[0], run.train[-1])]
        return Verdict("unknown", "Nothing was measured on validation text.", text if None in losses else
                       "The training loss went from {:.3f} to {:.3f}.".format(*losses))
    return Verdict("unknown", "Its quality has not been measured." if run.source else "It has not been trained.")


def _gain(judgement: Judgement) -> float:
    """Returns the factor between a metric and its baseline: the ratio of perplexities or losses, or the larger one of
    the ratios of accuracies and of error rates."""
    metric, value, base, _ = judgement
    if is_token_loss(metric):
        return math.exp(min(base - value, 700))
    if not metric.higher_is_better:
        return _ratio(base, value)
    return max(_ratio(value, base), _ratio(metric.maximum - base, metric.maximum - value))


def _ratio(better: float, worse: float) -> float:
    return better / worse if worse > 0 else math.inf if better > 0 else 0.0


def _is_good(judgement: Judgement) -> bool:
    metric, value, base, _ = judgement
    return _gain(judgement) >= GOOD and (
        not metric.higher_is_better or value - base >= min(MARGIN, (metric.maximum - base) / 2))


def _task_verdict(run: RunData) -> Verdict:
    """Judges by the metric that chooses the best checkpoint or, if it has no baseline, by all metrics with one."""
    if not run.validation:
        return Verdict("unknown", "Nothing was measured on validation data." if run.train else
                       "It has not been trained.")
    known, name, first = judged(run), run.experiment.checkpoint.best, run.validation[0]
    text = " ".join([*_task_sentences(run, known), f"The best checkpoint is that of step {run.judged['step']:,}."])
    metric, now, before = declared(run).get(name), run.judged.get(name), first.get(name)
    changed = None not in (metric, now, before) and run.judged is not first
    if not known and not changed:
        return Verdict("unknown", "Its metrics have no baseline.", text)
    if not known:
        better = now > before if metric.higher_is_better else now < before
        return Verdict("some" if better else "bad", f"{metric.title} went from {before:{metric.format}} "
                       f"{_when(first['step'])} to {now:{metric.format}}.", text)
    if changed and beats(metric, before, now):
        return Verdict("bad", f"This run ended below its start: {metric.title} was {before:{metric.format}} "
                       f"{_when(first['step'])} and is {now:{metric.format}}.", text)
    decisive = {name: known[name]} if name in known else known
    worse = sum(not judgement.better for judgement in decisive.values())
    if worse == len(decisive):
        when = "This run failed:" if run.step >= run.experiment.steps else "So far"
        return Verdict("bad", f"{when} the model is no better than its baseline.", text)
    if worse:
        return Verdict("some", f"The model is better than its baseline by {len(decisive) - worse} of {len(decisive)} "
                       "metrics.", text)
    if any(row.kind == BAG_OF_WORDS for row, _ in lost(declared(run), compared(run))):
        return Verdict("bad", sentence(declared(run), compared(run), intervals(run)), text)
    ends = {name: interval(run, name) for name in decisive}
    clear = {name: beats(judgement.metric, ends[name][not judgement.metric.higher_is_better], judgement.trivial)
             for name, judgement in decisive.items() if ends[name]}
    if len(clear) == len(decisive) and all(clear.values()):
        return Verdict("good", "The model is clearly better than its baseline.", text)
    within = not all(clear.values())
    return Verdict("some", "The model is not clearly better than its baseline, which lies within the 95% interval."
                   if within else "The model is better than its baseline.", text)


def _when(step: int) -> str:
    return f"at step {step:,}" if step else "before training"


def _sentence(run: RunData, name: str, metric: Metric) -> str:
    """Describes a validation metric beside its baseline and its first value."""
    def value(x: float) -> str:
        return format(x, metric.format) + (f" (perplexity {perplexity(x)})" if is_token_loss(metric) else "")

    first, measured = run.comparable[0], run.validation[-1]["step"]
    references = []
    if judgement := judged(run).get(name):
        references.append(f"{value(judgement.trivial)} for {judgement.against}")
    if isinstance(first.get(name), int | float) and measured > first["step"]:
        references.append(f"{value(first[name])} {_when(first['step'])}")
    when = "" if measured == run.step else f" at step {measured:,}"
    against = f", against {' and '.join(references)}" if references else ""
    return f"{metric.title}{when}: {value(run.last('validation', name))}{against}."


def _task_sentences(run: RunData, known: dict[str, Judgement]) -> Iterator[str]:
    """Describes headline metrics with their intervals and baselines, a sentence for each."""
    for name, metric in declared(run).items():
        value = run.last("validation", name)
        if value is None or name in COMMON or not (metric.headline or name in known) or is_baseline(run, name):
            continue
        ends, judgement = interval(run, name), known.get(name)
        within = f" (95% interval {between(ends, metric)})" if ends else ""
        against = f", against {judgement.trivial:{metric.format}} for {judgement.against}" if judgement else ""
        yield f"{metric.title}: {value:{metric.format}}{within}{against}."


def is_baseline(run: RunData, name: str) -> bool:
    """Returns whether a metric is the baseline of another one."""
    return any(name in baseline_names(metric) for metric in declared(run).values())


def between(interval: Sequence[float], metric: Metric) -> str:
    """Formats an interval: 54.7% to 67.7%."""
    form = ".1%" if metric.format.endswith("%") else metric.format
    return " to ".join(format(end, form) for end in interval)


def next_steps(run: RunData) -> list[tuple[str, str]]:
    """Returns (advice, command or "") in order of importance."""
    labelled, ended, steps = run.results is not None, run.step >= run.experiment.steps, []
    if not ended and run.starts:
        steps.append((f"Training stopped at step {run.step:,} of {run.experiment.steps:,}. The same command "
                      "resumes from the latest checkpoint:", command(run)))
    if run.train and not run.validation:
        steps.append(("Give validation data, so that the next run can be evaluated and its best checkpoint is kept: "
                      "--config.data.validation=FILE." if labelled else
                      "Hold out validation text, so that the next run can be evaluated: "
                      "--config.data.validation=0.05.", ""))
    steps += (_task_advice if labelled else _pretraining_advice)(run, ended)
    if run.predictions.step is not None:
        steps += [*(_task_usage if labelled else _usage)(run), (
            "Export its vectors:", f"lmrep embed --workdir={shlex.quote(str(run.directory))} --input=texts.txt "
            "--output=vectors.safetensors")]
    return steps


def _task_advice(run: RunData, ended: bool) -> list[tuple[str, str]]:
    if ended and verdict(run).mark == "bad":
        return [(f"{advice(run)} On small data sets, try other seeds and recipe=mosbach, which trains for 20 epochs.",
                 "")]
    if ended and len(run.validation) > 2 and run.judged == run.validation[-1]:
        return [(f"{declared(run)[run.experiment.checkpoint.best].title} was best at the last step: train longer, "
                 "in another workdir, with a larger --config.epochs.", "")]
    return []


def _task_usage(run: RunData) -> list[tuple[str, str]]:
    workdir, steps = shlex.quote(str(run.directory)), []
    # A quote is what the shell would need quoted.
    for source, text in sorted(run.results.texts, key=lambda pair: "'" in pair[1])[:1]:
        option = f" --source={source}" * bool(source)
        steps.append(("Make predictions:", f"lmrep predict --workdir={workdir}{option} {shlex.quote(text)}"))
    option = " --source=NAME" * bool(run.experiment.sources)
    return [*steps, ("Evaluate on other labelled files:", f"lmrep evaluate --workdir={workdir}{option} --files=FILE")]


def _pretraining_advice(run: RunData, ended: bool) -> list[tuple[str, str]]:
    steps = []
    losses = [(line["step"], line["loss"]) for line in run.comparable if "loss" in line]
    late = [(step, loss) for step, loss in losses if step <= 0.75 * run.step]
    best_step, best = min(losses, key=lambda pair: pair[1]) if losses else (0, 0.0)
    if len(losses) > 2 and best < losses[-1][1] * (1 - IMPROVING):
        steps.append((f"Overfitting: the validation loss was lowest at step {best_step:,} ({best:.3f}; now "
                      f"{losses[-1][1]:.3f}). Use more text, dropout, or fewer steps.", ""))
    elif ended and len(losses) > 2 and late and losses[-1][1] < late[-1][1] * (1 - IMPROVING):
        steps.append((f"The validation loss was still falling: from {late[-1][1]:.3f} at step {late[-1][0]:,} to "
                      f"{losses[-1][1]:.3f}. Train longer, in another workdir, since the learning-rate schedule covers "
                      "all steps:", again(run, twice_as_long(run.experiment))))
    if ended and verdict(run).mark == "bad":
        steps.append((advice(run), ""))
    # The total loss may be weighted, so a loss of tokens is preferred.
    name = next((name for name, metric in headlines(run).items() if is_token_loss(metric)), "loss")
    validation, end = run.last("validation", name), run.validation[-1]["step"] if run.validation else run.step
    lines = [line for line in run.train if line["step"] <= end]
    recent = [line[name] for line in lines[-max(1, len(lines) // 10):] if name in line]
    if recent and validation is not None and validation - (train := sum(recent) / len(recent)) > OVERFIT:
        title = declared(run)[name].title
        steps.append((f"{title} is lower on training text than on validation text ({train:.2f} and {validation:.2f}): "
                      "more text is likely to help more than a larger network.", ""))
    return steps


def _usage(run: RunData) -> list[tuple[str, str]]:
    """Returns (use, command) for a pretrained network."""
    workdir, steps = shlex.quote(str(run.directory)), []
    text = prompts.example(run.experiment.samples, ALL_OBJECTIVES[run.stage.objective_name].capabilities,
                           run.prepared, run.network.model.max_length if run.network else 0)
    if text and (run.predictions.samples or run.predictions.held_out):
        steps.append(("Make predictions:", f"lmrep predict --workdir={workdir} {shlex.quote(text)}"))
    if run.prepared and "test" in run.prepared.stores:
        steps.append(("Evaluate on the test split, which training does not use:",
                      f"lmrep evaluate --workdir={workdir}"))
    if run.source:
        if run.predictions.complete:
            steps.append(("Evaluate on your own text:", f"lmrep evaluate --workdir={workdir} --files='texts/*.txt'"))
        nearest = compare(run)
        page = nearest.page if nearest else "quickstart.py"
        steps.append(("Continue training on that text:", f"lmrep train --config=experiments/{page}:data=files,"
                      f"init={workdir} --workdir={workdir}-further --config.data.files='texts/*.txt'"))
    return steps


def command(run: RunData) -> str:
    """Returns the command that made the run, with the program's name instead of its path; "" if none was recorded."""
    if run.source:
        convert = ["lmrep", "convert", run.source, str(run.directory)]
        return "" if run.source == run_data.OTHER_LOOP else shlex.join(convert)
    recorded = [start.get("command", "") for start in run.starts] or [""]
    words = recorded[-1]
    try:
        first, *rest = _from_the_beginning([shlex.split(line) for line in recorded])
    except ValueError:  # none, or damaged
        return words
    program = PurePath(first)
    is_lmrep = program.name == "lmrep" or program.parts[-2:] == ("lmrep", "__main__.py")  # as python -m lmrep
    return shlex.join(["lmrep", *rest]) if is_lmrep else words


def _from_the_beginning(starts: Sequence[list[str]]) -> list[str]:
    """Returns the words of the last start with --config, with the fields that later starts, which resumed, changed."""
    named = [i for i, words in enumerate(starts) if any(word.partition("=")[0] == "--config" for word in words)]
    if not named:
        return starts[-1]
    words = starts[named[-1]]
    for later in starts[named[-1] + 1:]:
        fields = [word for word in later if word.startswith("--config.") and "=" in word]
        names = {field.partition("=")[0] for field in fields}
        words = [word for word in words if word.partition("=")[0] not in names] + fields
    return words


def twice_as_long(experiment: Experiment) -> str:
    """Returns the flag that trains for twice the time of a `budget`, or for twice the steps."""
    if experiment.budget:
        seconds = 2 * int(parse_duration(experiment.budget, "config.budget"))
        return f"--config.budget={seconds}s" if seconds % 60 else f"--config.budget={seconds // 60}m"
    return f"--config.steps={2 * experiment.steps}"


def again(run: RunData, flag: str) -> str:
    """Returns the command that made the run with one flag and the workdir changed; if unknown, only the flag."""
    words = shlex.split(command(run) or "")
    workdirs = [i for i, word in enumerate(words) if word == "--workdir" or word.startswith("--workdir=")]
    if words[:2] != ["lmrep", "train"] or not workdirs:
        return flag
    for i in workdirs:
        words[i + (words[i] == "--workdir")] += "-longer"
    field = flag.partition("=")[0] + "="
    return shlex.join([*(word for word in words if not word.startswith(field)), flag])


# Numbers for people


def number(x: float) -> str:
    """Formats a number: 1,234; 6.54 million; 2.30 × 10¹³."""
    if abs(x) < 1e6:
        return f"{x:,.0f}"
    if abs(x) < 1e12:
        return f"{x / 1e6:.3g} million" if abs(x) < 1e9 else f"{x / 1e9:.3g} billion"
    power = math.floor(math.log10(abs(x)))
    return f"{x / 10**power:.2f} × 10" + str(power).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def percent(x: float) -> str:
    """Formats a fraction: 31.4%; with two decimals below 1%."""
    return f"{x:.1%}" if x >= 0.01 else f"{x:.2%}"


def perplexity(loss: float) -> str:
    """Formats exp(loss): 1,234; below ten, 3.45."""
    value = math.exp(min(loss, 700))
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}" if value < 1e9 else number(value)


def duration(seconds: float) -> str:
    """Formats seconds: 2 min 45 s; 3 h 05 min; 4 d 2 h."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60:02} s"
    if s < 86400:
        return f"{s // 3600} h {s % 3600 // 60:02} min"
    return f"{s // 86400} d {s % 86400 // 3600} h"
