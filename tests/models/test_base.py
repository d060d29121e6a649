"""What a network refuses before anything runs."""

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.models import lstm, model_inputs, transformer
from lmrep.models.base import check_context
from lmrep.objectives import OBJECTIVES

LSTM = lstm.build(lstm.Config(vocab=11, width=4, layers=1), name="small")
TRANSFORMER = transformer.build(transformer.Config(vocab=11, width=4, layers=1, heads=1, mlp=4, max_length=8))
BATCH = {"tokens": np.ones((2, 3), np.int32), "segment_ids": np.ones((2, 3), np.int32)}
BIDIRECTIONAL = [name for name, row in OBJECTIVES.items() if row.context(row.config()) == "both"]


def test_a_left_to_right_network_is_not_conditioned_on_both_sides():
    check_context(LSTM, "left", "objective 'causal'")
    with pytest.raises(UserError, match="'masked' conditions on the tokens on both sides of a position, and the "
                                        "network 'small' can be conditioned on: left"):
        check_context(LSTM, "both", "objective 'masked'")
    with pytest.raises(UserError, match="this batch conditions on the tokens on both sides"):
        model_inputs(LSTM, BATCH)


@pytest.mark.parametrize("objective", BIDIRECTIONAL)
def test_a_config_of_a_left_to_right_network_and_a_bidirectional_objective_is_refused(objective):
    config = experiments.default_config("lstm", objective)
    with pytest.raises(UserError, match=f"objective '{objective}' conditions on the tokens on both sides"):
        experiments.parse(config)


def test_a_config_of_a_left_to_right_network_and_causal_language_modelling_is_accepted():
    experiments.parse(experiments.default_config("lstm", "causal", "stream"))


def test_inputs_are_the_fields_that_the_network_takes():
    batch = BATCH | {"positions": BATCH["tokens"], "token_type_ids": BATCH["tokens"]}
    inputs = model_inputs(LSTM, batch, context="left")
    assert {name for name, value in inputs._asdict().items() if value is not None} == {"tokens", "attention_mask"}
    assert inputs.attention_mask.causal


def test_a_network_without_a_state_refuses_a_carry():
    with pytest.raises(UserError, match="has no state to carry"):
        model_inputs(TRANSFORMER, BATCH, carry={"hidden": np.zeros((2, 4))})


def test_a_field_that_the_network_does_not_take_is_refused():
    inputs = model_inputs(LSTM, BATCH, context="left")._replace(positions=BATCH["tokens"])
    with pytest.raises(ValueError, match="positions"):
        LSTM.encode({}, inputs)
