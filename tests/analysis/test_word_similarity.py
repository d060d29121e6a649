"""Similarities of a word in two contexts without training, from WiC's files to the table of `lmrep probe`."""

import random

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

import lmrep
from lmrep.analysis import probes, word_similarity
from lmrep.data import records
from tests import small
from tests.tasks import tiny

SIZES = {"train": 40, "dev": 30}


def pair(draw):
    """Two texts, the numbers of their target words, and a label: T where they are the same word."""
    texts = [[draw.choice(small.NOUNS) for _ in range(draw.randint(1, 6))] for _ in range(2)]
    places = [draw.randrange(len(text)) for text in texts]
    same = draw.random() < 0.5
    word = texts[0][places[0]]
    texts[1][places[1]] = word if same else small.NOUNS[small.NOUNS.index(word) - 1]
    return [" ".join(text) for text in texts], places, "FT"[same]


@pytest.fixture(scope="module")
def home(small_home):
    """A run, and WiC's files."""
    draw = random.Random(0)
    for name, count in SIZES.items():
        rows = [pair(draw) for _ in range(count)]
        (small_home / f"{name}.data.txt").write_text("".join(
            f"word\tN\t{places[0]}-{places[1]}\t{texts[0]}\t{texts[1]}\n" for texts, places, _ in rows))
        (small_home / f"{name}.gold.txt").write_text("".join(f"{label}\n" for *_, label in rows))
    return small_home


def command(home, *flags, train="train.data.txt"):
    return small.command("probe", "--config=experiments/tasks/wic.py", f"--workdir={home}/run",
                         f"--config.data.train={home}/{train}", f"--config.data.validation={home}/dev.data.txt",
                         *flags)


@pytest.fixture(scope="module")
def measured(home):
    answer = command(home, "--untrained")
    assert answer.code == 0, answer.err
    return answer, probes.read(home / "run/probes.json")[-1]


def cosines(run, path, layer):
    """(cosines of the target words' vectors, as of `Run.encode`; whether the label is T)."""
    pairs = records.read(records.Config(train=str(path)), "train", ("text", "text2", "span", "span2", "label"))
    words = []
    for text, span in (("text", "span"), ("text2", "span2")):
        places = [len(row.fields[text][: row.fields[span][0]].split()) for row in pairs]
        encoded = run.encode([row.fields[text] for row in pairs], layers=layer)
        words.append(np.stack([each.by_word()[0, place] for each, place in zip(encoded, places, strict=True)]))
    unit = [x.astype(float) / np.linalg.norm(x, axis=1, keepdims=True) for x in words]
    return (unit[0] * unit[1]).sum(1), np.array([row.fields["label"] == "T" for row in pairs])


@pytest.mark.slow
def test_accuracies_are_those_of_a_threshold_on_the_vectors_of_encode(home, measured):
    run = lmrep.load(home / "run")
    for layer, entry in enumerate(measured[1]["layers"]):
        (training, gold), (held_out, expected) = (cosines(run, home / f"{name}.data.txt", layer) for name in SIZES)
        best = max(accuracy_score(gold, training > cut) for cut in (*training, -2))
        assert accuracy_score(gold, training > entry["threshold"]) == best
        assert entry["metrics"]["accuracy"] == pytest.approx(accuracy_score(expected, held_out > entry["threshold"]))
        assert entry["metrics"]["majority_accuracy"] == max(expected.mean(), 1 - expected.mean())
        low, high = entry["intervals"]["accuracy"]
        assert low <= entry["metrics"]["accuracy"] <= high
    embeddings = measured[1]["layers"][0]["metrics"]  # which know the word, and its place
    assert embeddings["accuracy"] > embeddings["majority_accuracy"]


@pytest.mark.slow
def test_the_table_says_what_was_compared(measured):
    answer, result = measured
    assert "accuracy on 30 pairs of the threshold that is best on 40 training pairs" in answer.out
    assert "always the most frequent label" in answer.out and answer.out.count("untrained network") == 1
    assert len(result["untrained"]) == len(result["layers"]) == 3
    assert result["examples"] == {"train": 40, "validation": 30} and result["best"] == "accuracy"


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused(home):
    answer = command(home, "--examples=3")
    assert answer.code == 2 and "without training; leave it out" in answer.err, answer.err
    tiny.write(home / "other.jsonl", [{"text": "cat", "text2": "dog", "span": [0, 3], "span2": [0, 3], "label": "x"}])
    answer = command(home, "--config.data.format=auto", train="other.jsonl")
    assert answer.code == 2 and "has the label 'x'; expected T or true" in answer.err, answer.err


@pytest.mark.parametrize(("values", "labels", "expected"), [
    ([0.1, 0.9, 0.3, 0.7], [False, True, False, True], 0.5),
    ([0.9, 0.1, 0.3], [False, False, False], 1.9),
    ([0.2, 0.4], [True, True], -0.8),
    ([0.5, 0.5, 0.5, 0.8], [True, False, False, True], 0.65),  # equal values are on one side
    ([0.3, 0.1, 0.2], [False, True, False], 1.3),
])
def test_the_threshold_is_the_one_with_most_labels_right(values, labels, expected):
    assert word_similarity.best_threshold(np.array(values), np.array(labels)) == pytest.approx(expected)
