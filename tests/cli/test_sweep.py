"""`lmrep sweep`: settings times seeds, each a run of its own, and how they compare."""

import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmrep.core.errors import UserError
from lmrep.experiment import settings, sweep
from lmrep.storage import workdir
from lmrep.sweeps import process
from lmrep.sweeps import sweep as sweeps
from tests import small

RATE = "optimizer.learning_rate"

# In place of `lmrep train`: writes what a run leaves, or fails. Its loss is rate + seed / 10
# plus, where the rate is 1.05, an amount with the sign of seed - 2.
STUB = """
import json, signal, sys, time
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[2:])  # after the name of the command
run, seed = Path(flags["workdir"]), int(flags["config.seed"])
rate = float(flags.get("config.optimizer.learning_rate", 0))
with open(run.parents[1] / "calls", "a") as calls:
    calls.write(f"{run.parent.name} {seed}\\n")
if rate == 6 and not (run / "waiting").exists():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run.mkdir(parents=True)
    (run / "waiting").touch()
    time.sleep(600)  # until it is killed, also on a loaded machine
if rate >= 8:
    print("lmrep: error: the loss of step 2 is nan" if rate == 8 else "lmrep: error: there is no text")
    sys.exit(3 if rate == 8 else 2)
run.mkdir(parents=True, exist_ok=True)
(run / "config.json").write_text(json.dumps({"config": {"steps": 2}, "data": {"tokenizer": ""}}))
noise = (rate == 1.05) * (seed - 2) / 10
lines = [{"step": step, "split": "validation", "loss": loss, "mlm_accuracy": min(rate, 1),
          "most_frequent_accuracy": 0.2} for step, loss in ((0, 0.01), (2, rate + seed / 10 + noise))]
(run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a config file `small.py`, which publishes a grid; `STUB` trains."""
    file = small.experiment_file(tmp_path, tmp_path / "texts")
    file.write_text(file.read_text() + "\n\ndef get_sweep(argument):\n    return {'optimizer.learning_rate': [1, 2], "
                    "'batch_size': (4, 8) if 'pair' in argument else (2,)}\n")
    monkeypatch.setattr(process, "COMMAND", (sys.executable, "-c", STUB))
    return tmp_path


def run_sweep(home, *flags, name="sweep", config=True, argument=""):
    words = [f"--config={home}/small.py{argument}"] * config
    return small.command("sweep", *words, f"--workdir={home}/{name}", "--noreport", *flags)


def calls(home, name="sweep"):
    path = home / name / "calls"
    return path.read_text().splitlines() if path.exists() else []


def results(home, name="sweep"):
    return json.loads((home / name / "results.json").read_text())


# A real run


@pytest.mark.slow
def test_run_is_trained_in_a_process_and_reported(small_home):
    """The programs are those of `small_home`, which are compiled already."""
    result = small.command("sweep", f"--config={small_home}/small.py", f"--workdir={small_home}/sweep", "--seeds=1",
                           f"--data_dir={small_home}/data", f"--grid={RATE}=1e-3")
    assert result.code == 0, result
    run = small_home / "sweep/learning_rate=1e-3/seed=1"
    config = json.loads((run / "config.json").read_text())["config"]
    assert config["seed"] == 1 and config["optimizer"]["learning_rate"] == 1e-3
    (record,), loss = results(small_home)["settings"], small.losses(run, "validation")[-1]
    assert record["mean"] == loss and record["finished"] == record["best"] == 1 and record["faults"] == 0
    assert f"[1/1] learning_rate=1e-3/seed=1: loss {loss:.4g}, " in result.out
    assert "Trained to step 12." in run.with_name("seed=1.log").read_text()
    page = (small_home / "sweep/report.html").read_text(encoding="utf8")
    assert "lmrep train --config=" in page and "--config.optimizer.learning_rate=1e-3 --config.seed=1" in page


# Order, resumption, tasks


