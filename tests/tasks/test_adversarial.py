"""Adversarial and virtual adversarial training of classifiers, against changes of a table's rows.

Where each token occurs once in a text, a change of its vector is one of its row, and gradients are those of the table.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax

from lmrep.core.errors import UserError
from lmrep.core.sharding import batch_sharding, make_mesh, use_mesh
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS, adversarial
from lmrep.training.state import TrainState, layout
from lmrep.training.step import compiled_train_step
from tests.tasks import tiny

RECORDS = [{"text": "cat dog bird tree", "label": "a"}, {"text": "fish horse", "label": "b"},
           {"text": "mouse stone good", "label": "c"}]
KEY = jax.random.key(5)


def build(model="lstm", **fields):
    own = tiny.Tiny("classification", RECORDS, model=model, sizes={"embedding": 16, "width": 16}, context="left",
                    dense=False, **fields)
    store = own.examples()
    return own, own.objective.prepare(Keys(None, None), store.gather(np.r_[np.arange(store.examples), -1]))


def row(batch, i):
    return {name: value[i : i + 1] for name, value in batch.items()}


def with_table(own, table):
    encoder = {**own.params["encoder"], "embedding": {"token": table}}
    return {**own.params, "encoder": encoder}


def logits(own, batch, table):
    return own.predict(with_table(own, table), batch)["units"]["log_probabilities"][0, 0]


def moved(own, one, gradient, epsilon):
    """The table whose rows of a text's tokens are changed by `epsilon`, times their root mean square, along a
    gradient."""
    table = own.params["encoder"]["embedding"]["token"]
    tokens = one["tokens"][one["segment_ids"] > 0]
    assert len(set(tokens.tolist())) == len(tokens)
    direction = np.zeros_like(table)
    direction[tokens] = gradient[tokens]
    direction /= np.linalg.norm(direction)
    return table + epsilon * np.sqrt(np.square(table[tokens]).mean()) * direction


def test_the_adversarial_loss_is_that_of_texts_changed_along_the_gradient():
    own, batch = build(adversarial=adversarial.Config(weight=0.5, epsilon=2.0))
    plain, expected = build()[0], []
    for i in range(3):
        one, label = row(batch, i), int(batch["label"][i, 0])
        nll = lambda table, one=one, label=label: -logits(own, one, table)[label]  # noqa: E731
        gradient = np.asarray(jax.grad(nll)(jnp.asarray(own.params["encoder"]["embedding"]["token"])))
        expected.append(float(nll(moved(own, one, gradient, 2.0))))
    loss, (metrics, _) = jax.jit(own.objective.loss)(own.params, batch, KEY, Carry())
    before = float(jax.jit(plain.objective.loss)(own.params, batch, KEY, Carry())[0])
    assert float(metrics["adversarial_loss"][0]) == pytest.approx(sum(expected), rel=1e-4)
    assert np.mean(expected) > before
    assert float(loss) == pytest.approx(before + 0.5 * np.mean(expected), rel=1e-5)


def test_the_virtual_loss_is_the_divergence_along_one_power_iteration():
    own, batch = build(adversarial=adversarial.Config(virtual=2.0, epsilon=3.0))
    table, expected = own.params["encoder"]["embedding"]["token"], []
    t, real = batch["tokens"].shape[1], batch["segment_ids"] > 0
    noise = jax.random.normal(jax.random.fold_in(KEY, 3), (4, t, 16))
    noise = np.asarray(adversarial.unit(jnp.where(real[..., None], noise, 0)))
    for i in range(3):
        one, tokens = row(batch, i), batch["tokens"][i][real[i]]
        p = np.asarray(logits(own, one, table))

        def divergence(changed, one=one, p=p):
            return (np.exp(p) * (p - logits(own, one, changed))).sum()

        start = np.array(table)
        start[tokens] += adversarial.STEP * np.sqrt(np.square(table[tokens]).mean()) * noise[i][real[i]]
        expected.append(float(divergence(moved(own, one, np.asarray(jax.grad(divergence)(jnp.asarray(start))), 3.0))))
    loss, (metrics, _) = jax.jit(own.objective.loss)(own.params, batch, KEY, Carry())
    assert float(metrics["virtual_adversarial_loss"][0]) == pytest.approx(sum(expected), rel=2e-3)
    before = float(jax.jit(build()[0].objective.loss)(own.params, batch, KEY, Carry())[0])
    assert float(loss) == pytest.approx(before + 2 * np.mean(expected), rel=1e-3)


@pytest.mark.parametrize("network", ["lstm", "awd_lstm"])
def test_a_step_has_finite_gradients_with_dropout_and_validation_is_as_without(network):
    fields = {"weight": 1.0, "virtual": 1.0}
    own, batch = build(network, adversarial=adversarial.Config(**fields), word_dropout=0.3, linear_gain=True)
    plain = build(network, linear_gain=True)[0]
    loss = jax.jit(jax.value_and_grad(own.objective.loss, has_aux=True))
    (value, (metrics, _)), gradient = loss(own.params, batch, KEY, Carry())
    assert {*adversarial.METRICS} <= metrics.keys() and np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    validated, (measured, _) = own.objective.loss(own.params, batch, None, Carry())
    assert float(validated) == pytest.approx(float(plain.objective.loss(own.params, batch, None, Carry())[0]))
    assert not {*adversarial.METRICS} & measured.keys()


@pytest.mark.slow
def test_a_step_does_not_depend_on_the_mesh():
    """With draws, and a label at every position. Here the mesh divides examples and parameters."""
    own, _ = build(adversarial=adversarial.Config(weight=1.0, virtual=1.0), word_dropout=0.3, linear_gain=True)
    own.records = tiny.as_records(RECORDS * 3)[:8]
    batch, optimizer = own.examples().gather(np.arange(8)), optax.sgd(1.0)

    def stepped(*sizes):
        mesh = make_mesh(*sizes)
        step = compiled_train_step(own.objective, optimizer, mesh, 8, 0)
        with use_mesh(mesh):
            state = TrainState(np.int32(0), own.params, optimizer.init(own.params), own.objective.carry(8))
            state = jax.device_put(state, layout(own.objective, optimizer, 8, mesh))
            state, metrics = jax.device_get(step(state, jax.device_put(batch, batch_sharding(mesh))))
        return state.params, metrics

    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), stepped(2, 2, 2),
                 stepped(1, 1, 1))


def test_units_and_divergences_are_those_of_their_formulas():
    x = np.array([[[3, 0], [0, 4]], [[0, 0], [0, 0]], [[1e-30, 0], [0, 0]]], np.float32)
    expected = [[[0.6, 0], [0, 0.8]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]]
    np.testing.assert_allclose(adversarial.unit(x), expected, rtol=1e-6)
    y, other = np.random.default_rng(0).normal(size=(2, 5, 3))
    p, q = log_softmax(y, -1), log_softmax(other, -1)
    np.testing.assert_allclose(adversarial.divergence(y, other), (np.exp(p) * (p - q)).sum(-1), rtol=1e-5)


def test_a_network_or_statistics_that_cannot_be_changed_are_refused():
    own, batch = build("transformer", adversarial=adversarial.Config(weight=1.0))
    with pytest.raises(UserError, match=r"config.objective.adversarial changes .*lstm"):
        own.objective.loss(own.params, batch, KEY, Carry())
    definition = TASKS["classification"].objective
    with pytest.raises(UserError, match=r"adversarial changes vectors, and config.objective.network is bcn"):
        definition.check(definition.config(network="bcn", adversarial=adversarial.Config(virtual=1.0)))


@pytest.mark.parametrize("gain", [False, True])
def test_packed_texts_are_refused(gain):
    own = tiny.Tiny("classification", RECORDS, model="lstm", form={"packed": True}, context="left", linear_gain=gain,
                    adversarial=adversarial.Config(weight=1.0))
    with pytest.raises(UserError, match=r"adversarial changes the vectors of one text, and config.format.packed"):
        own.objective.prepare(Keys(None, None), own.examples().gather(np.arange(1)))
