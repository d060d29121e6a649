"""The rows of tables stay small: what only one component answers is a module beside it, not a field."""

import pytest

from lmrep.models.base import Model, ModelDef


@pytest.mark.parametrize(("contract", "most"), [(Model, 14), (ModelDef, 10)], ids=lambda value: getattr(
    value, "__name__", None))
def test_a_contract_has_few_fields(contract, most):
    assert len(contract._fields) <= most
