"""`lmrep reproduce --match`: the steps with which the pretraining runs of a claim have an equal budget."""

import dataclasses
import json
import sys

import pytest

from lmrep.claims import claim as claims
from lmrep.claims import match, results
from lmrep.claims.claim import Claim, Measure, Row
from lmrep.config import json_files
from lmrep.core.errors import UserError
from lmrep.experiment.config import resolve_stages
from lmrep.interop import chain as chains
from lmrep.planning import compute
from lmrep.sweeps import process
from tests import small
from tests.claims.test_reproduce import STUB

STAGES = [{"name": "short", "fraction": 0.7, "length": 16}, {"name": "long", "fraction": 0.3, "length": 32}]
BASE = {"steps": 24, "batch_size": 8, "length": 16}
ROWS = {"wide": Row("wide", "base", "above"), "base": Row("base"), "staged": Row("staged", "base")}
CLAIM = '''
from lmrep.claims import Claim, Measure, Row

def get_claim(scale="miniature"):
    run = lambda size: ("{home}/small.py", {{"optimizer.learning_rate": 1.0, "steps": 6, "batch_size": size}})
    return Claim("A paper, table 1", "Large batches are better.", {{"large": run(16), "small": run(6), "one": run(8)}},
                 {{"large": Row("large", "small", "below"), "small": Row("small"), "one": Row("one", "small")}},
                 Measure("loss", "loss", {{"split": "test"}}, format=".2f"))
'''


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    home = tmp_path_factory.mktemp("match")
    small.experiment_file(home, home / "texts")
    return f"{home}/small.py"


def resolved(page, runs, rows=ROWS):
    """A claim and its chain, given {run: fields beside BASE, or (another page or "", all fields)}."""
    pages = {name: (page, BASE | one) if isinstance(one, dict) else (one[0] or page, one[1])
             for name, one in runs.items()}
    claim = Claim("", "", pages, rows, Measure("loss", "loss"))
    return claim, chains.resolve(pages, {}, "/nowhere", "claim.py")


@pytest.fixture(scope="module")
def example(page):
    """Of a reference, a run of twice the width and five times the batch, and a run of two stages."""
    return resolved(page, {"base": {}, "wide": {"batch_size": 40, "model.width": 64}, "staged": {
        "steps": 10, "batch_size": 3, "stages": STAGES}})


def stages(run, steps):
    return resolve_stages(dataclasses.replace(run.experiment, steps=steps))


def test_tokens_are_equal_within_a_step(example):
    claim, chain = example
    decided = match.decide(claim, chain, "tokens", match.COSTS["tokens"])
    assert decided["reference"] == "base" and decided["budget"] == 24 * 8 * 16 and decided["steps"]["base"] == 24
    assert [*decided["steps"]] == ["base", "wide", "staged"]
    for run in chain:
        plans = stages(run, decided["steps"][run.name])
        tokens, largest = (of(plan.batch_size * plan.length * plan.steps ** power for plan in plans)
                           for of, power in ((sum, 1), (max, 0)))
        assert abs(tokens - decided["budget"]) <= largest, run.name
    assert decided["steps"]["wide"] == 5  # of 640 tokens
    assert match.overrides(decided) == {"base.steps": "24", "wide.steps": "5", "staged.steps": str(
        decided["steps"]["staged"])} and match.overrides(None) == {}


def test_flops_are_equal_within_a_step(example):
    claim, chain = example
    decided = match.decide(claim, chain, "flops", match.COSTS["flops"])
    for run in chain:
        experiment = dataclasses.replace(run.experiment, steps=decided["steps"][run.name])
        computed = compute.of_experiment(experiment)
        largest = max(stage.figures["exact"].flops for stage in computed)
        assert abs(compute.totals(computed)["exact"] - decided["budget"]) <= largest, run.name
    assert decided["budget"] == compute.totals(compute.of_experiment(chain[0].experiment))["exact"]
    assert decided["steps"]["wide"] < 5  # its products are larger too


def test_only_pretraining_behind_the_rows_is_matched(page):
    """A teacher and runs of tasks keep their steps, and a command has none; a student with some of its layers is a
    new network, and the second training of a network is not."""
    runs = {"teacher": {"steps": 99}, "one": {
                "init": "{teacher}", "init_mapping": {"encoder/layers": "encoder/layers[1]"}, "model.layers": 1,
                "batch_size": 4},
            "two": {"steps": 12}, "more": {"init": "{two}", "steps": 50},
            "tuned": ("tasks/sst2.py:init={one}", {}), "scratch": ("tasks/sst2.py", {})}
    rows = {"a": Row("a", "b", run="scratch"), "b": Row("b", run="tuned"), "c": Row("c", "b", run="more"),
            "d": Row("d", "b", run="cut")}
    claim, chain = resolved(page, runs, rows)
    claim = claim._replace(commands={"cut": "prune --workdir={one} --output={cut}"})
    decided = match.decide(claim, chain, "tokens", match.COSTS["tokens"])
    assert decided == {"by": "tokens", "reference": "one", "budget": 24 * 4 * 16, "steps": {"one": 24, "two": 12}}
    assert "1,536 tokens, with padding, as in the run one. one: 24 steps, two: 12 steps." in results.budget(decided)


