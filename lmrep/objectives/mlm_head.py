"""The masked-LM head (Devlin et al., 2019, appendix A): its parameters, loss and predictions, for every objective that
predicts masked tokens.
"""

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, Tree
from lmrep.layers import lm_head
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models.base import Model, model_inputs
from lmrep.objectives.base import Batch, Metrics, output_specs, output_table

METRICS = {
    "mlm_loss": loss_metric("Masked-LM loss", baseline="unigram_loss"),
    "mlm_accuracy": accuracy_metric("Masked-LM accuracy", baseline="most_frequent_accuracy"),
    "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent token", headline=False),
}


def specs(model: Model) -> Tree:
    """The head's parameters, with an output table where the network ties none."""
    return lm_head.specs(model.width, model.output_dim, model.vocab_size, model.init) | output_specs(model)


def loss_and_metrics(
    params: Tree, hidden: Array, batch: Batch, model: Model, most_frequent: int, key: Array | None
) -> tuple[Array, Metrics]:
    """The weighted sum of the cross-entropies of `targets` given the hidden states [b, m, d] at their positions, and
    metrics. `key` is the one that the states were encoded with."""
    own = params["objective"]["masked"]
    table = output_table(model, params, own, key)
    nll, correct = lm_head.cross_entropy(own, table, transform(own, hidden, model), batch["targets"])
    target_mask = batch["weights"] > 0
    number = target_mask.sum()
    return (nll * batch["weights"]).sum(), {
        "mlm_loss": ((nll * target_mask).sum(), number),
        "mlm_accuracy": ((correct & target_mask).sum(), number),
        "most_frequent_accuracy": (((batch["targets"] == most_frequent) & target_mask).sum(), number),
    }


def predict(params: Tree, batch: Batch, *, model: Model, size: int, k: int = 5) -> dict[str, Array]:
    """The k likeliest tokens at `batch["predicted"]` i32[b, m]: `words` i32[b, m, k], `probabilities` [b, m, k]. Rows
    of the table beyond the vocabulary's `size` are never returned, but are part of the softmax."""
    _, hidden = encode_predicted(params, batch, batch["tokens"], model, None)
    own = params["objective"]["masked"]
    table = output_table(model, params, own)
    probabilities = jax.nn.softmax(
        lm_head.logits(own, table, transform(own, hidden, model)))
    best, words = jax.lax.top_k(probabilities[..., :size], k)
    return {"words": words, "probabilities": best}


def encode_predicted(params: Tree, batch: Batch, tokens: Array, model: Model, key: Array | None) -> tuple[Array, Array]:
    """The last layer's output at the first position [b, d] and at the predicted ones [b, m, d]."""
    hidden = encode_at(params, batch, tokens, jnp.pad(batch["predicted"], ((0, 0), (1, 0))), model, key)
    return hidden[:, 0], hidden[:, 1:]


def encode_at(params: Tree, batch: Batch, tokens: Array, at: Array, model: Model, key: Array | None) -> Array:
    """The last layer's output [b, m, d] at the positions `at` i32[b, m], for the inputs `tokens` i32[b, t]."""
    inputs = model_inputs(model, batch, tokens=tokens)
    return model.encode(params["encoder"], inputs, key, at=at).hidden


def transform(head: Tree, hidden: Array, model: Model) -> Array:
    """The head up to the output table: hidden [..., d] -> [..., e]."""
    return lm_head.transform(head, hidden, activation=model.activation, eps=model.norm_eps)
