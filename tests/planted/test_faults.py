"""The list of planted faults fits the code; `python -m tests.planted` plants them."""

import ast

import pytest

from tests.planted.__main__ import ROOT
from tests.planted.faults import FAULTS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_and_leaves_valid_code(fault):
    text = (ROOT / fault.file).read_text()
    assert text.count(fault.before) == 1
    changed = text.replace(fault.before, fault.after)
    if fault.file.endswith(".py"):
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert all((ROOT / path).exists() for path in fault.covering_tests)


def test_names_are_distinct():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
