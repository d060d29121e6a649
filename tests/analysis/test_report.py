"""The report of a run: its content, and that it survives whatever the files of a run contain."""

import base64
import dataclasses
import json
import shlex
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import jax
import numpy as np
import pytest

import lmrep
from lmrep import optimizers
from lmrep.analysis import report
from lmrep.analysis.report import attention, board, metrics, page, predictions, prose, recipes, run_data
from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment import inspection
from lmrep.storage.workdir import write_config
from lmrep.training.state import create
from tests import small

HOSTILE = 'The [MASK] </script><img src=//x> & <!--<script> \u2028'
TEXT = "The old [MASK] sees the red cat."


@pytest.fixture(scope="module")
def home(small_home):
    """A folder with `one`, a trained run, and `two`, that run as if it had started from `one` at another rate."""
    home = small_home
    (home / "run").rename(home / "one")
    edit_json(home / "one/config.json", name="<b>one</b>", samples=[TEXT, HOSTILE])
    command = ["/bin/lmrep", "train", f"--workdir={home / 'one'}", "--config=<i>.py", "--config.steps=12"]
    start = json.loads((home / "one/provenance.jsonl").read_text()) | {"command": shlex.join(command)}
    (home / "one/provenance.jsonl").write_text(json.dumps(start) + "\n")
    copy(home / "one", home / "two")
    edit_json(home / "two/config.json", init=str(home / "one"))
    edit_json(home / "two/config.json", "optimizer", learning_rate=2e-3)
    return home


def edit_json(path, section=None, **fields):
    """Changes fields of the config in a config.json, or of a section of it."""
    record = json.loads(path.read_text())
    (record["config"][section] if section else record["config"]).update(fields)
    write_config(path.parent, record)


def copy(source, target):
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(".lock")))


def remove(workdir, *names):
    for name in names:
        shutil.rmtree(workdir / name) if (workdir / name).is_dir() else (workdir / name).unlink()


@pytest.fixture(scope="module")
def data(home):
    return run_data.read(home / "one", "one", home / "data")


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "one")


@pytest.fixture(scope="module")
def predicted(data):
    return predictions.predict(data, 100_000)


class Page(HTMLParser):
    """A page taken apart: its visible text, its tags, what it refers to, its figures."""

    def __init__(self, source):
        super().__init__()
        self.source = source.read_text(encoding="utf8") if isinstance(source, Path) else source
        self.text, self.tags, self.links, self._inside = "", [], [], ""
        self.figures, self.scripts = None, []
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "srcset", "action", "data")]
        self._inside = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, text):
        if self._inside == "script":
            self.scripts.append(text)
            self.figures = json.loads(text) if text.startswith("{") else self.figures
        elif not self._inside:
            self.text += text


@pytest.fixture(scope="module")
def html(data, predicted):
    """The page of one run."""
    return Page(page.render([dataclasses.replace(data, predictions=predicted)]))


# Content of the page


def test_page_describes_the_run_and_its_results(home, html, data, run):
    last = small.lines(home / "one", "validation")[-1]
    for text in ("layers 2, width 32", f"{data.network.parameters:,} parameters", "12 steps", "the objective masked",
                 f"{last['mlm_accuracy']:.2%}", f"{last['most_frequent_accuracy']:.2%}", "device-hours",
                 "lmrep train --workdir=", "--config=<i>.py", "the peak of this device is not known"):
        assert text in html.text
    assert all(f'id="{name}"' in html.source for name in
               ("curves", "predictions", "attention", "config", "data", "speed", "reproduce"))
    assert data.network.parameters == sum(x.size for x in jax.tree.leaves(run.params))


def test_page_is_self_contained_and_small(html):
    assert all(link.startswith(("#", "data:,")) for link in html.links)
    assert "url(" not in html.source and "@import" not in html.source and "default-src 'none'" in html.source
    assert len(html.source) < 300_000


