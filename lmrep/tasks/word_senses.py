"""Senses of words in contexts: word sense disambiguation (Raganato et al., 2017).

The candidates of a word are the senses that its lemma, as its part of speech, has in the training data. A classifier
with an output for each sense chooses one of them; or the nearest mean vector does (`network=nearest`): the mean over
the training examples of a sense of a frozen encoder's vectors (Melamud et al., 2016; Peters et al., 2018, section 5.3).
"""

import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.data.records.values import short
from lmrep.data.records.word_senses import parse
from lmrep.metrics import Metric
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Model
from lmrep.objectives.base import Batch, Carry, FrozenParts, Metrics, Objective
from lmrep.tasks import heads, networks, target_words, unseen
from lmrep.tasks.base import Comparison, Outputs, Reads, Result, TaskDef, TextEncoder, figures
from lmrep.tasks.capability import PredictWord
from lmrep.tasks.networks import Network

NAME, NEAREST = "word_senses", "nearest"
METRICS = ("sense_f1", "sense_precision", "sense_recall")
MASKED, EMPTY = -1e9, -1e30  # logits of a candidate without a mean vector, and where there is no candidate
SCALE = 10.0  # initial factor of cosines

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config(networks.TaskConfig, heads.Head):
    """A classifier of a word by its vector, the mean over its tokens."""

    published: ClassVar[tuple[str, ...]] = ("context", "end_of_text")

    network: str = setting("linear", "between the encoder and the senses: linear: the head alone; bilstm: "
                           "bidirectional LSTM layers; nearest: no head, but the nearest of the mean vectors of "
                           "senses, by their cosine, of a frozen encoder (features=runs/bert after the colon)",
                           choices=("linear", "bilstm", NEAREST))
    dense: bool = setting(False, "a dense layer before the output layer")
    labels: tuple[str, ...] = setting((), "the senses, in the order of the head's outputs; none: as in the training "
                                      "data, sorted")
    candidates: tuple[str, ...] = setting((), "for each lemma and part of speech a text such as 'bank#NOUN "
                                          "bank%1:17:01 bank%1:14:00', its senses, the most frequent one first; none: "
                                          "those of the training data")


def resolve(c: Config, records: Sequence[Record]) -> Config:
    """Sets `labels` and `candidates` by the training data. Raises UserError if it does not fit the config."""
    for record in records:
        check(c, record)
    unseen.report(c.labels, records, _describe, _senses, training=True)
    labels = c.labels or tuple(sorted({sense for record in records for sense in _senses(record)}))
    if len(labels) < 2:
        raise UserError(f"the training data has the only sense {labels[0]!r} ({records[0].where}); expected two or "
                        "more")
    return replace(c, labels=labels, candidates=c.candidates or lines(records))


def _senses(record: Record) -> Sequence[str]:
    return record.fields.get("senses", ())


def _describe(record: Record, i: int) -> str:
    return f"{record.where}: a sense is {short(record.fields['senses'][i])}"


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each word, with the columns `candidates`, the numbers of its senses, the most frequent one first,
    and `right`, 1 for right and 0 for wrong candidates. They are -1 after the last candidate; `right` is -1 if it is
    not known."""
    unseen.report(c.labels, records, _describe, _senses)
    senses = inventory_of(c.candidates, c.labels)
    table, right = np.full((2, len(records), max(map(len, senses.values()), default=1)), -1, np.int32)
    unknown = []
    for i, record in enumerate(records):
        numbers = candidates(senses, record)
        table[i, : len(numbers)] = numbers
        if "senses" in record.fields:
            right[i, : len(numbers)] = [c.labels[number] in record.fields["senses"] for number in numbers]
        unknown += [] if numbers else [record]
    if unknown:
        log.warning("%s: the training data has no sense of %s: %s of %s words have no answer, for this reason",
                    unknown[0].where, name_of(unknown[0]), f"{len(unknown):,}", f"{len(records):,}")
    return target_words.encode(records, encoder, {"candidates": table, "right": right})


# The candidates of words


def name_of(record: Record) -> str:
    """Returns lemma#pos of a record's word, with underscores for white space."""
    return "_".join(f"{record.fields['lemma']}#{record.fields.get('pos', '')}".split())


def check(c: Any, record: Record) -> None:
    """Raises UserError for a record without a lemma, or with a sense that has white space."""
    if not record.fields["lemma"].strip():
        raise UserError(f"{record.where} has an empty lemma; expected the dictionary form of the word")
    for sense in record.fields.get("senses", ()):
        if len(sense.split()) != 1:
            raise UserError(f"{record.where} has the sense {short(sense)}; expected a name without white space")


