"""Classification of a word in two contexts, such as whether it has one meaning in both: WiC (Pilehvar and
Camacho-Collados, 2019)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.data.records.word_in_context import parse
from lmrep.objectives.base import Batch, Carry
from lmrep.tasks import classification, documents, heads, networks, target_words
from lmrep.tasks.base import Reads, Result, TaskDef, TextEncoder
from lmrep.tasks.capability import PredictWord
from lmrep.tasks.networks import Network

# SuperGLUE's names of fields -> ours; our spans -> its fields for their first character and the one after the last
NAMES = {"sentence1": "text", "sentence2": "text2", "word": "lemma", "idx": "id"}
SPANS = {"span": ("start1", "end1"), "span2": ("start2", "end2")}


@dataclass(frozen=True)
class Config(classification.Classes, networks.TextConfig):
    """A classifier on the vector of a pair of texts and of the target word in both, the mean over the word's tokens. By
    default it is a linear layer, as in SuperGLUE's BERT baseline (Wang et al., 2019, section 4.1)."""

    published: ClassVar[tuple[str, ...]] = ("context", "end_of_text")

    dense: bool = setting(False, "a dense layer before the output layer; SuperGLUE's baseline has none")
    network: str = setting("linear", "between the encoder and the head: linear: none; bilstm: bidirectional LSTM "
                           "layers", choices=("linear", "bilstm"))
    pooling: str = setting("position", "the vector that stands for a pair: as of other tasks on texts",
                           choices=("position", "mean", "max", "attention"))


def check(c: Config) -> None:
    """Raises UserError where the words of a text would be read in chunks."""
    if documents.is_chunked(c):
        raise UserError(f"config.objective.chunks.size is {c.chunks.size}, and this task needs the vectors of words; "
                        "set it to 0")


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Makes a unit of each pair."""
    return target_words.encode(records, encoder, {"label": classification.class_numbers(c, records)})


def logits(
    params: Tree, batch: Batch, net: Network, key: Array | None = None, carry: Carry | None = None
) -> tuple[Array, Carry | None]:
    """Computes (logits float32 [b, n, classes], the carry after the batch)."""
    keys = prng.split(key, 2)
    x = networks.token_vectors(params, batch, net, keys[0])
    words = [target_words.vectors(x, batch, number) for number in (1, 2)]
    weights = networks.network_params(params, net).get("pooling", {})
    joined = jnp.concatenate([documents.pool(net.c, net.model, weights, x, batch), *words], -1)
    return heads.apply(params["objective"]["word_in_context"], joined, net.c, net.model, keys[1]), carry


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """Writes a label a line, T or F, as WiC takes them; for labels true and false, SuperGLUE's JSON Lines."""
    labels = [prediction["label"] for prediction in result.predictions]
    if {*c.labels} != {"true", "false"}:
        return {"predictions.txt": "".join(f"{label}\n" for label in labels)}
    return {"WiC.jsonl": "".join(
        json.dumps({"idx": int(record.id) if record.id.isdecimal() else record.id, "label": label}) + "\n"
        for record, label in zip(records, labels, strict=True))}


def renamed(example: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the names of SuperGLUE's files by ours in an example."""
    spans = {ours: [example[start], example[end]] for ours, (start, end) in SPANS.items()
             if {start, end} <= example.keys()}
    return {NAMES.get(name, name): value for name, value in example.items()} | spans


DEFINITION = TaskDef(
    networks.definition(
        Config, networks.builder("word_in_context", lambda c: len(c.labels) or 2, classification.known,
                                 partial(classification.loss, logits=logits),
                                 partial(classification.predict, logits=logits), vectors=3),
        classification.MEASURED, (PredictWord(
            "compare", "compares a word in two texts", ("text", "text2", "span", "span2"), classification.show,
            ("lemma", "pos"), parse=parse, renamed=renamed),), check=check, teachable=True),
    Reads(("text", "text2", "span", "span2"), ("label",), ("lemma", "pos"), texts=("text", "text2")),
    resolve=classification.resolve, encode=encode, score=classification.score, best="accuracy",
    columns=lambda c: {**classification.DEFINITION.columns(c), **target_words.COLUMNS}, submission=submission,
)
