"""The one training step, and its evaluating twin. Neither names a model or an objective."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

from lmrep.core.params import Array, Tree
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective
from lmrep.training.state import TrainState, trainable

# Draws for different purposes come from different keys of one seed.
QUESTION, DROPOUT, EVALUATION = 0, 1, 2


def train_step(
    state: TrainState,
    batch: Batch,
    limit: Array | None = None,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    seed: int,
    microbatches: int = 1,
) -> tuple[TrainState, Metrics]:
    """One update.

    Args:
      state: the state before.
      batch: the whole global batch.
      limit: f32[]; where the loss is above it, or the loss or the gradient is not finite, the update is not applied:
        all but the step stays as it was. None: every update is.
      objective: what is asked.
      optimizer: of the trainable parameters.
      seed: of the run.
      microbatches: parts that gradients are accumulated over; microbatch i takes rows i, i + M, ..., so that
        no row leaves its device.

    Returns:
      (the state after, metrics: the objective's, `loss`, `gradient_norm` and `tokens`, the number that are no padding).
    """
    batch = objective.prepare(prepare_keys(objective, batch, seed, state.step), batch)
    dropout_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), DROPOUT), state.step)
    frozen = {name: part for name, part in state.params.items() if name == "frozen"}
    params = trainable(state.params)

    def loss(params: Tree, part: Batch, key: Array, carry: Carry):
        return objective.loss(params | frozen, part, key, carry)

    grad = jax.value_and_grad(loss, has_aux=True)
    if microbatches == 1:
        (total, (metrics, carry)), grads = grad(params, batch, jax.random.fold_in(dropout_key, 0), state.carry)
    else:
        total, metrics, carry, grads = _accumulate(grad, params, batch, dropout_key, state.carry, microbatches)
    if objective.penalty is not None:
        extra, more = jax.value_and_grad(lambda p: objective.penalty(p | frozen))(params)
        total, grads = total + extra, jax.tree.map(jnp.add, grads, more)

    updates, opt_state = optimizer.update(grads, state.opt_state, params)
    params = optax.apply_updates(params, updates)
    measured = {"loss": total, "gradient_norm": optax.global_norm(grads), "tokens": (batch["segment_ids"] > 0).sum()}
    metrics |= {name: (value, jnp.float32(1)) for name, value in measured.items()}
    after = TrainState(state.step + 1, params | frozen, opt_state, carry)
    if limit is None:
        return after, metrics
    fine = jnp.isfinite(total) & jnp.isfinite(measured["gradient_norm"]) & (total <= limit)
    kept = jax.tree.map(partial(jnp.where, fine), after, state)
    return kept.replace(step=after.step), metrics


def evaluation_step(
    params: Tree, batch: Batch, carry: Carry, *, objective: Objective, seed: int, microbatches: int = 1
) -> tuple[Metrics, Carry]:
    """The metrics of one batch, without dropout, a microbatch at a time. A question depends on the example's number
    alone, so that every evaluation asks the same ones."""
    keys = _example_keys(batch, jax.random.fold_in(jax.random.key(seed), EVALUATION))
    parts, rows = jax.tree.map(partial(_split_microbatches, parts=microbatches), (objective.prepare(keys, batch), carry.per_example))

    def one(shared, part):
        batch, rows = part
        total, (metrics, carry) = objective.loss(params, batch, None, Carry(rows, shared))
        return carry.shared, (total, metrics, carry.per_example)

    shared, (totals, metrics, rows) = jax.lax.scan(one, carry.shared, (parts, rows))
    metrics = jax.tree.map(lambda x: x.sum(0), metrics)
    return metrics | {"loss": (totals.sum(), jnp.float32(1))}, Carry(jax.tree.map(_merge_microbatches, rows), shared)


def prepare_keys(objective: Objective, batch: Batch, seed: int, step: Array) -> Keys:
    """The randomness of a batch's questions: from (seed, step, row), or, for static questions, from
    (seed, the example's number)."""
    key = jax.random.fold_in(jax.random.key(seed), QUESTION)
    if objective.static:
        return _example_keys(batch, key)
    return _keys(jax.random.fold_in(key, step), jnp.arange(batch["example"].shape[0]))


def _example_keys(batch: Batch, key: Array) -> Keys:
    return _keys(key, batch["example"].astype(jnp.uint32))


def _keys(key: Array, numbers: Array) -> Keys:
    # Two parents: a key's children by `split` are its children by `fold_in`, so rows and shared draws would meet.
    rows, shared = jax.random.split(key)
    return Keys(jax.vmap(partial(jax.random.fold_in, rows))(numbers), shared)


def _accumulate(grad, params: Tree, batch: Batch, key: Array, carry: Carry, parts: int):
    """Runs `grad` over microbatches, one at a time, and adds up all but the carry."""
    rows, carried = jax.tree.map(partial(_split_microbatches, parts=parts), (batch, carry.per_example))

    def add(sums, part):
        grads, shared = sums
        rows, carried, index = part
        (total, (metrics, carry)), more = grad(params, rows, jax.random.fold_in(key, index), Carry(carried, shared))
        return (jax.tree.map(jnp.add, grads, more), carry.shared), (total, metrics, carry.per_example)

    nothing = jax.tree.map(jnp.zeros_like, params)
    (grads, shared), (totals, metrics, carried) = jax.lax.scan(
        add, (nothing, carry.shared), (rows, carried, jnp.arange(parts)))
    metrics = jax.tree.map(lambda x: x.sum(0), metrics)
    return totals.sum(), metrics, Carry(jax.tree.map(_merge_microbatches, carried), shared), grads


def _split_microbatches(x: Array, parts: int) -> Array:
    """[b, ...] -> [parts, b / parts, ...]: row i goes to part i mod `parts`."""
    return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)


def _merge_microbatches(x: Array) -> Array:
    """The inverse of `_split_microbatches`."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
