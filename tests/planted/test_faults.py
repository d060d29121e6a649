"""The list of planted faults fits the code; `python -m tests.planted` plants them."""

import ast

from tests.planted.__main__ import ROOT
from tests.planted.faults import FAULTS


def test_each_fault_changes_one_place_and_leaves_valid_code():
    for fault in FAULTS:
        text = (ROOT / fault.file).read_text()
        assert text.count(fault.before) == 1, fault.name
        changed = text.replace(fault.before, fault.after)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), fault.name
        assert all((ROOT / path).exists() for path in fault.covering_tests), fault.name


def test_there_are_sixty_with_distinct_names_and_two_or_more_a_package():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 60
    packages = {path.name for path in (ROOT / "lmrep").iterdir() if (path / "__init__.py").exists()}
    places = [fault.file.split("/")[1] for fault in FAULTS]
    assert all(places.count(package) >= 2 for package in {*packages, "api.py"})
