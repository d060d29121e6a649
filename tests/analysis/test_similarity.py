"""Similarities of sentences without training, from pairs with labels to the table of `lmrep probe`."""

import json
import random
import shutil

import numpy as np
import pytest
import scipy.spatial
import scipy.stats

import lmrep
from lmrep.analysis import probes, report, similarity
from tests import runs, small
from tests.tasks import tiny

PAIRS = 30
FILES = {"dev": lambda a, b: (a, b), "swapped": lambda a, b: (b, a)}


@pytest.fixture(scope="module")
def home(small_home):
    """A run, and pairs of sentences with the fraction of words that they share; there is no training data."""
    draw = random.Random(0)
    pairs = [(tiny.sentence(draw, 5), tiny.sentence(draw, draw.randrange(1, 7))) for _ in range(PAIRS)]
    pairs[0] = ("cat dog", "cat dog")
    for name, order in FILES.items():
        tiny.write(small_home / f"{name}.jsonl", [{
            "text": order(a, b)[0], "text2": order(a, b)[1], "label": len({*a.split()} & {*b.split()}) / 5}
            for a, b in pairs])
    return small_home


def command(home, *flags, name="dev", config="regress.py"):
    return small.command("probe", f"--config=experiments/tasks/{config}", f"--workdir={home}/run",
                         f"--config.data.validation={home}/{name}.jsonl", *flags)


@pytest.fixture(scope="module")
def measured(home):
    answer = command(home, "--untrained")
    assert answer.code == 0, answer.err
    return answer, probes.read(home / "run/probes.json")[-1]


@pytest.mark.slow
def test_correlations_are_of_the_vectors_of_embed(home, measured):
    """In every layer, as SciPy computes them."""
    run, records = lmrep.load(home / "run"), [json.loads(line) for line in (home / "dev.jsonl").open()]
    for layer, entry in enumerate(measured[1]["layers"]):
        first, second = (run.embed([record[name] for record in records], layers=layer) for name in ("text", "text2"))
        cosines = [1 - scipy.spatial.distance.cosine(a, b) for a, b in zip(first, second, strict=True)]
        gold = [record["label"] for record in records]
        assert entry["metrics"] == pytest.approx({
            "pearson": scipy.stats.pearsonr(gold, cosines)[0], "spearman": scipy.stats.spearmanr(gold, cosines)[0],
        }, abs=1e-4)
        for name, value in entry["metrics"].items():
            low, high = entry["intervals"][name]
            assert low <= value <= high


@pytest.mark.slow
def test_the_table_says_what_was_compared(home, measured, tmp_path):
    answer, result = measured
    assert "the mean over all tokens, special ones included" in answer.out
    assert f"computed without training: correlations with the labels of {PAIRS} pairs" in answer.out
    assert answer.out.count("untrained network") == 2 and "Pearson correlation" in answer.out
    assert len(result["untrained"]) == len(result["layers"]) == 3
    shown = runs.copy("masked", tmp_path / "run")
    shutil.rmtree(shown / "checkpoints")
    shutil.copy(home / "run/probes.json", shown)
    page = report.write([shown], data_dir=home).read_text()
    assert "Cosine similarities" in page and "Spearman correlation" in page


@pytest.mark.slow
def test_the_order_of_a_pair_does_not_matter(home, measured, tmp_path):
    answer = command(home, f"--output={tmp_path}/swapped.json", name="swapped")
    assert answer.code == 0, answer.err
    [result] = probes.read(tmp_path / "swapped.json")
    for one, other in zip(result["layers"], measured[1]["layers"], strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], abs=1e-6)


@pytest.mark.slow
def test_all_checkpoints_are_compared(home, tmp_path):
    output = tmp_path / "all.json"
    answer = command(home, "--checkpoints=all", f"--output={output}")
    assert answer.code == 0, answer.err
    results = probes.read(output)
    assert [result["step"] for result in results] == [4, 8, 12]
    title, _, *rows = answer.out.splitlines()
    assert title == "Pearson correlation of cosine similarities on every layer:" and len(rows) == 3
    assert results[0]["layers"] != results[2]["layers"]


def test_cosines():
    """Of a vector and itself it is 1, whatever its scale; of orthogonal ones, or of zeros, 0."""
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    np.testing.assert_allclose(similarity.cosine(x, 3 * x), 1, atol=1e-7)
    np.testing.assert_allclose(similarity.cosine(x, -x), -1, atol=1e-12)
    a, b = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[1.0, -1.0], [1.0, 2.0]])
    np.testing.assert_array_equal(similarity.cosine(a, b), 0)
    np.testing.assert_allclose(similarity.cosine(np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]])), 24 / 25)


@pytest.mark.slow
@pytest.mark.parametrize(("record", "flags", "message"), [
    ({"text": "cat", "label": 1}, (), "similarities need pairs of sentences"),
    ({"text": "cat", "text2": "dog", "label": 1}, ("--examples=3",), "without training; leave it out"),
])
def test_what_cannot_be_compared_is_refused(home, record, flags, message):
    tiny.write(home / "refused.jsonl", [record])
    answer = command(home, *flags, name="refused")
    assert answer.code == 2 and message in answer.err, answer.err
