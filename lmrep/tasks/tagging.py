"""Tagging of words: entities, chunks, parts of speech (Devlin et al., 2019, section 5.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting, suggestion
from lmrep.core import prng
from lmrep.core.errors import ConfigError, UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import Encoded, Units, assemble, collect
from lmrep.metrics import accuracy_metric
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.models.base import Model, check_context, model_inputs
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Names, NetworkUse, Objective, ObjectiveDef
from lmrep.objectives.outputs import normalize_weights
from lmrep.tasks import heads, schemes
from lmrep.tasks.base import Comparison, Outputs, Result, TaskDef, TextEncoder, figures
from lmrep.tasks.capability import Predict

STRICT_METRICS = ("entity_f1", "entity_precision", "entity_recall")
ENTITY_METRICS = (*STRICT_METRICS, "conll_f1")
METRICS = (*ENTITY_METRICS, "token_accuracy")


@dataclass(frozen=True)
class Config(heads.Head):
    """A tagger. The head is dropout and a linear layer, as in BERT, RoBERTa and ELECTRA."""

    dense: bool = setting(False, "a dense layer before the output layer; published taggers have none")
    labels: tuple[str, ...] = setting((), "the tags, in the order of the head's outputs; none: those of the training "
                                      "data, O first and the others sorted")
    scheme: str = setting("auto", "what tags mean, for metrics, checks and decoding: entities in BIO (IOB2), IOB1, "
                          "BIOES or BILOU; none: plain tags, such as parts of speech; auto: by the training data",
                          choices=("auto", *schemes.PREFIXES, "none"))
    repair: bool = setting(False, "convert the tags of the data to the scheme, between IOB1 and BIO, as conlleval "
                           "reads them, instead of refusing those that break it")
    pieces: str = setting("first", "which of a word's tokens stands for it: the first, as in BERT, the last, or the "
                          "mean of all", choices=("first", "mean", "last"))
    decoding: str = setting("argmax", "argmax: each word's most probable tag, as in published taggers; viterbi: the "
                            "most probable sequence of tags that the scheme allows", choices=("argmax", "viterbi"))
    metrics: tuple[str, ...] = setting((), "what is measured on validation data, first what checkpoints are compared "
                                       f"by; none: {', '.join(METRICS)}, or token_accuracy alone for plain tags",
                                       choices=METRICS)


def check_config(c: Config) -> None:
    """Refuses fields that do not fit each other."""
    if c.scheme in ("BIOES", "BILOU", "none") and c.repair:
        raise UserError(f"config.objective.repair converts between IOB1 and BIO, and the scheme is {c.scheme}; set it "
                        "to False")
    if c.scheme == "none" and c.decoding == "viterbi":
        raise UserError("config.objective.decoding is viterbi, and plain tags (scheme none) may follow each other in "
                        "any order; set it to argmax")
    entity = [name for name in c.metrics if name in ENTITY_METRICS]
    if c.scheme == "none" and entity:
        raise UserError(f"config.objective.metrics has {entity[0]}, and the tags mark no entities (scheme none); "
                        "set it to token_accuracy, or set config.objective.scheme")


def resolve(c: Config, records: Sequence[Record]) -> Config:
    """With the scheme and the tags of the training data, and no others."""
    if c.scheme == "auto":
        c = replace(c, scheme=schemes.detect(records, c.repair) if records else schemes.of_labels(c.labels))
        check_config(c)
    if not c.labels:
        found = {tag for record in records for tag in tags_of(c, record)}
        if len(found) < 2:
            raise UserError(f"the training data has the only tag {found.pop()!r} ({records[0].where}); expected two or "
                            "more")
        c = replace(c, labels=tuple(sorted(found, key=lambda tag: (tag != schemes.OUTSIDE, tag))))
    return replace(c, metrics=c.metrics or (METRICS if c.scheme != "none" else ("token_accuracy",)))


def tags_of(c: Config, record: Record) -> list[str]:
    """The tags of a record, in the scheme where `repair` is set."""
    tags = record.fields["tags"]
    return schemes.convert(c.scheme, tags) if c.repair else tags


def check(c: Config, record: Record) -> None:
    """Refuses tags that the training data lacks, and those that break the scheme."""
    if "tags" not in record.fields:
        return
    tags = tags_of(c, record)
    for i, tag in enumerate(tags):
        if c.scheme != "none" and not schemes.belongs(c.scheme, tag):
            raise UserError(f"{schemes.describe(record, i, tag)}, which is not of the scheme {c.scheme}: correct it, "
                            "or set --config.objective.scheme")
        if tag not in c.labels:
            raise ConfigError(f"{schemes.describe(record, i, tag)}, and the training data has "
                              f"{', '.join(c.labels[:20])}{suggestion(tag, c.labels)}",
                              "correct it, or list all tags in --config.objective.labels")
    if c.scheme != "none" and (i := schemes.fault(c.scheme, tags)) >= 0:
        last = f"after {tags[i - 1]!r}" if i else "at the beginning of a sentence"
        other = {"BIO": "IOB1", "IOB1": "BIO"}.get(c.scheme)
        raise UserError(f"{schemes.describe(record, i, tags[i])} {last}, which {c.scheme} does not allow: correct it"
                        + (f", set --config.objective.scheme={other} if all tags are {other}, or convert the tags with "
                           "--config.objective.repair=True" if other else " or set --config.objective.scheme"))


# Words as tokens


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """A unit for each sentence, or several windows, which begin and end with words, for a long one.

    A word is tokenized by itself, as with Hugging Face's `is_split_into_words=True`: with the space before it where
    tokens record that (byte-level BPE, for which Hugging Face wants add_prefix_space=True, and SentencePiece), also at
    the beginning of a sentence. A word without any token, such as a control character, is the unknown token.

    Each word has its tag in one window alone, that in which it has the most context. The column `word` has the index
    of a token's word in its sentence, `tag` the number of its tag at the token that stands for the word; both are -1
    elsewhere.
    """
    if encoder.format.long == "truncate":
        raise UserError("config.format.long is truncate, and the words after the cut would have no tag, although each "
                        "one counts; set it to windows, or to refuse")
    capacity = encoder.length - encoder.layout.special(False)
    ids, numbers = word_ids(records, encoder), {label: i for i, label in enumerate(c.labels)}
    units: list[Encoded] = []
    owners, columns, long = [], {"word": [], "tag": []}, 0
    for number, record in enumerate(records):
        words = [ids[word] for word in record.fields["words"]]
        tags = np.array([numbers[tag] for tag in tags_of(c, record)] if "tags" in record.fields else [-1] * len(words))
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
            units.append(assemble(encoder.layout, np.concatenate(words[start:end])))
            owners.append(number)
            columns["word"].append(word)
            columns["tag"].append(np.where(representatives(word, c.pieces), tags[word], -1))
    return collect(units, owners, token_columns=columns), long


def word_ids(records: Sequence[Record], encoder: TextEncoder) -> dict[str, np.ndarray]:
    """The ids of each word, one at least."""
    where: dict[str, str] = {}
    for record in records:
        for word in record.fields["words"]:
            where.setdefault(word, record.where)
    names = [f"{place}: the word {word!r}" for word, place in where.items()]
    ids = encoder.ids([encoder.tokenizer.sentence_separator + word for word in where], names)
    unknown = encoder.tokenizer.vocabulary.specials.get("unk")
    empty = [name for name, each in zip(names, ids, strict=True) if not len(each)]
    if empty and unknown is None:
        raise UserError(f"{empty[0]} has no token, and the tokenizer has none for unknown words; remove it, or choose "
                        "another tokenizer")
    return {word: each if len(each) else np.array([unknown], np.int32) for word, each in zip(where, ids, strict=True)}


def windows(
    sizes: np.ndarray, capacity: int, stride: int, left: bool = False
) -> list[tuple[int, int, np.ndarray]]:
    """The windows of a sentence.

    Args:
      sizes: [w], tokens of each word, at most `capacity`.
      capacity: tokens of a window at most.
      stride: tokens between the starts of windows, which are those of words.
      left: whether context is that on the left alone.

    Returns:
      (first word, word after the last, bool mask of the words that have the most context there) for each window. Of
      two windows a word has the most context in that with more tokens on its shorter side. Each word is chosen once.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    found, start = [], 0
    while True:
        end = int(np.searchsorted(ends, starts[start] + capacity, "right"))
        found.append((start, end))
        if end == len(sizes):
            break
        following = int(np.searchsorted(starts, starts[start] + stride, "right")) - 1
        start = min(max(following, start + 1), end)
    context = np.full((len(found), len(sizes)), -1)
    for row, (start, end) in zip(context, found, strict=True):
        before, after = starts[start:end] - starts[start], ends[end - 1] - ends[start:end]
        row[start:end] = before if left else np.minimum(before, after)
    best = context.argmax(0)
    return [(start, end, best[start:end] == i) for i, (start, end) in enumerate(found)]


