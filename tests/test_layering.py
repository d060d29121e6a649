"""The packages of lmrep import each other in one direction, in the order of the layout in CONTRIBUTING.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = re.search(r"^lmrep/\n(.*?)^experiments/", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)[1]
RANKS = {name: i for i, name in enumerate(re.findall(r"  (\w+)(?:/|\.py)(?=  |$)", LAYOUT, re.MULTILINE))}


def imported(file):
    """The packages of lmrep that a file imports when it is loaded, but for its own."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"lmrep.{alias.name}" for alias in node.names] if node.module == "lmrep" else [node.module]
            yield from (name.split(".")[1] for name in names if name.startswith("lmrep."))


def test_packages_import_only_those_before_them():
    files = [file for file in (ROOT / "lmrep").rglob("*.py") if file.relative_to(ROOT).parts[1] != file.name]
    wrong = [f"{file.relative_to(ROOT)} imports {name}" for file in files for name in imported(file)
             if RANKS.get(name, -1) > RANKS[file.relative_to(ROOT).parts[1]]]
    assert not wrong, "\n".join(wrong)
