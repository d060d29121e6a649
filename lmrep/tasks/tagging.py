"""Tagging of words: entities, chunks, parts of speech (Devlin et al., 2019, section 5.3)."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import EncodedUnit, Units, assemble, collect
from lmrep.data.records.values import short
from lmrep.layers import crf
from lmrep.metrics import Metric, accuracy_metric
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Model
from lmrep.objectives.base import Batch, Carry, FrozenParts, Metrics, Objective
from lmrep.objectives.outputs import sums
from lmrep.tasks import heads, networks, schemes, unseen
from lmrep.tasks.base import Comparison, Outputs, Reads, Result, TaskDef, TextEncoder, figures
from lmrep.tasks.capability import Tag
from lmrep.tasks.networks import Network
from lmrep.tasks.words import representatives, windows, word_ids, word_means

STRICT_METRICS = ("entity_f1", "entity_precision", "entity_recall")
ENTITY_METRICS = (*STRICT_METRICS, "conll_f1")
METRICS = (*ENTITY_METRICS, "token_accuracy")
TINY = 1e-30  # the smallest probability whose logarithm is taken

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config(networks.TaskConfig, heads.Head):
    """A tagger. By default the head is dropout and a linear layer, as in BERT, RoBERTa and ELECTRA."""

    published: ClassVar[tuple[str, ...]] = ("context", "dense", "norm", "activation")

    network: str = setting("linear", "between the encoder and the tags: linear: the head alone; bilstm: bidirectional "
                           "LSTM layers, with a time step for each word; crf, bilstm_crf: the same, and a linear-chain "
                           "CRF over the tags, which predicts the most probable sequence that the scheme allows",
                           choices=("linear", "bilstm", "crf", "bilstm_crf"))

    dense: bool = setting(False, "a dense layer before the output layer; of published taggers, ModernBERT's alone "
                          "has one")
    labels: tuple[str, ...] = setting((), "the tags, in the order of the head's outputs; none: as in the training "
                                      "data, O first and the others sorted")
    scheme: str = setting("auto", "what tags mean, for metrics, checks and decoding: entities in BIO (IOB2), IOB1, "
                          "BIOES or BILOU; none: plain tags, such as parts of speech; auto: by the training data",
                          choices=("auto", *schemes.PREFIXES, "none"))
    repair: bool = setting(False, "convert the tags of the data to the scheme without a warning of those that break "
                           "it: they are read as conlleval reads them all the same")
    pieces: str = setting("first", "which of a word's tokens stands for it: the first, as in BERT, the last, or the "
                          "mean of all", choices=("first", "mean", "last"))
    decoding: str = setting("argmax", "argmax: each word's most probable tag, as in published taggers; viterbi: the "
                            "most probable sequence of tags that the scheme allows", choices=("argmax", "viterbi"))
    metrics: tuple[str, ...] = setting((), "what is measured on validation data, first what checkpoints are compared "
                                       f"by; none: {', '.join(METRICS)}, or token_accuracy alone for plain tags",
                                       choices=METRICS)


def has_crf(c: Config) -> bool:
    """Tells whether a CRF scores sequences of tags."""
    return c.network.endswith("crf")


def check_config(c: Config) -> None:
    """Raises UserError for fields that do not fit each other."""
    if c.scheme == "none" and c.repair:
        raise UserError("config.objective.repair converts tags of entities to the scheme, and the scheme is none; set "
                        "it to False")
    if has_crf(c) and c.teacher.alpha_ce:
        raise UserError(f"config.objective.teacher.alpha_ce is {c.teacher.alpha_ce:g}, and the network {c.network} "
                        "decides on sequences of tags, whose distribution it cannot learn from a teacher; set it to 0, "
                        "or choose the network linear or bilstm (the teacher may have a CRF)")
    if has_crf(c) and c.decoding == "viterbi":
        raise UserError(f"config.objective.decoding is viterbi, and the network {c.network} decides on sequences of "
                        "tags by itself; set decoding to argmax")
    if c.scheme == "none" and c.decoding == "viterbi":
        raise UserError("config.objective.decoding is viterbi, and plain tags (scheme none) may follow each other in "
                        "any order; set it to argmax")
    entity = [name for name in c.metrics if name in ENTITY_METRICS]
    if c.scheme == "none" and entity:
        raise UserError(f"config.objective.metrics has {entity[0]}, and the tags mark no entities (scheme none); "
                        "set it to token_accuracy, or set config.objective.scheme")


def resolve(c: Config, records: Sequence[Record]) -> Config:
    """Sets `scheme`, `labels` and `metrics` by the training data. Raises UserError if it does not fit the config."""
    if c.scheme == "auto":
        c = replace(c, scheme=schemes.detect(records) if records else schemes.of_labels(c.labels))
        check_config(c)
    elif c.scheme != "none":
        for record in records:
            schemes.check(record, record.fields["tags"], schemes.HINT)
    unseen.report(c.labels, records, _describe, partial(tags_of, c), training=True)
    if not c.labels:
        tags = {tag for record in records for tag in tags_of(c, record)}
        if len(tags) < 2:
            raise UserError(f"the training data has the only tag {short(tags.pop())} ({records[0].where}); "
                            "expected two or more")
        c = replace(c, labels=tuple(sorted(tags, key=lambda tag: (tag != schemes.OUTSIDE, tag))))
    return replace(c, metrics=c.metrics or (METRICS if c.scheme != "none" else ("token_accuracy",)))


def tags_of(c: Config, record: Record) -> Sequence[str]:
    """Returns the tags of a record, converted to the scheme as `schemes.convert` does; () if it has none."""
    tags = record.fields.get("tags", ())
    return tags if c.scheme == "none" else schemes.convert(c.scheme, tags)


def _describe(record: Record, i: int) -> str:
    return schemes.describe(record, i, record.fields["tags"][i])


# Tokenizing words


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each sentence, several of a long one: windows, which begin and end with whole words.

    A word is tokenized by itself, as with Hugging Face's `is_split_into_words=True`: with the space before it where
    tokens record that (byte-level BPE, for which Hugging Face wants add_prefix_space=True, and SentencePiece), also at
    the beginning of a sentence. A word without any token, such as a control character, is the unknown token.

    A word has its tag in one window alone, in which it has the most context. In that window, the column `word` is the
    index of a token's word in its sentence, and `tag` the number of the word's tag, at the token that represents it;
    both are -1 elsewhere. In all windows, `representative` is 1 at a token that represents a word, 2 if it is the last
    word of the sentence, 0 at other tokens of words, and -1 elsewhere.

    Raises:
      UserError: `long` is truncate, or refuse and a sentence is too long.
    """
    if encoder.format.long == "truncate":
        raise UserError("config.format.long is truncate, and the words after the cut would have no tag, although each "
                        "one counts; set it to windows, or to refuse")
    unseen.report(c.labels, records, _describe, partial(tags_of, c))
    if c.scheme != "none" and not c.repair:
        schemes.report(c.scheme, records, lambda record: record.fields.get("tags", ()), c.labels)
    capacity = encoder.length - encoder.layout.special(False)
    ids, numbers = word_ids(records, encoder), {label: i for i, label in enumerate(c.labels)}
    units: list[EncodedUnit] = []
    owners, columns, long = [], {"word": [], "tag": [], "representative": []}, 0
    distinct = {word: i for i, word in enumerate(ids)}
    for number, record in enumerate(records):
        words = [ids[word] for word in record.fields["words"]]
        tags = np.array([numbers.get(tag, -1) for tag in tags_of(c, record)] or [-1] * len(words))
        if (size := sum(map(len, words))) > capacity:
            if encoder.format.long == "refuse":
                raise UserError(
                    f"{record.where} has {size + encoder.length - capacity:,} tokens, and config.length is "
                    f"{encoder.length:,}; raise it (as far as the network has positions), or set "
                    "--config.format.long=windows")
            words, long = [word[:capacity] for word in words], long + 1
        sizes = np.array([len(word) for word in words])
        for start, end, chosen in windows(sizes, capacity, encoder.format.stride, c.context == "left"):
            word = np.repeat(np.where(chosen, np.arange(start, end), -1), sizes[start:end])
            around = len(encoder.layout.lead), len(encoder.layout.tail)
            word = np.pad(word, around, constant_values=-1)
            numbered = np.repeat([distinct[word] for word in record.fields["words"][start:end]], sizes[start:end])
            units.append(assemble(encoder.layout, np.concatenate(words[start:end]), words=[numbered]))
            owners.append(number)
            columns["word"].append(word)
            columns["tag"].append(np.where(representatives(word, c.pieces), tags[word], -1))
            in_window = np.pad(np.repeat(np.arange(start, end), sizes[start:end]), around, constant_values=-1)
            marks = representatives(in_window, c.pieces) * np.where(in_window == len(words) - 1, 2, 1)
            columns["representative"].append(np.where(in_window >= 0, marks, -1))
    return collect(units, owners, token_columns=columns, distinct=distinct), long


