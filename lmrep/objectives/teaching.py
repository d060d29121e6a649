"""The losses of knowledge distillation (Hinton et al., 2015; Sanh et al., 2019) between a student and a frozen teacher
that reads the same tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import gather
from lmrep.layers import lm_head
from lmrep.metrics import NO_BASELINE, Metric, optional
from lmrep.models.base import Model
from lmrep.objectives.base import Batch, Carry, FrozenPart, FrozenParts, Metrics
from lmrep.objectives.outputs import sums

TEACHER = "teacher"  # the name of the frozen part
EPSILON = 1e-12  # added to squared norms, as PyTorch does
DIVERGENCE = optional({
    "distillation_loss": Metric("Divergence from the teacher, times T^2", baseline="constant_distillation_loss"),
    "constant_distillation_loss": Metric("Divergence of a constant distribution"),
})
METRICS = DIVERGENCE | optional({
    # The best constant direction, that of the mean of the teacher's normalized hidden states, is no mean of figures of
    # positions, and no direction is known before there are data.
    "cosine_loss": Metric("Cosine distance from the teacher's hidden states", format=".4f", baseline=NO_BASELINE),
    "mse_loss": Metric("Squared distance from the teacher's logits", baseline="constant_mse_loss"),
    "constant_mse_loss": Metric("Squared distance of logits of 0"),
})


@dataclass(frozen=True)
class Config:
    """The weights of the losses that a teacher gives."""

    alpha_ce: float = setting(5.0, "weight of the divergence of the teacher's distribution from the student's, both at "
                              "the temperature T, times T^2", at_least=0)
    alpha_cos: float = setting(1.0, "weight of the cosine distance between the last hidden states", at_least=0)
    alpha_mse: float = setting(0.0, "weight of the squared distance between the logits, summed over the vocabulary",
                               at_least=0)
    temperature: float = setting(2.0, "T, by which logits are divided", above=0)


class Logits(NamedTuple):
    """Logits as a product: x [b, m, e] times the table [v, e], plus a bias."""

    x: Array
    table: Array
    bias: Array | None

    def at(self, x: Array) -> Array:
        """Computes float32 [b, k, v] for some of the positions, x [b, k, e]."""
        return lm_head.logits({} if self.bias is None else {"bias": self.bias}, self.table, x)


def parts(c: Config) -> tuple[str, ...]:
    """Names the frozen parts that training needs."""
    return (TEACHER,) if c.alpha_ce or c.alpha_cos or c.alpha_mse else ()


def teacher(
    c: Config, model: Model, frozen: FrozenParts, has_logits: Callable[[FrozenPart], bool], expected: str
) -> FrozenPart | None:
    """Returns the teacher; None if there is none. `has_logits` tells whether a part gives the logits that the student
    learns; messages call such a part `expected`. Raises UserError if it cannot teach this student."""
    part = frozen.get(TEACHER)
    if part is None:
        return None
    if part.model.vocab_size != model.vocab_size:
        raise UserError(f"model.vocab is {model.vocab_size:,}, and the teacher ({part.source}) has logits for "
                        f"{part.model.vocab_size:,} tokens; set --config.model.vocab={part.model.vocab_size}")
    if c.alpha_cos and part.model.width != model.width:
        raise UserError(f"objective.alpha_cos is {c.alpha_cos:g}, and the hidden states of the teacher ({part.source}) "
                        f"have the width {part.model.width} and those of the student {model.width}; set "
                        "--config.objective.alpha_cos=0, or use the same width")
    if (c.alpha_ce or c.alpha_mse) and not has_logits(part):
        raise UserError(f"the teacher ({part.source}) has objective {part.objective.name!r} and no head that predicts "
                        f"the student's tokens; expected {expected}, or set objective.alpha_ce and alpha_mse to 0")
    return part


class Losses(NamedTuple):
    """The losses of each position, float32 [b, m] each; without a teacher the last four are 0."""

    nll: Array  # the cross-entropy of the target
    correct: Array  # whether the target has the largest logit, without a gradient
    divergence: Array  # T^2 KL(softmax(teacher / T) || softmax(student / T))
    squared: Array  # the squared distance of the logits, summed over the vocabulary
    # `divergence` of a student whose logits are everywhere log(1 + c), where the training text has a token c times
    constant_divergence: Array
    constant_squared: Array  # `squared` of a student whose logits are 0


def compare(
    student: Logits, teacher: Logits | None, targets: Array, temperature: float, frequencies: np.ndarray
) -> Losses:
    """Computes the losses of each position, in chunks where the logits of all positions would be large. `frequencies`
    [<= v] says how often the training text has each token; further ids do not occur."""
    student = student._replace(table=gather(student.table, lm_head.TABLE, "embed"))
    if teacher is not None:
        teacher = teacher._replace(table=gather(teacher.table, lm_head.TABLE, "embed"))

    constant = np.log1p(np.pad(frequencies, (0, student.table.shape[0] - len(frequencies)))).astype(np.float32)

    def of_chunk(x: Array, targets: Array, y: Array | None = None) -> Array:
        logits = student.at(x)
        target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        nll = jax.nn.logsumexp(logits, axis=-1) - target_logits
        correct = jax.lax.stop_gradient(target_logits >= logits.max(-1)).astype(jnp.float32)
        if y is None:
            return jnp.stack([nll, correct, *[jnp.zeros_like(nll)] * 4], -1)
        taught = jax.lax.stop_gradient(teacher.at(y))
        return jnp.stack([nll, correct, divergence(taught, logits, temperature), jnp.square(logits - taught).sum(-1),
                          divergence(taught, constant, temperature), jnp.square(taught).sum(-1)], -1)

    arrays = [student.x, targets] + ([] if teacher is None else [jax.lax.stop_gradient(teacher.x)])
    losses = lm_head.map_chunks(of_chunk, student.table.shape[0], *arrays)
    return Losses(*jnp.moveaxis(losses, -1, 0))


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, part: FrozenPart | None,
    counts: np.ndarray, name: str, weight: float, encode: Callable, logits: Callable, teacher_logits: Callable,
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the student's loss on the targets, times `weight`, plus the losses on the teacher's outputs, if there is
    a teacher, and measures constant students. The metrics of the targets are `{name}_loss` and `{name}_accuracy`.

    Args:
      batch: has `targets` and their `weights` [b, m], `teacher_weights` [b, m] for the losses on the teacher's logits,
        and `token_weights` [b, t] for the cosine.
      encode: (params, batch, model, key) -> the last hidden states [b, t, d].
      logits, teacher_logits: (params, batch, hidden, model, key) -> the `Logits` at the targets.
    """
    hidden = encode(params, batch, model, key)
    student, states, teacher = logits(params, batch, hidden, model, key), None, None
    if part:
        frozen = jax.lax.stop_gradient(params["frozen"][TEACHER])
        states = encode(frozen, batch, part.model, None)
        if c.alpha_ce or c.alpha_mse:
            teacher = teacher_logits(frozen, batch, states, part.model, None)
    losses = compare(student, teacher, batch["targets"], c.temperature, counts)
    total = weight * (losses.nll * batch["weights"]).sum()
    metrics = sums(batch["weights"] > 0, **{f"{name}_loss": losses.nll, f"{name}_accuracy": losses.correct},
                   most_frequent_accuracy=batch["targets"] == np.argmax(counts))
    if part is None:
        return total, (metrics, carry)
    weights, token_weights, logits_loss = batch["teacher_weights"], batch["token_weights"], 0.0
    if c.alpha_ce:
        logits_loss += c.alpha_ce * (losses.divergence * weights).sum()
        metrics |= sums(weights > 0, distillation_loss=losses.divergence,
                        constant_distillation_loss=losses.constant_divergence)
    if c.alpha_mse:
        logits_loss += c.alpha_mse * (losses.squared * weights).sum()
        metrics |= sums(weights > 0, mse_loss=losses.squared, constant_mse_loss=losses.constant_squared)
    total += logits_loss
    if c.alpha_cos:
        distance = cosine_distance(states, hidden)
        total += c.alpha_cos * (distance * token_weights).sum()
        metrics |= sums(token_weights > 0, cosine_loss=distance)
    return total, (metrics, carry)