def test_every_setting_is_trained_with_every_seed_once(home):
    flags = (f"--grid={RATE}=1,2;optimizer.betas=(0.9,0.98),(0.9,0.999)", "--seeds=0,3")
    result = run_sweep(home, *flags)
    assert result.code == 0, result
    names = [f"learning_rate={rate},betas=0.9-{beta}" for rate in (1, 2) for beta in ("0.98", "0.999")]
    expected = [f"{name} {seed}" for seed in (0, 3) for name in names]
    assert calls(home) == expected
    assert run_sweep(home, *flags).code == run_sweep(home).code == 0
    assert calls(home) == expected


@pytest.mark.parametrize(("rates", "seeds", "best", "near"), [
    ("1,1.05", "0-4", None, ["learning_rate=1.05"]),  # of their differences, the standard deviation is 0.16
    ("1,1.5,1.05", "0-4", None, ["learning_rate=1.05"]), ("1,1.5", "0-4", "learning_rate=1", []),
    ("1,2", "0", None, ["learning_rate=2"]), ("1", "0", "learning_rate=1", [])])
def test_a_setting_is_best_only_beyond_the_noise_of_the_seeds(home, rates, seeds, best, near):
    result = run_sweep(home, f"--grid={RATE}={rates}", f"--seeds={seeds}")
    record = results(home)
    assert (record["best"], record["leading"], record["within_noise"]) == (best, "learning_rate=1", near)
    assert sum(one["best"] for one in record["settings"]) == bool(best)
    assert ("best on the validation split: learning_rate=1" in result.out) == bool(best)
    single = near and seeds == "0"
    assert ("within the noise of " + ", ".join(near) in result.out) == (bool(near) and not single)
    assert ("not known of settings with one run" in result.out) == bool(single)


def test_statistics_are_those_of_the_last_validations(home):
    result = run_sweep(home, f"--grid={RATE}=2,1", "--seeds=0-2")
    values = [1, 1.1, 1.2]
    record = results(home)
    worse, best = record["settings"]
    assert record["metric"] == "loss" and record["best"] == "learning_rate=1" and best["fields"] == {RATE: "1"}
    assert best["mean"] == pytest.approx(statistics.fmean(values)) and (best["min"], best["max"]) == (1, 1.2)
    assert best["std"] == pytest.approx(statistics.stdev(values)) and worse["mean"] == pytest.approx(2.1)
    lines = [line.split("\t") for line in (home / "sweep/results.tsv").read_text().splitlines()]
    assert lines[0][:6] == ["setting", RATE, "loss_mean", "loss_std", "loss_min", "loss_max"]
    assert [line[1] for line in lines[1:]] == ["2", "1"] and float(lines[2][2]) == best["mean"]
    assert [line for line in result.out.splitlines() if line.endswith("best")] == [
        "learning_rate=1   1.1  0.1    1  1.2   3/3          best"]
    shown = run_sweep(home, "--show", "--validation=best", config=False)
    assert shown.code == 0 and [one["mean"] for one in results(home)["settings"]] == [0.01, 0.01]
    run_sweep(home, "--show", "--metric=mlm_accuracy", config=False)
    assert results(home)["higher_is_better"] and results(home)["settings"][0]["mean"] == 1


def test_failed_runs_are_trained_again_only_on_request(home):
    result = run_sweep(home, f"--grid={RATE}=1,8", "--seeds=0")
    first, second, *_ = result.out.splitlines()
    assert re.fullmatch(r"\[1/2\] learning_rate=1/seed=0: loss 1, \d+:\d\d; about \d+:\d\d left", first)
    log = f"{home}/sweep/learning_rate=8/seed=0.log"
    assert second.startswith("[2/2] learning_rate=8/seed=0: failed after ") and result.code == 0
    assert second.endswith(f" with exit code 3: the loss of step 2 is nan (see {log})")
    assert "failed: 1 of 2 runs; to train again: lmrep sweep --workdir=" in result.out
    assert "2 of 2 runs are done, 1 of them failed" in run_sweep(home).out
    assert calls(home) == ["learning_rate=1 0", "learning_rate=8 0"]
    run_sweep(home, "--retry")
    assert calls(home)[2:] == ["learning_rate=8 0"]


