"""The bag of words that runs are compared with: scikit-learn called directly, and what is recorded of it."""

import json
import random

import numpy as np
import pytest
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score, matthews_corrcoef

import lmrep
from lmrep.inference import evaluate_task
from lmrep.metrics.verdict import BAG_OF_WORDS
from lmrep.tasks import TASKS, bag_of_words
from tests import runs
from tests.tasks import tiny


def examples(count, seed, pairs):
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label = draw.randrange(2)
        text = f"{tiny.sentence(draw, 3)} {draw.choice(('good', ('bad', 'good')[label]))}"
        found.append({"text": text, "label": ("no", "yes")[label],
                      **({"text2": tiny.sentence(draw, 2)} if pairs else {})})
    return tiny.as_records(found)


def features(records, others, fields):
    """TF-IDF of words and pairs of words, of each field."""
    pairs = []
    for field in fields:
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
        pairs.append((vectorizer.fit_transform([record.fields[field] for record in records]),
                      vectorizer.transform([record.fields[field] for record in others])))
    return [hstack(parts) for parts in zip(*pairs, strict=True)]


@pytest.mark.parametrize("fields", [("text",), ("text", "text2")])
def test_it_predicts_as_scikit_learn(fields):
    train, held_out = (examples(count, seed, len(fields) > 1) for count, seed in ((60, 0), (40, 1)))
    task = TASKS["classification"]
    c = task.resolve(task.objective.config(metrics=("accuracy", "f1", "matthews"), balanced=True), train)
    result, texts = bag_of_words.evaluate("classification", c, train, held_out)
    x, y = features(train, held_out, fields)
    labels, gold = ([record.fields["label"] for record in records] for records in (train, held_out))
    predicted = LogisticRegression(C=10, max_iter=200, class_weight="balanced").fit(x, labels).predict(y)
    assert texts == 60 and result.predicted == predicted.tolist()
    assert result.metrics["accuracy"] == np.mean(predicted == gold) > 0.6
    assert result.metrics["f1"] == pytest.approx(f1_score(gold, predicted, pos_label="yes"))
    assert result.metrics["matthews"] == pytest.approx(matthews_corrcoef(gold, predicted))


def test_numbers_are_predicted_by_ridge_regression(monkeypatch):
    records = [record._replace(fields={**record.fields, "label": str(len(set(record.fields["text"].split())))})
               for record in examples(50, 0, False)]
    task = TASKS["regression"]
    result, texts = bag_of_words.evaluate("regression", task.objective.config(), records[:30], records[30:])
    x, y = features(records[:30], records[30:], ("text",))
    numbers = Ridge().fit(x, [float(record.fields["label"]) for record in records[:30]]).predict(y)
    assert texts == 30 and result.predicted == pytest.approx(numbers.tolist())
    monkeypatch.setattr(bag_of_words, "MOST_TEXTS", 10)
    assert bag_of_words.evaluate("regression", task.objective.config(), records[:30], records[30:])[1] == 10


def test_each_label_is_predicted_by_a_regression(monkeypatch):
    def labels(record):
        return ["all", *(word for word in ("good", "cat") if word in record.fields["text"])]

    records = [record._replace(fields={"text": record.fields["text"], "labels": labels(record)})
               for record in examples(60, 0, False)]
    task, train, held_out = TASKS["multilabel"], records[:40], records[40:]
    c = task.resolve(task.objective.config(labels=("all", "cat", "good", "none")), train)
    result, texts = bag_of_words.evaluate("multilabel", c, train, held_out)
    x, y = features(train, held_out, ("text",))
    for label in ("cat", "good"):
        model = LogisticRegression(C=10, max_iter=200).fit(x, [label in record.fields["labels"] for record in train])
        assert [label in one["labels"] for one in result.predictions] == model.predict(y).tolist()
    assert texts == 40 and all("all" in one["labels"] and "none" not in one["labels"] for one in result.predictions)
    assert result.metrics["micro_f1"] > 0.8
    monkeypatch.setattr(bag_of_words, "MOST_CHARACTERS", 1 + sum(len(record.fields["text"]) for record in train) // 2)
    assert bag_of_words.evaluate("multilabel", c, train, held_out)[1] == 20


def test_a_run_is_compared_with_it_once(tmp_path, monkeypatch):
    copy, home = runs.copy("classification", tmp_path / "run"), runs.folder("classification")
    rows = evaluate_task.comparison_rows(copy)
    [bag] = [row for row in rows if row.kind == BAG_OF_WORDS]
    assert rows[-1].metrics.keys() == bag.metrics.keys() == {"accuracy"}
    records = [tiny.as_records([json.loads(line) for line in (home / f"{name}.jsonl").read_text().splitlines()])
               for name in ("train", "dev")]
    task = TASKS["classification"]
    result, _ = bag_of_words.evaluate("classification", task.resolve(task.objective.config(), records[0]), *records)
    assert bag.metrics["accuracy"] == result.metrics["accuracy"]
    monkeypatch.setattr(bag_of_words, "evaluate", None)
    outcome = lmrep.train(json.loads((copy / "config.json").read_text())["config"], copy)
    assert list(outcome.comparison) == evaluate_task.comparison_rows(copy) == rows
    assert evaluate_task.bag_of_words_row(tmp_path) is None


def test_one_that_fails_is_left_out(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise ValueError("empty vocabulary")

    monkeypatch.setattr(bag_of_words, "evaluate", fail)
    copy = runs.copy("classification", tmp_path / "run")
    (copy / "results.json").unlink()
    outcome = lmrep.train(json.loads((copy / "config.json").read_text())["config"], copy)
    assert all(row.kind != BAG_OF_WORDS for row in outcome.comparison) and "empty vocabulary" in caplog.text
