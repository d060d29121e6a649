"""`lmrep reproduce`: the runs of a claim, trained and measured once, and the table of its rows."""

import json
import sys

import pytest

from lmrep.claims import claim as claims
from lmrep.claims import reproduce, results
from lmrep.config import json_files
from lmrep.sweeps import process
from tests import small

# In place of `lmrep train` and `lmrep evaluate`: writes what they leave. The loss is the rate of the run + seed / 10.
COST = {"start": "a", "step": 2, "steps": 2, "flops": 1e9, "seconds": 50.0, "device_hours": 0.1, "joules": None,
        "energy": "not known", "pue": 1.5, "grid": 0.4, "price_per_hour": 0.0}
STUB = f"COST = {json.dumps(COST)!r}" + """
import json, sys
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[2:])
run = Path(flags["workdir"])
with open(run.parents[1] / "calls", "a") as calls:
    calls.write(f"{sys.argv[1]} {run.parent.name} {run.name}\\n")
if sys.argv[1] == "train":
    if flags["config.batch_size"] == "3":
        print("lmrep: error: there is no text")
        sys.exit(2)
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text(json.dumps({"config": flags | {"steps": 2}, "data": {"tokenizer": ""}}))
    (run / "cost.jsonl").write_text(COST)
    (run / "timing.jsonl").write_text(json.dumps(
        {"step": 20, "split": "train", "steps_per_second": 48 / int(flags["config.batch_size"])}))
    (run / "provenance.jsonl").write_text(json.dumps({
        "time": "2026-11-28T10:00:00+0000", "cores": 2, "versions": {"lmrep": "0.1", "jax": "0.10", "numpy": "2"},
        "devices": {"platform": "cpu", "kind": "cpu", "count": 1, "processes": 1}}))
elif sys.argv[1] == "prune":
    Path(flags["output"]).mkdir()
    (Path(flags["output"]) / "config.json").write_bytes((run / "config.json").read_bytes())
else:
    config = json.loads((run / "config.json").read_text())["config"]
    loss = float(config["config.optimizer.learning_rate"]) + int(config["config.seed"]) / 10
    (run / "eval.json").write_text(json.dumps({"metrics": {"loss": loss, "mlm_loss": 7.0}, "split": flags["split"]}))
"""
CLAIM = '''
from lmrep.claims import Claim, Measure, Row, at_scale

def get_claim(scale="miniature"):
    steps = at_scale(scale, miniature=2, paper=1000)
    run = lambda rate: ("{home}/small.py", {{"optimizer.learning_rate": rate, "steps": steps, "batch_size": 2}})
    return Claim("A paper, table 1", "Low is below high.", {{"low": run(1.0), "high": run(2.0), "same": run(1.0)}},
                 {{"low": Row("a low rate", "high", "below", published=5.0), "high": Row("a high rate", published=7.5),
                  "equal": Row("the same", "low", "above", run="same")}},
                 Measure("loss", "loss", {{"split": "test"}}, format=".2f"), "perplexity of another text", "a second")
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config file `small.py` and a claim about it; `STUB` trains and evaluates."""
    small.experiment_file(tmp_path, small.corpus(tmp_path / "texts", documents=2))
    (tmp_path / "claim.py").write_text(CLAIM.format(home=tmp_path))
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", STUB))
    return tmp_path


def run(home, *flags):
    return small.command("reproduce", f"--config={home}/claim.py", f"--workdir={home}/claim", *flags)


def calls(home):
    path = home / "claim/calls"
    return path.read_text().splitlines() if path.exists() else []


def test_rows_are_trained_measured_and_compared(home):
    result = run(home, "--seeds=0-1")
    assert result.code == 0, result
    assert calls(home) == [f"{command} seed={seed} {name}" for seed in (0, 1) for name in ("low", "high", "same")
                           for command in ("train", "evaluate")]
    for line in ("| a low rate | 1.05 ± 0.07 | -1.00 (-1.00 to -1.00) from a high rate | below | reproduced | 5 | -2.5",
                 "| a high rate | 2.05 ± 0.07 |  |  |  | 7.5 |  |",
                 "| +0.00 (+0.00 to +0.00) from a low rate | above | not resolved at this scale |  |  |"):
        assert line in result.out
    assert "each has 97.5 %" in result.out and "three seeds take about a second." in result.out
    assert (home / "claim/table.md").read_text() in result.out
    for name in ("table.tex", "figure.svg", "report.html"):
        assert "a low rate" in (home / "claim" / name).read_text()
    record = json_files.read(results.Results, home / "claim/results.json")
    assert record["rows"]["low"]["values"] == {"0": 1.0, "1": 1.1} and record["rows"]["low"]["verdict"] == "reproduced"
    assert record["date"] == "2026-11-28" and record["versions"] == {"lmrep": "0.1", "jax": "0.10"}
    assert record["seconds"] == 300 and record["runs"]["low"]["seconds"] == {"0": 50.0, "1": 50.0}
    assert record["command"] == f"lmrep reproduce --config={home}/claim.py --workdir=claims/claim --seeds=0-1"
    assert record["runs"]["low"]["commands"] == [
        f"lmrep train --config={home}/small.py --config.optimizer.learning_rate=1.0 --config.steps=2 "
        "--config.batch_size=2 --config.seed=0 --workdir=claims/claim/seed=0/low",
        "lmrep evaluate --split=test --workdir=claims/claim/seed=0/low"]


def test_commands_make_workdirs_that_rows_measure(home):
    text = CLAIM.format(home=home).replace('"a second")', """"a second",
                 commands={"mean": "prune --workdir={low} --output={mean} --fraction=0.5"})""")
    text = text.replace('run="same")}', 'run="same"), "mean": Row("its mean", "high", "below")}')
    (home / "claim.py").write_text(text.replace("{low}", "{LOW}"))
    refused = run(home, "--seeds=0")
    assert refused.code == 2 and "command mean is 'prune --workdir={LOW}" in refused.err and not calls(home)
    (home / "claim.py").write_text(text)
    for _ in range(2):
        assert "| its mean | 1.00 |" in run(home, "--seeds=0").out
    assert calls(home)[6:] == ["prune seed=0 low", "evaluate seed=0 mean"]
    record = json_files.read(results.Results, home / "claim/results.json")["runs"]["mean"]
    assert record["seconds"] == {} and record["commands"] == [
        "lmrep prune --workdir=claims/claim/seed=0/low --output=claims/claim/seed=0/mean --fraction=0.5",
        "lmrep evaluate --split=test --workdir=claims/claim/seed=0/mean"]


def test_the_same_command_continues_and_seeds_may_grow(home):
    """A killed command leaves what is done; a run of another process is left to it."""
    assert run(home, "--seeds=0").code == 0
    (home / "claim/seed=0/high.measured.json").unlink()
    (home / "claim/seed=0/same.json").unlink()  # killed before it ended
    with process.claimed(home / "claim/seed=1/low.log"):
        result = run(home, "--seeds=0,1")
    assert "seed 1, low: another process has it" in result.out and "1 runs are not measured yet" in result.out
    shown = run(home, "--seeds=0,1", "--show")
    assert run(home, "--seeds=0,1").code == 0
    assert calls(home)[6:] == ["evaluate seed=0 high", "train seed=0 same", "train seed=1 high", "evaluate seed=1 high",
                               "train seed=1 same", "evaluate seed=1 same", "train seed=1 low", "evaluate seed=1 low"]
    assert "1 runs are not measured yet" in shown.out


def test_verdicts_do_not_depend_on_the_order_of_rows(home):
    claim = claims.load(home / "claim.py")
    values = {name: {0: x, 1: x + 1, 2: x + 0.5} for name, x in (("low", 1.0), ("high", 2.0), ("equal", 1.5))}
    turned = claim._replace(rows=dict(reversed(claim.rows.items())))
    verdicts = [reproduce.compare(c, values) for c in (claim, turned)]
    assert verdicts[0] == verdicts[1]


def test_seeds_are_advised_only_where_a_claim_is_open():
    def seeds_needed(*values, margin=0.1):
        rows = {"base": claims.Row("base"), "new": claims.Row("new", "base", "above", margin)}
        claim = claims.Claim("Paper", "Better.", {"base": "a.py", "new": "a.py"}, rows, claims.Measure("loss", "loss"))
        by_seed = {"base": dict.fromkeys(range(3), 0.0), "new": dict(enumerate(values))}
        return reproduce.compare(claim, by_seed)["new"]["seeds_needed"]

    assert seeds_needed(2.0, 2.1, 1.9) is seeds_needed(-2.0, -2.1, -1.9) is None
    assert seeds_needed(2.0, -1.0, 1.0) > 3
    assert seeds_needed(1.9, -1.1, 0.9) == seeds_needed(2.0, -1.0, 1.0, margin=0.0)  # up to the margin


def test_a_failed_run_leaves_the_others(home):
    result = run(home, "--seeds=0", "--config.high.batch_size=3")
    assert result.code == 3 and "failed: seed 0, high: there is no text" in result.out
    assert "train seed=0 same" in calls(home) and "| a high rate |  |  |  |  | 7.5 |" in result.out


@pytest.mark.parametrize(("flags", "message"), [
    (["--scale=huge"], "scale of the claim is 'huge'; expected one of miniature, paper"),
    (["--config.batch_sizes=3"], "config has no field 'batch_sizes'; did you mean 'batch_size'?"),
    (["--config.seed=1"], "--config.seed is given, and --seeds has the seeds of all runs"),
    (["--config.high.seed=1"], "--config.high.seed is given"), (["--config.steps.seed=1"], "has no fields"),
    (["--show"], "there are no runs of a claim in"), (["--budget=soon"], "--budget is 'soon'")])
def test_refusals(home, flags, message):
    result = run(home, *flags)
    assert result.code == 2 and message in result.err, result
    assert not calls(home)


def test_other_settings_need_another_workdir(home):
    assert run(home, "--seeds=0").code == 0
    result = run(home, "--seeds=0", "--config.batch_size=4")
    assert result.code == 2 and "other runs: give the same --config flags (none), or another --work" in result.err
    claim = (home / "claim.py").read_text()
    (home / "claim.py").write_text(claim.replace('"steps": steps', '"steps": steps + 1'))
    assert "other runs: they differ in runs, or another --workdir" in run(home, "--seeds=0").err


def test_the_table_so_far_needs_no_overrides(home):
    assert run(home, "--seeds=0", "--config.batch_size=4").code == 0
    shown = run(home, "--seeds=0", "--show")
    assert shown.code == 0 and "Not as the claim says: batch_size=4." in (home / "claim/table.md").read_text()
    assert "| a low rate | 1.00 |" in shown.out
    assert "Not as the claim says: low.batch_size=4, high.batch_size=4, same.batch_size=4." in shown.out


def test_another_measure_is_taken_of_the_same_runs(home):
    assert run(home, "--seeds=0").code == 0
    claim = home / "claim.py"
    claim.write_text(claim.read_text().replace('{"split": "test"}', '{"split": "validation"}'))
    result = run(home, "--seeds=0")
    assert result.code == 0 and "the rows are measured again" in result.out, result
    assert calls(home)[6:] == ["evaluate seed=0 low", "evaluate seed=0 high", "evaluate seed=0 same"]
    assert "measured again" not in run(home, "--seeds=0").out
    claim.write_text(claim.read_text().replace('"loss", {"split"', '"mlm_loss", {"split"'))
    result = run(home, "--seeds=0")  # the evaluation before had this metric, too
    assert "measured again" not in result.out and len(calls(home)) == 9
    assert "| a high rate | 7.00 |" in (home / "claim/table.md").read_text()


def test_a_field_of_all_runs_is_one_of_those_that_have_it():
    """Runs of tasks have no text to train on."""
    file = claims.find("bert:table5")
    claim = claims.load(file)
    fields = reproduce.overrides_by_run({"data.files": "x", "steps": "3"}, claim, file, file)
    tasks = [name for name, (page, _) in claim.runs.items() if page.startswith("tasks/")]
    assert tasks and {path for path in fields if path.endswith("data.files")} == {
        f"{name}.data.files" for name in claim.runs if name not in tasks}
    assert {path for path in fields if path.endswith(".steps")} == {f"{name}.steps" for name in claim.runs}


@pytest.mark.parametrize(("name", "what"), [("config.json", "a run"), ("sweep.json", "a sweep")])
def test_the_workdir_of_something_else_is_refused(home, name, what):
    (home / "claim").mkdir()
    (home / "claim" / name).write_text("{}")
    result = run(home)
    assert result.code == 2 and f"claim holds {what}, not the runs of a claim" in result.err, result
    assert [path.name for path in (home / "claim").iterdir()] == [name]


@pytest.mark.parametrize(("before", "after", "message"), [
    ('"high", "below"', '"highest", "below"', "is compared with 'highest'; expected another row: 'high', 'equal'"),
    ('"loss", {"split"', '"los", {"split"', "'los', which evaluate does not give for the run low; it gives loss"),
    ('{"split"', '{"splitt"', "lmrep evaluate has no flag --splitt; did you mean '--split'?"),
    ('"perplexity of another text"', '""', "rows have published figures, and the claim does not say of what"),
    ('"high", "below"', '"high", "lower"', "row 'low' claims 'lower'; expected above or below"),
    ('run="same"', 'run="sam"', "row 'equal' measures the run 'sam'; the runs are low, high, same"),
    ("return Claim(", "return dict(", "TypeError"), ("def get_claim(", "def claim(", "defines no function get_claim")])
def test_invalid_claims_are_refused(home, before, after, message):
    file = home / "claim.py"
    file.write_text(file.read_text().replace(before, after))
    result = run(home)
    assert result.code == 2 and message in result.err, result