def representatives(word: np.ndarray, pieces: str) -> np.ndarray:
    """bool [t], the tokens that stand for their words: each first one, or each last one; `word` [t] as in `encode`."""
    padded = np.pad(word, 1, constant_values=-1)
    return (word >= 0) & (word != (padded[2:] if pieces == "last" else padded[:-2]))


# The objective


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """A classifier of words."""
    check_context(model, c.context, "this task")
    return Objective(
        name="tagging", specs={"encoder": model.specs,
                               "objective": {"tagging": heads.specs(model, len(c.labels) or 2, c)}},
        prepare=prepare, loss=partial(loss, c=c, model=model), predict=partial(predict, c=c, model=model),
        context=c.context, networks=(NetworkUse(model.sizes),))


def prepare(keys: Keys, batch: Batch) -> Batch:
    """With `weights` f32[b, t], which add to 1 over the words."""
    return batch | {"weights": normalize_weights(batch["tag"] >= 0)}


def logits(params: Tree, batch: Batch, key: Array | None = None, *, c: Config, model: Model) -> Array:
    """float32 [b, t, tags]; of use at the tokens that stand for words."""
    keys = prng.split(key, 2)
    x = model.encode(params["encoder"], model_inputs(model, batch, context=c.context), keys[0]).hidden
    if c.pieces == "mean":
        x = word_means(x, batch["word"], batch["segment_ids"])
    return heads.apply(params["objective"]["tagging"], x, c, keys[1])


