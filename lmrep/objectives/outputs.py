"""The weights, metrics and output tables of losses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from lmrep.core.components import type_of
from lmrep.core.errors import Broken, UserError
from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.core.sharding import look_up
from lmrep.layers import lm_head
from lmrep.models.base import Encoded, Inputs, Model, NetworkLoss, OutputLayer
from lmrep.objectives.base import Batch, Carry, Metrics, Objective

NETWORK = "network_"  # prefix of the metrics of losses that a network adds


def normalize_weights(mask: Array) -> Array:
    """Divides weights, bool or float [...], by their total, so that they add to 1: float32 [...]. If all are 0, they
    stay 0."""
    mask = mask.astype(jnp.float32)
    return mask / jnp.maximum(mask.sum(), 1.0)


def sums(mask: Array, **values: Array) -> Metrics:
    """Returns metrics: the sum of each of `values` (float or bool) where `mask` holds, and the count of positions."""
    count = mask.sum()
    return {name: ((value * mask).sum(), count) for name, value in values.items()}


def with_network_losses(make: Callable[[Model], Objective], model: Model, microbatches: int) -> Objective:
    """Builds an objective by `make`, and adds the losses of the network to its loss in training.

    Such a loss is the mean over a microbatch, of all calls of `encode` and `State.read` with a key together
    (`Encoded.losses`), and microbatches count the same. It is measured as `NETWORK` plus its name. Frozen networks and
    generators add none.
    """
    terms: list[tuple[str, NetworkLoss]] = []  # the losses of the call that is being traced

    def noted(encode: Callable[..., Encoded]) -> Callable[..., Encoded]:
        def call(params: Tree, inputs: Inputs, key: Array | None = None, **options: Any) -> Encoded:
            encoded = encode(params, inputs, key, **options)
            terms.extend(encoded.losses.items() if key is not None else ())
            return encoded

        return call

    state = model.state._replace(read=model.state.read and noted(model.state.read))
    objective = make(model._replace(encode=noted(model.encode), state=state))

    def loss(
        params: Tree, batch: Batch, key: Array | None, carry: Carry
    ) -> tuple[Array, tuple[Metrics, Carry]]:
        terms.clear()
        total, (metrics, carry) = checked_loss(objective.loss(params, batch, key, carry))
        for name in dict.fromkeys(name for name, _ in terms):
            calls = [term for other, term in terms if other == name]
            summed, count = sum(term.sum for term in calls), sum(term.count for term in calls)
            total += calls[0].weight * summed / jnp.maximum(count, 1) / microbatches
            metrics = metrics | {NETWORK + name: (summed, count)}
        terms.clear()
        return total, (metrics, carry)

    return objective._replace(loss=loss)


def checked_loss(returned: Any) -> tuple[Array, tuple[Metrics, Carry]]:
    """Returns the result of an objective's `loss`. Raises Broken if it is not (loss, (metrics, carry))."""
    try:
        total, (metrics, carry) = returned
        wrong = [name for name, value in metrics.items() if not (isinstance(value, tuple) and len(value) == 2)]
    except (TypeError, ValueError, AttributeError):
        raise Broken(f"its loss returns {type_of(returned)}; expected (loss, (metrics, carry)) with metrics {{name: "
                     "(sum, count)}") from None
    if wrong:
        raise Broken(f"its loss returns the metric {wrong[0]!r} as {type_of(metrics[wrong[0]])}; expected (sum, count)")
    return total, (dict(metrics), carry)


def head_params(params: Tree, name: str) -> Tree:
    """Returns the parameters of head `name`; {} if it has none, and the tree may have no `objective`."""
    return params.get("objective", {}).get(name, {})


def output_specs(model: Model) -> Tree:
    """Declares the parameters of an output table; {} if the network ties one. Raises UserError if the network has an
    output layer that is not one table."""
    check_table(model)
    if model.output.table is not None:
        return {}
    shape = (model.vocab_size, model.output.width)
    return {"output": ParamSpec(shape, ("vocab", "embed"), *filter(None, [model.head_style.init]))}


def output_table(model: Model, params: Tree, head: Tree, key: Array | None = None) -> Array:
    """Returns the table [v, e] that multiplies a head's output: the network's, or the one in `output_specs`."""
    return head["output"] if model.output.table is None else model.output.table(params["encoder"], key)


def check_table(model: Model) -> None:
    """Raises UserError if the network's output layer is not one table."""
    if model.output.layer is not None:
        raise UserError(f"the output layer of the network {model.name!r} is an adaptive softmax or has capped "
                        "logits, and this objective, z-loss and label smoothing need a plain table; set --config.model."
                        "cutoffs='()' or --config.model.logit_cap=0, or choose objective=causal without them")


def output_layer(model: Model) -> OutputLayer:
    """Returns the network's output layer, or a softmax over its output table (`output_table`)."""
    if model.output.layer is not None:
        return model.output.layer

    def table(params: Tree, head: Tree, key: Array | None = None) -> Array:
        return output_table(model, {"encoder": params}, head, key)

    def cross_entropy(
        params: Tree, head: Tree, x: Array, targets: Array, weights: Array, key: Array | None = None
    ) -> tuple[Array, Array, Array]:
        return lm_head.chunked_cross_entropy(table(params, head, key), x, targets, weights, head.get("bias"))

    def on_table(f, params: Tree, head: Tree, *arrays: Array) -> Array:
        return f(head, table(params, head), *arrays)

    return OutputLayer(output_specs(model), cross_entropy, partial(on_table, lm_head.log_probabilities),
                       partial(on_table, lm_head.logits))


def smoothed_cross_entropy(
    model: Model, params: Tree, head: Tree, x: Array, targets: Array, weights: Array, key: Array | None = None, *,
    label_smoothing: float = 0.0, z_loss: float = 0.0,
) -> tuple[Array, Array, Array]:
    """Computes `OutputLayer.cross_entropy` of targets that have `label_smoothing` of their probability spread over all
    tokens (Szegedy et al., 2016), plus `z_loss` log(Z)^2. The nll that it returns is the plain one. Raises UserError if
    either is not 0, and the network's output layer is not one table."""
    if not label_smoothing and not z_loss:
        return output_layer(model).cross_entropy(params, head, x, targets, weights, key)
    check_table(model)
    table, bias = output_table(model, {"encoder": params}, head, key), head.get("bias")
    total, nll, correct = lm_head.chunked_cross_entropy(table, x, targets, weights, bias, z_loss)
    if label_smoothing:
        # log(Z) minus the mean logit, in place of log(Z) minus the target's.
        direction = (look_up(table, targets) - table.mean(0)).astype(x.dtype)
        difference = jnp.einsum("bte,bte->bt", x, direction, preferred_element_type=jnp.float32)
        if bias is not None:
            difference += bias[targets] - bias.mean()
        total += label_smoothing * (difference * weights).sum()
    return total, nll, correct