def test_refused_runs_are_tried_again_and_all_failures_are_an_error(home):
    assert run_sweep(home, f"--grid={RATE}=9", "--seeds=0", name="refused").code == 3
    assert "there is no text" in run_sweep(home, name="refused").out
    assert len(calls(home, "refused")) == 2
    result = run_sweep(home, f"--grid={RATE}=8", "--seeds=0-1")
    assert result.code == 3 and results(home)["best"] is None
    assert run_sweep(home, "--show", config=False).code == 0


def test_run_at_the_baseline_counts_as_failed(home):
    result = run_sweep(home, f"--grid={RATE}=0.2,0.3", "--seeds=0")
    assert [one["at_baseline"] for one in results(home)["settings"]] == [1, 0] and result.code == 0
    reason = "mlm_accuracy 20.00% is no better than 20.00% (token frequencies (unigram))"
    assert f"\nfailed: learning_rate=0.2/seed=0: {reason}\n" in result.out


def test_tasks_divide_the_runs(home):
    flags = (f"--grid={RATE}=1,2,3", "--seeds=0", "--tasks=2")
    first = run_sweep(home, *flags, "--task=1")
    assert calls(home) == ["learning_rate=2 0"] and "unfinished: 2 of 3 runs; to continue" in first.out
    assert run_sweep(home, *flags, "--task=0").code == 0
    assert calls(home)[1:] == ["learning_rate=1 0", "learning_rate=3 0"]
    assert "--task is 2 of --tasks=2" in run_sweep(home, *flags, "--task=2").err


def test_runs_of_other_processes_are_left_to_them(home):
    flags = (f"--grid={RATE}=1,2,3", "--seeds=0")
    one, two = (home / "sweep" / f"learning_rate={rate}" / "seed=0" for rate in (1, 2))
    with workdir.lock(one), process.claimed(two.with_name("seed=0.log")):
        result = run_sweep(home, *flags)
    assert calls(home) == ["learning_rate=3 0"]
    assert result.out.count("another process has it") == 2 and "running: 1 of 3 runs" in result.out
    run_sweep(home, *flags)
    assert calls(home)[1:] == ["learning_rate=1 0", "learning_rate=2 0"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_stops_the_run_and_the_sweep_which_continue(home, number, code):
    waiting = home / "sweep/learning_rate=6/seed=0/waiting"

    def send():
        deadline = time.monotonic() + small.SECONDS
        while not waiting.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    # As a process of its own has them; one that a shell started in the background ignores SIGINT.
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)),
                signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
    thread = threading.Thread(target=send)
    thread.start()
    try:
        result = run_sweep(home, f"--grid={RATE}=1,6,2", "--seeds=0")
    finally:
        thread.join()
        for each, handler in previous.items():
            signal.signal(each, handler)
    assert result.code == code
    assert f"stopped after 1 of 3 runs; continue with the same command, or with: lmrep sweep --workdir={home}" in (
        result.err)
    assert calls(home) == ["learning_rate=1 0", "learning_rate=6 0"]
    assert run_sweep(home).code == 0
    assert calls(home)[2:] == ["learning_rate=6 0", "learning_rate=2 0"]


# The plan


def test_settings_and_seeds_can_be_added_and_nothing_else_changed(home):
    run_sweep(home, f"--grid={RATE}=1,2", "--seeds=0")
    before = small.contents(home / "sweep")
    for flags, difference in [([f"--grid={RATE}=1,3"], "setting learning_rate=2 is missing"),
                              (["--seeds=1-2"], "seeds are missing: 0"),
                              (["--config.steps=13"], "steps: 12 -> 13"),
                              (["--config.checkpoint.best=mlm_loss"], "checkpoint.best: 'loss' -> 'mlm_loss'")]:
        result = run_sweep(home, *flags)
        assert result.code == 2 and f"the workdir holds another sweep:\n  {difference}\n" in result.err, result
    assert small.contents(home / "sweep") == before
    (home / "list").write_text("optimizer.learning_rate=1.0\n--config.optimizer.learning_rate=2 # the largest\n\n"
                               "batch_size=32 optimizer.learning_rate=1\n")
    result = run_sweep(home, f"--list={home}/list", "--seeds=0-1", "--config.log.every=2")
    assert result.code == 0, result
    assert calls(home)[2:] == ["batch_size=32,learning_rate=1 0", "learning_rate=1 1", "learning_rate=2 1",
                               "batch_size=32,learning_rate=1 1"]


