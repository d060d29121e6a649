"""Launchers' variables that are refused: the environment, and the variables and values that the message names."""

import pytest

from lmrep.core.errors import UserError
from lmrep.distributed.process_group import launched
from tests.distributed.test_process_group import EXPLICIT, TORCH

ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


@pytest.mark.parametrize(("environment", "named"), [
    ({ADDRESS: "h:99"}, [f"{ADDRESS} is", COUNT, INDEX]), ({INDEX: "0"}, [f"{INDEX} is", ADDRESS, COUNT]),
    (EXPLICIT | {INDEX: ""}, [f"without {INDEX};"]), (EXPLICIT | {INDEX: "2"}, ["process 2 of 2", "from 0 to 1"]),
    (EXPLICIT | {INDEX: "-1"}, [f"{INDEX} is '-1'"]), (EXPLICIT | {COUNT: "two"}, [f"{COUNT} is 'two'"]),
    ({"WORLD_SIZE": "4"}, ["WORLD_SIZE is 4", f"{COUNT}=1"]),
    ({"SLURM_STEP_NUM_TASKS": "4"}, ["SLURM_STEP_NUM_TASKS is 4", f"{COUNT}=1"]),
    ({"PMIX_RANK": "0"}, ["PMIX_RANK is 0"]),
    ({"PMI_SIZE": "4", "PMI_RANK": "one"}, ["PMI_RANK is 'one'"]),
    ({"PMI_SIZE": "4", "PMI_RANK": "4"}, ["process 4 of 4", "from 0 to 3"]),
    (TORCH | {"MASTER_PORT": ""}, ["MASTER_ADDR", "MASTER_PORT"]), (TORCH | {"MASTER_PORT": "99999"}, ["h:99999"]),
    (EXPLICIT | {ADDRESS: "host"}, [ADDRESS, "'host'"]), (EXPLICIT | {ADDRESS: "host:99999"}, [ADDRESS, "65535"]),
])
def test_variables_of_launchers(environment, named):
    with pytest.raises(UserError) as refused:
        launched(environment)
    assert all(name in str(refused.value) for name in named), refused.value
