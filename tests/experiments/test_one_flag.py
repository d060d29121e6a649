"""The objective is one flag: the same network, text and steps under each."""

from pathlib import Path

import pytest

from lmrep import experiment as experiments
from lmrep.config import loading
from lmrep.objectives import OBJECTIVES

PAGE = Path(__file__).parents[2] / "experiments/bert.py"
CONFIGS = {name: loading.load(PAGE, f"size=tiny,objective={name}").to_dict() for name in OBJECTIVES}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_flag_changes_the_objective_and_nothing_else(name):
    assert {field for field, value in CONFIGS[name].items() if value != CONFIGS["masked"][field]} <= {
        "objective", "samples"}
    stages = experiments.plans(experiments.parse(CONFIGS[name]))
    assert {stage.objective_name for stage in stages} == {name}
