"""A few labelled examples of every task, programs on them, which are compiled once, and what a network that is right
about them would compute."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.core.params import ParamSpec, flatten
from lmrep.core.sharding import batch_sharding, make_mesh, use_mesh
from lmrep.data.records.word_in_context import nth_word
from lmrep.objectives.base import FrozenPart
from lmrep.tasks import TASKS, frozen_features, word_features
from lmrep.tasks.base import Outputs, Result
from lmrep.tasks.networks import BiLstm
from lmrep.training.state import TrainState, layout, trainable
from lmrep.training.step import compiled_train_step
from tests.tasks import tiny


def _sense(text, at, *senses):
    lemma = text.split()[at]
    return {"text": text, "span": nth_word(text, at), "lemma": lemma, "pos": "N", "senses": [*senses]}


def _words(text, text2, at, at2, label):
    return {"text": text, "text2": text2, "span": nth_word(text, at), "span2": nth_word(text2, at2), "label": label}


# Labels come in an order that is not the sorted one. Six examples each, single texts and pairs where tasks read both.
EXAMPLES = {
    "classification": [
        {"text": "cat dog bird", "label": "pos"}, {"text": "fish", "text2": "tree stone", "label": "neg"},
        {"text": "horse mouse tree stone cat", "label": "zero"}, {"text": "dog dog", "text2": "cat", "label": "neg"},
        {"text": "stone", "label": "pos"}, {"text": "bird fish horse", "text2": "mouse", "label": "neg"}],
    "multilabel": [
        {"text": "cat dog", "labels": ["tree", "cat"]}, {"text": "fish", "text2": "stone", "labels": []},
        {"text": "dog bird fish", "labels": ["dog"]}, {"text": "tree cat", "text2": "dog", "labels": ["cat", "dog"]},
        {"text": "horse", "labels": ["tree"]}, {"text": "mouse mouse cat", "labels": ["tree", "cat", "dog"]}],
    "multiple_choice": [
        {"text": "cat dog", "choices": ["bird", "tree stone fish"], "label": "1"},
        {"text": "mouse", "choices": ["cat", "horse", "dog stone"], "label": "0"},
        {"text": "fish bird", "choices": ["tree", "dog"], "label": "0"},
        {"text": "stone", "choices": ["cat mouse", "fish", "bird"], "label": "2"},
        {"text": "horse cat", "choices": ["dog", "dog tree"], "label": "1"},
        {"text": "tree", "choices": ["mouse", "fish cat", "horse"], "label": "1"}],
    "regression": [
        {"text": "cat dog bird", "label": "-1"}, {"text": "fish stone", "text2": "cat", "label": "2.5"},
        {"text": "horse", "label": "0"}, {"text": "tree cat", "text2": "mouse", "label": "-3e0"},
        {"text": "bird", "label": "7"}, {"text": "dog fish tree", "text2": "stone cat", "label": "1"}],
    "span_extraction": [
        {"question": "cat", "context": "dog bird", "answers": [("bird", 4), ("dog bird", 0)]},
        {"question": "fish", "context": "tree stone cat", "answers": [("tree", 0)]},
        {"question": "horse dog", "context": "stone mouse", "answers": []},
        {"question": "bird", "context": "cat dog fish tree", "answers": [("dog fish", 4)]},
        {"question": "tree", "context": "horse", "answers": [("horse", 0)]},
        {"question": "mouse cat", "context": "fish bird", "answers": []}],
    "tagging": [
        {"words": ["cat", "dog", "bird"], "tags": ["B-X", "I-X", "O"]}, {"words": ["fish"], "tags": ["O"]},
        {"words": ["tree", "cat"], "tags": ["O", "B-A"]}, {"words": ["stone", "mouse", "dog", "cat"],
                                                           "tags": ["B-A", "O", "O", "B-X"]},
        {"words": ["horse", "fish"], "tags": ["B-X", "O"]}, {"words": ["bird"], "tags": ["B-A"]}],
    "text_to_text": [
        {"text": "cat dog bird", "target": "bird dog cat"}, {"text": "fish", "target": "fish"},
        {"text": "horse mouse tree stone", "target": "stone tree mouse horse"}, {"text": "dog", "target": "cat dog"},
        {"text": "tree cat", "target": "cat"}, {"text": "mouse bird", "target": "bird mouse"}],
    "word_in_context": [
        _words("cat dog", "bird cat", 0, 1, "T"), _words("fish", "tree fish stone", 0, 1, "F"),
        _words("horse dog mouse", "dog", 1, 0, "T"), _words("stone", "stone cat", 0, 0, "F"),
        _words("tree bird", "bird", 1, 0, "F"), _words("mouse", "cat mouse", 0, 1, "T")],
    "word_senses": [
        _sense("cat dog bird", 0, "cat.wild"), _sense("tree cat", 1, "cat.pet"), _sense("dog stone", 0, "dog.pet"),
        _sense("stone cat dog", 1, "cat.pet"), _sense("mouse dog", 1, "dog.mean"), _sense("dog fish", 0, "dog.pet")],
}

VECTORS = np.random.default_rng(3).normal(size=(6, 5)).astype(np.float32)
PART = FrozenPart("words", "glove.txt", {"vectors": ParamSpec(VECTORS.shape, ("vocab", None))}, tiny.WORDS[:6],
                  values={"vectors": VECTORS}, fingerprint="0")
READS = {"words": word_features.WordVectors("exact"), "frozen": {"words": PART},
         "characters": word_features.Characters(filters=3, width=4, max_length=6, dropout=0.0)}
BILSTM = {"network": "bilstm", "bilstm": BiLstm(width=4, layers=2, dropout=0.0)}
SIZES = {"head_width": 0, "max_length": 0}  # of an encoder-decoder



@functools.cache
def encoder() -> FrozenPart:
    """A frozen encoder of a layer."""
    whole = tiny.Tiny("classification", EXAMPLES["classification"])
    return FrozenPart("features", "runs/bert", whole.objective.specs, whole.tokenizer.tokens, whole.model,
                      whole.objective, whole.config, flatten(jax.device_get(whole.params)))


def features(**fields) -> dict:
    """The arguments of `Tiny` for a task that reads the frozen encoder, which `made` makes."""
    return {"features": frozen_features.Config(dropout=0.0, **fields), "frozen": {"features": encoder}}


def made(options: dict) -> dict:
    """Arguments of `Tiny`, with the frozen parts that they name."""
    frozen = {name: part() if callable(part) else part for name, part in options.get("frozen", {}).items()}
    return options | ({"frozen": frozen} if frozen else {})


# Networks and heads that compute in different ways: name -> (task, model, arguments of `Tiny`).
CASES = {
    **{task: (task, "transformer", {}) for task in EXAMPLES if task != "text_to_text"},
    "regression": ("regression", "transformer", {"pooling": "mean"}),
    "span_extraction": ("span_extraction", "transformer", {"unanswerable": True}),
    "text_to_text": ("text_to_text", "encoder_decoder", {"sizes": SIZES, "max_target": 8}),
    "attention pooling": ("classification", "transformer", {**BILSTM, "pooling": "attention"}),
    "concat": ("classification", "awd_lstm", {"pooling": "concat", "context": "left"}),
    "words and characters": ("classification", "none", {**BILSTM, **READS, "pooling": "max"}),
    "frozen features": ("tagging", "none", BILSTM | features(layers="mix:all", placement="both")),
    "left context": ("classification", "lstm", {"context": "left"}),
    "left context of words": ("tagging", "lstm", {"context": "left", "pieces": "last"}),
    "conditioned ends": ("span_extraction", "transformer", {"unanswerable": True, "end": "conditioned"}),
    "crf": ("tagging", "transformer", {**BILSTM, "network": "bilstm_crf", "pieces": "mean"}),
    "lstm decoder": ("text_to_text", "seq2seq_lstm", {"sizes": SIZES, "max_target": 8}),
}
ROWS = 8  # of a batch


@functools.cache
def build(name: str, dropout: float = 0.0, packed: bool = False) -> tiny.Tiny:
    """The task of a case, with this rate of dropout everywhere."""
    task, model, fields = CASES[name]
    fields = {field: replace(value, dropout=dropout) if hasattr(value, "dropout") else value
              for field, value in fields.items()}
    if "dropout" in TASKS[task].objective.config.__dataclass_fields__:
        fields["dropout"] = dropout
    sizes = fields.pop("sizes", {}) | {"dropout": dropout, "attention_dropout": dropout}
    return tiny.Tiny(task, EXAMPLES[task], model, form={"packed": packed}, sizes=sizes, **made(fields))


@functools.cache
def result(name: str, packed: bool = False) -> tuple[Result, Outputs]:
    """The predictions for the examples, and what the network computed."""
    task = build(name, packed=packed)
    store = task.examples()
    outputs = task.outputs(store)
    return task.task.score(task.config, task.records, store.units, outputs), outputs


@functools.cache
def step(name: str, packed: bool = True, mesh: tuple = (2, 2, 2), microbatches: int = 2) -> tuple[dict, dict]:
    """(the gradient, the metrics) of a training step on the examples, two without targets, and empty rows."""
    task = build(name, packed=packed and not TASKS[CASES[name][0]].reads.grouped)
    store = task.examples([*task.records, *unlabelled(task)])
    batch = store.gather(np.pad(np.arange(store.examples), (0, ROWS - store.examples), constant_values=-1))
    optimizer, objective, mesh = optax.sgd(1.0), task.objective, make_mesh(*mesh)
    with use_mesh(mesh):
        state = TrainState(jnp.int32(0), task.params, optimizer.init(trainable(task.params)), objective.carry(ROWS))
        state = jax.device_put(state, layout(objective, optimizer, ROWS, mesh))
        update = compiled_train_step(objective, optimizer, mesh, ROWS, 0, microbatches)
        after, metrics = update(state, jax.device_put(batch, batch_sharding(mesh)))
    gradient = jax.tree.map(lambda x, y: x - np.asarray(y), trainable(task.params), trainable(after.params))
    return gradient, {name: np.asarray(value) for name, value in metrics.items()}


def unlabelled(task: tiny.Tiny) -> list:
    """Its first two examples without their targets."""
    return [record._replace(fields={name: value for name, value in record.fields.items()
                                    if name not in task.task.reads.targets}) for record in task.records[:2]]


def right(task: tiny.Tiny) -> Outputs:
    """What a network would compute that is certain of the right answers, from the examples and the config alone."""
    c, fields = task.config, [record.fields for record in task.records]
    def certain(chosen, count):
        """float32 [count], log-probabilities."""
        return np.log(np.where(np.isin(np.arange(count), chosen), 1 - 1e-6, 1e-6)).astype(np.float32)

    match task.task.objective.config.__module__.rpartition(".")[2]:
        case "classification" | "word_in_context":
            arrays = {"log_probabilities": [certain(c.labels.index(each["label"]), len(c.labels)) for each in fields]}
        case "multilabel":
            arrays = {"logits": [20 * np.isin(c.labels, each["labels"]) - 10.0 for each in fields]}
        case "multiple_choice":
            most = max(len(each["choices"]) for each in fields)
            arrays = {"log_probability": [x for each in fields for x in certain(int(each["label"]), most)]}
        case "regression":
            arrays = {"value": [np.float32(each["label"]) for each in fields]}
        case "tagging":
            table = [np.stack([certain(c.labels.index(tag), len(c.labels)) for tag in ["O", *each["tags"], "O"]])
                     for each in fields]  # with a token before and after the words, which are one token each
            arrays = {"log_probabilities": table}
        case "word_senses":
            candidates = [dict(line.split(maxsplit=1) for line in c.candidates)[f"{each['lemma']}#N"].split()
                          for each in fields]
            most = max(map(len, candidates))
            arrays = {"log_probabilities": [certain([own.index(sense) for sense in each["senses"]], most)
                                            for own, each in zip(candidates, fields, strict=True)]}
        case "span_extraction":
            arrays = {"start": [], "end": []}
            for each in fields:  # [CLS] question [SEP] context [SEP], one token for each word
                words, before = each["context"].split(), len(each["question"].split()) + 2
                text, start = each["answers"][0] if each["answers"] else ("", 0)
                first = before + len(each["context"][:start].split()) if text else 0
                last = first + max(len(text.split()) - 1, 0)
                for name, at in (("start", first), ("end", last)):
                    arrays[name].append(certain(at, before + len(words) + 1))
        case "text_to_text":
            tokenizer = task.tokenizer
            ids = [[*tokenizer.encode(each["target"]).ids, tokenizer.vocabulary.specials["sep"]] for each in fields]
            arrays = {"generated": [np.array([own]) for own in ids], "score": [np.zeros(1)] * len(ids),
                      "nll": [np.full(len(own), 1e-6) for own in ids], "correct": [np.ones(len(own)) for own in ids]}
    return arrays
