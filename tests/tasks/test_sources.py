"""A run on several data sets: copied texts and classes in words, each with its prefix and its metrics."""

import json
import random

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.data.records.encoding import Source, Units
from lmrep.experiment import config as experiments
from lmrep.experiment import data_sets, task_data
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import TASKS
from lmrep.tasks.mixture import mixed
from tests import small
from tests.tasks import tiny
from tests.tasks.test_text_to_text import SIZES

COUNTS = {"copy": (96, 12), "choose": (32, 10)}


def examples(name, count, seed):
    draw = random.Random(f"{name}{seed}")
    texts = [tiny.sentence(draw, draw.randint(1, 3)) for _ in range(count)]
    if name == "copy":
        return [{"text": text, "target": text} for text in texts]
    return [{"first": text, "target": "1" if "cat" in text else "0"} for text in texts]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("sources")
    for name, counts in COUNTS.items():
        for split, count in zip(("train", "dev"), counts, strict=True):
            tiny.write(home / f"{name}.{split}.jsonl", examples(name, count, split))
    return home


def config(home, **fields):
    own = {"model__" + name: value for name, value in SIZES.items()} | {"objective__max_target": 8, "steps": 6}
    c = tiny.config("text_to_text", "", None, **own | fields)
    copy, choose = ({"train": f"{home}/{name}.train.jsonl", "validation": f"{home}/{name}.dev.jsonl"}
                    for name in COUNTS)
    c.sources = (
        {"name": "copy", "data": copy, "objective": {"template": "copy {text}", "metrics": ("chrf",)}},
        {"name": "choose", "data": choose | {"columns": {"text": "first"}, "label_map": {"0": "bad", "1": "good"}},
         "objective": {"template": "choose {text}", "metrics": ("accuracy", "f1"), "positive": "good"}})
    return c


def changed(home, source, **fields):
    c = config(home)
    own = [dict(each) for each in c.sources]
    own[source].update(fields)
    c.sources = tuple(own)
    return c


@pytest.fixture(scope="module")
def trained(home):
    c = config(home, temperature=1.0, size_cap=64, steps=24, log__report=True, checkpoint__best="score",
               evaluation__every=8, checkpoint__every=8)
    lmrep.train(c, home / "run")
    return home / "run"


@pytest.mark.slow
def test_a_mixture_of_packed_pairs_that_is_interrupted_and_resumed_equals_an_uninterrupted_one(home, tmp_path):
    fields = {"format__packed": True, "checkpoint__every": 2, "evaluation__every": 3, "model__dropout": 0.1}
    lmrep.train(config(home, **fields), tmp_path / "one")
    small.interrupted(tmp_path / "one", tmp_path / "two")
    lmrep.train(config(home, **fields), tmp_path / "two")
    assert small.lines(tmp_path / "two") == small.lines(tmp_path / "one")
    jax.tree.map(np.testing.assert_array_equal, *(lmrep.load(tmp_path / name).params for name in ("one", "two")))
    with pytest.raises(UserError, match=r"sources\.0\.weight: 1\.0 -> 2\.0"):
        other = config(home, **fields)
        other.sources = ({**other.sources[0], "weight": 2.0}, other.sources[1])
        lmrep.train(other, tmp_path / "two")


@pytest.mark.slow
def test_validation_has_the_metrics_of_each_source_and_their_mean(trained):
    """They equal those of each task alone on the same predictions; the best checkpoint has the best score."""
    lines = small.lines(trained, "validation")
    best = max(lines[1:], key=lambda line: line["score"])
    step = lmrep.load(trained).step
    [line] = [line for line in lines if line["step"] == step]
    assert line["score"] == best["score"]
    own = [json.loads(line) for line in (trained / "predictions/validation.jsonl").read_text().splitlines()]
    pairs = {name: ([each["target"] for each in own if each["source"] == name],
                    [each["prediction"]["text"] for each in own if each["source"] == name]) for name in COUNTS}
    assert [len(gold) for gold, _ in pairs.values()] == [12, 10]
    expected = {"copy/chrf": TASK_METRICS["chrf"].function(*pairs["copy"]),
                "choose/accuracy": TASK_METRICS["accuracy"].function(*pairs["choose"]),
                "choose/f1": TASK_METRICS["f1"].function(*pairs["choose"], positive="good")}
    assert {name: line[name] for name in expected} == pytest.approx(expected)
    assert line["score"] == pytest.approx((expected["copy/chrf"] + 100 * expected["choose/accuracy"]) / 2)
    assert line["loss"] == pytest.approx((line["copy/lm_loss"] + line["choose/lm_loss"]) / 2)
    assert lmrep.evaluate(trained) == pytest.approx({name: line[name] for name in lmrep.evaluate(trained)})
    assert {"copy/chrf", "choose/f1"} <= json.loads((trained / "eval.json").read_text())["intervals"].keys()


@pytest.mark.slow
def test_the_results_of_a_source_are_those_of_its_task_alone(home, trained):
    run = lmrep.load(trained)
    experiment = run.experiment
    [copy, choose] = experiment.data_sets()
    whole = lmrep.evaluate(trained)
    for source in (copy, choose):
        alone = lmrep.evaluate(trained, source=source.name)
        assert alone["loss"] == pytest.approx(whole[f"{source.name}/lm_loss"])
        own = {name: value for name, value in whole.items() if name.startswith(source.name)}
        assert {name: alone[name] for name in own} == pytest.approx(own)
    found = lmrep.evaluate(trained, files=f"{home}/choose.dev.jsonl", source="choose")
    assert found["choose/accuracy"] == pytest.approx(whole["choose/accuracy"])
    with pytest.raises(UserError, match="give the one that the files are like: --source=NAME"):
        lmrep.evaluate(trained, files=f"{home}/choose.dev.jsonl")
    with pytest.raises(UserError, match=r"the source is 'choos'.*did you mean 'choose'"):
        lmrep.evaluate(trained, source="choos")


