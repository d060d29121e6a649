"""Multiple choice: choices with their text, examples with fewer choices than others, and a run."""

import dataclasses
import json
import random

import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.experiment.task_data import tokenize_records
from tests.tasks import tiny


def examples(count, seed=0, choices=(2, 3, 4), labelled=True):
    """Texts of one word, which the right choice, and no other, repeats."""
    draw = random.Random(seed)
    records = []
    for i in range(count):
        words = draw.sample(tiny.WORDS, choices[i % len(choices)])
        label = draw.randrange(len(words))
        text = f"{words[label]} good"
        records.append({"text": text, "choices": [f"{word} bad" for word in words]}
                       | ({"label": str(label)} if labelled else {}))
    return records


@pytest.fixture(scope="module")
def task():
    return tiny.Tiny("multiple_choice", examples(13))


def counts(task):
    return [len(record.fields["choices"]) for record in task.records]


def test_a_unit_is_the_text_and_a_choice(task):
    units, long = task.encode()
    assert long == 0 and units.example.tolist() == [i for i in range(13) for _ in range(4)]
    for i, record in enumerate(task.records):
        for j in range(4):
            start, end = units.offsets[4 * i + j : 4 * i + j + 2]
            found = units.tokens[start:end].tolist()
            if j >= len(record.fields["choices"]):
                assert found == [] and units.columns["choice"][4 * i + j] == 0
                continue
            text, choice = (task.tokenizer.encode_batch([each])[0].tolist()
                            for each in (record.fields["text"], record.fields["choices"][j]))
            [cls], [sep] = task.layout.lead, task.layout.tail
            assert found == [cls, *text, sep, *choice, sep] and units.columns["choice"][4 * i + j] == 1
            assert units.token_types[start:end].tolist() == [0] * (len(text) + 2) + [1] * (len(choice) + 1)


def scores(task, record):
    """The scores of the choices of one example by itself, by the network without batches."""
    alone = task.examples([record])
    batch = alone.gather(np.array([0]))
    assert batch["tokens"].shape[1] == len(record.fields["choices"])
    return np.array(task.outputs(alone)["log_probability"])


def test_predictions_are_those_of_each_example_by_itself(task):
    """Choices that it lacks have no probability."""
    for record, prediction in list(zip(task.records, task.score().predictions, strict=True))[:3]:
        expected = scores(task, record)
        np.testing.assert_allclose(prediction["probabilities"], np.exp(expected), rtol=1e-4)
        assert prediction["choice"] == expected.argmax()


def test_the_order_of_the_choices_does_not_matter(task):
    record = task.records[2]
    turned = record._replace(fields=record.fields | {"choices": record.fields["choices"][::-1]})
    np.testing.assert_allclose(scores(task, turned)[::-1], scores(task, record), rtol=1e-4)


@pytest.mark.slow
def test_metrics_do_not_depend_on_batches(task):
    expected = task.score().metrics
    gold = [int(record.fields["label"]) for record in task.records]
    chosen = [prediction["choice"] for prediction in task.score().predictions]
    assert expected["accuracy"] == np.mean(np.array(gold) == chosen)
    assert expected["majority_accuracy"] == max(gold.count(i) for i in range(4)) / 13
    for batch_size in (4, 13):
        assert task.score(batch_size=batch_size).metrics == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_examples_without_label_have_predictions_alone(task):
    own = tiny.Tiny("multiple_choice", examples(5, labelled=False))
    result = own.score()
    assert result.metrics == {} and len(result.predictions) == 5
    assert own.loss(own.examples().gather(np.arange(5)))[0] == 0


@pytest.mark.slow
def test_a_network_that_reads_from_left_to_right_takes_the_last_token():
    own = tiny.Tiny("multiple_choice", examples(4), model="lstm", context="left")
    expected = np.exp(scores(own, own.records[0]))
    np.testing.assert_allclose(own.score().predictions[0]["probabilities"], expected, rtol=1e-4)
    assert np.ptp(expected) > 1e-3


