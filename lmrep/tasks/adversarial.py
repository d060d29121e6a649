"""Adversarial and virtual adversarial training of classifiers (Miyato et al., 2017): the loss also of texts whose token
vectors are changed, by a little, in the direction in which the predictions get worst.

The paper normalizes the table of vectors, so that a network cannot escape by longer vectors. Here the change is
measured by the root mean square of the text's own vectors instead. Directions are found without dropout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lmrep.config.record import setting
from lmrep.core.params import Array
from lmrep.metrics import loss_metric
from lmrep.models.base import Model, with_vectors
from lmrep.objectives.base import Batch, Metrics
from lmrep.objectives.outputs import sums

METRICS = {"adversarial_loss": loss_metric("Loss of texts with adversarial changes", optional=True),
           "virtual_adversarial_loss": loss_metric("Divergence of predictions by virtual adversarial changes",
                                                   optional=True)}
STEP = 0.1  # norm of the random change at which the direction of the divergence is measured
FIELD = "config.objective.adversarial"


@dataclass(frozen=True)
class Config:
    """The weights of the losses, and the size of the change."""

    weight: float = setting(0.0, "of the loss of texts that are changed so that the loss grows most; 0: none",
                            at_least=0)
    virtual: float = setting(0.0, "of the divergence of predictions from those of texts that are changed so that it "
                             "grows most; 0: none", at_least=0)
    epsilon: float = setting(5.0, "norm of the change of all vectors of a text, which have a root mean square of 1",
                             above=0)


def losses(
    c: Config, model: Model, logits: Callable[[Model, Array | None], Array], y: Array, batch: Batch, key: Array
) -> tuple[Array, Metrics]:
    """Computes the weighted sum of the losses, and their metrics.

    Args:
      c: the config.
      model: the network.
      logits: (a model, key for dropout or None) -> float32 [b, n, classes], the outputs for the batch.
      y: the outputs of `model` with `key`.
      batch: prepared, with `label` i32[b, n] and `weights` float32 [b, n].
      key: for dropout and the random change.
    """
    total, metrics, used = jnp.zeros(()), {}, batch["weights"]
    label, real = jnp.maximum(batch["label"], 0), batch["segment_ids"] > 0

    def changed(change: Array, key: Array | None = None) -> Array:
        return logits(with_change(model, change, real), key)

    def cross_entropy(y: Array) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(y, label)

    zeros = jnp.zeros(vectors_shape(model, logits))
    if c.weight:
        worst = direction(lambda change: (cross_entropy(changed(change)) * used).sum(), zeros)
        nll = cross_entropy(changed(c.epsilon * worst, key))
        total, metrics = total + c.weight * (nll * used).sum(), metrics | sums(used > 0, adversarial_loss=nll)
    if c.virtual:
        plain = jax.lax.stop_gradient(logits(model, None))
        start = STEP * unit(jnp.where(real[..., None], jax.random.normal(jax.random.fold_in(key, 3), zeros.shape), 0))
        worst = direction(lambda change: (divergence(plain, changed(change)) * (used > 0)).sum(), start)
        kl = divergence(jax.lax.stop_gradient(y), changed(c.epsilon * worst, key))
        total, metrics = total + c.virtual * (kl * used).sum(), metrics | sums(used > 0, virtual_adversarial_loss=kl)
    return total, metrics


def vectors_shape(model: Model, logits: Callable[[Model, Array | None], Array]) -> tuple[int, ...]:
    """Returns the shape [b, t, e] of the vectors that the network looks up, by shapes alone."""
    shapes: list[tuple[int, ...]] = []

    def note(x: Array) -> Array:
        shapes.append(x.shape)
        return x

    jax.eval_shape(lambda: logits(with_vectors(model, lambda key: note, FIELD), None))
    return shapes[0]


def with_change(model: Model, change: Array, real: Array) -> Model:
    """Returns `model`, which reads vectors [b, t, e] plus `change` times the root mean square of the row's vectors
    where `real` bool[b, t] holds."""
    def add(x: Array) -> Array:
        count = jnp.maximum(real.sum(1) * x.shape[-1], 1)
        square = jnp.where(real[..., None], jnp.square(x.astype(jnp.float32)), 0).sum((1, 2)) / count
        rms = jax.lax.stop_gradient(jnp.sqrt(square))[:, None, None]
        return (x + rms * change).astype(x.dtype)

    return with_vectors(model, lambda key: add, FIELD)


def direction(f: Callable[[Array], Array], at: Array) -> Array:
    """Returns the `unit` direction [b, t, e] in which f, a sum over rows, grows most, as a constant."""
    return jax.lax.stop_gradient(unit(jax.grad(f)(jax.lax.stop_gradient(at))))


def unit(x: Array) -> Array:
    """Divides each row of x [b, t, e] by its norm. Rows of zeros stay as they are."""
    most = jnp.abs(x).max((1, 2), keepdims=True)
    x = x / jnp.where(most > 0, most, 1)  # squares of small gradients would underflow
    square = jnp.square(x).sum((1, 2), keepdims=True)
    return x / jnp.sqrt(jnp.where(square > 0, square, 1))


def divergence(y: Array, other: Array) -> Array:
    """Computes KL(softmax(y) || softmax(other)) of logits [..., classes]: [...]."""
    p, q = jax.nn.log_softmax(y), jax.nn.log_softmax(other)
    return (jnp.exp(p) * (p - q)).sum(-1)


def is_used(c: Any) -> bool:
    """Tells whether one of the losses has a weight."""
    return bool(c.weight or c.virtual)
