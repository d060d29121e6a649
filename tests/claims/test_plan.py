"""`lmrep reproduce --plan`: what the runs of a claim take on other hardware."""

import pytest

from tests import small

CLAIM = """
from lmrep.claims import Claim, Measure, Row

def get_claim(scale="miniature"):
    fields = {"steps": 100, "stages": "()", "batch_size": 2, "length": 16}
    return Claim("A paper", "One is better.", {
        "one": ("gpt2.py:size=tiny", fields), "next": ("gpt2.py:size=tiny,init={one}", fields | {"steps": 300}),
        "odd": ("gpt2.py:size=tiny", fields | {"batch_size": 3}), "task": "tasks/sst2.py:init={one}"},
        {"one": Row("one")}, Measure("loss", "lm_loss"))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "claim.py").write_text(CLAIM)
    monkeypatch.chdir(tmp_path)
    return lambda *flags: small.command("reproduce", f"--config={tmp_path}/claim.py", "--plan", *flags)


@pytest.mark.slow
def test_runs_are_planned_and_summed_over_seeds(run, tmp_path):
    """A run may start from another one; one that cannot be planned, or whose data decide its steps, says so."""
    result = run("--topology=cpu:2", "--seeds=0-3", "--config.cost.price_per_hour=3600")
    assert result.code == 0, result
    rows = {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in (
        line.split("|") for line in result.out.splitlines() if line.startswith("| "))}
    assert rows["one"][:2] == ["100", "2"] and rows["next"][:2] == ["300", "2"]
    assert rows["odd"][0].startswith("cannot be planned: ") and {*rows["odd"][1:]} == {""}
    hours, price = ([float(rows[name][i].replace(",", "")) for name in ("one", "next")] for i in (4, 5))
    assert price == pytest.approx([3600 * one for one in hours], rel=0.01) and hours[1] > hours[0] > 0
    assert "2 runs with 4 seeds, one after the other: at least" in result.out
    total = float(result.out.rpartition("price ")[2].split()[0].replace(",", ""))
    assert total == pytest.approx(4 * sum(price), rel=0.01)
    assert "not in these sums: 2 runs without a cost" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["claim.py"]


def test_refusals(run):
    result = run("--topology=abacus:2")
    assert result.code == 2 and "--topology is 'abacus:2'" in result.err
    result = run("--config.seed=2")
    assert result.code == 2 and "--seeds has the seeds of all runs" in result.err