@pytest.mark.slow
def test_predictions_take_a_source_or_a_text_with_its_prefix(trained):
    run = lmrep.load(trained)
    [one] = run.predict(["cat dog"], source="copy")
    [other] = run.predict(["copy cat dog"])
    [named] = run.predict([{"text": "cat dog", "source": "copy"}])
    assert one == other == named
    with pytest.raises(UserError, match="the source is 'sst2'"):
        run.predict(["cat dog"], source="sst2")
    answer = small.command("predict", f"--workdir={trained}", "--source=choose", "cat dog")
    assert answer.code == 0 and answer.out.endswith("\tcat dog\n")
    answer = small.command("evaluate", f"--workdir={trained}")
    assert "choose/accuracy" in answer.out and "95 % interval" in answer.out, answer


def test_training_examples_are_mixed_in_proportion_and_tokenized_with_their_prefixes(home):
    c = experiments.parse(config(home, temperature=1.0, size_cap=64))
    prepared = task_data.prepare_examples(c, c.tokenizer)
    assert prepared.splits["train"].fractions().tolist() == pytest.approx([2 / 3, 1 / 3])
    assert {"copy", "choose"} <= set(prepared.tokenizer.tokens)
    assert prepared.experiment.checkpoint.best == "score"
    c = experiments.parse(config(home, temperature=1.0, format__packed=True))
    packed = task_data.prepare_examples(c, c.tokenizer)
    store, counts = packed.splits["train"], np.array([96, 32])
    shown = store.fractions() * counts / np.diff(store.bounds)  # in examples
    np.testing.assert_allclose(shown / shown.sum(), counts / counts.sum(), atol=2e-4)
    assert packed.splits["validation"].slots == 1


def test_small_sources_have_all_their_text_in_the_tokenizer_and_large_ones_their_fraction(home):
    c = experiments.parse(config(home))
    own = data_sets.read_split(c, "train")
    texts = task_data.training_texts(c, data_sets.task_of(c), None, own)
    every = [text for record in own for text in TASKS["text_to_text"].templates.texts(
        data_sets.config_of(c, record.source), record)]
    assert sum(text.startswith("choose") for text in texts) == 32
    assert sum(map(len, texts)) < sum(map(len, every))


def test_metrics_of_sources_without_targets_are_left_out():
    task = TASKS["text_to_text"]
    own = task.objective.config(metrics=("accuracy",))
    metrics = mixed(task, {"a": own}).objective.metrics
    assert metrics["a/accuracy"].baseline == "a/majority_accuracy" and metrics["a/accuracy"].headline
    assert not metrics["a/bleu"].headline and metrics["score"].higher_is_better


def test_a_mixture_is_scored_by_each_source_and_their_mean():
    """By the metrics and the targets of each, in the order of the records."""
    task = TASKS["text_to_text"]
    configs = {"copy": task.objective.config(metrics=("chrf",)),
               "choose": task.objective.config(metrics=("accuracy", "f1"), positive="good")}
    given = [("copy", "cat dog", "cat dog"), ("choose", "good", "good"), ("copy", "bird", "fish"),
             ("choose", "bad", "good"), ("choose", "bad", "bad")]
    own = [Record({"text": "x", "target": target}, str(i), "here", source=source)
           for i, (source, target, _) in enumerate(given)]
    words = [text for *_, text in given]
    texts = Source(np.zeros(5, np.int32), np.arange(6), lambda ids: words[ids[0]])
    units = Units(np.full(5, 9), np.zeros(5, np.int8), np.arange(6), np.arange(5), {
        "known": np.ones(5, int), "generated": np.ones(5, int)}, source=texts)
    outputs = {"generated": [np.array([[i, 9]]) for i in range(5)], "score": [np.zeros(1)] * 5,
                       "nll": [np.full(1, float(i)) for i in range(5)], "correct": [np.ones(1)] * 5}
    found = mixed(task, configs).score(configs["copy"], own, units, outputs)
    assert [each["text"] for each in found.predictions] == words
    chrf = TASK_METRICS["chrf"].function(["cat dog", "bird"], ["cat dog", "fish"])
    expected = {"copy/chrf": chrf, "choose/accuracy": 2 / 3, "choose/f1": 2 / 3, "copy/lm_loss": 1,
                "choose/lm_loss": 8 / 3, "score": (chrf + 200 / 3) / 2, "loss": (1 + 8 / 3) / 2}
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)


@pytest.mark.slow
def test_inspect_doctor_and_the_report_show_the_sources(home, trained):
    (home / "page.py").write_text("from tests.tasks.test_sources import config\n\ndef get_config(argument=''):\n"
                                  f"    return config({str(home)!r}, temperature=2.0)\n")
    shown = small.command("inspect", f"--config={home}/page.py", "--examples=2")
    assert "2 sources, mixed by weight x size^(1/2)" in shown.out and "copy {text}" in shown.out, shown
    assert "(copy, " in shown.out and "(choose, " in shown.out
    found = small.command("doctor", f"--config={home}/page.py")
    assert "copy (63.4%), choose (36.6%)" in found.out, found
    page = (trained / "report.html").read_text()
    assert "choose: Accuracy" in page and "copy {text}" in page and "--source=" in page
