"""The summary of a run in sentences: what was trained, how well, at what cost, and what to do next."""

import math
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from lmrep.analysis.report import run_data, task_prose
from lmrep.analysis.report.metrics import baseline, baseline_title, declared, headlines
from lmrep.analysis.report.predictions import Predictions
from lmrep.analysis.report.recipes import compare, corpus
from lmrep.analysis.report.run_data import RunData
from lmrep.experiment.config import model_def
from lmrep.experiment.record import ALL_OBJECTIVES
from lmrep.inference import prompts
from lmrep.metrics import Metric, advice, beats, is_token_loss

# Training worked where every accuracy is this many times its baseline (or its error this many times smaller), and every
# perplexity this many times smaller than that of token frequencies; it has begun to from SOME on.
GOOD, SOME = 2.0, 1.1
MARGIN = 0.1  # by which an accuracy must also exceed its baseline
IMPROVING = 0.01  # relative fall of the validation loss over the last quarter from which training longer is advised
OVERFIT = 0.2  # nats of difference between training and validation loss from which more text is advised


class Verdict(NamedTuple):
    """`mark` is "good", "some", "bad" or "unknown"."""

    mark: str
    headline: str
    text: str = ""


def subject(run: RunData) -> str:
    """What was trained, on what and for how long."""
    network, experiment = run.network, run.experiment
    name = experiment.model.get("name", "network")
    sizes = ", ".join(f"{field} {value:,}" for field in model_def(experiment.model).tiny
                      if type(value := experiment.model.get(field)) is int and value)
    text = f"Network {name} ({sizes}{f'; {number(network.parameters)} parameters' if network else ''})"
    if run.source:
        return f"{text}. Its parameters were converted from {run.source}."
    if not run.train and not run.validation:
        return f"{text}. No training step is logged."
    if run.experiment.labelled:
        return f"{text}, {task_prose.subject(run)}"
    extent = f"{run.step:,} steps" + ("" if run.step >= experiment.steps else f" of {experiment.steps:,} planned")
    if run.tokens:
        extent += f", {number(run.tokens)} tokens"
        if run.epochs:
            extent += f" ({run.epochs:,.1f} epochs)"
    objectives = ", then ".join(dict.fromkeys(stage.objective_name for stage in run.stages))
    return f"{text}, trained with the objective {objectives} on {corpus(experiment)} for {extent}."


def cost(run: RunData) -> str:
    """Time, device-hours and operations; "" where there was no step."""
    if not run.step:
        return ""
    seconds, devices = run_data.seconds(run), run.devices
    done = run.flops_at(run.step)
    operations = f"{number(done)} floating-point operations" if done is not None else ""
    if seconds is None:
        return f"Training time was not logged{operations and f'; training did {operations}'}."
    text = f"Training took {duration(seconds)}"
    if devices:
        cores, count = run.starts[-1].get("cores") if devices["platform"] == "cpu" else None, devices["count"]
        text += (f", over {len(run.starts)} starts" * (len(run.starts) > 1)
                 + f" on {count} {devices['kind']} device{'s' * (count > 1)}{f' ({cores} cores)' if cores else ''}: "
                 + device_hours(run))
    return f"{text}{operations and f' and {operations}'}."


def device_hours(run: RunData) -> str:
    """Training time times the number of devices; "" where either is not known."""
    seconds = run_data.seconds(run)
    return f"{seconds * run.devices['count'] / 3600:.3g} device-hours" if seconds is not None and run.devices else ""


def verdict(run: RunData) -> Verdict:
    """Whether training worked, by the validation metrics that have a baseline."""
    if run.experiment.labelled:
        return Verdict(*task_prose.verdict(run))
    metrics = headlines(run)
    pairs = {name: (metric, run.last("validation", name), base) for name, metric in metrics.items()
             if (base := baseline(run, metric)) is not None}
    text = " ".join(_sentence(run, name, metric) for name, metric in metrics.items())
    if pairs:
        worse = [pair[0].title.lower() for pair in pairs.values() if not beats(*pair)]
        if len(worse) == len(pairs):
            return Verdict("bad", "The model is not better than its baselines.", text)
        if worse:
            return Verdict("bad", f"The model is better than its baselines by {len(pairs) - len(worse)} of "
                           f"{len(pairs)} metrics, but not by {' and '.join(worse)}.", text)
        if all(_is_good(*pair) for pair in pairs.values()):
            return Verdict("good", "Training worked: the model is far better than its baselines.", text)
        if all(_gain(*pair) >= SOME for pair in pairs.values()):
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