# Long texts, formats and labels


def long_example():
    """Its first choice has 6 + 4 + 3 tokens, its second one 6 + 1 + 3."""
    return {"text": "cat dog bird cat dog bird", "choices": ["fish horse mouse tree", "stone"], "label": "0"}


def test_long_pairs_are_refused_or_truncated_and_counted_once():
    own = tiny.Tiny("multiple_choice", [*examples(2), long_example()], length=9, form={"long": "refuse"})
    with pytest.raises(UserError, match=r"train\.jsonl, line 3, choice 0 has 13 tokens, and config\.length is 9"):
        own.encode()
    own.form = dataclasses.replace(own.form, long="truncate")
    units, long = own.encode()
    assert long == 1  # two of its pairs
    assert units.lengths[-3:].tolist() == [9, 9, 0]
    first = units.tokens[units.offsets[6] : units.offsets[7]]
    text, choice = own.tokenizer.encode_batch([long_example()["text"], long_example()["choices"][0]])
    assert first[1:4].tolist() == text[:3].tolist() and first[5:8].tolist() == choice[:3].tolist()


# A run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir, outcome) of a run that learns which choice repeats a word of the text; validation examples have more
    choices than training examples."""
    home = tmp_path_factory.mktemp("choose")
    train = tiny.write(home / "train.jsonl", examples(512))
    dev = tiny.write(home / "dev.jsonl", examples(60, seed=1, choices=(2, 5)))
    fields = {"epochs": 12.0, "batch_size": 32, "optimizer__learning_rate": 2e-2}
    return home / "run", lmrep.train(tiny.config("multiple_choice", train, dev, **fields), home / "run")


@pytest.mark.slow
def test_a_run_learns_to_choose(trained):
    workdir, outcome = trained
    assert outcome.after["accuracy"] > outcome.after["majority_accuracy"] + 0.2
    lines = [json.loads(line) for line in (workdir / "predictions/validation.jsonl").read_text().splitlines()]
    assert [len(line["prediction"]["probabilities"]) for line in lines] == [2, 5] * 30
    right = np.mean([line["prediction"]["choice"] == int(line["label"]) for line in lines])
    assert right == pytest.approx(max(json.loads(line)["accuracy"] for line in (
        workdir / "metrics.jsonl").read_text().splitlines() if '"validation"' in line))


@pytest.mark.slow
def test_it_predicts_from_dicts_tuples_and_lines(trained):
    run = lmrep.load(trained[0])
    fields = {"text": "cat good", "choices": ["dog bad", "cat bad", "fish bad", "tree bad", "bird bad"]}
    [found, *others] = run.predict([fields, ("cat good", *fields["choices"]),
                                    "\t".join(["cat good", *fields["choices"]])])
    assert set(found) == {"choice", "probabilities"} and found["choice"] == np.argmax(found["probabilities"])
    assert sum(found["probabilities"]) == pytest.approx(1, rel=1e-4) and len(found["probabilities"]) == 5
    assert all(other["probabilities"] == pytest.approx(found["probabilities"], rel=1e-5) for other in others)
    for wrong, message in ((fields | {"choices": "cat"}, "'choices' is 'cat'; expected a list of strings"),
                           (fields | {"choices": ["cat"]}, "has the only choice 'cat'"),
                           (fields | {"choices": []}, "expected text that is not empty"),
                           ("cat good", "has no 'choices'")):
        with pytest.raises(UserError, match=message):
            run.predict([wrong])


@pytest.mark.slow
def test_test_files_may_lack_labels(trained, tmp_path):
    run = lmrep.load(trained[0])
    own = [Record(fields, str(i), f"test.jsonl, line {i + 1}") for i, fields in enumerate(examples(6, labelled=False))]
    store = tokenize_records(run.experiment, run.model, run.tokenizer, own, "test")
    assert store.group == 4 and run.score_records(own).metrics == {}
