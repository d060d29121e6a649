"""What a run came to, in sentences: what was trained, how good it is, what it cost, what to do next."""

import math
import shlex
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from lmrep.analysis.report import facts as F
from lmrep.analysis.report.answers import Answers
from lmrep.analysis.report.facts import Facts
from lmrep.analysis.report.measures import MEASURES, Measure
from lmrep.analysis.report.recipes import compare, corpus
from lmrep.inference import prompts
from lmrep.objectives import OBJECTIVES

# It "worked" where it is so many times as often right as the most frequent word is, and the text around a word makes
# its choice so many times make_generator; it learned something from SOME on.
TIMES, NARROWED, SOME = 2.0, 2.0, 1.1
# By how much more of the replaced tokens it suspects than of the others, from which "it worked"; it learned something
# from a sixth of that on, or of the nats that the tokens' share alone leaves.
APART = 0.3
STILL = 0.01  # share that the validation loss fell by over the last quarter or more, from which it still falls
GAP = 0.2  # nats by which training text is easier than held-out text, from which the network fits its own text


class Verdict(NamedTuple):
    """`mark` is "good", "some", "bad" or "unknown"."""

    mark: str
    text: str


def subject(facts: Facts) -> str:
    """What was trained on what, and how long."""
    network, stage = facts.network, facts.stages[0]
    measure = MEASURES.get(stage.objective_name)
    asked = measure.task if measure else f"with the objective {stage.objective_name}"
    if getattr(stage.objective, "sentence_pair", False):
        asked += " and how two passages belong together"
    c = facts.experiment.model
    shape = f"a Transformer of {c['layers']} layers, {c['width']} wide, with {c['heads']} attention heads a layer" \
        if {"layers", "width", "heads"} <= c.keys() else "a network"
    size = f" ({number(network.parameters)} parameters)" if network else ""
    if facts.source:
        return f"{capital(shape)}{size}. Its parameters were converted from {facts.source}."
    if not facts.train and not facts.validation:
        return f"{capital(shape)}{size}. No training step of it is on record here."
    extent = f"{facts.step:,} steps" + ("" if facts.step >= facts.experiment.steps
                                        else f" of the {facts.experiment.steps:,} planned")
    if facts.tokens:
        extent += f", {number(facts.tokens)} tokens"
        if facts.prepared:
            extent += f" or {facts.tokens / max(1, facts.prepared.statistics['train']['tokens']):.1f} times its text"
    return f"{capital(shape)}{size}, was trained {asked} on {corpus(facts.experiment)}, for {extent}."


def cost(facts: Facts) -> str:
    """Time and device-hours, and the work done; "" where there was none."""
    if not facts.step:
        return ""
    seconds, devices = F.seconds(facts), facts.devices
    work = number(facts.flops_at(facts.step) or 0)
    done = f" for {work} floating-point operations" if facts.network else ""
    if seconds is None:
        return f"How long it took was not recorded{done and f'; it did {work} floating-point operations'}."
    if not devices:
        return f"It took {duration(seconds)}{done}."
    hours = seconds * devices["count"] / 3600
    on = f"{devices['count']} {devices['kind']} device{'s' * (devices['count'] > 1)}"
    cores = f" ({facts.starts[-1]['cores']} cores)" if devices["platform"] == "cpu" and facts.starts[-1].get("cores") \
        else ""
    again = f", over {len(facts.starts)} starts" if len(facts.starts) > 1 else ""
    return f"It took {duration(seconds)}{again} on {on}{cores}: {hours:.3g} device-hours{done}."


