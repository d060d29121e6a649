"""Extractive question answering: answers are spans of a context, as in SQuAD (Rajpurkar et al., 2016; 2018).

A unit is a question with a window of its context; windows overlap (`format.stride`). The head scores every token as the
first and as the last of the answer (Devlin et al., 2019, sections 4.2 and 4.3). A unit without an answer has one at the
token of no answer: [CLS], or the last token of a network that reads from left to right. With `end=conditioned` the head
is that of `conditioned_ends`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.metrics import Metric, accuracy_metric
from lmrep.metrics import answers as qa
from lmrep.models.base import Model
from lmrep.objectives.base import Batch, Carry, FrozenParts, Metrics, Objective
from lmrep.objectives.outputs import sums
from lmrep.tasks import answers, conditioned_ends, distillation, heads, networks
from lmrep.tasks.base import Comparison, Outputs, Reads, Result, TaskDef
from lmrep.tasks.capability import Predict
from lmrep.tasks.networks import Network

NAME = "span_extraction"


@dataclass(frozen=True)
class Config(networks.TaskConfig):
    """An extractive question answerer."""

    published: ClassVar[tuple[str, ...]] = ("context", "dense", "activation", "norm")

    context: str = setting("both", "what each position is conditioned on: both sides, or the left alone (GPT); init= "
                           "sets that of the run", choices=("both", "left"))
    end: str = setting("independent", "how a token is scored as the answer's last: by itself (BERT), or given the "
                       "first, with a classifier of no answer (XLNet)", choices=("independent", "conditioned"))
    dense: bool = setting(False, "a dense layer before the output layer; of published networks, ModernBERT's alone has "
                          "one")
    activation: str = setting("tanh", "of the dense layer", choices=tuple(heads.ACTIVATIONS))
    norm: bool = setting(False, "a norm after the dense layer, both of the network's kind, as in ModernBERT")
    beams: int = setting(5, "end conditioned: starts of each window of which ends are scored", at_least=1)
    unanswerable: bool = setting(False, "whether questions may have no answer, as in SQuAD 2.0")
    threshold: float | None = setting(None, "no answer is predicted where its score exceeds the best answer's by more; "
                                      "None: the value that gives the best answer_f1 on the validation data, which "
                                      "each checkpoint keeps (0 without validation data)")
    max_question_tokens: int = setting(64, "longer questions are cut", at_least=1)
    max_answer_tokens: int = setting(30, "of a predicted answer", at_least=1)
    n_best: int = setting(20, "answers that a probability is computed over", at_least=1)


def check_config(c: Config) -> None:
    """Raises UserError for a teacher or a dense layer with end=conditioned."""
    if c.end == "conditioned" and c.dense:
        raise UserError("config.objective.dense is True, and with end=conditioned the head has layers of its own; set "
                        "dense to False, or end to independent")
    if c.end == "conditioned" and c.teacher.alpha_ce:
        raise UserError(f"config.objective.teacher.alpha_ce is {c.teacher.alpha_ce:g}, and with end=conditioned the "
                        "scores of ends depend on the start, so that a teacher has none to learn from; set it to 0")


def check(c: Config, record: Record) -> None:
    """Raises UserError for a question without answers if every question must have one."""
    if record.fields.get("answers") == [] and not c.unanswerable:
        raise UserError(f"{record.where} has no answer; set --config.objective.unanswerable=true for data as SQuAD "
                        "2.0, or correct it")


# The objective


def head(c: Config) -> heads.Head:
    """Returns the config of the head: a linear layer, or more as `dense` and `norm` say, and no dropout."""
    return heads.Head(dense=c.dense, activation=c.activation, norm=c.norm, dropout=0.0)


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})) -> Objective:
    """Builds the objective, which scores every token as the first and as the last one of the answer."""
    net = networks.bind(c, model, NAME, frozen)
    objective = networks.objective(net, 2, lambda batch: batch["start"] >= 0, loss, predict, head=head(c))
    if c.end == "conditioned":
        del objective.specs["objective"][NAME]["out"]
        objective.specs["objective"][NAME] |= conditioned_ends.specs(networks.output_width(net), model.head_style.init)
    return objective


def logits(params: Tree, batch: Batch, key: Array | None = None, *, net: Network) -> Array:
    """Computes the logits float32 [b, t, 2] of each token as the first, and as the last one of the answer."""
    x = networks.token_vectors(params, batch, net, key)
    return heads.apply(params["objective"][NAME], x, head(net.c), net.model)


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean of the cross-entropies of start and end over the positions of each unit; with end=conditioned,
    the mean of `conditioned_ends.losses`."""
    c = net.c
    if c.end == "conditioned":
        x = networks.token_vectors(params, batch, net, key)
        nll, correct = conditioned_ends.losses(
            params["objective"][NAME], x, batch, net.model.head_style.eps, c.unanswerable)
        return (nll * batch["weights"]).sum(), (sums(batch["weights"] > 0, span_accuracy=correct), carry)
    y = logits(params, batch, key, net=net)
    nll, correct = 0.0, True
    scores = of_units(y, batch)
    for i, name in enumerate(("start", "end")):
        position = batch["first"] + jnp.maximum(batch[name], 0)
        target = jnp.take_along_axis(y[..., i], position, axis=1)
        nll += (jax.nn.logsumexp(scores[:, :, i], -1) - target) / 2
        correct &= scores[:, :, i].argmax(-1) == position
    labelled = (nll * batch["weights"]).sum(), sums(batch["weights"] > 0, span_accuracy=correct)
    total, metrics = distillation.add(
        c.teacher, net.teacher, params, batch, labelled, scores, jnp.repeat(batch["weights"][..., None] / 2, 2, -1),
        lambda outputs: of_units(jnp.stack([outputs["tokens"]["start"], outputs["tokens"]["end"]], -1), batch))
    return total, (metrics, carry)