def test_texts_of_a_run_are_escaped(html):
    assert "img" not in html.tags and "i" in html.tags and html.tags.count("script") == 3 == len(html.scripts)
    assert HOSTILE.partition("[MASK] ")[2] in html.text
    assert html.source.count("</script>") == 3 and "\u2028" not in html.scripts[1]


def test_curves_have_axes_of_steps_tokens_and_operations(home, html, data):
    [run] = html.figures["runs"]
    assert run["validation"]["loss"] == pytest.approx(small.losses(home / "one", "validation"), rel=1e-4)
    assert run["train"]["tokens"] == [line["tokens"] for line in small.lines(home / "one", "train")]
    assert run["validation"]["step"] == [0, 6, 12] and run["validation"]["tokens"][0] == 0
    assert run["train"]["flop"] == pytest.approx(data.network.flops[0] * np.arange(1, 13), rel=1e-4)


def test_operations_are_summed_over_stages(data):
    stages = [dataclasses.replace(data.stage, steps=steps) for steps in (5, 3)]
    two = dataclasses.replace(data, stages=stages, network=dataclasses.replace(data.network, flops=(2, 7)))
    assert [two.flops_at(step) for step in (0, 1, 5, 6, 8, 9)] == [0, 2, 10, 17, 31, 31]


def test_long_curves_are_downsampled_by_averaging(data):
    found = run_data.curves(data, max_points=4)["train"]
    losses = [line["loss"] for line in data.train]
    assert found["step"] == [3, 6, 9, 12]
    np.testing.assert_allclose(found["loss"], np.reshape(losses, (4, 3)).mean(1), rtol=1e-4)


def test_predictions_are_those_of_the_run(data, run, predicted):
    assert len(predicted.samples) == 2 and predicted.samples[0].prompt[2] == " sees the red cat."
    [[candidates]] = run.fill_masks([TEXT])
    assert [word for word, _ in candidates] == [word for word, _ in predicted.samples[0].now]
    assert data.network.tokenizer.size > len(predicted.held_out["masked_tokens"]) > 4


@pytest.mark.slow
def test_predictions_before_training_are_those_of_the_source_run(home, predicted):
    second = predictions.predict(run_data.read(home / "two", "two", home / "data"), 0)
    held_out = predicted.held_out["masked_tokens"]
    for first, later in zip((*predicted.samples, *held_out), (*second.samples, *second.held_out["masked_tokens"]),
                            strict=True):
        assert later.target == first.target and later.before == first.now == later.now != first.before


def test_attention_equals_that_of_the_network(run, predicted):
    [found] = predicted.attention[0]["maps"]
    weights = np.frombuffer(base64.b64decode(found["weights"]), np.uint8).reshape(2, 4, len(found["queries"]), -1)
    [encoded] = run.encode([TEXT], attention=True)
    assert found["queries"] == found["keys"] == encoded.tokens and found["rows"] == found["columns"]
    np.testing.assert_allclose(weights / 255, encoded.attention, atol=0.5 / 255 + 1e-6)


@pytest.mark.slow
def test_untrained_parameters_are_those_at_step_0(data):
    objective, seed = data.network.objectives[0], data.experiment.seed
    optimizer = optimizers.build(data.stage.optimizer, objective.specs, 12)
    params = predictions._untrained(data, None, []).params
    start = jax.jit(lambda: create(objective, optimizer, 16, seed))()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), params, start.params)


def test_attention_fits_in_max_bytes(run):
    for max_bytes in (0, 700, 2000):
        found = [a["maps"][0] for a in attention.of_texts(run, [TEXT, TEXT + " The cat eats."], max_bytes)]
        assert sum(len(a["weights"]) for a in found) <= max_bytes
        assert bool(found) == (max_bytes > 0) and all(a["queries"][0] == "[CLS]" for a in found)


# Several runs


