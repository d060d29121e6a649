"""The objective is one flag, which changes nothing else."""

from pathlib import Path

import pytest

from lmrep.config import loading
from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.objectives import OBJECTIVES

PAGE = Path(__file__).parents[2] / "experiments/bert.py"
# Bidirectional language models read two streams of sentences, each by a direction of the network; permutation language
# models have two streams.
NAMES = [name for name in OBJECTIVES if name not in ("bidirectional", "permutation")]
CONFIGS = {name: loading.load(PAGE, f"size=tiny,objective={name}").to_dict() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_flag_changes_the_objective_and_nothing_else(name):
    assert {field for field, value in CONFIGS[name].items() if value != CONFIGS["masked"][field]} <= {
        "objective", "samples"}
    stages = experiments.resolve_stages(experiments.parse(CONFIGS[name]))
    assert {stage.objective_name for stage in stages} == {name}


@pytest.mark.parametrize("page", ["bert", "gpt", "gpt2"])
@pytest.mark.parametrize("form", ["stream", "packed"])
def test_documents_do_not_attend_to_each_other_by_default(page, form):
    objective = "" if page.startswith("gpt") else "objective=causal,"
    config = loading.load(PAGE.with_name(f"{page}.py"), f"{objective}format={form}")
    assert not config.objective.across and config.format.get("isolate", True)


@pytest.mark.parametrize("variant", ["two_stage", "bert"])
def test_choice_without_effect_is_refused(variant):
    with pytest.raises(UserError, match=f"tie is 'tokens', and variant={variant} has no generator beside"):
        loading.load(PAGE.with_name("electra.py"), f"tie=tokens,variant={variant}")
