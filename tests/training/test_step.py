"""The training step: what it computes, against closed forms, and which random keys it passes on."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lmrep.core.params import ParamSpec, normal
from lmrep.objectives.base import Carry, Objective
from lmrep.objectives.outputs import normalize_weights
from lmrep.training.state import create
from lmrep.training.step import evaluation_step, prepare_keys, train_step
from tests.training.conftest import shared

BATCH, WIDTH, RATE = 8, 3, 0.1


@functools.cache  # steps of one objective share their programs
def objective(**more):
    """The mean over examples of |w - x|^2, whose gradient is 2 (w - mean x). Metrics show the random draws."""
    def prepare(keys, batch):
        drawn = jax.vmap(jax.random.uniform)(keys.per_example)
        return batch | {"weights": normalize_weights(jnp.ones(BATCH)), "drawn": drawn,
                        "shared": {"draw": jax.random.uniform(keys.shared)}}

    def loss(params, batch, key, carry):
        distances = jnp.square(params["encoder"]["w"] - batch["x"]).sum(-1)
        dropout = jnp.float32(-1) if key is None else jax.random.uniform(key)
        metrics = {"drawn": (batch["drawn"].sum(), len(distances)),
                   "shared": (batch["shared"]["draw"] * len(distances), len(distances)),
                   "dropout": (dropout, 1), "dropout_squared": (dropout**2, 1)}
        carry = Carry(carry.per_example + batch["x"][:, 0], carry.shared + 1)
        return (distances * batch["weights"]).sum(), (metrics, carry)

    fields = {"specs": {"encoder": {"w": ParamSpec((WIDTH,), (None,), normal(1.0))}, "objective": {}},
             "carry": lambda batch_size: Carry(jnp.zeros(batch_size), jnp.float32(0))}
    return Objective("square", prepare=prepare, loss=loss, **fields | more)


def batch(seed=0):
    x = np.random.default_rng(seed).normal(size=(BATCH, WIDTH)).astype(np.float32)
    segments = np.tri(BATCH, 5, dtype=np.int32)  # 1 + 2 + 3 + 4 + 5 * 4 tokens
    return {"x": x, "segment_ids": segments, "example": np.arange(100, 100 + BATCH, dtype=np.int32)}


SGD = optax.sgd(RATE, momentum=0.5)


def train(objective, seed, microbatches):
    return jax.jit(partial(train_step, objective=objective, optimizer=SGD, seed=seed, microbatches=microbatches))


def evaluation(objective, seed):
    return jax.jit(partial(evaluation_step, objective=objective, seed=seed))


def stepped(objective, examples=None, steps=1, seed=0, microbatches=1):
    """(first state, last state, metrics of each step) of steps on the same batch."""
    first = state = create(objective, SGD, BATCH, seed)
    step = shared(train, objective, seed, microbatches)
    lines = []
    for _ in range(steps):
        state, metrics = step(state, examples or batch())
        lines.append({name: (float(total), float(count)) for name, (total, count) in metrics.items()})
    return first, state, lines


@pytest.mark.parametrize("microbatches", [1, 8])
def test_an_update_equals_the_closed_form(microbatches):
    first, last, [metrics] = stepped(objective(), microbatches=microbatches)
    w, x = np.asarray(first.params["encoder"]["w"], np.float64), batch()["x"].astype(np.float64)
    gradient = 2 * (w - x.mean(0))
    np.testing.assert_allclose(last.params["encoder"]["w"], w - RATE * gradient, rtol=1e-5)
    assert metrics["loss"] == pytest.approx((np.square(w - x).sum(-1).mean(), 1), rel=1e-5)
    assert metrics["gradient_norm"] == pytest.approx((np.sqrt(np.square(gradient).sum()), 1), rel=1e-5)
    assert metrics["tokens"] == (30, 1)
    assert (first.step, last.step) == (0, 1)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_per_example_carry_stays_with_its_example_and_shared_carry_passes_through_microbatches(microbatches):
    _, last, _ = stepped(objective(), steps=3, microbatches=microbatches)
    np.testing.assert_allclose(last.carry.per_example, 3 * batch()["x"][:, 0], rtol=1e-6)
    assert last.carry.shared == 3 * microbatches


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_penalty_is_added_once(microbatches):
    penalized = objective(penalty=lambda params: 5 * params["encoder"]["w"].sum())
    first, last, [metrics] = stepped(penalized, microbatches=microbatches)
    w, x = np.asarray(first.params["encoder"]["w"], np.float64), batch()["x"].astype(np.float64)
    gradient = 2 * (w - x.mean(0)) + 5
    np.testing.assert_allclose(last.params["encoder"]["w"], w - RATE * gradient, rtol=1e-5)
    assert metrics["loss"][0] == pytest.approx(np.square(w - x).sum(-1).mean() + 5 * w.sum(), rel=1e-4)
    assert metrics["gradient_norm"][0] == pytest.approx(np.sqrt(np.square(gradient).sum()), rel=1e-5)


def test_frozen_parameters_are_used_and_do_not_change():
    plain = objective()

    def loss(params, batch, key, carry):
        return plain.loss(params, batch | {"x": batch["x"] + params["frozen"]["shift"]}, key, carry)

    teaching = objective()._replace(loss=loss, frozen={"shift": ParamSpec((), (), normal(1.0))})
    first, last, _ = stepped(teaching)
    w, shift = np.asarray(first.params["encoder"]["w"]), float(first.params["frozen"]["shift"])
    gradient = 2 * (w - batch()["x"].mean(0) - shift)
    np.testing.assert_allclose(last.params["encoder"]["w"], w - RATE * gradient, rtol=1e-4)
    assert float(last.params["frozen"]["shift"]) == shift != 0
    assert sum(x.size for x in jax.tree.leaves(last.opt_state)) == WIDTH  # momentum of w alone


# Randomness


def draws(lines, name):
    return [line[name][0] for line in lines]


def test_draws_differ_between_steps_and_repeat_with_the_seed():
    _, _, lines = stepped(objective(), steps=3)
    assert len({*draws(lines, "drawn")}) == len({*draws(lines, "shared")}) == 3
    assert draws(stepped(objective(), steps=3)[2], "drawn") == draws(lines, "drawn")
    assert draws(stepped(objective(), steps=1, seed=1)[2], "drawn")[0] not in draws(lines, "drawn")


def test_draws_do_not_depend_on_microbatches():
    one, several = (stepped(objective(), steps=2, microbatches=m)[2] for m in (1, 4))
    np.testing.assert_allclose(draws(one, "drawn"), draws(several, "drawn"), rtol=1e-6)
    np.testing.assert_allclose(draws(one, "shared"), draws(several, "shared"), rtol=1e-6)


def sampled_softmax():
    """A softmax over each example's own class and classes drawn for the whole batch, under `batch["shared"]`."""
    classes, negatives = 50, 16

    def prepare(keys, batch):
        drawn = jax.random.randint(keys.shared, (negatives,), 0, classes)
        return batch | {"weights": normalize_weights(jnp.ones(BATCH)), "shared": {"classes": drawn}}

    def loss(params, batch, key, carry):
        table, own = params["encoder"]["table"], batch["example"] % classes
        hidden = jnp.pad(batch["x"], ((0, 0), (0, 1)))
        candidates = jnp.concatenate([table[own][:, None], jnp.broadcast_to(
            table[batch["shared"]["classes"]], (len(own), negatives, WIDTH + 1))], axis=1)
        log_probabilities = jax.nn.log_softmax(jnp.einsum("bd,bcd->bc", hidden, candidates))
        nll = -log_probabilities[:, 0]
        return (nll * batch["weights"]).sum(), ({"nll": (nll.sum(), len(nll))}, carry)

    specs = {"encoder": {"table": ParamSpec((classes, WIDTH + 1), (None, None), normal(1.0))}, "objective": {}}
    return Objective("sampled_softmax", specs=specs, prepare=prepare, loss=loss)


