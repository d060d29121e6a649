"""The claims that come with the package."""

import pytest

from lmrep.analysis.sweep import Ending
from lmrep.claims import claim as claims
from lmrep.sweeps import process
from tests import small


@pytest.mark.parametrize("name", claims.installed())
def test_claims_of_the_package_resolve(name, tmp_path):
    """At every scale that a claim has, all its configs are valid."""
    from lmrep.interop import chain

    file = claims.find(name)
    claim = claims.load(file)
    assert len(chain.resolve(claim.runs, {}, tmp_path, file)) == len(claim.runs)
    assert any(row.claimed for row in claim.rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", claims.installed())
def test_claims_of_the_package_run(name, tmp_path, monkeypatch):
    """All runs of a claim are trained for two steps, measured and compared, in this process to import once."""
    monkeypatch.setattr(process, "run", lambda words, log, show: (Ending(small.command(*words).code, 0.0), 0))
    result = small.command("reproduce", name, f"--workdir={tmp_path}/claim", "--seeds=0", "--config.steps=2",
                           "--config.evaluation.examples=8")
    assert result.code == 0 and "not measured" not in result.out, result
