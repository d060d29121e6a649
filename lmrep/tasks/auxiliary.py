"""Language modelling beside a task: GPT's fine-tuning predicts each next token of the texts as well (Radford et al.,
2018, section 3.2: L3 = L2 + lambda L1)."""

from typing import Any

import jax.numpy as jnp

from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.metrics import loss_metric
from lmrep.models.base import Model
from lmrep.objectives import causal
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective
from lmrep.objectives.outputs import head_params, output_layer, sums
from lmrep.tasks import heads

LANGUAGE_MODEL = causal.Config()
METRICS = {"lm_loss": loss_metric("Language-model loss of the texts", perplexity=True)}


def with_language_model(objective: Objective, c: Any, model: Model) -> Objective:
    """Adds `c.auxiliary` times the language-model loss to the objective of a task: the mean over the tokens of each
    unit, then over units. The output table is the network's, or a new one. Raises UserError if the network does not
    read from left to right, or there is none."""
    if c.context != "left":
        raise UserError(f"config.objective.auxiliary is {c.auxiliary:g}, and config.objective.context is {c.context}; "
                        "a language model reads from left to right: set the context to left, or auxiliary to 0")
    if not model.width:
        raise UserError(f"config.objective.auxiliary is {c.auxiliary:g}, and there is no network that could learn the "
                        "language model (config.model.name is none); set auxiliary to 0")
    head = causal.specs(LANGUAGE_MODEL, model)

    def prepare(keys: Keys, batch: Batch) -> Batch:
        return add_targets(objective.prepare(keys, batch))

    def loss(params: Tree, batch: Batch, key: Array | None, carry: Carry) -> tuple[Array, tuple[Metrics, Carry]]:
        total, (metrics, carry) = objective.loss(params, batch, key, carry)
        flat = heads.ungrouped(batch)
        encoder_key = prng.split(key, 2)[0]  # as the tasks split it: the same dropout
        hidden = causal.encode(params, flat, model, LANGUAGE_MODEL, encoder_key).hidden
        auxiliary, nll, _ = output_layer(model).cross_entropy(
            params["encoder"], head_params(params, "causal"),
            causal.before_table(params, hidden, model, LANGUAGE_MODEL), flat["lm_targets"], flat["lm_weights"],
            encoder_key)
        return total + c.auxiliary * auxiliary, (metrics | sums(flat["lm_weights"] > 0, lm_loss=nll), carry)

    specs = objective.specs | {"objective": objective.specs["objective"] | ({"causal": head} if head else {})}
    return objective._replace(specs=specs, prepare=prepare, loss=loss)


def add_targets(batch: Batch) -> Batch:
    """Adds `lm_targets` i32, the token after each, and `lm_weights` float32, [b, t] or [b, k, t], which add to 1 over
    the batch, in equal parts over its units."""
    tokens, segments = batch["tokens"], batch["segment_ids"]
    following = jnp.concatenate([segments[..., 1:], jnp.zeros_like(segments[..., :1])], -1)
    predicted = (segments > 0) & (following == segments)
    same = (segments[..., :, None] == segments[..., None, :]) & predicted[..., None, :]
    weights = predicted / jnp.maximum(same.sum(-1), 1).astype(jnp.float32)
    targets = jnp.concatenate([tokens[..., 1:], jnp.zeros_like(tokens[..., :1])], -1)
    return batch | {"lm_targets": targets, "lm_weights": weights / jnp.maximum(weights.sum(), 1e-9)}
