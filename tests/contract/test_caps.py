"""Contracts stay small: what only one component answers is a module beside it, not a field."""

from pathlib import Path

import pytest

import lmrep
from lmrep.data.formats import FormatDef
from lmrep.data.tokenizers import TokenizerDef
from lmrep.models.base import Model, ModelDef
from lmrep.objectives.base import Keys, Objective, ObjectiveDef
from lmrep.objectives.uses import Uses


@pytest.mark.parametrize(("contract", "most"), [
    (Model, 14), (ModelDef, 10), (Objective, 11), (ObjectiveDef, 12), (Uses, 9), (Keys, 3), (FormatDef, 8),
    (TokenizerDef, 8)],
    ids=lambda value: getattr(value, "__name__", None))
def test_a_contract_has_few_fields(contract, most):
    assert len(contract._fields) <= most


def test_training_reads_nothing_that_is_asked_of_a_trained_model():
    files = [*(Path(lmrep.__file__).parent / "training").glob("*.py")]
    assert len(files) > 10
    assert not [path.name for path in files if ".uses" in path.read_text(encoding="utf8")]
