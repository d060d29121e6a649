"""What a network refuses before anything runs."""

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.models import lstm, model_inputs, transformer
from lmrep.models.base import Context
from lmrep.objectives import OBJECTIVES

LSTM = lstm.build(lstm.Config(vocab=11, width=4, layers=1), name="small")
TRANSFORMER = transformer.build(transformer.Config(vocab=11, width=4, layers=1, heads=1, mlp=4, max_length=8))
BATCH = {"tokens": np.ones((2, 3), np.int32), "segment_ids": np.ones((2, 3), np.int32)}
BIDIRECTIONAL = [name for name, row in OBJECTIVES.items() if row.conditions_on(row.config()) == Context.BOTH]


@pytest.mark.parametrize("objective", BIDIRECTIONAL)
def test_a_config_of_a_left_to_right_network_and_a_bidirectional_objective_is_refused(objective):
    config = experiments.default_config("lstm", objective, "packed")
    with pytest.raises(UserError, match=f"objective '{objective}' conditions on the tokens on both sides"):
        experiments.parse(config)


def test_a_config_of_a_left_to_right_network_and_causal_language_modelling_is_accepted():
    experiments.parse(experiments.default_config("lstm", "causal", "stream"))


def test_inputs_are_the_fields_that_the_network_takes():
    batch = BATCH | {"positions": BATCH["tokens"], "token_type_ids": BATCH["tokens"]}
    inputs = model_inputs(LSTM, batch, conditions_on=Context.LEFT)
    assert {name for name, value in inputs._asdict().items() if value is not None} == {"tokens", "attention_mask"}
    assert inputs.attention_mask.causal