def of_units(y: Array, batch: Batch) -> Array:
    """Returns the logits [b, t, 2] for each unit, [b, n, 2, t], with -1e30 at positions of other units. This is finite,
    so that empty units have finite gradients."""
    in_unit = heads.unit_tokens(batch, batch["unit"].shape[1])
    return jnp.where(in_unit[:, :, None], y.swapaxes(1, 2)[:, None], -1e30)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """Computes the logits `start` and `end` float32 [b, t]. With end=conditioned, computes `conditioned_ends.predict`
    for each unit, and its `loss` [b, n], which is valid for units that have targets."""
    c = net.c
    if c.end == "conditioned":
        head, x, eps = params["objective"][NAME], networks.token_vectors(params, batch, net), net.model.head_style.eps
        scores = conditioned_ends.predict(head, x, batch, eps, c.beams, c.max_answer_tokens)
        loss, _ = conditioned_ends.losses(head, x, batch, eps, c.unanswerable)
        return {"units": scores | {"loss": loss}, "tokens": {}}
    y = logits(params, batch, net=net)
    return {"tokens": {"start": y[..., 0], "end": y[..., 1]}}


# Answers


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Finds the best span of each question over its windows, or no answer.

    A prediction has `answer`, a span of the context or ""; `start` and `end`, the characters of the best span, even if
    the answer is ""; its `score`, the sum of its logits (of log probabilities, with end=conditioned); the `probability`
    of the answer among the n best ones and no answer; and, if questions may be unanswerable, `null_score`, the smallest
    sum of the logits of no answer over the windows. No answer is predicted if null_score - score is above the
    threshold.
    """
    for record in records:
        check(c, record)
    spans, characters, nulls = _search(c, len(records), units, outputs)
    texts = [record.fields["context"][a:b] for record, (a, b) in zip(records, characters, strict=True)]
    odds = nulls - np.array([best.scores[0] for best in spans])
    gold = [[text for text, _ in record.fields["answers"]] if "answers" in record.fields else None
            for record in records]
    metrics, threshold = {}, c.threshold or 0.0
    if None not in gold:
        metrics, threshold = _metrics(c, gold, texts, odds)
        metrics["loss"] = (float(np.mean(outputs["loss"], dtype=np.float64)) if c.end == "conditioned"
                           else _mean_loss(units, outputs))
    predictions = []
    for i, (best, (start, end)) in enumerate(zip(spans, characters, strict=True)):
        refused = c.unanswerable and odds[i] > threshold
        candidates = np.append(best.scores, nulls[i]) if c.unanswerable else best.scores
        chosen = nulls[i] if refused else best.scores[0]
        predictions.append({
            "answer": "" if refused else texts[i], "start": start, "end": end,
            "probability": float(np.exp(chosen - np.logaddexp.reduce(candidates))), "score": float(best.scores[0]),
            **({"null_score": float(nulls[i])} if c.unanswerable else {})})
    if not metrics:
        return Result({}, predictions)
    options = {name: {"version": _version(c)} for name in ("exact_match", "answer_f1")}
    return Result(metrics, predictions, gold, [prediction["answer"] for prediction in predictions], options)


def _search(
    c: Config, count: int, units: Units, outputs: Outputs
) -> tuple[list[answers.Spans], list[tuple[int, int]], np.ndarray]:
    """Returns the n best spans of each question; the characters [start, end) of the best; and float64 [count], the
    score of no answer."""
    conditioned = c.end == "conditioned"
    scores = [] if conditioned else [outputs["start"], outputs["end"]]
    details, null = units.details, units.columns["null"]
    ranges = np.stack([details["begin"], details["end"]], 1)
    shift = details["position"] - details["begin"]  # from a token of the context to its position in the unit
    at_null = np.array(outputs["no_answer"] if conditioned else
                       [sum(float(y[u][at]) for y in scores) for u, at in enumerate(null)], np.float64)
    firsts = np.searchsorted(units.example, np.arange(count + 1))
    spans, characters = [], []
    for members in map(range, firsts[:-1], firsts[1:]):
        context = details["context"][members[0]]
        offsets = details["offsets"][slice(*details["bounds"][context : context + 2])]
        windows, usable = ranges[members[0] : members[-1] + 1], offsets[:, 1] > offsets[:, 0]
        if conditioned:
            first, start, end = (np.stack([outputs[name][u] for u in members])
                                 for name in ("start", "start_score", "end_score"))
            best = answers.of_starts(first - shift[members[0] : members[-1] + 1, None], start, end, windows, usable,
                                     c.n_best)
        else:
            contexts = [slice(*(ranges[u] + shift[u])) for u in members]
            start, end = ([y[u][part] for u, part in zip(members, contexts, strict=True)] for y in scores)
            best = answers.search(start, end, windows, usable, c.max_answer_tokens, c.n_best)
        spans.append(best)
        characters.append((int(offsets[best.first[0], 0]), int(offsets[best.last[0], 1])))
    nulls = np.minimum.reduceat(at_null, firsts[:-1])
    if conditioned:  # the classifier's logit compares no answer with the best one
        nulls += [best.scores[0] for best in spans]
    return spans, characters, nulls


def _metrics(
    c: Config, gold: Sequence[Sequence[str]], texts: Sequence[str], odds: np.ndarray
) -> tuple[dict[str, float], float]:
    """Computes exact match and F1 as the script of SQuAD 1.1 or 2.0, as fractions, and the threshold: the config's, or
    the one with the best F1 on these very questions. `texts` are the best spans, `odds` [n] the scores of no answer
    minus the scores of these spans."""
    raw = _scores(c, gold, texts)
    if not c.unanswerable:
        return {name: float(values.mean()) for name, values in raw.items()}, 0.0
    empty = _scores(c, gold, [""] * len(gold))
    threshold = c.threshold
    if threshold is None:
        threshold = answers.tune_threshold(odds, raw["answer_f1"], empty["answer_f1"])
    answerable = np.array([bool(right) for right in gold])
    metrics = {"threshold": threshold, "always_empty_f1": float(empty["answer_f1"].mean())}
    for name, values in raw.items():
        scores = np.where(odds > threshold, empty[name], values)
        metrics[name] = float(scores.mean())
        metrics[f"{name}_at_0"] = float(np.where(odds > 0, empty[name], values).mean())
        if answerable.any():
            metrics[f"has_answer_{name.removeprefix('answer_')}"] = float(scores[answerable].mean())
            metrics[f"forced_{name.removeprefix('answer_')}"] = float(values[answerable].mean())
        if not answerable.all() and name == "exact_match":
            metrics["no_answer_accuracy"] = float(scores[~answerable].mean())
    return metrics, threshold


def _version(c: Config) -> str:
    """Returns the version of SQuAD whose script defines the metrics."""
    return "2.0" if c.unanswerable else "1.1"


def _scores(c: Config, gold: Sequence[Sequence[str]], texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Scores an answer to each question, float64 [n]."""
    version = _version(c)
    return {"exact_match": qa.exact_scores(gold, texts, version), "answer_f1": qa.f1_scores(gold, texts, version)}