def lines(records: Iterable[Record]) -> tuple[str, ...]:
    """Makes a line for each lemma and part of speech of training data: lemma#pos and its senses, the most frequent one
    first, with spaces between them. A lemma's most frequent part of speech comes first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[name_of(record)].update(record.fields["senses"])

    def order(name: str) -> tuple[str, int, str]:
        return name.rpartition("#")[0], -counts[name].total(), name

    return tuple(" ".join([name, *sorted(counts[name], key=lambda sense: (-counts[name][sense], sense))])
                 for name in sorted(counts, key=order))


Inventory = dict[tuple[str, ...], list[int]]  # (lemma, pos), or (lemma,) for all parts of speech -> numbers of senses


def inventory_of(lines: Sequence[str], labels: Sequence[str]) -> Inventory:
    """Reads the candidates from `lines`, the most frequent one first, without senses that are not among the labels."""
    numbers, senses = {label: i for i, label in enumerate(labels)}, {}
    for name, *line_senses in map(str.split, lines):
        lemma, _, pos = name.rpartition("#")
        senses[lemma, pos] = [numbers[sense] for sense in line_senses if sense in numbers]
        of_lemma = senses.setdefault((lemma,), [])
        of_lemma += [number for number in senses[lemma, pos] if number not in of_lemma]
    return senses


def candidates(senses: Inventory, record: Record) -> list[int]:
    """Returns the senses of a record's word: those of its lemma as its part of speech. If the training data lacks this
    part of speech, the first sense of the lemma; if the record has none, all senses; [] for an unknown lemma."""
    lemma, _, pos = name_of(record).rpartition("#")
    return senses.get((lemma, pos), senses.get((lemma,), [])[: 1 if pos else None])


# The objective


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})) -> Objective:
    """Builds the objective, which classifies words by a head, or by the nearest mean vector of a sense. Raises
    UserError if `network=nearest` does not fit the other settings."""
    if c.network == NEAREST:
        if model.width:
            raise UserError("config.objective.network is nearest, whose vectors are those of a frozen encoder, and "
                            "config.model would be trained: give the encoder as features=runs/bert after the colon, in "
                            "place of init, model and size")
        if not c.features.layers:
            raise UserError("config.objective.network is nearest, and there is no frozen encoder: give one as "
                            "features=runs/bert after the colon")
    net, count = networks.bind(c, model, NAME, frozen), len(c.labels) or 2
    if c.network != NEAREST:
        return networks.objective(net, count, known, loss, predict)
    if networks.specs(net):
        raise UserError("config.objective.network is nearest, which compares vectors that are not trained, and "
                        f"config.objective.features.layers is {c.features.layers}; set it to last, or a layer's "
                        "number, and leave characters and unknown words' vectors out")
    width = networks.output_width(net)
    return networks.objective(net, count, known, nearest_loss, predict)._replace(
        specs={"encoder": model.specs, "objective": {NAME: {"scale": ParamSpec((), (), zeros)}}},
        # the sums of the vectors of each sense [senses, d], and the numbers of its examples [senses]
        carry=lambda batch_size: Carry(shared={"sums": jnp.zeros((count, width)), "counts": jnp.zeros(count)}))


def known(batch: Batch) -> Array:
    """Tells which words have a right sense among their candidates, bool[b, n]."""
    return (batch["right"] == 1).any(-1)


def word_vectors(params: Tree, batch: Batch, net: Network, key: Array | None = None) -> Array:
    """Computes the vectors of the target words, [b, n, d]."""
    return target_words.vectors(networks.token_vectors(params, batch, net, key), batch, 1)


def logits(params: Tree, batch: Batch, net: Network, key: Array | None = None) -> Array:
    """Computes the logits of the candidates, float32 [b, n, k]."""
    keys = prng.split(key, 2)
    y = heads.apply(params["objective"][NAME], word_vectors(params, batch, net, keys[0]), net.c, net.model, keys[1])
    candidates = batch["candidates"]
    return jnp.where(candidates < 0, EMPTY, jnp.take_along_axis(y, jnp.maximum(candidates, 0), -1))


def cosines(x: Array, batch: Batch, shared: Tree, scale: Array) -> Array:
    """Computes the cosines of the vectors x [b, n, d] with the means of their candidates, times SCALE exp(`scale`),
    float32 [b, n, k]; `MASKED` for a candidate without examples."""
    candidates = batch["candidates"]
    chosen = jnp.maximum(candidates, 0)
    x, mean = (y / jnp.maximum(jnp.linalg.norm(y, axis=-1, keepdims=True), 1e-9)
               for y in (x.astype(jnp.float32), shared["sums"]))
    y = SCALE * jnp.exp(scale) * jnp.einsum("bnd,bnkd->bnk", x, mean[chosen])
    return jnp.where(candidates < 0, EMPTY, jnp.where(shared["counts"][chosen] > 0, y, MASKED))


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean negative log probability of the right senses together, among the candidates."""
    y = logits(params, batch, net, key)
    return (nll(y, batch) * batch["weights"]).sum(), ({}, carry)