def verdict(facts: Facts) -> Verdict:
    """Whether it worked, judged on text that it never saw."""
    measure = MEASURES.get(facts.stage.objective_name)
    if facts.last("validation", "replaced_accuracy") is not None:
        return _told_apart(facts)
    if measure and facts.last("validation", measure.right) is not None and facts.last("validation", "most_frequent_accuracy"):
        return _guessed(facts, measure)
    first, last = facts.validation[:1], facts.last("validation", "loss")
    if first and last is not None and facts.step > first[0]["step"]:
        fell = first[0].get("loss", last) - last
        return Verdict("some" if fell > 0 else "bad",
                       f"The held-out loss went from {last + fell:.3f} to {last:.3f} nats.")
    if facts.train:
        values = [line.get("loss") for line in (facts.train[0], facts.train[-1])]
        said = " The training loss went from {:.3f} to {:.3f}.".format(*values) if None not in values else ""
        return Verdict("unknown", "Whether it worked cannot be said: nothing was measured on text that it had not "
                       f"seen.{said}")
    return Verdict("unknown", "It has not been trained here" + (", and nothing here tells how good it is: measure it."
                                                                if facts.source else "."))


def _guessed(facts: Facts, measure: Measure) -> Verdict:
    """Of a network that is asked for words."""
    causal = facts.stage.objective_name == "causal"
    accuracy, base = facts.last("validation", measure.right), facts.last("validation", "most_frequent_accuracy")
    times, nats, blind = accuracy / base, facts.last("validation", measure.nats), F.by_frequency(facts)
    before = _untrained(facts, measure.right)
    text = (f"Of the words, pieces of words and punctuation {measure.where} it "
            + ("foretells " if causal else "guesses ") + percent(accuracy) + _when(facts)
            + (f" ({percent(before)} before training)" if before is not None else "")
            + f"; always saying the most frequent one would give {percent(base)}.")
    if (around := facts.last("validation", "boundary_accuracy")) is not None:
        text += f" From the tokens around a span and a word's place in it alone it guesses {percent(around)}."
    if (pairs := facts.last("validation", "pair_accuracy")) is not None:
        text += f" Of the pairs of passages it labels {percent(pairs)} rightly."
    if nats is not None and blind is not None:
        narrowed = math.exp(blind - nats)
        if causal:
            start = _untrained(facts, measure.nats)
            earlier = "" if start is None else f"; before training it was {perplexity(start)}"
            text += (f" Its perplexity is {perplexity(nats)} a token, as if it chose among so many equally likely ones"
                     f"{earlier}, and by how frequent tokens are alone it would be {perplexity(blind)}.")
        else:
            text += (f" By how frequent words are alone, one would pick as if among {perplexity(blind)} equally "
                     f"likely pieces of words; reading the text around them, it picks as if among {perplexity(nats)}.")
        worked, some = times >= TIMES and narrowed >= NARROWED, narrowed >= SOME
    else:
        worked, some = times >= 2 * TIMES, times >= SOME
    if worked:
        return Verdict("good", f"It worked: it is right {times:.1f} times as often as the simplest guess. {text}")
    if some:
        return Verdict("some", f"It has begun to learn, and makes little of {measure.context} yet. {text}")
    return Verdict("bad", f"It has not learned more than which words are frequent. {text}")