def test_several_runs_share_axes_and_list_config_differences(home, tmp_path):
    workdirs = [copy(home / name, tmp_path / name) for name in ("one", "two")]
    for workdir in workdirs:
        remove(workdir, "checkpoints", "tokenizer")  # which the test does not need
    result = small.command("report", *workdirs, f"--output={tmp_path / 'both.html'}", f"--data_dir={home / 'data'}")
    assert result.code == 0 and result.out == f"{tmp_path / 'both.html'}\n"
    assert result.err.splitlines() == [f"report: reading {name} and running its network, {number} of 2"
                                       for number, name in enumerate(("one", "two"), 1)]
    html = Page(tmp_path / "both.html")
    assert [run["label"] for run in html.figures["runs"]] == ["one", "two"]
    table = html.source.partition("Differences between configs")[2].partition("</table>")[0]
    assert [row.partition("</th>")[0] for row in table.partition("<tbody>")[2].split("<th>")[1:]] == [
        "init", "optimizer.learning_rate"]


def runs_of_seeds(data, accuracies, **changes):
    """Runs that differ in their seed, and of each the last validation accuracy."""
    def run(seed, accuracy):
        experiment = experiments.parse({**dataclasses.asdict(data.experiment), **changes, "seed": seed})
        line = {"step": 12, "loss": 1.0, "mlm_accuracy": accuracy, "mlm_loss": 2 + accuracy,
                "most_frequent_accuracy": 0.1}
        return dataclasses.replace(data, label=f"seed{seed}", experiment=experiment, validation=[line],
                                   stages=experiments.resolve_stages(experiment))
    return [run(seed, accuracy) for seed, accuracy in enumerate(accuracies)]


def test_runs_that_differ_only_in_seed_form_a_group(data):
    runs = [*runs_of_seeds(data, (0.3, 0.4)), *runs_of_seeds(data, (0.36,), batch_size=8)]
    groups = metrics.group_by_seed(runs)
    assert [[run.experiment.seed for run in group] for group in groups] == [[0, 1], [0]]
    cells = metrics.comparison(groups)["Masked-LM accuracy"]
    assert cells[0].text == "35.00% ± 7.07% (n = 2)" and cells[1].text == "36.00%" and cells[1].best
    assert metrics.comparison(groups)["Masked-LM loss"][0].text == "2.35 ± 0.07 (n = 2)"
    assert len(metrics.group_by_seed([runs[0], runs[0]])) == 2  # a repetition is no other seed


@pytest.mark.parametrize(("accuracies", "note"), [
    ((0.36, 0.35), "no difference found"), ((0.5, 0.6001), ""), ((0.5,), "too few pairs of seeds")])
def test_differences_within_the_noise_of_paired_seeds_are_reported_as_such(data, accuracies, note):
    groups = metrics.group_by_seed([*runs_of_seeds(data, (0.3, 0.4)), *runs_of_seeds(data, accuracies, batch_size=8)])
    assert metrics.comparison(groups)["Masked-LM accuracy"][0].note == note


def test_settings_that_change_validation_are_named(data):
    def settings(**changes):
        runs = [*runs_of_seeds(data, (0.3,)), *runs_of_seeds(data, (0.4,), **changes)]
        return metrics.differing_settings(metrics.group_by_seed(runs))

    pair = {"objective": {**data.experiment.objective, "sentence_pair": True}, "format": {"name": "segment_pair"}}
    [(titles, fields)] = settings(**pair).items()
    assert titles == "Masked-LM loss, Masked-LM accuracy"
    assert "format.name" in fields and "objective.sentence_pair" not in fields
    assert settings(steps=24) == {}


def test_runs_with_and_without_sentence_pairs_are_compared(data):
    def run(pair, **fields):
        objective = {**data.experiment.objective, "sentence_pair": pair, **fields}
        return runs_of_seeds(data, (0.3,), objective=objective, format={"name": "segment_pair"})[0]

    assert metrics.differing_settings(metrics.group_by_seed([run(True), run(False)])) == {}
    [fields] = metrics.differing_settings(metrics.group_by_seed([run(True), run(False, rate=0.2)])).values()
    assert fields == ["objective.rate"]