def test_changed_experiment_file_is_refused(home):
    run_sweep(home, "--seeds=0-1")
    assert calls(home) == ["base 0", "base 1"]
    file = home / "small.py"
    file.write_text(file.read_text().replace("return config(", "return config(length=8) if False else changed("))
    file.write_text(file.read_text() + "\n\ndef changed(*arguments, **fields):\n"
                                       "    c = config(*arguments, **fields)\n    c.length = 16\n    return c\n")
    result = run_sweep(home)
    assert result.code == 2 and "length: 32 -> 16" in result.err
    assert run_sweep(home, "--show", config=False).code == 0


def test_sweep_of_a_file_is_continued_only_where_the_command_names_the_file(home):
    run_sweep(home, f"--grid={RATE}=1", "--seeds=0", "--config.log.every=2")
    before = calls(home)
    result = run_sweep(home, config=False)
    assert result.code == 2 and f"--config={home}/small.py" in result.err and calls(home) == before
    assert run_sweep(home, "--seeds=0-1").code == 0 and len(calls(home)) == 2  # with the overrides on record


@pytest.mark.parametrize(("change", "field"), [
    (lambda plan: plan["settings"][0].update(name="../other"), "folders"),
    (lambda plan: plan["settings"][0].update(name="/tmp/other"), "folders"),
    (lambda plan: plan["settings"][0].update(name=".lock"), "folders"),
    (lambda plan: plan["settings"].append(plan["settings"][0]), "folders"),
    (lambda plan: plan["settings"][0].pop("changes"), "settings.0.changes is missing"),
    (lambda plan: plan.update(seeds=["0"]), "seeds.0"),
    (lambda plan: plan.update(seeds=[10**30]), "seeds.0"),
    (lambda plan: plan.update(metric="bleu"), "metric"),
    (lambda plan: plan["metrics"]["loss"].update(format="q"), "formats"),
    (lambda plan: plan["base"].update(checkpoint=3), "base"),
    (lambda plan: plan.update(more=1), "more"),
])
def test_damaged_plan_is_refused_with_its_field(home, change, field):
    run_sweep(home, f"--grid={RATE}=1", "--seeds=0")
    plan = json.loads((home / "sweep/sweep.json").read_text())
    change(plan)
    (home / "sweep/sweep.json").write_text(json.dumps(plan))
    for flags in (["--show"], []):
        result = run_sweep(home, *flags)
        assert result.code == 2 and "sweep.json is damaged: " in result.err and field in result.err, result


def test_results_are_shown_where_they_cannot_be_written(home):
    run_sweep(home, f"--grid={RATE}=1", "--seeds=0")
    (home / "sweep/results.tsv").unlink()
    (home / "sweep/results.tsv").mkdir()
    result = run_sweep(home, "--show", config=False)
    assert result.code == 3 and "best on the validation split: learning_rate=1" in result.out
    assert "results.tsv cannot be written" in result.err


def test_workdir_of_a_run_is_refused(small_home):
    before = small.contents(small_home / "run")
    for flags in (["--show"], ["--seeds=0", f"--config={small_home}/small.py"]):
        result = small.command("sweep", f"--workdir={small_home}/run", *flags)
        assert result.code == 2 and "holds a run" in result.err
    assert small.contents(small_home / "run") == before


