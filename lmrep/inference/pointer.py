"""The continuous cache pointer (Grave et al., 2017): a recurrent language model that also predicts the words that
followed similar states.

The cache holds the outputs h of the last layer at the last `window` positions, each with the token after it. The
probability of token w is (1 - weight) p(w) + weight q(w), where q is the sum of softmax(theta h_t . h_i) over the
positions i of the cache that w followed. The first position of a text, whose cache is empty, has p alone. (The code of
Merity et al., 2018, has p alone until the cache is full.)

The cache is carried from batch to batch like the network's state, and emptied where that is.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.experiment.record import ALL_FORMATS, ResolvedStage
from lmrep.metrics import loss_metric
from lmrep.models.base import Model
from lmrep.objectives import causal
from lmrep.objectives.base import Batch, Carry, Metrics, Objective

METRICS = {"pointer_loss": loss_metric("Language-model loss with a cache pointer", perplexity=True)}


@dataclass(frozen=True)
class Pointer:
    """The settings of the cache."""

    window: int = setting(2000, "positions in the cache", at_least=1)
    weight: float = setting(0.1, "the weight of its distribution, lambda in the paper", at_least=0, below=1)
    theta: float = setting(1.0, "factor of the products of outputs", at_least=0)


def with_pointer(objective: Objective, model: Model, stage: ResolvedStage, pointer: Pointer) -> Objective:
    """Returns the objective of a stage for evaluation: its metrics are `lm_loss` and, with the cache, `pointer_loss`.

    Raises:
      UserError: the objective is not `causal`, or no state continues from example to example.
    """
    contiguous = ALL_FORMATS[stage.format_name].contiguous(stage.format)
    if not isinstance(stage.objective, causal.Config) or not model.state.carry or not contiguous:
        raise UserError("a pointer needs a run that predicts from left to right with a state that continues from "
                        f"example to example; this one has objective {objective.name!r}, network {model.name!r} and "
                        f"format {stage.format_name!r}, whose examples {'' if contiguous else 'do not '}continue each "
                        "other; leave the pointer out")

    def empty(batch_size: int) -> Tree:
        return {"hidden": jnp.zeros((batch_size, pointer.window, model.width)),
                "following": jnp.full((batch_size, pointer.window), -1)}

    def loss(params: Tree, batch: Batch, key: Array | None, carry: Carry) -> tuple[Array, tuple[Metrics, Carry]]:
        state, cache = carry.per_example
        inner = carry._replace(per_example=state)
        state = causal.initial_state(batch, inner, model)
        encoded = causal.encode(params, batch, model, stage.objective, key, state)
        nll = objective.uses.next_token.nll(params, encoded.hidden, batch["targets"])
        predicted, count = batch["weights"] > 0, (batch["weights"] > 0).sum()
        cache = causal.restart(batch["reset"], cache, empty(len(nll)))
        mixed, cache = mix(nll, encoded.hidden, jnp.where(predicted, batch["targets"], -1), cache, pointer)
        sums = {name: (jnp.where(predicted, x, 0).sum(), count) for name, x in (
            ("lm_loss", nll), ("pointer_loss", mixed))}
        inner = causal.next_carry(inner, state, encoded)
        return (nll * batch["weights"]).sum(), (sums, inner._replace(per_example=(inner.per_example, cache)))

    def carry(batch_size: int) -> Carry:
        inner = objective.carry(batch_size)
        return inner._replace(per_example=(inner.per_example, empty(batch_size)))

    return objective._replace(loss=loss, carry=carry)


def mix(nll: Array, hidden: Array, targets: Array, cache: Tree, pointer: Pointer) -> tuple[Array, Tree]:
    """Computes -log probability float32 [b, t] of the targets with the cache, and the cache after them.

    Args:
      nll: float32 [b, t], -log p of the targets.
      hidden: [b, t, d], the outputs of the last layer.
      targets: i32[b, t], the token after each position; -1 for none.
      cache: `hidden` float32 [b, window, d], the oldest first, and `following` i32[b, window], -1 for none.
      pointer: the settings.
    """
    keys = jnp.concatenate([cache["hidden"], hidden.astype(jnp.float32)], 1)
    following = jnp.concatenate([cache["following"], targets], 1)
    at, s = jnp.arange(targets.shape[1])[:, None], jnp.arange(keys.shape[1])
    seen = (at <= s) & (s < at + pointer.window) & (following[:, None] >= 0)
    scores = pointer.theta * jnp.einsum("btd,bsd->bts", hidden.astype(jnp.float32), keys, precision="highest")
    scores = jnp.where(seen, scores, -jnp.inf)
    same = jnp.where(following[:, None] == targets[..., None], scores, -jnp.inf)
    log_q = jax.nn.logsumexp(same, -1) - jax.nn.logsumexp(scores, -1)
    mixed = -jnp.logaddexp(jnp.log1p(-pointer.weight) - nll, jnp.log(pointer.weight) + log_q)
    cache = {"hidden": keys[:, -pointer.window :], "following": following[:, -pointer.window :]}
    return jnp.where(seen.any(-1), mixed, nll), cache
