"""Taggers: schemes, labels, scores, and runs from file to predictions."""

import itertools
import json

import numpy as np
import pytest

import lmrep
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.metrics import baseline
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import networks, tagging
from lmrep.tasks import words as task_words
from tests import runs, small
from tests.tasks import tiny
from tests.tasks.tags import encoder, record, resolved, sentences, write

PAGE = "experiments/tasks/tag.py"
# Labels and scores


def test_labels_are_those_of_the_training_data_with_o_first():
    train = [record("a b c", "I-Z B-Z O"), record("d", "B-A")]
    c = resolved(train, repair=True)
    assert c.labels == ("O", "B-A", "B-Z")
    assert resolved([record("a b", "NOUN ADJ")]).labels == ("ADJ", "NOUN")
    labels = ("O", "B-Q", "B-Z", "B-A")
    assert resolved(train, repair=True, labels=labels).labels == labels
    with pytest.raises(UserError, match=r"line 7: word 1, 'd', has the tag 'B-A', and config.objective.labels has O"):
        resolved(train, repair=True, labels=labels[:3])


@pytest.mark.parametrize("network", ["linear", "crf"])
def test_a_tag_that_only_held_out_data_has_is_an_error_wherever_it_is(network, caplog):
    c = resolved([record("a b c", "B-NP I-NP O")], network=network)
    held_out = [record("all 3 he", "B-NP I-LST B-NP"), record("he he", "B-NP O"), record("he")]
    units, _ = tagging.encode(c, held_out, encoder())
    [message] = caplog.messages
    assert "word 2, '3', has the tag 'I-LST'" in message and "1 of 5 labels" in message
    rows = np.log(np.tile([0.2, 0.7, 0.1], (len(units.tokens), 1)))
    outputs = {"log_probabilities": np.split(rows, units.offsets[1:-1]),
               "best": np.split(np.ones(len(rows), int), units.offsets[1:-1]),
               "log_likelihood": np.split(rows[:, 1], units.offsets[1:-1])}
    own = {name: [*values[:2]] for name, values in outputs.items()}
    short = units._replace(example=units.example[:2], offsets=units.offsets[:3])
    metrics = tagging.score(c, held_out[:2], short, own).metrics
    assert metrics["token_accuracy"] == pytest.approx(3 / 5)
    assert metrics["entity_recall"] == pytest.approx(3 / 4)
    expected = -np.log([0.7, 0.7]) if network == "crf" else -np.log([0.7, 0.7, 0.7, 0.2])
    assert metrics["loss"] == pytest.approx(expected.mean())
    first = units._replace(example=units.example[:1], offsets=units.offsets[:2])
    alone = tagging.score(c, held_out[:1], first, {name: values[:1] for name, values in outputs.items()})
    assert alone.metrics["loss"] == pytest.approx(-np.log(0.7))  # of the two known tags, by their own probabilities


@pytest.mark.parametrize(("decoding", "strict", "lenient"), [("argmax", 0.0, 1.0), ("viterbi", 1.0, 1.0)])
def test_an_entity_that_begins_with_i_counts_for_conlleval_and_not_in_strict_mode(decoding, strict, lenient):
    sentence = record("in Rome", "O B-X")
    c = resolved([sentence], decoding=decoding, labels=("O", "B-X", "I-X"))
    units, _ = tagging.encode(c, [sentence], encoder())
    rows = np.log(np.full((len(units.tokens), 3), 0.05))
    rows[units.columns["word"] == 0, 0] = np.log(0.9)
    rows[units.columns["word"] == 1] = np.log([0.1, 0.4, 0.5])
    result = tagging.score(c, [sentence], units, {"log_probabilities": [rows]})
    assert (result.metrics["entity_f1"], result.metrics["conll_f1"]) == (strict, lenient)


def test_plain_tags_have_their_accuracy_and_that_of_the_most_frequent_one():
    sentence = record("a b c d", "NOUN VERB NOUN NOUN")
    c = resolved([sentence])
    units, _ = tagging.encode(c, [sentence], encoder())
    rows = np.log(np.tile([0.2, 0.8], (len(units.tokens), 1)))
    result = tagging.score(c, [sentence], units, {"log_probabilities": [rows]})
    assert result.predictions == [{"tags": ["VERB"] * 4, "probabilities": [pytest.approx(0.8)] * 4}]
    assert result.metrics == pytest.approx(
        {"loss": -np.log([0.2, 0.2, 0.2, 0.8]).mean(), "token_accuracy": 0.25, "majority_accuracy": 0.75})