def test_run_labels_are_distinct(tmp_path):
    workdirs = [tmp_path / "a/x", tmp_path / "b/x"]
    assert report.labels(workdirs) == ["a/x", "b/x"] and report.labels(workdirs[:1]) == ["x"]
    with pytest.raises(UserError, match="given twice"):
        report.labels([tmp_path / "a", tmp_path / "b/../a"])


# Time


def test_time_is_summed_over_every_start(data):
    def start(clock):
        devices = {"kind": "NVIDIA H100 80GB HBM3", "count": 8, "platform": "gpu"}
        return {"time": f"2026-01-02T{clock}+0000", "devices": devices}

    began = 1767312000  # 2026-01-02 00:00 UTC
    timing = [{"step": n, "time": began + t, "tokens_per_second": 10.0, "steps_per_second": 2.0}
              for n, t in ((1, 30), (2, 60), (3, 3600 + 90))]
    resumed = dataclasses.replace(data, starts=[start("00:00:00"), start("00:30:00"), start("01:00:00")], timing=timing,
                                  cost=None)
    assert run_data.seconds(resumed) == 60 + 90
    assert run_data.seconds(dataclasses.replace(resumed, cost=data.cost)) == data.cost.seconds
    assert run_data.seconds(dataclasses.replace(resumed, timing=())) is None
    fast, flops = page._speed(resumed), 2 * data.network.flops[0]
    assert fast["utilization"] == f"{flops / (8 * 989e12):.1%} of {prose.number(8 * 989e12)} FLOP/s in bfloat16"
    assert fast["FLOP per second"] == prose.number(flops)
    assert "2 min 30 s, over 3 starts on 8 NVIDIA H100 80GB HBM3 devices: 0.333 device-hours" in prose.cost(resumed)


def test_verdict_follows_the_metrics(data, predicted):
    def evaluated(accuracy, loss, steps=12, before=5.0):
        lines = [{"step": n, "loss": total, "mlm_accuracy": accuracy, "most_frequent_accuracy": 0.2, "mlm_loss": loss}
                 for n, total in ((0, before), (6, before), (steps, loss))]
        found = dataclasses.replace(data, validation=lines, step=steps, predictions=predicted)
        return prose.verdict(found).mark, " ".join(text for text, _ in prose.next_steps(found))

    assert evaluated(0.7, 0.5)[0] == "good" and evaluated(0.3, 2.0)[0] == "some" and evaluated(0.2, 3.5)[0] == "bad"
    assert evaluated(0.7, 3.5)[0] == evaluated(0.2, 2.0)[0] == "bad"  # a single figure does not decide
    assert "still falling" in evaluated(0.7, 2.5)[1] and "Overfitting" in evaluated(0.7, 2.5, before=1.0)[1]
    assert "stopped at step 8 of 12" in evaluated(0.7, 2.5, steps=8)[1] and "stopped" not in evaluated(0.7, 2.5)[1]
    assert prose.verdict(dataclasses.replace(data, validation=())).mark == "unknown"


def test_losses_of_stages_with_another_objective_are_not_compared(data, predicted):
    """A larger loss of another masking rule is no overfitting."""
    lines = [{"step": n, "loss": loss, "mlm_accuracy": 0.7, "most_frequent_accuracy": 0.2, "mlm_loss": loss}
             for n, loss in ((0, 5.0), (3, 1.0), (6, 1.0), (9, 2.0), (12, 2.0))]
    for rate, overfitting in ((0.15, True), (0.2, False)):
        config = {**dataclasses.asdict(data.experiment), "stages": (
            {"fraction": 0.5}, {"fraction": 0.5, "objective": {"rate": rate}})}
        experiment = experiments.parse(config)
        run = dataclasses.replace(data, experiment=experiment, stages=experiments.resolve_stages(experiment),
                                  validation=lines, predictions=predicted)
        assert any("Overfitting" in text for text, _ in prose.next_steps(run)) == overfitting
        text = prose.verdict(run).text
        assert ("before training" in text, "at step 9" in text) == (overfitting, not overfitting)