def _told_apart(facts: Facts) -> Verdict:
    """Of a network that is asked which tokens were replaced. One that answers blindly finds as large a share of these
    as it suspects of the others."""
    found, passed = (facts.last("validation", name) for name in ("replaced_accuracy", "original_accuracy"))
    passed = 1.0 if passed is None else passed
    text = (f"In text that it never saw, {percent(facts.last('validation', 'replaced_fraction') or 0)} of whose tokens "
            f"another network had replaced, it finds {percent(found)} of these and lets {percent(passed)} of the "
            f"others that it is asked about pass{_when(facts)}.")
    if (start := _untrained(facts, "replaced_accuracy")) is not None:
        text += (f" Before training it found {percent(start)} and let "
                 f"{percent(_untrained(facts, 'original_accuracy') or 0)} pass.")
    if (nats := facts.last("validation", "generator_loss")) is not None:
        right = facts.last("validation", "generator_accuracy") or 0
        text += (f" The network that replaces them, trained beside it, guesses {percent(right)} of the words hidden "
                 f"from it, and picks as if among {perplexity(nats)} equally likely pieces of words")
        start = _untrained(facts, "generator_loss")
        text += "." if start is None else f" (before training: {perplexity(start)})."
    share, nats = facts.last("validation", "replaced_fraction"), facts.last("validation", "discriminator_loss")
    saved = 0.0
    if getattr(facts.stage.objective, "variant", "") == "electra" and nats is not None and share and share < 1:
        blind = -share * math.log(share) - (1 - share) * math.log(1 - share)
        saved = 1 - nats / blind
        text += f" Telling them apart takes it {nats:.3f} nats a token; their share alone, known, {blind:.3f}."
    above = found + passed - 1
    if above >= APART:
        return Verdict("good", f"It worked: it finds {percent(found)} of the replaced tokens and suspects "
                       f"{percent(1 - passed)} of the others. {text}")
    if above >= APART / 6 or saved >= APART / 6:
        return Verdict("some", f"It has begun to tell replaced tokens from the text's own. {text}")
    return Verdict("bad", f"It does not yet tell replaced tokens from the text's own. {text}")


def _untrained(facts: Facts, name: str) -> float | None:
    """A validation metric before the first step, where it was measured."""
    first = facts.validation[0] if facts.validation else {}
    return first.get(name) if first.get("step") == 0 else None


def _when(facts: Facts) -> str:
    """When the newest validation was, where it was not at the end."""
    measured = facts.validation[-1]["step"]
    return "" if measured == facts.step else f" (measured at step {measured:,})"


def next_steps(facts: Facts, answers: Answers) -> list[tuple[str, str]]:
    """(advice, command or "") in order of weight."""
    where = shlex.quote(str(facts.directory))
    found, ended = [], facts.step >= facts.experiment.steps
    if not ended and facts.starts:
        found.append((f"It stopped at step {facts.step:,} of {facts.experiment.steps:,}. The same command goes on from "
                      "its newest checkpoint:", command(facts)))
    if facts.train and not facts.validation:
        found.append(("Hold some text out, so that the next run can be judged: set data.validation to 0.05, say.", ""))
    begin = _asked_since(facts)
    losses = [(line["step"], line["loss"]) for line in facts.validation
              if "loss" in line and (line["step"] > begin or not begin)]
    late = [(step, loss) for step, loss in losses if step <= 0.75 * facts.step]
    best_step, best = min(losses, key=lambda pair: pair[1]) if losses else (0, 0.0)
    measure, mark = MEASURES.get(facts.stage.objective_name), verdict(facts).mark
    # A loss may be weighted beyond nats.
    name = measure.nats if measure and _lately(facts, measure.nats) is not None else "loss"
    train, held_out = _lately(facts, name), facts.last("validation", name)
    if len(losses) > 2 and best < losses[-1][1] * (1 - STILL):
        found.append((f"On held-out text it was best at step {best_step:,} ({best:.3f} against {losses[-1][1]:.3f}) "
                      "and then learned its own text by heart: give it more text, dropout, or fewer steps.", ""))
    elif ended and len(losses) > 2 and late and losses[-1][1] < late[-1][1] * (1 - STILL):
        found.append((f"It was still improving when it ended: since step {late[-1][0]:,} the held-out loss fell from "
                      f"{late[-1][1]:.3f} to {losses[-1][1]:.3f}. Train longer, in another workdir since the learning "
                      "rate is planned over all steps:", again(facts, f"--config.steps={2 * facts.experiment.steps}")))
    if mark == "bad" and ended:
        found.append(("Try ten times the steps, or a learning rate two or three times as high or as low; a narrow "
                      "network also wants larger initial weights (model.init_stddev near 1 / sqrt(width)).", ""))
    if train is not None and held_out is not None and held_out - train > GAP:
        found.append((f"It answers its training text better than text it never saw ({train:.2f} against {held_out:.2f} "
                      "nats): more text is likely to help more than a larger network.", ""))
    if answers.step is not None:
        asked = prompts.example(facts.experiment.samples, OBJECTIVES[facts.stage.objective_name].capabilities)
        if asked and any((answers.samples, answers.held_out, answers.continued, answers.doubted)):
            found.append(("Ask it something:", f"lmrep predict --workdir={where} {shlex.quote(asked)}"))
        if facts.prepared and "test" in facts.prepared.stores:
            found.append(("Measure it on the test split, which training never looks at:",
                          f"lmrep evaluate --workdir={where}"))
        if facts.source:
            if answers.whole:
                found.append(("Measure it on text of your own:",
                              f"lmrep evaluate --workdir={where} --files='texts/*.txt'"))
            nearest = compare(facts)
            page = nearest.preset.partition("_")[0] if nearest else "bert"
            found.append(("Train it further on that text:", f"lmrep train --config=experiments/{page}.py:data=files,"
                          f"init={where} --workdir={where}-further --config.data.files='texts/*.txt'"))
        found.append(("Use its vectors:", f"lmrep embed --workdir={where} --input=texts.txt "
                      "--output=vectors.safetensors"))
    return found


