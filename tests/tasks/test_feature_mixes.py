"""Frozen features in the network of a task: mixes of layers, and features between two LSTM layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.layers import recurrent
from lmrep.models.base import model_inputs
from lmrep.objectives.base import Carry, Keys
from tests.tasks import tiny
from tests.tasks.examples import BILSTM, EXAMPLES, READS, features, made

LAYERS = 2  # of the frozen encoder, with its embeddings


def task(network=(), **fields):
    own = features(**fields)
    return tiny.Tiny("tagging", EXAMPLES["tagging"], "none", **made(dict(network) | own | {
        "frozen": READS["frozen"] | own["frozen"]}))


def with_mixes(own, **mixes):
    """The parameters of a task, with other mixes at its places."""
    tagging = own.params["objective"]["tagging"]
    network = tagging["network"] | {"mix": mixes}
    return own.params | {"objective": {"tagging": tagging | {"network": network}}}


@pytest.mark.slow
def test_a_mix_with_one_layer_on_equals_that_layer():
    mixed, single = task(BILSTM, layers="mix:all", placement="both"), task(BILSTM, layers="1", placement="both")
    one_on = {"scores": jnp.array([0.0, 1000.0]), "gamma": jnp.float32(1)}
    params = with_mixes(mixed, input=one_on, output=one_on)
    network = {name: value for name, value in params["objective"]["tagging"]["network"].items() if name != "mix"}
    alone = {"objective": {"tagging": params["objective"]["tagging"] | {"network": network}}}
    batch = mixed.examples().gather(np.arange(6))
    one, other = mixed.predict(params, batch), single.predict(single.params | alone, batch)
    np.testing.assert_allclose(one["tokens"]["log_probabilities"], other["tokens"]["log_probabilities"], atol=1e-5)


def test_features_between_two_layers_equal_the_plain_computation():
    """TagLM: the second layer reads the output of the first one and the features, which get no gradient. The penalty is
    that of the mix's scores."""
    own = task(BILSTM | {"words": READS["words"]}, layers="mix:all", placement="between", l2=0.5)
    batch, tagging = own.examples().gather(np.arange(6)), own.params["objective"]["tagging"]
    network, part = tagging["network"], own.frozen["features"]
    read = jnp.where(batch["representative"] > 0, batch["segment_ids"], 0)
    mix = network["mix"]["between"]

    @jax.jit
    def plain(params):
        table = params["frozen"]["words"]["vectors"]
        x = jnp.where(batch["vector"][..., None] >= 0, table[batch["vector"]], network["words"]["unknown"])
        x = jnp.where(batch["vector"][..., None] == -2, 0, x)  # special tokens
        first = recurrent.bidirectional({"0": network["bilstm"]["0"]}, x, read)
        encoded = part.model.encode(params["frozen"]["features"]["encoder"], model_inputs(part.model, batch),
                                    layers=True)
        layers = jnp.stack([*encoded.layers[:-1], encoded.hidden])
        mixed = mix["gamma"] * jnp.einsum("l,lbtd->btd", jax.nn.softmax(mix["scores"]), layers)
        second = recurrent.bidirectional({"0": network["bilstm"]["1"]}, jnp.concatenate([first, mixed], -1), read)
        return jax.nn.log_softmax(second @ tagging["out"]["kernel"] + tagging["out"]["bias"])

    found = own.predict(own.params, batch)["tokens"]["log_probabilities"]
    real = batch["representative"] > 0
    np.testing.assert_allclose(found[real], plain(own.params)[real], atol=1e-5)
    assert len(mix["scores"]) == LAYERS
    batch = own.objective.prepare(Keys(None, None), batch)
    gradient = jax.jit(jax.grad(lambda params: own.objective.loss(params, batch, None, Carry())[0]))(own.params)
    assert not any(np.any(value) for value in jax.tree.leaves(gradient["frozen"]["features"]))
    assert all(np.any(value) for value in jax.tree.leaves(gradient["objective"]["tagging"]["network"]["mix"]))
    np.testing.assert_allclose(own.objective.penalty(own.params), 0.5 * np.sum(np.square(mix["scores"])), rtol=1e-5)