def _mean_loss(units: Units, outputs: Outputs) -> float:
    """Computes the mean loss of all units together."""
    total = 0.0
    for name in ("start", "end"):
        scores, targets = outputs[name], units.columns[name]
        total += sum(float(np.logaddexp.reduce(y.astype(np.float64)) - y[targets[u]]) for u, y in enumerate(scores))
    return total / (2 * len(units.example))


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Makes the files that the scripts of SQuAD read: predictions.json, {id: answer}; and null_odds.json, {id: score of
    no answer - score of the best answer}, if questions may be unanswerable.

    Raises:
      UserError: two questions have the same id.
    """
    ids: dict[str, str] = {}
    for record in records:
        if record.id in ids:
            raise UserError(f"{record.where} and {ids[record.id]} have the same id, {record.id!r}; the files have one "
                            "answer for each id: correct it")
        ids[record.id] = record.where
    predicted = {key: prediction["answer"] for key, prediction in zip(ids, result.predictions, strict=True)}
    files = {"predictions.json": json.dumps(predicted, ensure_ascii=False, indent=1) + "\n"}
    if c.unanswerable:
        odds = {key: prediction["null_score"] - prediction["score"]
                for key, prediction in zip(ids, result.predictions, strict=True)}
        files["null_odds.json"] = json.dumps(odds, indent=1) + "\n"
    return files


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares the gold answers with the predicted one, by 1 - F1, times the probability of the prediction."""
    right = [text for text, _ in record.fields["answers"]]
    f1 = float(_scores(c, [right], [prediction["answer"]])["answer_f1"][0])
    gold = " / ".join(dict.fromkeys(right)) or "(no answer)"
    return Comparison(gold, show(prediction).replace("\t", " (") + ")", (1 - f1) * prediction["probability"])