def _asked_since(facts: Facts) -> int:
    """The step from which on the losses are of the objective, with its weights, of the stage that was reached."""
    begin, since = 0, 0
    for former, stage in pairwise(facts.stages[: facts.stages.index(facts.stage) + 1]):
        begin += former.steps
        since = since if stage.objective == former.objective else begin
    return since


def _lately(facts: Facts, name: str) -> float | None:
    """A training metric's mean over the last tenth of the lines before the newest validation."""
    end = facts.validation[-1]["step"] if facts.validation else facts.step
    lines = [line for line in facts.train if line["step"] <= end]
    values = [line[name] for line in lines[-max(1, len(lines) // 10):] if name in line]
    return sum(values) / len(values) if values else None


def command(facts: Facts) -> str:
    """The command that made the run, its program by name alone; "" where none was recorded."""
    if facts.source:
        return shlex.join(["lmrep", "convert", facts.source, str(facts.directory)])
    words = facts.starts[-1].get("command", "") if facts.starts else ""
    try:
        first, *rest = shlex.split(words)
    except ValueError:  # none, or damaged
        return words
    return shlex.join(["lmrep", *rest]) if PurePath(first).name == "lmrep" else words


def again(facts: Facts, change: str) -> str:
    """The command that made the run, changed, in a workdir of another name; `change` alone where it is not known."""
    words = shlex.split(command(facts) or "")
    places = [i for i, word in enumerate(words) if word == "--workdir" or word.startswith("--workdir=")]
    if words[:2] != ["lmrep", "train"] or not places:
        return change
    for i in places:
        words[i + (words[i] == "--workdir")] += "-longer"
    field = change.partition("=")[0] + "="
    return shlex.join([*(word for word in words if not word.startswith(field)), change])


# Numbers for people


def number(x: float) -> str:
    """1,234; 6.54 million; 2.3 × 10¹³."""
    if abs(x) < 1e6:
        return f"{x:,.0f}"
    for limit, unit in ((1e9, (1e6, "million")), (1e12, (1e9, "billion"))):
        if abs(x) < limit:
            return f"{x / unit[0]:.3g} {unit[1]}"
    power = math.floor(math.log10(abs(x)))
    return f"{x / 10**power:.2f} × 10" + str(power).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def amount(n: float) -> str:
    """Bytes: 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} TB"


def percent(x: float) -> str:
    """31.4%; two digits more of a small share."""
    return f"{x:.1%}" if x >= 0.01 else f"{x:.2%}"


def perplexity(nats: float) -> str:
    """exp(nats): 1,234; below ten, 3.45."""
    value = math.exp(min(nats, 700))
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


def capital(text: str) -> str:
    """With its first letter large."""
    return text[:1].upper() + text[1:]
