"""Generation of texts from texts: translation (Vaswani et al., 2017), and any task as text to text (Raffel et al.,
2019), with classes as words, rounded numbers, and answers, choices and tags as texts.

A network of context "source" reads the text in its encoder and generates the target from left to right. Examples may be
packed in training: pairs of one sequence do not attend to each other.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats.base import FIELDS, Field
from lmrep.data.records import FIELDS as RECORD_FIELDS
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.metrics.translation import signature
from lmrep.models import decoding
from lmrep.models.base import Context, Model, check_context, model_inputs
from lmrep.objectives.base import Batch, Carry, FrozenParts, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.outputs import (
    head_params,
    normalize_weights,
    output_layer,
    output_specs,
    smoothed_cross_entropy,
    sums,
)
from lmrep.objectives.uses import NetworkUse, TextPairs, Uses
from lmrep.tasks import denoising, schemes, text_metrics, text_templates
from lmrep.tasks.base import Comparison, Outputs, Reads, Result, TaskDef, Templates, TextEncoder, figures
from lmrep.tasks.capability import GenerateTarget
from lmrep.tasks.text_metrics import TEXT_METRICS, gold_of

METRICS = tuple(TEXT_METRICS)
CHECKED = 100  # distinct targets that are decoded again to check the tokenizer
NAME = "text_to_text"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Config:
    """A model that generates texts from texts."""

    template: str = setting("{text}", "what the encoder reads, with the fields of an example in braces: 'translate "
                            "German to English: {text}', 'mnli premise: {text} hypothesis: {text2}', 'question: "
                            "{question} context: {context}'; choices are read as 'choice1: a choice2: b'")
    target: str = setting("{target}", "what is generated, with the fields of an example in braces: '{label}', which "
                          "of choices is choice1 or another one, '{answers}', the first of several and nothing where "
                          "there is none, '{tags}' between spaces")
    max_target: int = setting(64, "tokens of a target at most, with its end", at_least=1)
    round_to: float = setting(0.0, "targets that are numbers are rounded to a multiple of it (STS-B as T5: 0.2); 0: "
                              "they are not", at_least=0)
    label_smoothing: float = setting(0.0, "of the targets' probability, spread over the vocabulary (Vaswani et al.: "
                                     "0.1)", at_least=0, below=1)
    z_loss: float = setting(0.0, "factor of the squared logarithm of the softmax's normalizer (T5: 1e-4)", at_least=0)
    search: decoding.Search = setting(decoding.Search(), "how texts are generated for validation")
    metrics: tuple[str, ...] = setting(("bleu", "chrf"), "what is measured on validation data, beside the loss; "
                                       "accuracy counts whole texts", choices=METRICS)
    positive: str = setting("", "f1: the positive class")
    scheme: str = setting("BIO", "entity_f1: the scheme of the tags", choices=tuple(schemes.PREFIXES))
    denoise: bool = setting(False, "of a source of a mixture: its texts have no targets, and span corruption makes "
                                   "pairs of them, once (T5's unsupervised task beside the others)")


def check_config(c: Config) -> None:
    """Raises UserError for an invalid template, or for fields that do not fit each other."""
    text_templates.check("config.objective.template", c.template, text_templates.INPUTS, "summarize: {text}")
    text_templates.check("config.objective.target", c.target, RECORD_FIELDS, "{target}")
    decoding.check(c.search)
    if c.denoise and (c.template, c.metrics, c.round_to) != ("{text}", (), 0):
        raise UserError(f"config.objective.denoise is True, with which texts are read as they are and measured by the "
                        f"loss alone, and template is {c.template!r}, metrics {c.metrics}, round_to {c.round_to:g}; "
                        "set template='{text}', metrics=() and round_to=0 for this source")
    if "f1" in c.metrics and not c.positive:
        raise UserError("config.objective.metrics has f1, and config.objective.positive, the class that it is measured "
                        "for, is empty; set it")


def build(c: Config, model: Model, vocabulary: Vocabulary, frozen: FrozenParts = MappingProxyType({})) -> Objective:
    """Builds the objective, which generates the target given the source. Raises UserError if the network or the
    tokenizer does not suit it."""
    check_context(model, Context.SOURCE, "this task")
    if 0 < model.max_length < c.max_target:
        raise UserError(f"config.objective.max_target is {c.max_target}, and the network has {model.max_length} "
                        "positions (model.max_length); lower it, or raise max_length")
    ids = special_ids(vocabulary)
    specs = {"encoder": model.specs, **({"objective": {NAME: head}} if (head := output_specs(model)) else {})}
    return Objective(
        name=NAME, specs=specs, prepare=partial(prepare, start=ids["start"]), loss=partial(loss, c=c, model=model),
        predict=partial(predict, c=c, model=model, size=vocabulary.size, **ids),
        uses=Uses(Context.SOURCE, networks=(NetworkUse(model.sizes),), published_heads={"span_corruption": NAME},
                  text_pairs=TextPairs(ids["start"], ids["end"], lambda batch: batch,
                                       lambda length, packed: (length if packed else c.max_target, length))))


def special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns the ids of `start`, which precedes targets (as in T5, padding), `end`, which ends texts, and `pad`, which
    follows them. Raises UserError for a tokenizer without a token that can end a text."""
    known = vocabulary.specials
    end = next((known[role] for role in ("eos", "sep") if role in known), None)
    if end is None:
        raise UserError("the tokenizer has no token that ends a text; choose another one, such as "
                        "tokenizer.name=sentencepiece_unigram")
    pad = known.get("pad", end)
    return {"start": pad, "end": end, "pad": pad}