def divergence(teacher: Array, student: Array, temperature: float) -> Array:
    """Computes T^2 KL(softmax(teacher / T) || softmax(student / T)) of logits [..., v], float32 [...]; the logits of a
    constant student are [v]."""
    p, q = (jax.nn.log_softmax(logits / temperature, axis=-1) for logits in (teacher, student))
    return temperature**2 * (jnp.exp(p) * (p - q)).sum(-1)


def cosine_distance(teacher: Array, student: Array) -> Array:
    """Computes 1 - cos of hidden states [b, t, d], float32 [b, t], without a gradient to the teacher's."""
    x, y = student.astype(jnp.float32), jax.lax.stop_gradient(teacher.astype(jnp.float32))
    norms = (jnp.square(x).sum(-1) + EPSILON) * (jnp.square(y).sum(-1) + EPSILON)
    return 1 - (x * y).sum(-1) * jax.lax.rsqrt(norms)


def terms(c: Config, part: FrozenPart | None, **student: float) -> Mapping[str, float]:
    """Returns `Objective.terms`: the weights of the `student` losses and, with a teacher, of the teacher's losses."""
    weights = {"distillation_loss": c.alpha_ce, "cosine_loss": c.alpha_cos, "mse_loss": c.alpha_mse} if part else {}
    return {name: weight for name, weight in {**student, **weights}.items() if weight or name in student}
