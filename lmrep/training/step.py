"""The training step and the evaluation step. They depend on no particular network or objective."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from lmrep.core.params import Array, Tree
from lmrep.core.sharding import replicated
from lmrep.objectives.base import Batch, ByTurns, Carry, EvaluationKeys, Keys, Metrics, Objective
from lmrep.training.state import FROZEN, TrainState, layout, trainable

# Draws for different purposes come from different keys of one seed.
PREPARE, DROPOUT, EVALUATION = 0, 1, 2
SHARED = "shared"  # the field of a prepared batch whose leaves have no batch axis


def train_step(
    state: TrainState,
    batch: Batch,
    max_loss: Array | None = None,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    seed: int,
    microbatches: int = 1,
) -> tuple[TrainState, Metrics]:
    """Computes one update.

    Args:
      state: the state before.
      batch: the global batch. Where it has the field `rate_factor`, the learning rate is multiplied by it.
      max_loss: f32[]. If the loss is above it, the loss or the gradient is not finite, or the batch has no targets, the
        update is not applied: only `step` advances. `carry.per_example` then returns to its initial value, because the
        next batch may continue sequences that the carry has not seen; `carry.shared` is kept. None: every update is
        applied.
      objective: the objective.
      optimizer: the optimizer of the trainable parameters.
      seed: the seed of the run.
      microbatches: M, the number of chunks of the batch over which gradients are accumulated; microbatch i takes the
        examples i, i + M, ..., so that no example leaves its device.

    Returns:
      The state after the update, and the metrics: the objective's, `loss`, `gradient_norm`, `tokens`, the number of
      tokens that are not padding, and `targets`, as `fewest_targets`.
    """
    scale = {"rate_factor": batch["rate_factor"].max()} if "rate_factor" in batch else {}
    batch = objective.prepare(prepare_keys(objective, batch, seed, state.step), batch)
    dropout_key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), DROPOUT), state.step)
    frozen = {name: subtree for name, subtree in state.params.items() if name == FROZEN}
    params = trainable(state.params)

    def loss(params: Tree, microbatch: Batch, key: Array, carry: Carry):
        return objective.loss(params | frozen, microbatch, key, carry)

    grad = jax.value_and_grad(loss, has_aux=True)
    if microbatches == 1:
        (total, (metrics, carry)), grads = grad(params, batch, jax.random.fold_in(dropout_key, 0), state.carry)
    else:
        total, metrics, carry, grads = _accumulate(
            lambda microbatch, index, carry: grad(params, microbatch, jax.random.fold_in(dropout_key, index), carry),
            jax.tree.map(jnp.zeros_like, params), batch, state.carry, microbatches)
    if objective.penalty is not None:
        penalty, penalty_grads = jax.value_and_grad(lambda p: objective.penalty(p | frozen))(params)
        total, grads = total + penalty, jax.tree.map(jnp.add, grads, penalty_grads)

    updates, opt_state = optimizer.update(grads, state.opt_state, params, **scale)
    params = optax.apply_updates(params, updates)
    measured = {"loss": total, "gradient_norm": optax.global_norm(grads), "tokens": (batch["segment_ids"] > 0).sum(),
                "targets": fewest_targets(objective, metrics)}
    metrics |= {name: (value, jnp.float32(1)) for name, value in measured.items()}
    updated = TrainState(state.step + 1, params | frozen, opt_state, carry)
    if max_loss is None:
        return updated, metrics
    apply = jnp.isfinite(total) & jnp.isfinite(measured["gradient_norm"]) & (total <= max_loss) & (
        measured["targets"] > 0)
    initial = objective.carry(batch["example"].shape[0])
    skipped = state.replace(step=updated.step, carry=Carry(initial.per_example, state.carry.shared))
    return jax.tree.map(partial(jnp.where, apply), updated, skipped), metrics


def compiled_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, mesh: Mesh, batch_size: int, seed: int,
    microbatches: int = 1,
) -> jax.stages.Wrapped:
    """Returns jitted `train_step` (state, batch[, max_loss]) for a mesh. The state is donated and keeps its layout."""
    step = partial(train_step, objective=objective, optimizer=optimizer, seed=seed, microbatches=microbatches)
    out_shardings = layout(objective, optimizer, batch_size, mesh), replicated(mesh)
    return jax.jit(step, donate_argnums=0, out_shardings=out_shardings)


def evaluation_step(
    params: Tree, batch: Batch, carry: Carry, *, objective: Objective, seed: int, microbatches: int = 1
) -> tuple[Metrics, Carry]:
    """Computes the metrics of one batch, without dropout, a microbatch at a time.

    Random draws depend on the seed and an example's number only, so that they are the same in every evaluation. Returns
    the metrics as (sum, count), and the carry after the batch. `loss` counts examples: its sum is the batch's loss
    times the number of examples, without empty ones.
    """
    keys = _keys(jax.random.fold_in(jax.random.key(seed), EVALUATION), batch["example"].astype(jnp.uint32))
    keys = EvaluationKeys(*keys)
    total, metrics, carry, _ = _accumulate(
        lambda microbatch, index, carry: (objective.loss(params, microbatch, None, carry), ()),
        (), objective.prepare(keys, batch), carry, microbatches)
    examples = (batch["example"] >= 0).sum().astype(jnp.float32)
    return metrics | {"loss": (total * examples, examples)}, carry


def fewest_targets(objective: Objective, metrics: Metrics) -> Array:
    """Returns the smallest number of targets in a batch over the terms of the loss, f32[]; infinity if no term is among
    the metrics. Terms `ByTurns` are one term, with the targets of the one that has most."""
    measured = [metrics[name] for name, weight in objective.terms.items() if weight and name in metrics]
    counts = [jnp.float32(metric[1]) for metric in measured if not isinstance(metric, ByTurns)]
    if by_turns := [jnp.float32(metric.count) for metric in measured if isinstance(metric, ByTurns)]:
        counts.append(jnp.stack(by_turns).max())
    return jnp.stack(counts).min() if counts else jnp.float32(jnp.inf)


def prepare_keys(objective: Objective, batch: Batch, seed: int, step: Array) -> Keys:
    """Returns the keys for `Objective.prepare`: functions of (seed, step, position in the batch), or, for a static
    objective, of (seed, the example's number)."""
    key = jax.random.fold_in(jax.random.key(seed), PREPARE)
    if objective.static:
        return _keys(key, batch["example"].astype(jnp.uint32))
    keys = _keys(jax.random.fold_in(key, step), jnp.arange(batch["example"].shape[0]))
    return keys._replace(step=jnp.asarray(step, jnp.int32))


def _keys(key: Array, numbers: Array) -> Keys:
    # Two parents: a key's children by `split` are its children by `fold_in`, so that an example's draws would repeat
    # the shared ones.
    per_example, shared = jax.random.split(key)
    return Keys(jax.vmap(partial(jax.random.fold_in, per_example))(numbers), shared)


def _accumulate(
    function: Callable, zeros: Tree, batch: Batch, carry: Carry, microbatches: int
) -> tuple[Array, Metrics, Carry, Tree]:
    """Runs `function` (microbatch, its index, carry) -> ((loss, (metrics, carry)), tree) over the microbatches, one at
    a time, and sums all results except the carry. `zeros` is a tree of zeros with the shapes of `tree`. Example i goes
    to microbatch i mod `microbatches`; draws under `batch["shared"]`, which have no batch axis, go to all."""
    def split(x: Array) -> Array:
        return x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1)

    shared_draws = {name: value for name, value in batch.items() if name == SHARED}
    chunks, per_example = jax.tree.map(split, (
        {name: value for name, value in batch.items() if name != SHARED}, carry.per_example))

    def add(sums, chunk):
        tree, shared = sums
        microbatch, per_example, index = chunk
        (total, (metrics, carry)), more = function(microbatch | shared_draws, index, Carry(per_example, shared))
        return (jax.tree.map(jnp.add, tree, more), carry.shared), (total, metrics, carry.per_example)

    (tree, shared), (totals, metrics, per_example) = jax.lax.scan(
        add, (zeros, carry.shared), (chunks, per_example, jnp.arange(microbatches)))
    metrics = jax.tree.map(lambda x: x.sum(0), metrics)
    per_example = jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), per_example)
    return totals.sum(), metrics, Carry(per_example, shared), tree