def test_a_run_is_trained_for_twice_its_budget_or_twice_its_steps(data):
    def commands(budget):
        lines = [{"step": n, "loss": loss, "mlm_loss": loss} for n, loss in ((0, 5.0), (6, 4.0), (12, 3.0))]
        experiment = dataclasses.replace(data.experiment, budget=budget)
        return [command for _, command in prose.next_steps(dataclasses.replace(
            data, experiment=experiment, validation=lines, step=experiment.steps))]

    assert any(command.endswith("--config.budget=20m") for command in commands("10m"))
    assert any(command.endswith("--config.budget=90s") for command in commands("45s"))
    assert any(command.endswith(f"--config.steps={2 * data.experiment.steps}") for command in commands(""))


# Missing and damaged files


@pytest.mark.parametrize(("names", "texts"), [
    pytest.param(["checkpoints", "metrics.jsonl", "timing.jsonl"], [
        "holds no checkpoint yet", "It has not been trained."], marks=pytest.mark.slow),
    (["tokenizer", "provenance.jsonl", "timing.jsonl", "cost.jsonl"], [
        "The tokenizer or the network could not be rebuilt", "No start is recorded", "Training time was not logged"]),
])
def test_missing_data_is_reported(home, tmp_path, names, texts):
    workdir = copy(home / "one", tmp_path / "one")
    remove(workdir, *names)
    html = Page(report.write([workdir], data_dir=home / "data"))
    assert all(text in html.text for text in texts) and len(html.scripts) == 3


def test_damaged_lines_are_skipped_and_counted(home, tmp_path):
    workdir = copy(home / "one", tmp_path / "one")
    remove(workdir, "checkpoints", "tokenizer")  # which would be read without need
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b'{"step": 1, "split"\n', b"\xff\xfe\n", b"[1]\n", b'{"split": "train"}\n',
                               lines[1], b'{"step": 3, "split": "train", "loss": "nan", "tokens": 9}\n', lines[2][:9]]))
    html = Page(report.write([workdir], data_dir=home / "data"))
    assert "metrics.jsonl: 5 of 8 lines are damaged" in html.text
    assert html.figures["runs"][0]["train"]["loss"][1] is None


@pytest.mark.parametrize(("name", "text", "note"), [
    ("metrics.jsonl", '{"step": 20}', "split is missing"),
    ("metrics.jsonl", '{"step": 20, "split": "train", "loss": {}}', "a number as 'loss'"),
    ("metrics.jsonl", '{"step": ' + "9" * 400 + ', "split": "train"}', "an integer has 400 digits"),
    ("metrics.jsonl", "[" * 50_000, "nests deeper than 100 levels"),
    ("timing.jsonl", '{"step": 1, "steps_per_second": "nan"}', "a number as 'steps_per_second'"),
    ("provenance.jsonl", '{"time": 3}', "time is 3"),
    ("provenance.jsonl", '{"time": "", "devices": {"platform": "cpu", "kind": "cpu", "count": 0, "processes": 1}}',
     "devices.count is 0"),
    ("eval.jsonl", '{"step": -1}', "step is -1"),
    ("cost.jsonl", '{"start": "a", "step": 1}', "is missing"),
    ("plan.json", '{"title": 1}', "plan.json is damaged: "),
    ("probes.json", '{"probes": [[]]}', "probes.0 is []"),
    ("heads.json", "{", "heads.json is damaged: it is not JSON"),
])
def test_damaged_records_are_left_out_with_a_note(home, tmp_path, name, text, note):
    workdir = copy(home / "one", tmp_path / "one")
    remove(workdir, "checkpoints", "tokenizer")
    (workdir / name).write_text(text)
    found = run_data.read(workdir, "one", home / "data")
    assert [name for each in found.notes if note in each and name in each] == [name], found.notes
    assert name in page.render([found])


