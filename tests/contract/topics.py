"""A task that lmrep does not know: all topics of a text, any number of them. Its metric, and the option of its
predictions, are its own too."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.data.formats.base import Field
from lmrep.data.records import Record
from lmrep.data.records.encoding import Units
from lmrep.metrics import Metric
from lmrep.metrics.tasks import TaskMetric
from lmrep.objectives.base import Batch, Carry, Metrics, Names
from lmrep.objectives.outputs import sums
from lmrep.tasks import networks
from lmrep.tasks.base import Outputs, Reads, Result, TaskDef, TextEncoder, mean_by_example
from lmrep.tasks.capability import Predict
from lmrep.tasks.networks import Network


@dataclass(frozen=True)
class Config(networks.TextConfig):
    """A classifier for each topic."""

    topics: tuple[str, ...] = setting((), "the topics; none: those of the training data, sorted")


def micro_f1(gold: Sequence, predicted: Sequence) -> float:
    """F1 of all (text, topic) pairs; both are a list of topics for each text."""
    correct = sum(len(set(a) & set(b)) for a, b in zip(gold, predicted, strict=True))
    total = sum(map(len, gold)) + sum(map(len, predicted))
    return 2 * correct / total if total else 0.0


METRIC = TaskMetric(Metric("Micro-averaged F1", "F1", True, ".2%", headline=True), micro_f1)


def resolve(c: Config, records: Sequence[Record]) -> Config:
    """With the topics of the training data."""
    found = {topic for record in records for topic in record.fields["tags"]}
    return replace(c, topics=c.topics or tuple(sorted(found)))


def check(c: Config, record: Record) -> None:
    """Refuses a topic that the training data lacks."""
    if unknown := sorted(set(record.fields.get("tags", ())) - set(c.topics)):
        raise UserError(f"{record.where}: the training data has no topic {unknown[0]!r}; it has {', '.join(c.topics)}")


def encode(c: Config, records: Sequence[Record], encoder: TextEncoder) -> tuple[Units, int]:
    """A unit for each text, with a column [u, topics] of 0 and 1, or -1 for a text without labels."""
    labels = [[int(topic in record.fields["tags"]) if "tags" in record.fields else -1 for topic in c.topics]
              for record in records]
    return encoder.units(records, {"topics": np.array(labels, np.int32)})


def known(batch: Batch) -> Array:
    """The units that have labels, bool[b, n]."""
    return (batch["topics"] >= 0).all(-1)


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, net: Network
) -> tuple[Array, tuple[Metrics, Carry]]:
    """The mean over texts of the binary cross-entropies' sum."""
    y, carry = networks.outputs(params, batch, net, key, carry)
    nll = optax.sigmoid_binary_cross_entropy(y, jnp.maximum(batch["topics"], 0)).sum(-1)
    exact = ((y > 0) == (batch["topics"] == 1)).all(-1)
    return (nll * batch["weights"]).sum(), (sums(batch["weights"] > 0, exact=exact), carry)


def predict(params: Tree, batch: Batch, *, net: Network) -> dict[str, dict[str, Array]]:
    """`probabilities` float32 [b, n, topics]."""
    return {"units": {"probabilities": jax.nn.sigmoid(networks.outputs(params, batch, net)[0])}}


def score(c: Config, records: Sequence[Record], units: Units, outputs: Outputs) -> Result:
    """The probability of each topic, and the topics that are more probable than not."""
    p = mean_by_example(np.stack(outputs["probabilities"]), units.example, len(records))
    predictions: list[dict[str, Any]] = [
        {"topics": [topic for topic, value in zip(c.topics, row, strict=True) if value > 0.5],
         "probabilities": dict(zip(c.topics, map(float, row), strict=True))} for row in p]
    if any("tags" not in record.fields for record in records):
        return Result({}, predictions)
    gold = [record.fields["tags"] for record in records]
    chosen = [prediction["topics"] for prediction in predictions]
    true = np.array([[topic in topics for topic in c.topics] for topics in gold])
    nll = -np.log(np.maximum(np.where(true, p, 1 - p), 1e-9)).sum(1)
    metrics = {"loss": float(nll.mean()), "exact": float(((p > 0.5) == true).all(1).mean()),
               "micro_f1": micro_f1(gold, chosen)}
    return Result(metrics, predictions, gold, chosen, own_metrics={"micro_f1": METRIC})


def submission(c: Config, records: Sequence[Record], result: Result) -> dict[str, str]:
    """A line of topics for each text."""
    return {"topics.txt": "".join(" ".join(each["topics"]) + "\n" for each in result.predictions)}


@dataclass(frozen=True)
class Options:
    """Options of `NameTopics`."""

    threshold: float = setting(0.5, "the probability above which a text has a topic", at_least=0, at_most=1)


class NameTopics(Predict):
    """As `Predict`, with a threshold."""

    options, sample_options = Options, Options()

    def predict(self, run: Any, texts: Sequence[Any], options: Options, names: Names) -> list[dict[str, Any]]:
        """The topics of each text, and the probability of each topic."""
        return [{**prediction, "topics": [topic for topic, p in prediction["probabilities"].items()
                                          if p > options.threshold]}
                for prediction in super().predict(run, texts, options, names)]


DEFINITION = TaskDef(
    networks.definition(Config, networks.builder("topics", lambda c: len(c.topics) or 2, known, loss, predict), {
        "micro_f1": METRIC.metric, "exact": Metric("Texts without error", "accuracy", True, ".2%"),
    }, (NameTopics("name_topics", "names the topics of texts", ("text",),
                   lambda prediction: " ".join(prediction["topics"]) or "none"),)),
    Reads(("text",), ("tags",)), resolve=resolve, check=check, encode=encode, score=score, best="micro_f1",
    columns=lambda c: {"topics": Field("bnl", np.int32, "1 for topics of a text; -1 where they are not known")},
    submission=submission)