def test_workdir_of_a_run_that_starts_is_refused_and_its_lock_kept(home, monkeypatch):
    monkeypatch.setattr(sweeps, "LOCK_SECONDS", 0.2)
    with workdir.lock(home / "sweep"):
        content = (home / "sweep/.lock").read_text()
        result = run_sweep(home, "--seeds=0")
        assert result.code == 2 and f"locked by process {os.getpid()} on" in result.err
        assert (home / "sweep/.lock").read_text() == content and not (home / "sweep/sweep.json").exists()


def test_workdir_of_a_sweep_is_refused_by_train(small_home, tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    result = small.command("train", f"--config={small_home}/small.py", f"--workdir={tmp_path}")
    assert result.code == 2 and "holds a sweep" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]


def test_published_grid_and_choices_of_the_file(home):
    run_sweep(home, "--grid=paper", "--seeds=0", argument=":format=segment_pair")
    assert calls(home) == [f"learning_rate={rate},batch_size={size} 0" for rate in (1, 2) for size in (4, 8)]
    result = run_sweep(home, "--grid=:format=packed,segment_pair", name="formats")
    assert calls(home, "formats") == ["format=packed 0", "format=segment_pair 0"]
    assert "settings differ in format.duplicates" in result.out or "settings differ in format." in result.out


def test_the_search_of_the_learning_rate_goes_on_until_the_best_is_between_others(home):
    """The loss is the rate: the lowest rate is always the best, and nine are tried."""
    result = run_sweep(home, "--grid=auto", f"--config.{RATE}=0.3")
    assert result.code == 0, result
    tried = [float(call.split("=")[1].split()[0]) for call in calls(home)]
    assert tried == [0.0333, 0.1, 0.3, 0.9, 2.7, 0.0111, 0.0037, 0.00123, 0.00041]
    assert result.err.count("the best learning rate so far") == 4
    assert run_sweep(home, "--grid=auto", f"--config.{RATE}=0.3").code == 0 and len(calls(home)) == 9
    searched = [SimpleNamespace(fields=((RATE, rate),)) for rate in ("1e-3", "3e-3", "9e-3")]
    assert [settings.next_rate(searched, [best]) for best in searched] == ["0.000333", None, "0.027"]
    assert settings.next_rate(searched, searched[:2]) is None  # equal to one between others


def test_task_has_the_grid_of_a_paper_and_is_compared_at_its_best_validation(home):
    result = small.command("sweep", "--config=tasks/classify.py:size=tiny", f"--workdir={home}/sweep", "--noreport",
                           "--grid=electra", "--seeds=5", "--config.data.train=x.tsv", "--config.checkpoint.best=loss")
    assert result.code == 0, result
    assert calls(home) == [f"learning_rate={rate} 5" for rate in ("0.0003", "0.0001", "5e-05")]
    assert [one["mean"] for one in results(home)["settings"]] == [0.01] * 3
    plan = sweep.read(home / "sweep")
    assert plan.loads_best and plan.metrics["accuracy"].baseline == "majority_accuracy"


def test_training_data_decides_the_metric_of_tags(home):
    entities, plain = home / "entities.conll", home / "plain.conll"
    entities.write_text("Ann B-PER\nleft O\n")
    plain.write_text("Ann NOUN\nleft VERB\n")
    flags = ["sweep", "--config=tasks/tag.py:size=tiny", "--noreport", "--grid=batch_size=8,16"]
    for file, metric in ((entities, "entity_f1"), (plain, "token_accuracy")):
        result = small.command(*flags, f"--workdir={home}/{metric}", f"--config.data.train={file}")
        assert len(calls(home, metric)) == 2 and sweep.read(home / metric).metric == metric, result
    result = small.command(*flags, f"--workdir={home}/none", f"--config.data.train={home}/none.conll")
    assert result.code == 2 and "match no file" in result.err and not (home / "none").exists()