# Data


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each record: the target's tokens, or an end alone if it has none, and the source's tokens."""
    if c.denoise:
        return denoising.encode(records, encoder, c.max_target)
    end = special_ids(encoder.tokenizer.vocabulary)["end"]
    if scheme := _scheme(c):
        schemes.report(scheme, records, text_metrics.tags_of)
    names = [record.where for record in records]
    sources = encoder.ids([_source(c, record) for record in records], names)
    known = [i for i, record in enumerate(records) if "target" in record.fields]
    known_ids = encoder.ids([target(c, records[i]) for i in known], [names[i] for i in known])
    targets = [np.empty(0, np.int32)] * len(records)
    for i, ids in zip(known, known_ids, strict=True):
        targets[i] = ids
    long = [i for i in range(len(records)) if len(sources[i]) >= encoder.length or len(targets[i]) >= c.max_target]
    if long and encoder.format.long != "truncate":
        raise UserError(
            f"{names[long[0]]} has a source of {len(sources[long[0]]) + 1:,} tokens and a target of "
            f"{len(targets[long[0]]) + 1:,}, with their ends; config.length is {encoder.length:,} and "
            f"config.objective.max_target {c.max_target:,}: raise them, or set --config.format.long=truncate")
    _check_template(c, records)
    _check_decoding(c, [target(c, records[i]) for i in known], known_ids, encoder)
    targets, sources = ([np.append(ids[: most - 1], end) for ids in texts]
                        for texts, most in ((targets, c.max_target), (sources, encoder.length)))
    return denoising.pair_units(targets, sources, ["target" in record.fields for record in records],
                                [True] * len(records), encoder.tokenizer.decode), len(long)


def _check_template(c: Config, records: Sequence[Record]) -> None:
    """Warns of pairs of texts if the template does not read the second one."""
    if "text2" not in text_templates.fields(c.template) and (
            pairs := [record for record in records if "text2" in record.fields]):
        log.warning("%s of %s examples have text2, such as %s, and config.objective.template is %r, which does not "
                    "read it; to read pairs, set it to one such as %r", f"{len(pairs):,}", f"{len(records):,}",
                    pairs[0].where, c.template, f"{c.template} text2: {{text2}}")


def _check_decoding(c: Config, targets: Sequence[str], ids: Sequence[np.ndarray], encoder: TextEncoder) -> None:
    """Warns of a tokenizer that changes targets, if a metric compares whole texts with them."""
    exact = [name for name in c.metrics if name not in text_metrics.SIMILARITY]
    known = dict(islice(dict(zip(targets, ids, strict=True)).items(), CHECKED)) if exact else {}
    decoded = {text: encoder.tokenizer.decode(tokens.tolist()).strip() for text, tokens in known.items()}
    if changed := [text for text, other in decoded.items() if other != text.strip()]:
        log.warning("%s of %s targets are other texts after the tokenizer %s, as %r, which it decodes as %r, so that "
                    "%s cannot find them right; choose one that keeps texts, such as "
                    "tokenizer.name=sentencepiece_unigram with lowercase=false, or other targets",
                    f"{len(changed):,}", f"{len(known):,}", encoder.tokenizer.name, changed[0][:40],
                    decoded[changed[0]][:40], " and ".join(exact))


def _source(c: Config, record: Record) -> str:
    return text_templates.render(c.template, record, "config.objective.template")


def reads(c: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the fields of records that the two templates read: (inputs, targets)."""
    return text_templates.fields(c.template), () if c.denoise else text_templates.fields(c.target)


