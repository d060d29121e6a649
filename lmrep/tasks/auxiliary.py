"""A loss of the texts beside a task's: GPT's fine-tuning predicts each next token as well (Radford et al., 2018,
section 3.2: L3 = L2 + lambda L1), and Dai and Le's (2015) joint training writes the texts again."""

from typing import Any

import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.metrics import loss_metric
from lmrep.models.base import Model
from lmrep.objectives import causal, sequence_autoencoder
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective
from lmrep.objectives.outputs import head_params, output_layer, sums
from lmrep.tasks import heads

LANGUAGE_MODEL = causal.Config()
LOSSES = {"language_model": "lm_loss", "sequence_autoencoder": "reconstruction_loss"}  # the metric of each
METRICS = {"lm_loss": loss_metric("Language-model loss of the texts", perplexity=True, optional=True),
           "reconstruction_loss": loss_metric("Reconstruction loss of the texts", perplexity=True, optional=True)}


def with_language_model(objective: Objective, c: Any, model: Model) -> Objective:
    """Adds `c.auxiliary` times the loss `c.auxiliary_loss` to the objective of a task: the mean over the tokens of each
    unit, then over units. The output table is the network's, or a new one. Raises UserError if the network does not
    read from left to right, or there is none."""
    if c.context != "left":
        raise UserError(f"config.objective.auxiliary is {c.auxiliary:g}, and config.objective.context is {c.context}; "
                        "a language model reads from left to right: set the context to left, or auxiliary to 0")
    if not model.width:
        raise UserError(f"config.objective.auxiliary is {c.auxiliary:g}, and there is no network that could learn the "
                        "language model (config.model.name is none); set auxiliary to 0")
    head, writes = causal.specs(LANGUAGE_MODEL, model), c.auxiliary_loss == "sequence_autoencoder"

    def prepare(keys: Keys, batch: Batch) -> Batch:
        batch = objective.prepare(keys, batch)
        return batch | {"written_weights": weights(batch, batch["segment_ids"] > 0)} if writes else add_targets(batch)

    def loss(params: Tree, batch: Batch, key: Array | None, carry: Carry) -> tuple[Array, tuple[Metrics, Carry]]:
        total, (metrics, carry) = objective.loss(params, batch, key, carry)
        flat = heads.ungrouped(batch)
        encoder_key = prng.split(key, 2)[0]  # as the tasks split it: the same dropout
        name = LOSSES[c.auxiliary_loss]
        if writes:
            used = flat["written_weights"]
            auxiliary, nll, _ = sequence_autoencoder.reconstruct(
                params, flat, used, encoder_key, c=sequence_autoencoder.Config(), model=model)
        else:
            used = flat["lm_weights"]
            hidden = causal.encode(params, flat, model, LANGUAGE_MODEL, encoder_key).hidden
            auxiliary, nll, _ = output_layer(model).cross_entropy(
                params["encoder"], head_params(params, "causal"),
                causal.before_table(params, hidden, model, LANGUAGE_MODEL), flat["lm_targets"], used, encoder_key)
        return total + c.auxiliary * auxiliary, (metrics | sums(used > 0, **{name: nll}), carry)

    specs = objective.specs | {"objective": objective.specs["objective"] | ({"causal": head} if head else {})}
    return objective._replace(specs=specs, prepare=prepare, loss=loss)


def add_targets(batch: Batch) -> Batch:
    """Adds `lm_targets` i32, the token after each, and `lm_weights` float32 (`weights`), [b, t] or [b, k, t]."""
    tokens, segments = batch["tokens"], batch["segment_ids"]
    following = jnp.concatenate([segments[..., 1:], jnp.zeros_like(segments[..., :1])], -1)
    targets = jnp.concatenate([tokens[..., 1:], jnp.zeros_like(tokens[..., :1])], -1)
    return batch | {"lm_targets": targets, "lm_weights": weights(batch, (segments > 0) & (following == segments))}


def weights(batch: Batch, predicted: Array) -> Array:
    """Returns the weights float32, [b, t] or [b, k, t], of the `predicted` tokens, which add to 1 over the batch, in
    equal parts over its units."""
    segments = batch["segment_ids"]
    same = (segments[..., :, None] == segments[..., None, :]) & predicted[..., None, :]
    each = predicted / jnp.maximum(same.sum(-1), 1).astype(jnp.float32)
    return each / jnp.maximum(each.sum(), 1e-9)
