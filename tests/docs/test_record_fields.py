"""The reference lists every field of a contract, with its meaning."""

import pytest

from tests.docs.documented import ROOT

FIELDS = {"models.base.Inputs.tokens": "i32[b, t]", "models.base.Context.LEFT": "only the tokens before a position",
          "objectives.base.Keys.step": "i32[], the updates before this one",
          "optimizers.base.OptimizerConfig.clip": "largest global norm of the gradient; 0: no limit (default `1.0`; at"}


@pytest.fixture(scope="module")
def package():
    griffe = pytest.importorskip("griffe")
    return griffe.load("lmrep", search_paths=[ROOT], docstring_parser="google", try_relative_path=False,
                       extensions=griffe.load_extensions(ROOT / "docs/record_fields.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", FIELDS)
def test_field_is_described(path, package):
    module, name, field = path.rsplit(".", 2)
    found = package[module]
    sections = found[name].docstring.parsed
    described = {each.name: each.description for section in sections if section.kind.value == "attributes"
                 for each in section.value}
    assert described[field].startswith(FIELDS[path])
    assert described.keys() == {key for key, value in found[name].members.items() if value.is_attribute}