def word_means(x: Array, word: Array, segment_ids: Array) -> Array:
    """x [b, t, d] -> [b, t, d]: at each token of a word the mean of x over the word's tokens, and 0 elsewhere.

    A product with the matrix of which tokens belong together, which is exact in any order, unlike sums by index.
    """
    def equal(ids: Array) -> Array:
        return ids[:, :, None] == ids[:, None, :]

    same = equal(word) & equal(segment_ids) & (word >= 0)[:, :, None]
    total = jnp.einsum("bts,bsd->btd", same.astype(x.dtype), x, preferred_element_type=jnp.float32)
    return (total / jnp.maximum(same.sum(-1, keepdims=True), 1)).astype(x.dtype)


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model
) -> tuple[Array, tuple[Metrics, Carry]]:
    """The mean cross-entropy of words."""
    y = logits(params, batch, key, c=c, model=model)
    value, metrics = heads.cross_entropy(y, batch["tag"], batch["weights"], "token_accuracy")
    return value, (metrics, carry)


def predict(params: Tree, batch: Batch, *, c: Config, model: Model) -> dict[str, dict[str, Array]]:
    """`log_probabilities` float32 [b, t, tags]."""
    return {"tokens": {"log_probabilities": jax.nn.log_softmax(logits(params, batch, c=c, model=model))}}