def convert(c: Config, record: Record) -> Record:
    """Adds the field `target`, the text that `config.target` makes of a record; removes it if the record lacks a field
    of this template."""
    names = text_templates.fields(c.target)
    if not all(name in record.fields for name in names):
        return record._replace(fields={name: value for name, value in record.fields.items() if name != "target"})
    shown = record
    if "tags" in names and (scheme := _scheme(c)):
        shown = record._replace(fields={**record.fields, "tags": schemes.convert(scheme, record.fields["tags"])})
    text = text_templates.render(c.target, shown, "config.objective.target")
    return record._replace(fields={**record.fields, "target": text})


def _scheme(c: Config) -> str:
    """Returns the scheme in which tags are generated and measured; "" if they are not read as entities."""
    return c.scheme if "entity_f1" in c.metrics else ""


def resolve(c: Config, records: Sequence[Record]) -> Config:
    """Returns the config. Raises UserError for training data whose targets are no tags of entities, if entities are
    measured."""
    for record in records if _scheme(c) else ():
        schemes.check(record, text_metrics.tags_of(record), "leave entity_f1 out of config.objective.metrics")
    return c


def target(c: Config, record: Record) -> str:
    """Returns the text that is to be generated for a record."""
    text = record.fields["target"]
    if "tags" not in record.fields and (scheme := _scheme(c)):
        return " ".join(schemes.convert(scheme, text.split()))
    number = text_metrics.number(text) if c.round_to else math.nan
    if math.isnan(number):
        return text
    decimals = max(0, -math.floor(math.log10(c.round_to) + 1e-9))
    return f"{round(number / c.round_to) * c.round_to:.{decimals}f}"


def texts(c: Config, record: Record) -> tuple[str, ...]:
    """Returns the text that the encoder reads, with its prefix, and the target, if there is one."""
    return _source(c, record), *([target(c, record)] if "target" in record.fields else [])


def unlabelled(c: Config) -> Callable[[Sequence[Record], TextEncoder], list[Record]] | None:
    """Returns the function that makes pairs of texts without targets; None for other data."""
    return partial(denoising.examples, max_target=c.max_target) if c.denoise else None


# Training


def prepare(keys: Keys, batch: Batch, *, start: int) -> Batch:
    """Replaces `tokens` i32[b, t] by the inputs of the decoder: in each segment `start`, then the target without its
    last token. Adds `targets` i32[b, t] and `weights` float32 [b, t], which add to 1."""
    targets, segments = batch["tokens"], batch["segment_ids"]
    inputs = jnp.where(batch["positions"] == 0, start, jnp.roll(targets, 1, axis=1))
    known = jnp.take_along_axis(batch["known"], jnp.maximum(segments - 1, 0), axis=1) > 0
    return batch | {"tokens": inputs, "targets": targets, "weights": normalize_weights((segments > 0) & known)}


