"""The structural probe: distances of trees, maps that recover them, and the scores."""

import dataclasses
import itertools
import random

import numpy as np
import pytest
import scipy.stats

import lmrep
from lmrep.analysis import probes, structural_probe
from lmrep.core import params as P
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.experiment import config as experiments
from lmrep.interop import checkpoint_config
from tests import small
from tests.tasks import tiny

WORDS = 12  # of a sentence at most


def random_heads(draw, n):
    """A tree of n words: each but the root hangs on an earlier one of a random order."""
    order, heads = draw.permutation(n), [0] * n
    for i in range(1, n):
        heads[order[i]] = int(order[draw.integers(i)]) + 1
    return heads


def embedding(heads):
    """Vectors whose squared distances are the numbers of edges: of a word, 1 for each edge between it and the root."""
    x = np.zeros((len(heads), WORDS), np.float32)
    for i in range(len(heads)):
        at = i
        while heads[at]:
            x[i, at], at = 1, heads[at] - 1
    return x


def sentences(draw, count):
    """Trees whose exact embeddings, turned and beside other dimensions, are the second layer; the first is noise."""
    trees = [random_heads(draw, int(draw.integers(3, WORDS + 1))) for _ in range(count)]
    exact = np.concatenate([embedding(heads) for heads in trees])
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(WORDS, WORDS)))[0]
    x = np.stack([draw.normal(size=(len(exact), WORDS + 4)), np.pad(exact @ turn, ((0, 0), (0, 4)))])
    x[1, :, WORDS:] = draw.normal(size=(len(exact), 4))
    return structural_probe.Sentences(
        x.astype(np.float32), np.cumsum([0, *map(len, trees)]), [*map(structural_probe.tree_distances, trees)],
        [np.ones(len(heads), bool) for heads in trees])


