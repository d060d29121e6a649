"""The masked-LM head (Devlin et al., 2019, appendix A): its parameters, loss and predictions, for every objective that
predicts masked tokens.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import lm_head
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models.base import Encoded, Model, model_inputs
from lmrep.objectives import masking, scoring, sentence_pair
from lmrep.objectives.base import Batch, Metrics
from lmrep.objectives.outputs import output_specs, output_table, sums
from lmrep.objectives.uses import NetworkUse, Uses

METRICS = {
    "mlm_loss": loss_metric("Masked-LM loss", baseline="unigram_loss"),
    "mlm_accuracy": accuracy_metric("Masked-LM accuracy", baseline="most_frequent_accuracy"),
    "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent token", headline=False),
}


def specs(model: Model, transformed: bool = True) -> Tree:
    """Declares the head's parameters, with an output table where the network ties none. A head that is not
    `transformed` is the table and its bias alone, as NeoBERT's. Raises UserError if the table then has another width
    than the network."""
    head = transform_specs(model)
    if not transformed and model.output.width != model.width:
        raise UserError(f"objective.head is table, and the output table is {model.output.width} wide, the network "
                        f"{model.width}; set --config.objective.head=transform or --config.model.embedding=0")
    return (head if transformed else {"bias": head["bias"]}) | output_specs(model)


def transform_specs(model: Model) -> Tree:
    """Declares what `transform` reads, and the output bias."""
    style = model.head_style
    return lm_head.specs(model.width, model.output.width, model.vocab_size, style.init, kind=style.norm,
                         bias=style.bias)


def uses(
    model: Model, vocabulary: Vocabulary, networks: tuple[NetworkUse, ...], describe: Callable = masking.describe
) -> Uses:
    """Returns `Objective.uses` of a masked language model."""
    return Uses(
        scorings=scoring.pseudo_log_likelihoods(vocabulary, partial(log_probabilities, model=model)),
        held_out=masking.held_out, describe=describe, networks=networks,
        published_heads={"masked": "masked", "pair": "pair"})


def loss_and_metrics(
    params: Tree, hidden: Array, batch: Batch, model: Model, key: Array | None, z_loss: float = 0.0
) -> tuple[Array, Metrics]:
    """Computes the weighted sum of the cross-entropies of `targets` given the hidden states [b, m, d] at their
    positions, and metrics. `key` is the one that the states were encoded with; where there is one, in training,
    `z_loss` log(Z)^2 is added to each of them."""
    head = params["objective"]["masked"]
    table = output_table(model, params, head, key)
    x, targets, weights = transform(head, hidden, model), batch["targets"], batch["weights"]
    if z_loss and key is not None:
        total, nll, correct = lm_head.chunked_cross_entropy(table, x, targets, weights, head["bias"], z_loss)
    else:
        nll, correct = lm_head.cross_entropy(head, table, x, targets)
        total = (nll * weights).sum()
    return total, sums(batch["weights"] > 0, mlm_loss=nll, mlm_accuracy=correct)


def predict(params: Tree, batch: Batch, *, model: Model, size: int, k: int = 5) -> dict[str, Array]:
    """Finds the k most probable tokens at `predicted` i32[b, m]: `words` i32[b, m, k], `probabilities` [b, m, k]."""
    hidden = encode(params, batch, batch["tokens"], model, at=batch["predicted"])
    return top_k(probabilities(params, hidden, model), size, k)


def probabilities(params: Tree, hidden: Array, model: Model) -> Array:
    """Computes the probability of each token, [b, m, v], given the hidden states [b, m, d]."""
    head = params["objective"]["masked"]
    return jax.nn.softmax(lm_head.logits(head, output_table(model, params, head), transform(head, hidden, model)))


def log_probabilities(params: Tree, batch: Batch, *, model: Model) -> Array:
    """Computes the log probability float32 [b, m] of `targets` i32[b, m] at the positions `predicted` i32[b, m]."""
    head = params["objective"]["masked"]
    hidden = encode(params, batch, batch["tokens"], model, at=batch["predicted"])
    return lm_head.log_probabilities(head, output_table(model, params, head), transform(head, hidden, model),
                                     batch["targets"])


def top_k(probabilities: Array, size: int, k: int) -> dict[str, Array]:
    """Finds the k most probable tokens among the first `size`. (The softmax covers further rows of a table.)"""
    best, words = jax.lax.top_k(probabilities[..., :size], k)
    return {"words": words, "probabilities": best}


def encode_predicted(
    params: Tree, batch: Batch, tokens: Array, model: Model, key: Array | None, state: Tree = None
) -> tuple[Array, Encoded]:
    """Computes the last layer's output at the position that represents each example [b, d] and, as `Encoded.hidden`, at
    the predicted positions [b, m, d]. With the `state` of a network with memory, the positions that it remembers do not
    see the others, which the next example may predict."""
    at = jnp.concatenate([sentence_pair.position(model, batch["segment_ids"])[:, None], batch["predicted"]], 1)
    mask, (b, t) = None, tokens.shape
    if state is not None and (known := model.state.carried(t)) < t:
        remembered = jnp.arange(t) < known
        mask = jnp.broadcast_to(remembered[None, :] | ~remembered[:, None], (b, t, t))
    inputs = model_inputs(model, batch, tokens=tokens, carry=state, mask=mask)
    encoded = (model.output.encode_masked or model.encode)(params["encoder"], inputs, key, at=at)
    return encoded.hidden[:, 0], encoded._replace(hidden=encoded.hidden[:, 1:])


def encode(
    params: Tree, batch: Batch, tokens: Array, model: Model, key: Array | None = None, at: Array | None = None
) -> Array:
    """Computes the vectors [b, m, d] that tokens at the positions `at` i32[b, m], by default all, are predicted from:
    the last layer's output or, where the network has one, its mask decoder's. `tokens` i32[b, t] replace the
    batch's."""
    run = model.output.encode_masked or model.encode
    return run(params["encoder"], model_inputs(model, batch, tokens=tokens), key, at=at).hidden


def transform(head: Tree, hidden: Array, model: Model) -> Array:
    """Applies the head up to the output table, where it has such layers: hidden [..., d] -> [..., e]."""
    if "transform" not in head:
        return hidden
    style = model.head_style
    return lm_head.transform(head, hidden, activation=style.activation, eps=style.eps, kind=style.norm)