def _gain(metric: Metric, value: float, base: float) -> float:
    """How many times as good as the baseline: a ratio of perplexities or of losses; of accuracies, or of their
    errors where that is larger."""
    if is_token_loss(metric):
        return math.exp(min(base - value, 700))
    if not metric.higher_is_better:
        return _ratio(base, value)
    return max(_ratio(value, base), _ratio(metric.maximum - base, metric.maximum - value))


def _ratio(better: float, worse: float) -> float:
    return better / worse if worse > 0 else math.inf if better > 0 else 0.0


def _is_good(metric: Metric, value: float, base: float) -> bool:
    gain = _gain(metric, value, base)
    return gain >= GOOD and (not metric.higher_is_better or value - base >= min(MARGIN, (metric.maximum - base) / 2))


def _sentence(run: RunData, name: str, metric: Metric) -> str:
    """A validation metric beside its baseline and its first value."""
    def value(x: float) -> str:
        return format(x, metric.format) + (f" (perplexity {perplexity(x)})" if is_token_loss(metric) else "")

    first, measured = run.comparable[0], run.validation[-1]["step"]
    others = []
    if (base := baseline(run, metric)) is not None:
        others.append(f"{value(base)} for {baseline_title(run, metric)}")
    if isinstance(first.get(name), int | float) and measured > first["step"]:
        since = f"at step {first['step']:,}" if first["step"] else "before training"
        others.append(f"{value(first[name])} {since}")
    when = "" if measured == run.step else f" at step {measured:,}"
    against = f", against {' and '.join(others)}" if others else ""
    return f"{metric.title}{when}: {value(run.last('validation', name))}{against}."


def next_steps(run: RunData, predictions: Predictions) -> list[tuple[str, str]]:
    """(advice, command or "") in order of importance."""
    if run.experiment.labelled:
        usage = [*task_prose.usage(run), _export(run)] if predictions.step is not None else []
        return [*task_prose.training_advice(run, command(run)), *usage]
    return [*_training_advice(run), *(_usage(run, predictions) if predictions.step is not None else ())]


def _training_advice(run: RunData) -> list[tuple[str, str]]:
    found, ended = [], run.step >= run.experiment.steps
    if not ended and run.starts:
        found.append((f"Training stopped at step {run.step:,} of {run.experiment.steps:,}. The same command "
                      "resumes from the latest checkpoint:", command(run)))
    if run.train and not run.validation:
        found.append(("Hold out validation text, so that the next run can be evaluated: "
                      "--config.data.validation=0.05.", ""))
    losses = [(line["step"], line["loss"]) for line in run.comparable if "loss" in line]
    late = [(step, loss) for step, loss in losses if step <= 0.75 * run.step]
    best_step, best = min(losses, key=lambda pair: pair[1]) if losses else (0, 0.0)
    if len(losses) > 2 and best < losses[-1][1] * (1 - IMPROVING):
        found.append((f"Overfitting: the validation loss was lowest at step {best_step:,} ({best:.3f}; now "
                      f"{losses[-1][1]:.3f}). Use more text, dropout, or fewer steps.", ""))
    elif ended and len(losses) > 2 and late and losses[-1][1] < late[-1][1] * (1 - IMPROVING):
        found.append((f"The validation loss was still falling: from {late[-1][1]:.3f} at step {late[-1][0]:,} to "
                      f"{losses[-1][1]:.3f}. Train longer, in another workdir, since the learning-rate schedule covers "
                      "all steps:", again(run, f"--config.steps={2 * run.experiment.steps}")))
    if ended and verdict(run).mark == "bad":
        found.append((advice(losses[0][1] if len(losses) > 1 else None, losses[-1][1] if losses else None), ""))
    # The total loss may be weighted, so a loss of tokens is preferred.
    name = next((name for name, metric in headlines(run).items() if is_token_loss(metric)), "loss")
    train, validation = _recent(run, name), run.last("validation", name)
    if train is not None and validation is not None and validation - train > OVERFIT:
        title = declared(run)[name].title
        found.append((f"{title} is lower on training text than on validation text ({train:.2f} and {validation:.2f}): "
                      "more text is likely to help more than a larger network.", ""))
    return found