def test_distances_of_a_tree_are_numbers_of_edges():
    """The <- dog <- chased -> cat -> the: of the first word to the last, 4."""
    np.testing.assert_array_equal(structural_probe.tree_distances([2, 3, 0, 3, 4]), [
        [0, 1, 2, 3, 4], [1, 0, 1, 2, 3], [2, 1, 0, 1, 2], [3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    draw = np.random.default_rng(0)
    for n in (1, 2, 7):
        heads = random_heads(draw, n)
        np.testing.assert_allclose(structural_probe.squared_distances(embedding(heads)),
                                   structural_probe.tree_distances(heads), atol=1e-6)


def test_a_layer_that_holds_the_trees_is_found():
    """Held-out trees are recovered from it, and not from noise."""
    draw = np.random.default_rng(1)
    train, held_out = sentences(draw, 400), sentences(draw, 40)
    mapped = np.einsum("kmd,kdr->kmr", held_out.x, structural_probe.fit(train))
    noise, exact = (structural_probe.score(held_out._replace(x=x)).metrics for x in mapped)
    assert exact["uuas"] == 1 and exact["dspr"] > 0.95
    assert noise["uuas"] < 0.5 and noise["dspr"] < 0.5  # not near 0: the distance of a word to itself counts


def test_scores_count_edges_between_words_and_average_over_lengths():
    """Two sentences of five words and one of six; the sixth word is punctuation inside the tree."""
    trees = [[0, 1, 2, 3, 4], [0, 1, 1, 1, 1], [6, 6, 6, 3, 3, 0]]
    distances = [*map(structural_probe.tree_distances, trees)]
    is_word = [np.ones(5, bool), np.ones(5, bool), np.arange(6) < 5]
    chain = np.arange(5.0)[:, None] * np.ones((1, 1))
    x = np.concatenate([chain, chain, np.arange(6.0)[:, None]])
    result = structural_probe.score(structural_probe.Sentences(x, np.array([0, 5, 10, 16]), distances, is_word))
    # Chains: all 4 edges of the first tree, 1-2 of the second, and of the third's edges 3-4 and 3-5 the first one.
    assert result.metrics["uuas"] == pytest.approx((4 + 1 + 1) / (4 + 4 + 2))
    rho = [np.mean([scipy.stats.spearmanr(a, b)[0] for a, b in zip(np.square(x - x.T), distance, strict=True)])
           for x, distance in zip(np.split(x, [5, 10]), distances, strict=True)]
    assert rho[0] == pytest.approx(1) and result.metrics["dspr"] == pytest.approx(((rho[0] + rho[1]) / 2 + rho[2]) / 2)


def test_the_spanning_tree_is_the_least():
    """Of all trees over some of the words, also with distances of 0; of one word, or none, there are no edges."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(7, 3))
    x[4] = x[2]
    distances = structural_probe.squared_distances(x)
    chosen = np.arange(7) > 1

    def connects(edges):
        reached = {2}
        for _ in edges:
            reached |= {i for edge in edges if reached & {*edge} for i in edge}
        return len(reached) == 5

    trees = filter(connects, itertools.combinations(itertools.combinations(range(2, 7), 2), 4))
    expected = min(trees, key=lambda edges: sum(distances[edge] for edge in edges))
    assert structural_probe.spanning_tree(distances, chosen) == {*expected}
    for nodes in ([3], []):
        assert structural_probe.spanning_tree(distances, np.isin(np.arange(7), nodes)) == set()


@pytest.mark.parametrize(("heads", "message"), [
    ("0 1 4", "line 3: the head is '4'; expected 0, for the root, or the number of a word, up to 3"),
    ("_ 1 1", "line 1: the head is '_'"), ("0 1 0", "the heads 0 1 0 are no tree"), ("2 1 0", "are no tree"),
])
def test_heads_that_are_no_tree_are_refused(heads, message):
    record = Record({"words": ["a", "b", "c"], "tags": heads.split()}, "", "dev.conllu, line 1", (1, 2, 3))
    with pytest.raises(UserError, match=message):
        structural_probe.heads_of(record)


def treebank(path, count, seed):
    """Sentences whose last word is punctuation, with random trees."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        words = [*tiny.sentence(draw, draw.randrange(4, 8)).split(), "."]
        lines.append("\n".join(
            "\t".join([f"{i}", word, "_", "PUNCT" if word == "." else "NOUN", "_", "_",
                       f"{draw.randrange(1, i) if i > 1 else 0}", "dep", "_", "_"])
            for i, word in enumerate(words, 1)))
    path.write_text("\n\n".join(lines) + "\n\n")


@pytest.mark.slow
@pytest.mark.parametrize("length", [32, 10])  # the second reads sentences in windows
def test_words_have_their_mean_vectors_in_the_order_of_sentences(small_home, length):
    treebank(small_home / "few.conllu", 12, seed=3)
    config = checkpoint_config.load_config("experiments/tasks/ud_pos.py", f"init={small_home}/run", [
        ("data.train", f"{small_home}/few.conllu"), ("data.validation", f"{small_home}/few.conllu"),
        ("length", str(length))])
    prepared = structural_probe.prepare(experiments.parse(config))
    run, records = lmrep.load(small_home / "run"), prepared.records["train"]
    without = P.map_paths(lambda path, x: 0 * x if "position" in path else x, run.params)  # tokens alone differ
    run = dataclasses.replace(run, params=without)
    found = structural_probe.encode(
        run.params["encoder"], experiments.build_model(prepared.experiment, run.tokenizer.size),
        experiments.resolve_stages(prepared.experiment)[0].objective, records, prepared.splits["train"])
    assert (len(prepared.splits["train"].units.example) > len(records)) == (length < 32)
    texts = run.encode([" ".join(record.fields["words"]) for record in records], layers=0, pretokenized=True)
    np.testing.assert_allclose(found.x[0], np.concatenate([text.by_word("mean")[0] for text in texts]), atol=1e-4)
    np.testing.assert_array_equal(np.diff(found.offsets), [len(record.fields["heads"]) for record in records])


@pytest.mark.slow
def test_trees_are_probed_in_every_layer_of_a_run(small_home):
    """Beside the parts of speech of the same files, whose result stays."""
    for split, count in (("train", 30), ("dev", 10)):
        treebank(small_home / f"{split}.conllu", count, count)
    words = ("probe", "--config=experiments/tasks/ud_pos.py", f"--workdir={small_home}/run", "--config.length=32",
             *(f"--config.data.{split}={small_home}/{file}.conllu" for split, file in (
                 ("train", "train"), ("validation", "dev"))))
    answer = small.command(*words, "--trees", "--untrained", "--examples=20")
    assert answer.code == 0, answer.err
    assert "20 training and 10 validation examples" in answer.out and "UUAS" in answer.out and "DSpr." in answer.out
    assert small.command(*words).code == 0
    trees, tags = probes.read(small_home / "run/probes.json")
    assert trees["task"] == structural_probe.NAME and tags["best"] == "token_accuracy"
    assert len(trees["layers"]) == len(trees["untrained"]) == 3
    assert "a chain of each sentence's words has UUAS " in answer.out
    for entry in trees["layers"]:
        for name, (low, high) in entry["intervals"].items():
            assert low <= entry["metrics"][name] <= high
    answer = small.command("probe", "--config=experiments/tasks/classify.py", f"--workdir={small_home}/run", "--trees",
                           f"--config.data.train={small_home}/train.conllu", "--config.data.validation=x.tsv")
    assert answer.code == 2 and "CoNLL-U" in answer.err
