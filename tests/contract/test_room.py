"""What components may need beside the usual: the step, losses of a network, and masks of any form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import lstm, transformer
from lmrep.models.base import model_inputs
from lmrep.objectives.outputs import with_network_losses
from lmrep.training.step import prepare_keys
from tests.contract import convolution, skip, test_contract
from tests.contract import objectives as toys

WORDS = Vocabulary(toys.V, {}, np.ones(toys.V, bool), np.zeros(toys.V, np.int64))
BATCH = {"tokens": np.arange(1, 7, dtype=np.int32)[None], "segment_ids": np.ones((1, 6), np.int32),
         "example": np.zeros(1, np.int32)}


def lines_of(objective, directory, microbatches=1, layout=(1, 1, 1)):
    """The lines of training, and of validation."""
    _, lines = test_contract.train([test_contract.stage(objective, microbatches)], directory, layout)
    return ([line for line in lines if line["split"] == split] for split in ("train", "validation"))


def test_a_masking_rate_falls_during_training_and_is_constant_on_validation(tmp_path):
    steps = test_contract.STEPS
    train, validation = lines_of(toys.fading(steps), tmp_path / "run")
    assert [line["rate"] for line in train] == pytest.approx([1 - (i + 0.5) / steps for i in range(0, steps, 2)])
    assert {line["rate"] for line in validation} == {1.0}


def test_the_step_is_that_of_the_state_and_0_for_static_draws():
    objective = toys.fading(6)
    keys = jax.jit(lambda step: prepare_keys(objective, BATCH, 1, step))(3)
    assert keys.step == 3 and keys.step.dtype == jnp.int32
    assert prepare_keys(objective._replace(static=True), BATCH, 1, 3).step == 0


def with_penalty(penalty, microbatches=1):
    """`skip` on a network that penalises its activations."""
    network = convolution.build(convolution.Config(vocab=toys.V, channels=toys.D, penalty=penalty))
    return with_network_losses(lambda model: skip.build(skip.Config(), model, WORDS), network, microbatches)


@pytest.mark.slow
def test_the_loss_of_a_network_is_added_and_measured_over_every_mesh_and_microbatch_count(tmp_path):
    (plain, _), (one, _) = (lines_of(with_penalty(penalty), tmp_path / str(penalty)) for penalty in (0.0, 3.0))
    split, _ = lines_of(with_penalty(3.0, 2), tmp_path / "split", microbatches=2, layout=(2, 2, 2))
    for a, b in zip(one, split, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["loss"] == pytest.approx(a["skip_loss"] + 3 * a["network_activation"], rel=1e-5)
    assert one[-1]["network_activation"] < plain[-1]["network_activation"]
    assert plain[-1]["loss"] == pytest.approx(plain[-1]["skip_loss"], rel=1e-6)


def test_a_network_sees_what_a_mask_allows():
    """A prefix of three tokens sees itself; the others see all before them."""
    model = transformer.build(transformer.Config(vocab=toys.V, layers=1, width=8, heads=2, mlp=8, dropout=0.0))
    params, at = P.init(model.specs, jax.random.key(0)), np.arange(6)
    mask = jnp.asarray((at[:, None] >= at) | (at < 3))[None]

    @jax.jit
    def hidden(tokens):
        return model.encode(params, model_inputs(model, BATCH, tokens=tokens, mask=mask)).hidden[0]

    before = hidden(BATCH["tokens"])
    for changed, seeing in ((2, range(6)), (4, (4, 5))):
        after = hidden(jnp.asarray(BATCH["tokens"]).at[0, changed].set(9))
        assert {int(i) for i in np.flatnonzero((after != before).any(-1))} == {*seeing}


def test_a_network_without_masks_refuses_one():
    network = lstm.build(lstm.Config(vocab=toys.V))
    with pytest.raises(UserError, match="the tokens that a mask allows, and the network 'lstm'"):
        model_inputs(network, BATCH, conditions_on="left", mask=jnp.ones((1, 6, 6), bool))