# Predictions


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """A tag for each word of each sentence, and the metrics of all words."""
    scores = [np.zeros((len(record.fields["words"]), len(c.labels)), np.float32) for record in records]
    for unit, example in enumerate(units.example):
        word = units.columns["word"][units.offsets[unit]:units.offsets[unit + 1]]
        at = representatives(word, c.pieces)
        scores[example][word[at]] = outputs.arrays["log_probabilities"][unit][at]
    chosen = [schemes.best_sequence(each, c.labels, c.scheme) if c.decoding == "viterbi" else each.argmax(-1)
              for each in scores]
    predicted = [[c.labels[i] for i in each] for each in chosen]
    predictions: list[dict[str, Any]] = [
        {"tags": tags, "probabilities": np.exp(np.take_along_axis(each, best[:, None], 1)[:, 0]).tolist()}
        for tags, each, best in zip(predicted, scores, chosen, strict=True)]
    if not all("tags" in record.fields for record in records):
        return Result({}, predictions)
    gold, options = [tags_of(c, record) for record in records], {name: {"scheme": c.scheme} for name in STRICT_METRICS}
    numbers = {label: i for i, label in enumerate(c.labels)}
    true = np.array([numbers[tag] for tags in gold for tag in tags])
    metrics = {"loss": float(-np.concatenate(scores)[np.arange(len(true)), true].mean()),
               **figures(c.metrics, gold, predicted, options)}
    if c.scheme == "none":  # most tags of entities are O: a tagger that finds some may be below always O
        metrics["majority_accuracy"] = float(np.bincount(true).max() / len(true))
    return Result(metrics, predictions, gold, predicted, options)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """The columns that `conlleval` reads: word, tag where there is one, and predicted tag, with spaces between them (in
    a word, an underscore), and a blank line after each sentence."""
    sentences = []
    for record, prediction in zip(records, result.predictions, strict=True):
        words = ["_".join(word.split()) for word in record.fields["words"]]
        columns = [words, *([tags_of(c, record)] if "tags" in record.fields else []), prediction["tags"]]
        sentences.append("".join(f"{' '.join(cells)}\n" for cells in zip(*columns, strict=True)))
    return {"predictions.conll": "\n".join(sentences)}


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """The words whose tags differ with both tags, by the sum of the probabilities of the wrong ones."""
    pairs = [*zip(tags_of(c, record), prediction["tags"], strict=True)]
    wrong = [i for i, (gold, predicted) in enumerate(pairs) if gold != predicted]
    gold, predicted = (", ".join(f"{record.fields['words'][i]} {pairs[i][side]}" for i in wrong) for side in (0, 1))
    return Comparison(gold, predicted, float(sum(prediction["probabilities"][i] for i in wrong)), pairs)


class Tag(Predict):
    """Tags sentences: texts, whose words are separated by white space, lists of words, or dicts with `text` or `words`.

    For people a line is a word and its tag, with a space between them, and a blank line ends a sentence, as in the
    files of CoNLL-2003 and for `conlleval`.
    """

    def records(self, examples: Sequence[Any], names: Names = None) -> list[Record]:
        """Examples as records. Raises UserError for one without words, or with others than strings."""
        names = [(names[i] if names else None) or (repr(example)[:60] if isinstance(example, str) else None)
                 for i, example in enumerate(examples)]
        return super().records([_fields(example) for example in examples], names)

    def to_text(self, text: Any, prediction: dict[str, Any], tokenizer: Any) -> str:
        """A line for each word, and a blank one."""
        words = _fields(text)["words"]
        return "".join(f"{word} {tag}\n" for word, tag in zip(words, prediction["tags"], strict=True))


def _fields(example: Any) -> Mapping[str, Any]:
    """An example with its words, where it has any."""
    if not isinstance(example, Mapping):
        return {"words": example.split() if isinstance(example, str) else example}
    text = example.get("text")
    return {"words": text.split(), **example} if isinstance(text, str) else example


DEFINITION = TaskDef(
    ObjectiveDef(
        Config, build, check=check_config, context=lambda c: c.context,
        metrics={
            **{name: TASK_METRICS[name].metric._replace(headline=name == "entity_f1") for name in ENTITY_METRICS},
            "token_accuracy": accuracy_metric("Token accuracy", baseline="majority_accuracy"),
            "majority_accuracy": accuracy_metric("Accuracy of the most frequent tag", headline=False)},
        capabilities=(Tag("tag", "tags the words of sentences", ("words",), show=str),),
        published={"gpt": {"context": "left"}, "gpt2": {"context": "left"}}),
    fields=("words",), targets=("tags",),
    columns={"word": Field("bt", np.int32, "number of each token's word; -1 for none"),
             "tag": Field("bt", np.int32, "number of the tag at the token that stands for its word; -1 elsewhere")},
    resolve=resolve, check=check, encode=encode, score=score, best="",
    submission=submission, compare=compare)