@pytest.mark.parametrize(("flags", "message"), [
    ([], "lmrep sweep needs settings or seeds"),
    (["--grid="], "the grid is empty"),
    (["--grid=optimizer.rate=1,2"], "setting rate=1: config.optimizer 'adamw' has no field 'rate'"),
    ([f"--grid={RATE}=1,x"], "setting learning_rate=x: config.optimizer.learning_rate cannot be 'x'"),
    (["--grid=batch_size=4,0"], "setting batch_size=0: config.batch_size is 0; expected at least 1"),
    ([f"--grid={RATE}=1e-3,0.001"], "settings learning_rate=1e-3 and learning_rate=0.001 are the same config"),
    (["--grid=batch_size=4;batch_size=8"], "the grid gives batch_size twice"),
    (["--grid=batch_size"], "expected FIELD=VALUE,VALUE;FIELD=VALUE,..., auto, paper, or one of bert,"),
    (["--grid=batch_size=4;length"], "the grid has 'length'; expected FIELD=VALUE"),
    (["--grid=optimizer.betas=(0.9,0.98"], "where ) is missing"),
    (["--grid=seed=1,2"], "seeds are given by --seeds"),
    (["--grid=batch_size=4", "--config.batch_size=8"], "batch_size is given by --config.batch_size too"),
    (["--grid=batch_size=4", "--list=x"], "--grid and --list are given"),
    (["--list=missing.txt"], "cannot read missing.txt: No such file"),
    (["--seeds=2-1"], "--seeds is '2-1'; expected numbers"),
    (["--seeds=1,0-2"], "--seeds has 1 twice"),
    (["--grid=checkpoint.best=loss,mlm_loss"], "settings are compared by checkpoint.best"),
    (["--seeds=0", "--metric=bleu"], "--metric is 'bleu'; expected one of loss"),
])
def test_invalid_sweep_is_refused_before_anything_is_written(home, flags, message):
    result = run_sweep(home, *flags)
    assert result.code == 2 and message in result.err and result.err.count("lmrep: error") == 1, result
    assert calls(home) == [] and not (home / "sweep/sweep.json").exists()


@pytest.mark.parametrize(("text", "message"), [
    ("a=1\nb\n", "list:2 has 'b'; expected FIELD=VALUE"), ("# none\n", "list is empty"),
    ("a=1 --config.a=2\n", "list:1 gives a twice"), ("a='1\n", "list:1: No closing quotation")])
def test_invalid_list_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "list").write_text(text)
    with pytest.raises(UserError, match=message):
        settings.read_list(tmp_path / "list")


def test_a_list_has_no_byte_order_mark_and_lines_end_at_line_feeds(tmp_path):
    (tmp_path / "list").write_bytes("\ufeffname=a\u2028b\r\nname=c".encode())
    assert settings.read_list(tmp_path / "list") == [(("name", "a\u2028b"),), (("name", "c"),)]


def test_grid_without_a_sweep_or_function_is_refused(home):
    (home / "small.py").write_text((home / "small.py").read_text().partition("\n\ndef get_sweep")[0])
    assert "defines no function get_sweep; expected `def get_sweep(argument=\"\"):`" in run_sweep(
        home, "--grid=paper").err
    assert "there is no sweep in" in run_sweep(home, config=False).err
    assert "there is no sweep in" in run_sweep(home, "--show").err
    for returned in ({}, {"a": "12"}, [], [{}], 3):
        with pytest.raises(UserError, match=r"expected {field: values}, or a list"):
            settings.from_grid(returned, "e.py")
    assert settings.from_grid([{"a": 1, "b.c": (0.9, 0.98)}], "e.py") == [(("a", "1"), ("b.c", "(0.9, 0.98)"))]


def test_names_are_short_distinct_and_safe_in_a_file_system():
    texts = ["a.b=1;c.b=(2, 3)", "a.b=../x y/*;c.b=''", f"a.b={'x' * 300};c.b=ü"]
    names = sweep.directory_names([fields for text in texts for fields in settings.parse_grid(text)])
    assert names[0] == "a.b=1,c.b=2-3" and names[1] == "a.b=..-x-y-,c.b="
    assert len(set(names)) == 3 and all(len(name) < 200 and Path(name).name == name for name in names)
    one, two = sweep.directory_names([(("a", "x/y"),), (("a", "x*y"),)])
    assert one == "a=x-y" and two.startswith("a=x-y-") and two != one
