"""A task that lmrep does not know, by the book: vectors of texts that are near those of their pairs, and far from those
of the other pairs of a batch (in-batch negatives)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.metrics import accuracy_metric
from lmrep.objectives.base import Batch, Carry, Metrics
from lmrep.tasks import networks
from lmrep.tasks.base import Outputs, Reads, Result, TaskDef, TextEncoder, figures
from lmrep.tasks.capability import Predict
from lmrep.tasks.networks import Network


@dataclass(frozen=True)
class Config(networks.TextConfig):
    """Vectors of texts, the outputs of the head."""

    width: int = setting(16, "of the vectors", at_least=1)
    scale: float = setting(10.0, "of cosines, in the loss", above=0)


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """Two units for each pair."""
    texts = [record.fields[name] for record in records for name in ("text", "text2")]
    units, owners, long = encoder.texts(texts, [None] * len(texts), [r.where for r in records for _ in range(2)])
    return encoder.collect(units, np.array(owners) // 2), len(long)


def known(batch: Batch) -> Array:
    """The pairs, bool[b]: each is the other's target."""
    return batch["unit"][:, 0] >= 0


def vectors(
    params: Tree, batch: Batch, net: Network, key: Array | None = None, carry: Carry | None = None
) -> tuple[Array, Carry | None]:
    """(float32 [b, 2, width] of length 1, the carry after the batch)."""
    x, carry = networks.outputs(params, batch, net, key, carry)
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6), carry


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """The mean cross-entropy of the right pair among all of the batch."""
    x, carry = vectors(params, batch, net, key, carry)
    scores = jnp.where(batch["weights"] > 0, net.c.scale * x[:, 0] @ x[:, 1].T, -1e9)
    nll = -jnp.diagonal(jax.nn.log_softmax(scores))
    return jnp.where(batch["weights"] > 0, nll * batch["weights"], 0).sum(), ({}, carry)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """`vector` float32 [b, 2, width]."""
    return {"units": {"vector": vectors(params, batch, net)[0]}}


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """The cosine of each pair, and how often the nearest of all second texts is the right one."""
    x = np.reshape(outputs["vector"], (len(records), 2, -1)).astype(np.float64)
    scores = x[:, 0] @ x[:, 1].T
    predictions: list[dict[str, Any]] = [{"similarity": float(value)} for value in scores.diagonal()]
    gold, chosen = list(range(len(records))), scores.argmax(-1).tolist()
    nll = np.logaddexp.reduce(c.scale * scores, -1) - c.scale * scores.diagonal()
    return Result({"loss": float(nll.mean()), **figures(("accuracy",), gold, chosen)}, predictions, gold, chosen)


def show(prediction: Mapping[str, Any]) -> str:
    """The cosine."""
    return f"{prediction['similarity']:.3f}"


DEFINITION = TaskDef(
    networks.definition(
        Config, networks.builder("similarity", lambda c: c.width, known, loss, predict),
        {"accuracy": accuracy_metric("Texts whose nearest text is the right one")},
        (Predict("compare_texts", "measures how similar two texts are", ("text", "text2"), show),),
        compares=True),
    Reads(("text", "text2"), (), grouped=True), encode=encode, score=score, best="accuracy")