# The objective


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})) -> Objective:
    """Builds the objective, which classifies words."""
    tags = len(c.labels) or 2
    net = networks.bind(c, model, "tagging", frozen)
    objective = networks.objective(net, tags, lambda batch: batch["tag"] >= 0, loss, predict)
    if has_crf(c):
        objective.specs["objective"]["tagging"]["crf"] = crf.specs(tags)
    return objective


def logits(params: Tree, batch: Batch, net: Network, key: Array | None = None) -> Array:
    """Computes logits float32 [b, t, tags], which are valid at the tokens that represent words."""
    c, keys = net.c, prng.split(key, 2)
    read, within = batch["representative"] > 0, batch["representative"] >= 0

    def words(x: Array) -> Array:
        if c.pieces != "mean":
            return x
        return word_means(x, jnp.where(within, jnp.cumsum(read, -1), -1), batch["segment_ids"])

    x = networks.token_vectors(params, batch, net, keys[0], (words, read))
    return heads.apply(params["objective"]["tagging"], x, c, net.model, keys[1])


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of words; with a CRF the negative log-likelihood of the tags per word."""
    y = logits(params, batch, net, key)
    if has_crf(net.c):
        scores, chains = crf_of(params, batch, net.c)
        value = -(crf.log_likelihood(scores, y, batch["tag"], chains) * batch["weights"]).sum()
        correct = crf.viterbi(scores, jax.lax.stop_gradient(y), chains) == batch["tag"]
        return value, (sums(batch["weights"] > 0, token_accuracy=correct), carry)
    value, metrics = networks.cross_entropy(params, batch, net, y, batch["tag"], ("tokens", "log_probabilities"),
                                            "token_accuracy")
    return value, (metrics, carry)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """Computes `log_probabilities` float32 [b, t, tags]; with a CRF, also the most probable sequences `best` i32[b, t],
    and the part of each word in the `log_likelihood` of its sentence's tags, float32 [b, t]."""
    y = logits(params, batch, net)
    if has_crf(net.c):
        scores, chains = crf_of(params, batch, net.c)
        return {"tokens": {"log_probabilities": jnp.log(jnp.maximum(crf.marginals(scores, y, chains), TINY)),
                           "best": crf.viterbi(scores, y, chains),
                           "log_likelihood": crf.log_likelihood(scores, y, batch["tag"], chains)}}
    return {"tokens": {"log_probabilities": jax.nn.log_softmax(y)}}


