"""The pages that come with the package."""

import re

import pytest

from lmrep.experiment import page_files
from tests import small


def test_pages_are_found_by_name_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = page_files.installed()
    assert {"bert.py", "quickstart.py"} <= pages.keys() and not any("benchmarks" in name for name in pages)
    for name in ("bert", "bert.py", "experiments/bert.py"):
        assert page_files.find(name) == pages["bert.py"]
    (tmp_path / "bert.py").write_text("")
    assert str(page_files.find("bert.py")) == "bert.py"
    assert str(page_files.find("nothing.py")) == "nothing.py"


def test_pages_are_listed_described_and_copied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = small.command("pages")
    assert listed.code == 0
    assert re.search(r"^bert\.py +BERT \(Devlin et al\., 2019\): masked", listed.out, re.MULTILINE)
    assert "Cost: " in small.command("pages", "bert").out
    copied = small.command("pages", "bert.py", "--copy")
    assert copied.code == 0 and (tmp_path / "bert.py").read_text() == page_files.installed()["bert.py"].read_text()
    assert small.command("pages", "bert.py", "--copy").code == 2
    assert small.command("pages", "bart").code == 2 and small.command("pages", "--copy").code == 2


@pytest.mark.parametrize("page", page_files.installed())
def test_every_page_states_its_cost_and_what_to_expect(page):
    text = page_files.docstring(page_files.installed()[page])
    assert "Expected" in text and ("Cost: " in text or "does not state the cost" in " ".join(text.split()))