def _usage(run: RunData, predictions: Predictions) -> list[tuple[str, str]]:
    """What can be done with the trained network."""
    workdir, found = shlex.quote(str(run.directory)), []
    text = prompts.example(run.experiment.samples, ALL_OBJECTIVES[run.stage.objective_name].capabilities,
                           run.prepared, run.network.model.max_length if run.network else 0)
    if text and (predictions.samples or predictions.held_out):
        found.append(("Make predictions:", f"lmrep predict --workdir={workdir} {shlex.quote(text)}"))
    if run.prepared and "test" in run.prepared.stores:
        found.append(("Evaluate on the test split, which training does not use:",
                      f"lmrep evaluate --workdir={workdir}"))
    if run.source:
        if predictions.complete:
            found.append(("Evaluate on your own text:", f"lmrep evaluate --workdir={workdir} --files='texts/*.txt'"))
        nearest = compare(run)
        page = nearest.page if nearest else "quickstart.py"
        found.append(("Continue training on that text:", f"lmrep train --config=experiments/{page}:data=files,"
                      f"init={workdir} --workdir={workdir}-further --config.data.files='texts/*.txt'"))
    return [*found, _export(run)]


def _export(run: RunData) -> tuple[str, str]:
    return ("Export its vectors:", f"lmrep embed --workdir={shlex.quote(str(run.directory))} --input=texts.txt "
            "--output=vectors.safetensors")


def _recent(run: RunData, name: str) -> float | None:
    """A training metric's mean over the last tenth of the lines before the latest validation."""
    end = run.validation[-1]["step"] if run.validation else run.step
    lines = [line for line in run.train if line["step"] <= end]
    values = [line[name] for line in lines[-max(1, len(lines) // 10):] if name in line]
    return sum(values) / len(values) if values else None


def command(run: RunData) -> str:
    """The command that made the run, its program by name alone; "" where none was recorded."""
    if run.source:
        return shlex.join(["lmrep", "convert", run.source, str(run.directory)])
    recorded = [start.get("command", "") for start in run.starts] or [""]
    words = recorded[-1]
    try:
        first, *rest = _from_the_beginning([shlex.split(each) for each in recorded])
    except ValueError:  # none, or damaged
        return words
    program = PurePath(first)
    is_lmrep = program.name == "lmrep" or program.parts[-2:] == ("lmrep", "__main__.py")  # as python -m lmrep
    return shlex.join(["lmrep", *rest]) if is_lmrep else words


def _from_the_beginning(starts: Sequence[list[str]]) -> list[str]:
    """The words of the last start that names a config, with the fields that later ones, which resumed, gave."""
    named = [i for i, words in enumerate(starts) if any(word.partition("=")[0] == "--config" for word in words)]
    if not named:
        return starts[-1]
    words = starts[named[-1]]
    for later in starts[named[-1] + 1:]:
        fields = [word for word in later if word.startswith("--config.") and "=" in word]
        names = {field.partition("=")[0] for field in fields}
        words = [word for word in words if word.partition("=")[0] not in names] + fields
    return words


def again(run: RunData, flag: str) -> str:
    """The command that made the run with one flag changed and another workdir; the flag alone if it is not known."""
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
    """1,234; 6.54 million; 2.3 × 10¹³."""
    if abs(x) < 1e6:
        return f"{x:,.0f}"
    if abs(x) < 1e12:
        return f"{x / 1e6:.3g} million" if abs(x) < 1e9 else f"{x / 1e9:.3g} billion"
    power = math.floor(math.log10(abs(x)))
    return f"{x / 10**power:.2f} × 10" + str(power).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def percent(x: float) -> str:
    """31.4%; with two decimals below 1%."""
    return f"{x:.1%}" if x >= 0.01 else f"{x:.2%}"


def perplexity(loss: float) -> str:
    """exp(loss): 1,234; below ten, 3.45."""
    value = math.exp(min(loss, 700))
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}" if value < 1e9 else number(value)


def duration(seconds: float) -> str:
    """2 min 45 s; 3 h 05 min; 4 d 2 h."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60:02} s"
    if s < 86400:
        return f"{s // 3600} h {s % 3600 // 60:02} min"
    return f"{s // 86400} d {s % 86400 // 3600} h"