def crf_of(params: Tree, batch: Batch, c: Config) -> tuple[Tree, crf.Chains]:
    """Returns the scores of the CRF, and its chains: the tagged words of each sentence, or of each window of a long
    one. The scores of the first and the last tag count at the first and last word of the sentence alone."""
    allowed = schemes.allowed(c.scheme, c.labels) if c.labels else None  # none before the data are read
    tagged = (batch["representative"] > 0) & (batch["word"] >= 0)
    chains = crf.Chains(jnp.where(tagged, batch["segment_ids"], 0), tagged & (batch["word"] == 0),
                        tagged & (batch["representative"] == 2))
    return crf.constrained(params["objective"]["tagging"]["crf"], allowed), chains


# Predictions


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts a tag for each word of each sentence, and measures all words."""
    def by_word(name: str, *shape: int) -> list[np.ndarray]:
        """Returns an output for each word, [words, *shape] for each sentence."""
        values = [np.zeros((len(record.fields["words"]), *shape), outputs[name][0].dtype) for record in records]
        for unit, example in enumerate(units.example):
            word = units.columns["word"][units.offsets[unit]:units.offsets[unit + 1]]
            at = representatives(word, c.pieces)
            values[example][word[at]] = outputs[name][unit][at]
        return values

    scores = by_word("log_probabilities", len(c.labels))
    if has_crf(c):
        sequences = by_word("best")
    else:
        sequences = [schemes.best_sequence(scored, c.labels, c.scheme) if c.decoding == "viterbi" else scored.argmax(-1)
                     for scored in scores]
    predicted = [[c.labels[i] for i in sequence] for sequence in sequences]
    predictions: list[dict[str, Any]] = [
        {"tags": tags, "probabilities": np.exp(np.take_along_axis(scored, best[:, None], 1)[:, 0]).tolist()}
        | ({} if c.scheme == "none" else {"entities": [
            {"type": type_, "text": " ".join(record.fields["words"][first:end]), "words": [first, end]}
            for type_, first, end in schemes.entities(tags)]})
        for record, tags, scored, best in zip(records, predicted, scores, sequences, strict=True)]
    if not all("tags" in record.fields for record in records):
        return Result({}, predictions)
    gold, options = [tags_of(c, record) for record in records], {name: {"scheme": c.scheme} for name in STRICT_METRICS}
    numbers = {label: i for i, label in enumerate(c.labels)}
    true = np.array([numbers.get(tag, -1) for tags in gold for tag in tags])
    known, likelihood = true >= 0, np.concatenate(scores)[np.arange(len(true)), true]
    sentences = np.repeat(np.arange(len(gold)), [len(tags) for tags in gold])
    whole = ~np.isin(sentences, sentences[~known])  # with a CRF, what a word adds depends on its neighbours' tags
    if has_crf(c) and whole.any():
        known, likelihood = whole, np.concatenate(by_word("log_likelihood"))
    metrics = {**({"loss": float(-likelihood[known].mean())} if known.any() else {}),
               **figures(c.metrics, gold, predicted, options)}
    counts = np.bincount(true[true >= 0], minlength=1)
    if c.scheme == "none":  # most tags of entities are O: a tagger that finds some may be below always O
        metrics["majority_accuracy"] = float(counts.max() / len(true))
    elif "entity_f1" in c.metrics:
        frequent = [[c.labels[counts.argmax()]] * len(tags) for tags in gold]
        metrics["majority_f1"] = figures(("entity_f1",), gold, frequent, options)["entity_f1"]
    return Result(metrics, predictions, gold, predicted, options)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Writes the columns that `conlleval` reads: word, tag if there is one, and predicted tag, with spaces between them
    (underscores in words), and a blank line after each sentence."""
    sentences = []
    for record, prediction in zip(records, result.predictions, strict=True):
        words = ["_".join(word.split()) for word in record.fields["words"]]
        columns = [words, *([tags_of(c, record)] if "tags" in record.fields else []), prediction["tags"]]
        sentences.append("".join(f"{' '.join(cells)}\n" for cells in zip(*columns, strict=True)))
    return {"predictions.conll": "\n".join(sentences)}


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares the tags of the words whose tags differ, by the sum of the probabilities of the wrong ones."""
    pairs = [*zip(tags_of(c, record), prediction["tags"], strict=True)]
    wrong = [i for i, (gold, predicted) in enumerate(pairs) if gold != predicted]
    gold, predicted = (", ".join(f"{record.fields['words'][i]} {pairs[i][side]}" for i in wrong) for side in (0, 1))
    return Comparison(gold, predicted, float(sum(prediction["probabilities"][i] for i in wrong)), pairs)


DEFINITION = TaskDef(
    networks.definition(Config, build, {
        **{name: TASK_METRICS[name].metric for name in ENTITY_METRICS},
        "entity_f1": TASK_METRICS["entity_f1"].metric._replace(headline=True, baseline="majority_f1"),
        "majority_f1": Metric("Entity F1 of the most frequent tag", "F1", True, ".2%"),
        "token_accuracy": accuracy_metric("Token accuracy", baseline="majority_accuracy"),
        "majority_accuracy": accuracy_metric("Accuracy of the most frequent tag", headline=False),
    }, (Tag("tag", "tags the words of sentences", ("words",), show=str),), check=check_config, teachable=True),
    Reads(("words",), ("tags",)), resolve=resolve, encode=encode, score=score, best="",
    columns=lambda c: {
        "word": Field("bt", np.int32, "number of each token's word; -1 for none"),
        "tag": Field("bt", np.int32, "number of the tag at the token that stands for its word; -1 elsewhere"),
        "representative": Field("bt", np.int32, "1 at the token that stands for a word, 2 for the last word, 0 "
                                                "at other tokens of words; -1 elsewhere")},
    submission=submission, compare=compare)