def show(prediction: dict[str, Any]) -> str:
    """Shows the answer with its probability."""
    return f"{prediction['answer'] or '(no answer)'}\t{prediction['probability']:.1%}"


def _f1(title: str, baseline: str = "", headline: bool = False) -> Metric:
    return Metric(title, "F1", True, ".2%", headline, baseline)


DEFINITION = TaskDef(
    networks.definition(Config, build, {
        "span_accuracy": accuracy_metric("Span accuracy"),  # of the units of training
        "exact_match": accuracy_metric("Exact match"),
        "answer_f1": _f1("Answer F1", "always_empty_f1", headline=True),
        "has_answer_exact_match": accuracy_metric("Exact match, answerable questions", headline=False),
        "has_answer_f1": _f1("Answer F1, answerable questions"),
        "no_answer_accuracy": accuracy_metric("Accuracy, unanswerable questions", headline=False),
        "forced_exact_match": accuracy_metric("Exact match of the best span, answerable questions", headline=False),
        "forced_f1": _f1("F1 of the best span, answerable questions"),
        "exact_match_at_0": accuracy_metric("Exact match at threshold 0", headline=False),
        "answer_f1_at_0": _f1("Answer F1 at threshold 0"),
        "always_empty_f1": _f1("Answer F1 of no answer to any question"),
        "threshold": Metric("No-answer threshold", "logits"),
    }, (Predict("answer", "answers questions about a text", ("question", "context"), show, tabs=True),),
        check=check_config, teachable=True),
    Reads(("question", "context"), ("answers",)), encode=answers.encode, score=score, best="answer_f1",
    columns=lambda c: {name: Field("bn", np.int32, f"position in the text of {what}") for name, what in (
        ("start", "the answer's first token; -1 where it is not known"), ("end", "the answer's last token; -1 as well"),
        ("null", "the token that stands for no answer"))} | (
            conditioned_ends.FIELDS if c.end == "conditioned" else {}),
    check=check, submission=submission, compare=compare,
)