@pytest.mark.parametrize(("tags", "expected"), [("O B-X O O", 0.0), ("B-X B-X B-X O", 6 / 7)])
def test_entities_are_compared_with_those_of_the_most_frequent_tag(tags, expected):
    sentence = record("a b c d", tags)
    c = resolved([sentence])
    units, _ = tagging.encode(c, [sentence], encoder())
    rows = np.log(np.tile([0.8, 0.2], (len(units.tokens), 1)))  # all O
    metrics = tagging.score(c, [sentence], units, {"log_probabilities": [rows]}).metrics
    metric = tagging.DEFINITION.objective.metrics["entity_f1"]
    assert metrics["entity_f1"] == 0 and baseline(metric, metrics.get) == pytest.approx(expected)


def test_metrics_that_a_task_may_compare_checkpoints_by_are_better_if_higher():
    """`lmrep.experiment.config.best_direction` relies on it."""
    assert all(each.metric.higher_is_better for each in TASK_METRICS.values())


# The network


def test_a_crf_gives_the_probabilities_of_a_brute_force_sum_and_predicts_what_the_scheme_allows():
    """Of a sentence of four words."""
    words = [{"words": ["cat", "dog", "bird", "fish"], "tags": ["B-X", "I-X", "O", "B-Y"]}]
    own = tiny.Tiny("tagging", words, network="crf", pieces="last")
    draw, c = np.random.default_rng(0), own.config
    scores = {name: draw.normal(size=value.shape) for name, value in own.params["objective"]["tagging"]["crf"].items()}
    own.params["objective"]["tagging"]["crf"] = {name: np.float32(value) for name, value in scores.items()}
    batch = own.examples().gather(np.array([0]))
    net = networks.bind(c, own.model, "tagging", {})
    emissions = np.asarray(tagging.logits(own.params, batch, net))[0]
    emissions = emissions[np.flatnonzero(task_words.representatives(batch["word"][0], c.pieces))].astype(np.float64)
    values = {}
    for tags in itertools.product(range(len(c.labels)), repeat=4):
        if not tagging.schemes.changed(c.scheme, [c.labels[i] for i in tags]):
            values[tags] = (scores["start"][tags[0]] + scores["end"][tags[-1]] + emissions[np.arange(4), tags].sum()
                            + sum(scores["between"][a, b] for a, b in itertools.pairwise(tags)))
    best, log_z = max(values, key=values.get), np.logaddexp.reduce(list(values.values()))
    [found] = own.score().predictions
    assert found["tags"] == [c.labels[i] for i in best]
    expected = [sum(np.exp(value - log_z) for tags, value in values.items() if tags[i] == best[i]) for i in range(4)]
    assert found["probabilities"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["left", "both"])
def test_tags_depend_on_words_to_the_right_unless_the_context_is_left(context):
    sentences = [{"words": ["cat", "dog", "bird"], "tags": ["A", "B", "A"]},
                 {"words": ["cat", "dog", "fish"], "tags": ["A", "B", "B"]}]
    a, b = tiny.Tiny("tagging", sentences, context=context, pieces="mean").score().predictions
    assert (np.allclose(a["probabilities"][:2], b["probabilities"][:2], atol=1e-6)) == (context == "left")


def test_the_head_is_one_linear_layer():
    own = tiny.Tiny("tagging", [{"words": ["cat", "dog"], "tags": ["B-X", "O"]}])
    assert {path: value.shape for path, value in P.flatten(own.params["objective"]).items()} == {
        "tagging/out/kernel": (16, 2), "tagging/out/bias": (2,)}


def test_entities_are_those_of_conlleval():
    for tags, expected in (("B-A I-A O I-B B-B", [("A", 0, 2), ("B", 3, 4), ("B", 4, 5)]), ("O O", []),
                           ("S-A B-A E-A I-B I-A", [("A", 0, 1), ("A", 1, 3), ("B", 3, 4), ("A", 4, 5)])):
        assert tagging.schemes.entities(tags.split()) == expected