def test_every_microbatch_gets_all_shared_draws():
    """In training and in evaluation: the loss of a sampled softmax does not depend on the number of microbatches."""
    objective = sampled_softmax()
    (_, one, [expected]), (_, several, [metrics]) = (stepped(objective, microbatches=m) for m in (1, 4))
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    np.testing.assert_allclose(several.params["encoder"]["table"], one.params["encoder"]["table"], rtol=1e-5, atol=1e-7)
    single, split = (jax.jit(partial(evaluation_step, objective=objective, seed=0, microbatches=m))(
        one.params, batch(), Carry())[0] for m in (1, 4))
    assert float(split["loss"][0]) == pytest.approx(float(single["loss"][0]), rel=1e-6)


def test_every_example_has_its_own_key():
    for static in (False, True):
        keys = prepare_keys(objective(static=static), batch(), 0, jnp.int32(0))
        assert len(np.unique(jax.random.key_data(keys.per_example), axis=0)) == BATCH


def test_static_draws_depend_on_the_example_and_not_on_its_step_or_position():
    static, examples = objective(static=True), batch()
    turned = {name: values[::-1] for name, values in examples.items()}
    first, later, elsewhere, seeded = (
        jax.random.key_data(prepare_keys(static, order, seed, jnp.int32(step)).per_example)
        for order, seed, step in ((examples, 0, 0), (examples, 0, 7), (turned, 0, 0), (examples, 1, 0)))
    np.testing.assert_array_equal(first, later)
    np.testing.assert_array_equal(first, elsewhere[::-1])
    assert (first != seeded).any(axis=1).all()


def test_dropout_is_new_at_each_step_and_each_microbatch():
    _, _, lines = stepped(objective(), steps=3, microbatches=4)
    assert len({*draws(lines, "dropout")}) == 3
    for line in lines:  # not all four alike: their mean square is above the square of their mean
        (total, count), (squares, _) = line["dropout"], line["dropout_squared"]
        assert count == 4 and squares / 4 > (total / 4) ** 2 + 1e-6


# Evaluation


def evaluated(objective, examples, seed=0):
    params = create(objective, optax.sgd(RATE), BATCH, 0).params
    metrics, _ = shared(evaluation, objective, seed)(params, examples, objective.carry(BATCH))
    return {name: float(total) for name, (total, _) in metrics.items()}


@pytest.mark.parametrize("static", [False, True])
def test_evaluation_draws_the_same_for_an_example_at_any_position(static):
    drawing, examples = objective(static=static), batch()
    turned = {name: values[::-1] for name, values in examples.items()}
    assert evaluated(drawing, examples)["drawn"] == pytest.approx(evaluated(drawing, turned)["drawn"], rel=1e-6)
    other = examples | {"example": examples["example"] + 1}
    assert evaluated(drawing, examples)["drawn"] != pytest.approx(evaluated(drawing, other)["drawn"], rel=1e-6)


def test_evaluation_has_no_dropout_and_other_draws_than_training():
    metrics = evaluated(objective(static=True), batch())
    assert metrics["dropout"] == -1
    assert metrics["drawn"] != pytest.approx(draws(stepped(objective(static=True))[2], "drawn")[0], rel=1e-6)