def hidden(params: Tree, batch: Batch, model: Model, key: Array | None = None) -> Array:
    """Computes the decoder's output [b, t, d]."""
    return model.encode(params["encoder"], model_inputs(model, batch, conditions_on=Context.SOURCE), key).hidden


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the targets' tokens, with label smoothing and the z-loss."""
    total, nll, correct = smoothed_cross_entropy(
        model, params["encoder"], head_params(params, NAME), hidden(params, batch, model, key), batch["targets"],
        batch["weights"], key, label_smoothing=c.label_smoothing, z_loss=c.z_loss)
    return total, (sums(batch["weights"] > 0, lm_loss=nll, lm_accuracy=correct), carry)


# Predictions


def predict(
    params: Tree, batch: Batch, *, c: Config, model: Model, size: int, start: int, end: int, pad: int
) -> dict[str, dict[str, Array]]:
    """Generates k texts for each source of a batch that is not packed: their tokens `generated` i32[b, 1, k,
    max_target], and `score` float32 [b, 1, k], their log probabilities over the length penalty. Computes `nll` and
    `correct` float32 [b, t] of the target's tokens, given the tokens before them. Ids from `size` on, rows of a padded
    table, are not generated."""
    layer, prepared = output_layer(model), prepare(None, batch, start=start)
    ones = jnp.ones(prepared["targets"].shape, jnp.float32)
    _, nll, correct = layer.cross_entropy(
        params["encoder"], head_params(params, NAME), hidden(params, prepared, model), prepared["targets"], ones)
    source = model_inputs(model, batch, conditions_on=Context.SOURCE).source

    def decode(tokens: Array, cache: Tree) -> tuple[Array, Tree]:
        output, cache = model.state.decode(params["encoder"], tokens, cache)
        logits = layer.logits(params["encoder"], head_params(params, NAME), output)
        return jnp.where(jnp.arange(logits.shape[-1]) < size, logits, -jnp.inf), cache  # ids without a token

    generated = decoding.generate(
        decode, lambda number: model.state.cache(params["encoder"], number, c.max_target, source=source),
        len(batch["tokens"]), c.max_target, c.search, start=start, end=end, pad=pad, examples=batch["unit"][:, 0],
        skip=batch["generated"][:, 0] != 1)
    shape = (len(batch["tokens"]), 1, c.search.samples)
    return {"units": {"generated": generated.tokens.reshape(*shape, -1), "score": generated.scores.reshape(shape)},
            "tokens": {"nll": nll, "correct": correct.astype(jnp.float32)}}


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """Predicts the generated texts, and measures them if all targets are known."""
    if c.denoise and units.columns["known"].all():
        return denoising.score(outputs)
    special = units.tokens[-1]  # every target ends with it
    generated = [[units.source.decode([*takewhile(lambda i: i != special, ids)]).strip() for ids in samples.tolist()]
                 for samples in outputs["generated"]]
    texts = [samples[0] for samples in generated]
    predictions: list[dict[str, Any]] = [
        {"text": samples[0], "score": scores[0]} | ({"texts": samples, "scores": scores} if len(samples) > 1 else {})
        for samples, scores in zip(generated, (scores.tolist() for scores in outputs["score"]), strict=True)]
    if not units.columns["known"].all():
        return Result({}, predictions)
    gold = [gold_of(record, target(c, record), _scheme(c)) for record in records]
    nll, correct = (np.concatenate(outputs[name]) for name in ("nll", "correct"))
    metrics = {"loss": float(nll.mean()), "lm_loss": float(nll.mean()), "lm_accuracy": float(correct.mean())}
    if "accuracy" in c.metrics:
        metrics["majority_accuracy"] = max(Counter(example.text for example in gold).values()) / len(gold)
    elif "token_accuracy" in c.metrics:
        tags = Counter(tag for example in gold for tag in example.tags)
        metrics["majority_accuracy"] = max(tags.values()) / tags.total()
    if "answer_f1" in c.metrics:
        metrics["always_empty_f1"] = sum(not example.answers for example in gold) / len(gold)
    options = text_metrics.options(gold, c.positive, c.scheme)
    return Result(metrics | figures(c.metrics, gold, texts, options, TEXT_METRICS), predictions, gold, texts, options,
                  TEXT_METRICS)


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Writes the texts, one on each line, with sacreBLEU's signature if BLEU was measured; or answers to questions by
    their ids, as the scripts of SQuAD read them."""
    if c.denoise:
        return {}
    if c.target == "{answers}":
        by_id = {record.id: prediction["text"] for record, prediction in zip(records, result.predictions, strict=True)}
        return {"predictions.json": json.dumps(by_id, ensure_ascii=False, indent=1) + "\n"}
    lines = "".join(f"{' '.join(prediction['text'].split())}\n" for prediction in result.predictions)
    return {"predictions.txt": lines} | (
        {"sacrebleu.txt": f"BLEU {result.metrics['bleu']:.2f} {signature()}\n"} if "bleu" in result.metrics else {})


def compare(c: Config, record: Record, prediction: Mapping[str, Any]) -> Comparison:
    """Compares two texts, by 1 - the sentence's chrF (as a fraction), the smallest over several right answers."""
    right = gold_of(record, target(c, record), _scheme(c)).answers or ("",)
    gold = " / ".join(dict.fromkeys(right)) or "(no answer)"
    if c.denoise:  # nothing is generated
        return Comparison(gold, "", 0.0)
    text = prediction["text"]
    chrf = TASK_METRICS["chrf"].function
    similarity = 1.0 if text in right else max(chrf([answer], [text]) for answer in right) / 100
    return Comparison(gold, text or "(no text)", 1 - similarity)