def nearest_loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the loss by the means of earlier batches, over the words that have a right sense with a mean, and adds
    the vectors of this batch to the carry. The loss trains the scale of the cosines alone."""
    x, shared = word_vectors(params, batch, net), carry.shared
    y = cosines(x, batch, shared, params["objective"][NAME]["scale"])
    right = (batch["right"] == 1) & (batch["unit"] >= 0)[..., None]
    known = (right & (y > MASKED / 2)).any(-1)
    value = (jnp.where(known, nll(y, batch), 0) * batch["weights"]).sum()
    numbers, weights = jnp.maximum(batch["candidates"], 0), right.astype(jnp.float32)
    added = jax.lax.stop_gradient(x.astype(jnp.float32))[..., None, :] * weights[..., None]
    shared = {"sums": shared["sums"].at[numbers].add(added), "counts": shared["counts"].at[numbers].add(weights)}
    return value, ({}, carry._replace(shared=shared))


def nll(y: Array, batch: Batch) -> Array:
    """Computes the negative log probability of the right senses, float32 [b, n]; finite if no sense is right."""
    return jax.nn.logsumexp(y, -1) - jax.nn.logsumexp(jnp.where(batch["right"] == 1, y, EMPTY), -1)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """Computes `log_probabilities` float32 [b, n, k] of the candidates."""
    if net.c.network != NEAREST:
        y = logits(params, batch, net)
    elif "shared" in params:
        y = cosines(word_vectors(params, batch, net), batch, params["shared"], params["objective"][NAME]["scale"])
    else:
        raise UserError("the mean vectors of senses are missing: an average of checkpoints has none; use a checkpoint "
                        "of the run itself")
    return {"units": {"log_probabilities": jax.nn.log_softmax(y)}}


# Predictions


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts the most probable candidate of each word, and no answer for a word without candidates."""
    table = np.stack(outputs["log_probabilities"]).astype(np.float64)
    candidates = units.columns["candidates"]
    senses = [[c.labels[number] for number in numbers[numbers >= 0]] for numbers in candidates]
    predictions: list[dict[str, Any]] = [
        {"sense": names[row[: len(names)].argmax()] if names else None,
         "probabilities": dict(zip(names, np.exp(row).tolist(), strict=False))}
        for names, row in zip(senses, table, strict=True)]
    if any("senses" not in record.fields for record in records):
        return Result({}, predictions)
    gold = [record.fields["senses"] for record in records]
    chosen = [[prediction["sense"]] if prediction["sense"] else [] for prediction in predictions]
    right = units.columns["right"] == 1
    nll = -np.logaddexp.reduce(np.where(right, table, -np.inf), -1)[right.any(-1)]
    metrics = {**({"loss": max(0.0, float(nll.mean()))} if len(nll) else {}),
               "first_sense_f1": figures(("sense_f1",), gold, [names[:1] for names in senses])["sense_f1"],
               **figures(METRICS, gold, chosen)}
    return Result(metrics, predictions, gold, chosen)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Writes a key file for the scorer of Raganato et al.: a line of id and sense for each word with an answer."""
    return {"predictions.txt": "".join(
        f"{record.id} {prediction['sense']}\n" for record, prediction in zip(records, result.predictions, strict=True)
        if prediction["sense"])}


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares the right senses with the answer, by the negative logarithm of the probability of the right ones."""
    probability = sum(prediction["probabilities"].get(sense, 0.0) for sense in record.fields["senses"])
    return Comparison(" ".join(record.fields["senses"]), show(prediction),
                      float(-np.log(min(1.0, max(probability, sys.float_info.min)))))


def show(prediction: Mapping[str, Any]) -> str:
    """Shows the sense with its probability."""
    sense = prediction["sense"]
    return f"{sense} ({prediction['probabilities'][sense]:.1%})" if sense else "no answer"


DEFINITION = TaskDef(
    networks.definition(Config, build, {
        **{name: TASK_METRICS[name].metric for name in METRICS},
        "sense_f1": TASK_METRICS["sense_f1"].metric._replace(headline=True, baseline="first_sense_f1"),
        "first_sense_f1": Metric("F1 of the most frequent senses", "F1", True, ".2%"),
    }, (PredictWord(
        "disambiguate", "names the senses of words", ("text", "span", "lemma"), show, ("pos",), parse=parse),)),
    Reads(("text", "span", "lemma"), ("senses",), ("pos",), texts=("text",)), resolve=resolve, encode=encode,
    score=score, best="sense_f1",
    columns=lambda c: {
        "candidates": Field("bnk", np.int32, "numbers of the senses of each word; -1 after the last"),
        "right": Field("bnk", np.int32, "1 for a right sense, 0 for a wrong one, -1 where it is not known"),
        **target_words.COLUMNS},
    check=check, submission=submission, compare=compare,
)