# From files to predictions


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A copy of the shared run."""
    return runs.copy("tagging", tmp_path_factory.mktemp("tagging") / "run")


@pytest.fixture(scope="module")
def run(trained):
    return lmrep.load(trained)


def test_examples_are_texts_or_lists_of_words(run):
    text, words, one, *fields = run.predict(
        ["Ann visits", ["Ann", "visits"], ("New York",), {"words": ["Ann", "visits"]}, {"text": "Ann visits", "id": 1}])
    assert [text] == fields[1:] and [words] == fields[:1] and text["tags"] == words["tags"]
    assert [len(each["tags"]) for each in (text, one)] == [2, 1]
    long = run.predict(["Ann visits Rome . " * 20])[0]
    assert len(long["tags"]) == 80


def test_words_of_texts_end_at_punctuation_and_entities_have_their_places(run):
    text = '"Ann" (visits)  Bonn... It\u2019s Ann.'
    [found] = run.predict([text])
    assert found["words"][:6] == ['"', "Ann", '"', "(", "visits", ")"] and found["words"][-2:] == ["Ann", "."]
    assert "".join(found["words"]) == "".join(text.split())
    assert found["entities"]
    for each in found["entities"]:
        assert text[each["start"]:each["end"]] == each["text"]
        assert "".join(found["words"][slice(*each["words"])]) == "".join(each["text"].split())
    [whole] = run.predict([text], pretokenized=True)
    assert whole["words"] == text.split()
    assert run.predict([text], entities=True) == [{"entities": found["entities"]}]


def test_a_run_learns_to_tag(trained, run):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["split"] == "validation"]
    assert validations[-1]["entity_f1"] > 0.95
    assert run.experiment.checkpoint.best == "entity_f1"
    assert run.predict([["Cleo", "Ben", "visits", "Bonn", "."]])[0]["tags"] == ["B-PER", "I-PER", "O", "B-LOC", "O"]


def test_predictions_of_the_splits_are_written(trained):
    lines = {split: [json.loads(line) for line in (trained / "predictions" / f"{split}.jsonl").read_text().splitlines()]
             for split in ("validation", "test")}
    assert [len(line["prediction"]["tags"]) for line in lines["test"]] == [4, 2]
    correct = [line["prediction"]["tags"] == line["tags"] for line in lines["validation"]]
    assert np.mean(correct) > 0.8
    assert "tags" not in lines["test"][0]


def test_predict_prints_columns_that_conll_tools_read(trained, tmp_path):
    printed = small.command("predict", f"--workdir={trained}", "Ann visits Oslo .", "Dora .")
    assert printed.out == "Ann B-PER\nvisits O\nOslo B-LOC\n. O\n\nDora B-PER\n. O\n\n"
    gold, predicted = tmp_path / "gold.txt", tmp_path / "predicted.txt"
    predicted.write_text(printed.out)
    gold.write_text(printed.out.replace("Oslo B-LOC", "Oslo O"))
    scored = small.command("score", "--metric=conlleval", f"--gold={gold}", f"--predictions={predicted}")
    assert "precision:  66.67%; recall: 100.00%; FB1:  80.00" in scored.out


def test_evaluate_writes_columns_that_conll_tools_read(trained):
    command = small.command("evaluate", f"--workdir={trained}")
    assert command.code == 0
    path = trained / "predictions" / "validation.conll"
    assert path.read_text().startswith(" ".join([sentences(1, 1)[0][0][0], "B-PER", "B-PER"]))
    scored = small.command("score", "--metric=conlleval", f"--predictions={path}")
    figures = json.loads((trained / "eval.json").read_text())
    assert f"FB1: {100 * figures['metrics']['conll_f1']:6.2f}" in scored.out


@pytest.mark.slow
def test_validation_data_with_other_tags_stops_before_training(tmp_path):
    train = write(tmp_path / "train.conll", sentences(4))
    dev = write(tmp_path / "dev.conll", [(["Acme", "visits"], ["NOUN", "VERB"])])
    with pytest.raises(UserError, match=r"dev\.conll has the labels NOUN, VERB, and the training data .*columns"):
        lmrep.train(f"{PAGE}:size=tiny", tmp_path / "run", **{"data.train": str(train), "data.validation": str(dev)})
    assert not (tmp_path / "run").exists()