@pytest.mark.parametrize(("runs", "rows", "message"), [
    ({"wide": {"steps": 12}}, ROWS, "the runs base and wide differ in their steps alone"),
    ({"wide": ("", {"budget": "1m"})}, ROWS, "run wide sets budget, so that its steps are not known before"),
    ({"wide": {"evaluation.patience": 2}}, ROWS, "run wide sets evaluation.patience"),
    ({}, {"base": Row("b"), "wide": Row("w")}, "no row is compared with one of another pretraining run"),
    ({}, {"base": Row("b"), "tuned": Row("t", "base")}, "no row is compared with one of another pretraining run"),
    ({}, {"base": Row("b", "scratch"), "scratch": Row("s")}, "the row 'scratch', with which others are compared")])
def test_claims_whose_steps_cannot_be_matched_are_refused(page, runs, rows, message):
    runs = {"base": {}, "wide": {"batch_size": 4}, "staged": {"batch_size": 5},
            "tuned": ("tasks/sst2.py:init={base}", {}), "scratch": ("tasks/sst2.py", {})} | runs
    claim, chain = resolved(page, runs, rows)
    with pytest.raises(UserError, match=message):
        match.decide(claim, chain, "tokens", match.COSTS["tokens"])


# The command


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config file `small.py` and a claim about it; `STUB` trains and evaluates."""
    small.experiment_file(tmp_path, small.corpus(tmp_path / "texts", documents=2))
    (tmp_path / "claim.py").write_text(CLAIM.format(home=tmp_path))
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", STUB))
    return tmp_path


def run(home, *flags):
    return small.command("reproduce", f"--config={home}/claim.py", f"--workdir={home}/claim", "--seeds=0", *flags)


def steps_of(home):
    return {name: int(json.loads((home / f"claim/seed=0/{name}/config.json").read_text())["config"]["config.steps"])
            for name in ("large", "small", "one")}


def test_a_matched_claim_that_was_killed_continues_with_the_same_steps(home, monkeypatch):
    result = run(home, "--match=tokens")
    assert result.code == 0 and steps_of(home) == {"large": 2, "small": 6, "one": 4}, result
    kept = json.loads((home / "claim/claim.json").read_text())["match"]
    assert kept == {"by": "tokens", "reference": "small", "budget": 6 * 6 * 32,
                    "steps": {"small": 6, "large": 2, "one": 4}}
    record, table = home / "claim/results.json", (home / "claim/table.md").read_text()
    assert json_files.read(results.Results, record)["match"] == kept and "equal tokens" in results.state(
        json_files.read(results.Results, record))
    for name in ("table.md", "table.tex", "report.html"):
        text = (home / "claim" / name).read_text()
        assert "as in the run small. small: 6 steps, large: 2 steps, one: 4 steps." in text
    (home / "claim/seed=0/one.measured.json").unlink()
    (home / "claim/seed=0/one.json").unlink()  # killed before it ended
    monkeypatch.setitem(match.COSTS, "tokens", lambda run: [1.0])  # as if another version counted differently
    again = run(home, "--match=tokens")
    assert again.code == 0 and steps_of(home)["one"] == 4 and (home / "claim/table.md").read_text() == table
    assert table.strip() in run(home, "--match=tokens", "--show").out
    assert "--match=tokens" in json_files.read(results.Results, record)["command"]
    for flags in ((), ("--match=flops",)):
        refused = run(home, *flags)
        assert refused.code == 2 and "holds runs of a claim with --match=tokens" in refused.err


def test_without_match_a_claim_is_recorded_as_before(home):
    assert run(home).code == 0 and steps_of(home) == {"large": 6, "small": 6, "one": 6}
    assert json.loads((home / "claim/claim.json").read_text()).keys() == {"scale", "runs", "overrides", "measure"}
    assert "match" not in json.loads((home / "claim/results.json").read_text())
    assert run(home, "--match=steps").code == 0
    assert "holds runs of a claim with --match=steps, not tokens" in run(home, "--match=tokens").err


def test_time_is_measured_once(home):
    """48 sequences in a second, so that 6 steps of 6 sequences take 0.75 seconds."""
    assert run(home, "--match=time").code == 0 and steps_of(home) == {"large": 2, "small": 6, "one": 4}
    kept = json.loads((home / "claim/claim.json").read_text())["match"]
    assert kept["by"] == "time" and kept["budget"] == pytest.approx(0.75)
    assert run(home, "--match=time").code == 0
    timed = [call for call in (home / "claim/calls").read_text().splitlines() if "timing" in call]
    assert timed == [f"train timing {name}" for name in ("small", "large", "one")]


@pytest.mark.parametrize(("flags", "message"), [
    (["--match=epochs"], "--match is 'epochs'; expected one of flops, steps, time, tokens"),
    (["--match=tokens", "--config.large.steps=3"], "--config.large.steps is given, and --match=tokens decides it"),
    (["--match=time", "--config.one.batch_size=3"], "run one: its time could not be measured: there is no text"),
    (["--match=time", "--plan"], "--match of a plan is 'time'; expected one of flops, tokens"),
    (["--match=tokens", "--show"], "there are no runs of a claim in")])
def test_refusals(home, flags, message):
    result = run(home, *flags)
    assert result.code == 2 and message in result.err, result
    assert not (home / "claim/claim.json").exists()


def test_steps_of_the_reference_may_be_given(home):
    assert run(home, "--match=tokens", "--config.steps=12").code == 0
    assert steps_of(home) == {"large": 4, "small": 12, "one": 9}
    assert claims.load(home / "claim.py").runs["small"][1]["steps"] == 6