def test_missing_token_stores_are_not_created(home, tmp_path):
    workdir = copy(home / "one", tmp_path / "one")
    remove(workdir, "checkpoints", "tokenizer")
    html = Page(report.write([workdir], data_dir=tmp_path / "elsewhere"))
    assert "The tokenized corpus is not in" in html.text and not (tmp_path / "elsewhere").exists()


# The command


@pytest.mark.slow
def test_converted_run_names_its_source_and_how_to_evaluate_it(home, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # which takes seconds to import
    source = Path(__file__).parent.parent / "interop/golden/bert"
    assert small.command("convert", source, tmp_path / "run").code == 0
    found = run_data.read(tmp_path / "run", "run", home / "data")
    predicted = predictions.predict(found, 10**6)
    found = dataclasses.replace(found, predictions=predicted)
    assert f"converted from {source}" in prose.subject(found) and not found.notes
    assert [(sample.before, len(sample.now)) for sample in predicted.samples] == [(None, 5)]
    assert any("lmrep evaluate" in command for _, command in prose.next_steps(found))
    assert {name.partition(".")[0] for name, *_ in recipes.compare(found).differing} == {"model"}
    assert len(page.render([found])) < 2e6


@pytest.mark.slow
def test_converted_run_without_head_gets_no_advice_that_needs_it(tmp_path):
    source = Path(__file__).parent.parent / "interop/golden/electra_discriminator"
    assert small.command("convert", source, tmp_path / "run").code == 0
    found = run_data.read(tmp_path / "run", "run", tmp_path / "data")
    found = dataclasses.replace(found, predictions=predictions.predict(found, 0))
    commands = [command for _, command in prose.next_steps(found)]
    assert any("lmrep embed" in command for command in commands)
    assert not any("lmrep evaluate" in command for command in commands)


def test_a_resumed_run_is_repeated_by_the_command_that_names_its_config():
    first = ["lmrep", "train", "--config=page.py:size=tiny", "--workdir=run", "--config.steps=800"]
    resumed = ["lmrep", "train", "--workdir=run", "--config.steps=4000"]
    assert prose._from_the_beginning([first, resumed, resumed[:3]]) == [*first[:-1], "--config.steps=4000"]
    assert prose._from_the_beginning([resumed]) == resumed


def test_epochs_are_those_of_inspect(home, tmp_path):
    """However many examples a format makes of the same text."""
    edit_json(copy(home / "one", tmp_path / "run") / "config.json", "format", duplicates=3)
    found = run_data.read(tmp_path / "run", "", home / "data")
    shown = inspection.report(found.experiment, home / "data", examples=0)
    assert f"{found.step} steps are {found.epochs:,.2f} epochs" in shown
    assert f"{found.epochs:,.1f} epochs" in prose.subject(found)
    assert found.epochs == pytest.approx(run_data.read(home / "one", "", home / "data").epochs, rel=0.05)


# All runs of a folder


def test_the_board_has_a_row_for_each_run_and_the_fields_in_which_they_differ(home, tmp_path, caplog):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/config.json").write_text("{")
    written = Page(board.write([home, tmp_path], tmp_path / "board.html"))
    assert "2 runs" in written.text and "damaged is left out" in caplog.text
    one, two = written.figures["configs"]
    assert one.keys() == two.keys() == {"init", "optimizer.learning_rate"}
    assert (one["optimizer.learning_rate"], two["optimizer.learning_rate"]) == ("0.001", "0.002")
    assert written.figures["same"]["model.width"] == "32" and "img" not in written.tags
    last = small.lines(home / "one", "validation")[-1]
    assert f"{last['mlm_accuracy']:.2%}" in written.text and written.tags.count("path") == 2
    assert all(link.endswith("/report.html") for link in written.links if not link.startswith("data:,"))


def test_a_board_of_no_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no run in"):
        board.write([tmp_path])
    with pytest.raises(UserError, match="is no folder"):
        board.write([tmp_path / "absent"])
    assert not list(tmp_path.iterdir())