DEFINITION = TaskDef(
    ObjectiveDef(
        Config, build, check=check_config, conditions_on=lambda c: Context.SOURCE,
        metrics={"lm_loss": loss_metric("Loss of the target's tokens", perplexity=True),
                 "lm_accuracy": accuracy_metric("Accuracy of the target's tokens", headline=False),
                 **{name: TASK_METRICS[name].metric._replace(headline=True) for name in METRICS},
                 "accuracy": accuracy_metric("Accuracy", baseline="majority_accuracy"),
                 "answer_f1": TASK_METRICS["answer_f1"].metric._replace(headline=True, baseline="always_empty_f1"),
                 "always_empty_f1": TASK_METRICS["answer_f1"].metric._replace(title="Answer F1 of no answer"),
                 "token_accuracy": accuracy_metric("Token accuracy", baseline="majority_accuracy"),
                 "majority_accuracy": accuracy_metric("Accuracy of the most frequent target", headline=False)},
        evaluation_fields=("search",),
        capabilities=(GenerateTarget(
            "generate_target", "generates a text from a text, such as its translation", (),
            lambda prediction: prediction["text"], text_templates.INPUTS),)),
    Reads(("text",), ("target",), tuple(name for name in text_templates.INPUTS if name != "text")),
    resolve=resolve, check=lambda c, record: text_metrics.check(record, c.metrics), encode=encode, score=score, best="",
    columns=lambda c: {
        "known": Field("bn", np.int32, "whether the target is known; -1 for empty sequences"),
        "generated": Field("bn", np.int32, "whether a text is generated for it; -1 for empty sequences"),
        **{f"source/{name}": Field("bs", *FIELDS[name][1:]) for name in ("tokens", "segment_ids", "positions")}},
    submission=submission, compare=compare,
    initial={f"objective/{NAME}/output": "objective/span_corruption/output"},
    templates=Templates(reads, convert, texts, unlabelled, source_fields=(
        "template", "target", "round_to", "metrics", "positive", "scheme", "denoise")),
)
