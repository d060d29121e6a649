"""The report of runs of tasks: what their files contain, what the page says of it, and damaged files."""

import dataclasses
import json
import math
import shutil

import pytest

import lmrep
from lmrep.analysis import report
from lmrep.analysis.report import metrics, page, prose, recipes, results, run_data, tables
from lmrep.analysis.report.results import Confusion
from lmrep.data.records import Record
from lmrep.experiment import config as experiments
from lmrep.experiment.fine_tuning import compose_known
from lmrep.metrics.verdict import BAG_OF_WORDS, Row
from lmrep.tasks import TASKS
from lmrep.tasks.known import published
from lmrep.tasks.tagging import Config as TaggingConfig
from tests import runs
from tests.analysis.test_report import Page
from tests.runs import LABELS
from tests.tasks import tiny

HOSTILE = "good </script><img src=//x> & \u2028"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A copy of the shared classifier with its report, whose worst example has a hostile text."""
    workdir = runs.copy("classification", tmp_path_factory.mktemp("tasks") / "run")
    lines = predicted(workdir)
    min(lines, key=lambda one: one["prediction"]["probabilities"][one["label"]])["text"] = HOSTILE
    tiny.write(workdir / "predictions/validation.jsonl", lines)
    report.write([workdir], data_dir=workdir.parent / "data")
    return workdir


@pytest.fixture(scope="module")
def html(workdir):
    return Page(workdir / "report.html")


def read(workdir):
    return run_data.read(workdir, "run", workdir.parent / "data")


@pytest.fixture(scope="module")
def data(workdir):
    return read(workdir)


def predicted(workdir):
    text = (workdir / "predictions/validation.jsonl").read_text()
    return [json.loads(line) for line in text.rstrip("\n").split("\n")]


def copy(workdir, tmp_path):
    return shutil.copytree(workdir, tmp_path / "run", ignore=shutil.ignore_patterns(".lock", "checkpoints"))


# The page


def test_the_page_has_results_and_data(html, data, workdir):
    best = json.loads((workdir / "results.json").read_text())["evaluations"][0]
    low, high = best["intervals"]["accuracy"]
    records = (runs.folder("classification") / "train.jsonl").read_text()
    count = records.count(f'"label": "{LABELS[0]}"')
    for text in (f"{best['metrics']['accuracy']:.2%} ({low:.1%} to {high:.1%})", "Confusion table", "Worst examples",
                 f"step {best['step']}, 44 examples", "Accuracy of the most frequent class", "trained for the task",
                 "on 120 examples", "3.2 epochs", f"{count} ({count / 120:.1%})", HOSTILE):
        assert text in html.text
    assert not data.notes and 'id="predictions"' not in html.source
    assert "FLOPs of the run, exact" in html.text and "FLOPs by" not in html.text  # batches differ in length
    assert all(f'id="{name}"' in html.source for name in ("results", "curves", "attention", "config", "data"))
    assert html.figures["runs"][0]["validation"]["accuracy"] and html.figures["attention"]


def test_texts_are_escaped(html):
    assert "img" not in html.tags and "i" not in html.tags and LABELS[0] in html.text and len(html.scripts) == 3


def test_the_best_checkpoint_is_judged(data, workdir):
    best = json.loads((workdir / "results.json").read_text())["evaluations"][0]
    assert data.judged["step"] == best["step"] > 0
    assert data.last("validation", "accuracy") == pytest.approx(best["metrics"]["accuracy"])
    lines = [{"step": step, "accuracy": value} for step, value in ((0, 0.9), (4, 0.6), (8, 0.7), (12, 0.7))]
    stopped = dataclasses.replace(data, validation=lines, results=results.Results())
    assert stopped.judged["step"] == 8  # step 0 has no checkpoint, and of equal ones the first is kept


def test_confusions_and_worst_examples_are_those_of_the_predictions(data, workdir):
    found = predicted(workdir)
    assert data.results.examples == len(found) == sum(data.results.confusion.counts.values())
    correct = sum(one["label"] == one["prediction"]["label"] for one in found)
    assert sum(data.results.confusion.row(name)[i] for i, name in enumerate(LABELS)) == correct
    worst = min(found, key=lambda one: one["prediction"]["probabilities"][one["label"]])
    texts, gold, _ = data.results.worst[0]
    assert texts["text"] == worst["text"] and len(data.results.worst) == results.WORST
    assert gold.startswith(worst["label"])


@pytest.mark.parametrize(("accuracy", "interval", "mark", "text"), [
    (0.525, [0.4, 0.7], "bad", "This run failed"), (0.6, [0.5, 0.7], "some", "within the 95% interval"),
    (0.8, [0.7, 0.9], "good", "clearly better"), (0.8, None, "some", "is better than its baseline")])
def test_verdict_compares_with_the_baseline(data, accuracy, interval, mark, text):
    line = {"step": 8, "loss": 0.5, "accuracy": accuracy, "majority_accuracy": 0.525}
    evaluation = {"step": 8, "split": "validation", "examples": 40, "metrics": line,
                  "intervals": {"accuracy": interval} if interval else {}}
    results = dataclasses.replace(data.results, evaluations=[evaluation], bag=None)
    run = dataclasses.replace(data, validation=[line], results=results)
    verdict = prose.verdict(run)
    assert verdict.mark == mark and text in verdict.headline and "52.50%" in verdict.text
    advice = " ".join(text for text, _ in prose.next_steps(run))
    assert ("recipe=mosbach" in advice) == (mark == "bad")
    unfinished = prose.verdict(dataclasses.replace(run, step=4))
    assert "failed" not in unfinished.headline and unfinished.mark == mark


def test_a_run_below_a_bag_of_words_says_so_and_the_page_has_both(data, html, workdir):
    bag = Row(BAG_OF_WORDS, "a bag of words", {"accuracy": 0.9})
    line = {"step": 8, "loss": 0.5, "accuracy": 0.8, "majority_accuracy": 0.525}
    run = dataclasses.replace(data, validation=[line], results=dataclasses.replace(data.results, bag=bag))
    assert prose.verdict(run)[:2] == ("bad", "This run is no better than a bag of words (by accuracy).")
    assert page.comparison(run)[1:4] == [["the most frequent class", "52.50%"], ["a bag of words", "90.00%"],
                                         ["this model at step 8", "80.00%"]]
    rows = json.loads((workdir / "results.json").read_text())["comparison"]
    assert page.comparison(data)[1:-1] == [[row["title"], f"{row['metrics']['accuracy']:.2%}"] for row in rows]
    assert all(row["title"] in html.text for row in rows)


def test_a_run_that_ends_below_its_start_says_so(data):
    """However far it is above its baseline."""
    lines = [{"step": step, "loss": 0.5, "accuracy": value, "majority_accuracy": 0.5} for step, value in (
        (0, 0.9), (4, 0.8), (8, 0.7))]
    verdict = prose.verdict(dataclasses.replace(data, validation=lines, results=results.Results()))
    assert verdict.mark == "bad" and "ended below its start" in verdict.headline and "90.00%" in verdict.headline


def test_metrics_without_baseline_are_compared_with_those_before_training(data):
    lines = [{"step": step, "loss": 0.5, "accuracy": value} for step, value in ((0, 0.5), (8, 0.6))]
    run = dataclasses.replace(data, validation=lines)
    assert "from 50.00% before training to 60.00%" in prose.verdict(run).headline
    assert prose.verdict(dataclasses.replace(run, validation=())).mark == "unknown"


def test_runs_of_other_seeds_form_a_group(data):
    def run(seed, accuracy):
        line = {"step": 8, "accuracy": accuracy, "majority_accuracy": 0.5}
        return dataclasses.replace(data, label=f"seed{seed}", validation=[line], results=results.Results(),
                                   experiment=dataclasses.replace(data.experiment, seed=seed))

    [group] = metrics.group_by_seed([run(0, 0.6), run(1, 0.7)])
    assert metrics.comparison([group])["Accuracy"][0].text == "65.00% ± 7.07% (n = 2)"


def test_runs_on_the_same_validation_records_are_comparable(data):
    def other(records, **fields):
        experiment = dataclasses.replace(data.experiment, data=dataclasses.replace(
            data.experiment.data, train="half.jsonl", **fields), length=16, tokenizer=dataclasses.replace(
            data.experiment.tokenizer, vocab_size=50))
        statistics = {"validation": data.results.splits["validation"] | {"records": records}}
        return dataclasses.replace(data, label="other", experiment=experiment,
                                   results=dataclasses.replace(data.results, splits=statistics))

    def settings(run):
        return metrics.differing_settings(metrics.group_by_seed([data, run]))

    same = data.results.splits["validation"]["records"]
    assert settings(other(same, validation="moved.jsonl")) == {}
    assert settings(other("x", validation="other.jsonl")) == {"Accuracy": ["data.validation"]}


@pytest.mark.slow
def test_a_head_and_generated_classes_are_compared_in_one_table(tmp_path):
    """The same metrics of the same examples, whatever their classes are called and wherever the files are."""
    home = runs.folder("classification")
    validation = shutil.copy(home / "dev.jsonl", tmp_path / "dev.jsonl")
    tasks = []
    for task, fields in (("classification", {}), ("text_to_text", {
            "data__columns": {"target": "label"}, "data__label_map": dict(zip(LABELS, ("bad", "good"), strict=True)),
            "objective__max_target": 4, "objective__positive": "good"})):
        config = tiny.config(task, home / "train.jsonl", validation if fields else home / "dev.jsonl", steps=1,
                             objective__metrics=("accuracy", "f1"), checkpoint__best="accuracy", **fields)
        lmrep.train(config, tmp_path / task)
        tasks.append(run_data.read(tmp_path / task, task, tmp_path / "data"))
    groups = metrics.group_by_seed(tasks)
    found = metrics.comparison(groups)
    for title, name in (("Accuracy", "accuracy"), ("F1 of the positive class", "f1")):
        assert [cell.text for cell in found[title]] == [f"{run.last('validation', name):.2%}" for run in tasks]
    assert [cell.text == "" for cell in found["Loss of the target's tokens"]] == [True, False]
    assert metrics.differing_settings(groups) == {}
    other = {"validation": tasks[1].results.splits["validation"] | {"records": "other"}}
    tasks[1] = dataclasses.replace(tasks[1], results=dataclasses.replace(tasks[1].results, splits=other))
    assert metrics.differing_settings(metrics.group_by_seed(tasks)) == {
        "Accuracy, F1 of the positive class": ["data.validation"]}


def test_published_figures_are_shown_for_a_known_set(data):
    known = dataclasses.replace(data, experiment=dataclasses.replace(data.experiment, name="sst2"))
    rows = tables.published(known)["rows"]
    assert rows[0] == ("run (this run)", f"{100 * data.last('validation', 'accuracy'):.1f}")
    assert dict(rows[1:]) == {system: f"{figure:.1f}" for system, figure in published("sst2").items()}
    assert tables.published(data) == {}


def test_most_frequent_confusions_replace_a_large_table(data):
    classes = [str(i) for i in range(tables.MAX_CLASSES + 1)]
    confusion = Confusion(classes, {(name, name): 5 for name in classes} | {("0", "1"): 3, ("2", "1"): 15})
    assert tables.confusions(confusion) == [("2", "1", "15", "75.0%"), ("0", "1", "3", "37.5%")]
    html = page.render([dataclasses.replace(data, results=dataclasses.replace(data.results, confusion=confusion))])
    assert "Most frequent confusions" in html and "Confusion table" not in html


# Files


def test_missing_and_damaged_files_are_reported(workdir, tmp_path):
    copied = copy(workdir, tmp_path)
    (copied / "data.json").unlink()
    (copied / "results.json").write_text("{")
    path = copied / "predictions/validation.jsonl"
    lines = path.read_text().rstrip("\n").split("\n")
    path.write_text("\n".join(["[1]", lines[0][:20], '{"id": "1", "text": 3, "label": "yes", "prediction": {}}',
                               *lines[3:]]) + "\n")
    html = Page(report.write([copied], data_dir=tmp_path))
    for text in ("results.json is damaged", "3 of 44 lines are damaged", "statistics of the examples are not recorded",
                 "No trained parameters"):
        assert text in html.text
    shutil.rmtree(copied / "predictions")
    assert not read(copied).results.confusion.classes


def test_evaluations_are_listed_with_the_newest_of_equal_ones(workdir, tmp_path):
    copied = copy(workdir, tmp_path)
    line = {"step": 4, "files": "other.jsonl", "examples": 7, "intervals": {"accuracy": [0.2, 0.6]}}
    (copied / "eval.jsonl").write_text("".join(
        json.dumps(line | {"metrics": {"accuracy": value}}) + "\n" for value in (0.3, 0.4)))
    shown = tables.evaluations(read(copied))
    assert [name for name in shown["head"] if "other" in name] == ["other.jsonl, step 4, 7 examples"]
    assert dict((row[0], row[-1]) for row in shown["rows"])["Accuracy"] == "40.00% (20.0% to 60.0%)"


def test_predictions_of_another_evaluation_have_no_step(workdir, tmp_path):
    copied = copy(workdir, tmp_path)
    assert read(copied).results.step is not None
    path = copied / "predictions/validation.jsonl"
    path.write_text(path.read_text().partition("\n")[0])
    assert read(copied).results.step is None


# Tasks


@pytest.mark.parametrize(("task", "config", "fields", "right", "wrong"), [
    ("classification", None, {"text": "a", "label": "x"}, {"label": "x", "probabilities": {"x": 0.9, "y": 0.1}},
     {"label": "y", "probabilities": {"x": 0.1, "y": 0.9}}),
    ("multiple_choice", None, {"text": "a", "choices": ["b", "c"], "label": "1"},
     {"choice": 1, "probabilities": [0.2, 0.8]}, {"choice": 0, "probabilities": [0.8, 0.2]}),
    ("regression", None, {"text": "a", "label": "2"}, {"value": 2.1}, {"value": 4.0}),
    ("span_extraction", None, {"question": "a", "context": "b c", "answers": [["b", 0]]},
     {"answer": "b", "probability": 0.9}, {"answer": "c", "probability": 0.9}),
    ("tagging", TaggingConfig(scheme="BIO"), {"words": ["a", "b"], "tags": ["B-X", "O"]},
     {"tags": ["B-X", "O"], "probabilities": [0.9, 0.9]}, {"tags": ["O", "O"], "probabilities": [0.9, 0.9]})])
def test_comparisons_of_tasks_order_predictions(task, config, fields, right, wrong):
    definition = TASKS[task]
    config = config or definition.objective.config()
    good, bad = (definition.compare(config, Record(fields, "0", ""), each) for each in (right, wrong))
    assert 0 <= good.loss < bad.loss < math.inf and bad.gold and bad.predicted
    assert len(good.classes) == len(bad.classes)
    assert all(gold == label for gold, label in good.classes) and (
        not bad.classes or any(gold != label for gold, label in bad.classes))


def test_fine_tuned_runs_are_compared_with_recipes_of_fine_tuning(data):
    def run(**fields):
        config = compose_known("recipe=roberta,init=source,mesh=1x1x1", "sst2")
        config.data.train = "train.tsv"
        config.update_from_flattened_dict(fields)
        experiment = experiments.parse(config)
        return dataclasses.replace(data, experiment=experiment, stages=experiments.resolve_stages(experiment),
                                   results=results.Results())

    assert recipes.compare(run()).paper == "roberta" and not recipes.compare(run()).differing
    [(field, ours, theirs, _)] = recipes.compare(run(**{"optimizer.weight_decay": 0.3})).differing
    assert (field, ours, theirs) == ("optimizer.weight_decay", 0.3, 0.1)
    assert recipes.compare(data) is None  # from random parameters
