"""Contextual and static nearest neighbours, compared with a search over all pairs."""

import numpy as np
import pytest

import lmrep
from lmrep.analysis import neighbours as N
from tests import given, small

QUERY = "The *red* cat sees the old dog."


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run in `run`, and a corpus in `corpus.txt`, which contains the queried sentence too."""
    home = tmp_path_factory.mktemp("neighbours")
    given.workdir(home, norm="pre", embedding_norm=False)
    texts = [line for path in sorted((home / "texts").iterdir())[:12] for line in path.read_text().splitlines()]
    texts += ["The red cat sees the old dog.", "", "... !", "the catdog " * 40]
    (home / "corpus.txt").write_text("".join(f"{text}\n" for text in texts))
    return home


@pytest.fixture(scope="module")
def run(home):
    return lmrep.load(home / "run")


@pytest.fixture(scope="module")
def corpus(home):
    return (home / "corpus.txt").read_text().splitlines()


@pytest.fixture(scope="module")
def found(run, corpus):
    return N.neighbours(run, QUERY, [corpus[:30], corpus[30:]], k=6, min_count=3)


@pytest.fixture(scope="module")
def words(run, corpus):
    """Every word of the corpus that has a letter: (text, start, word, vector)."""
    return [(read.text, start, read.text[start:end].lower(), vector)
            for read in run.encode(corpus, long="windows")
            for (start, end), vector in zip(read.word_offsets, read.by_word()[0], strict=True)
            if read.text[start:end].isalnum()]


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_contextual_neighbours_are_the_nearest_of_all_occurrences(run, found, words):
    query = run.encode(["The red cat sees the old dog."])[0].hidden[0, 2]
    cosines = {(text, start): cosine(query, vector) for text, start, _, vector in words}
    del cosines["The red cat sees the old dog.", 4]  # the occurrence itself
    expected = sorted(cosines.items(), key=lambda item: -item[1])[:6]
    assert [near.cosine for near in found.context] == pytest.approx([value for _, value in expected], abs=1e-5)
    assert all(near.cosine == pytest.approx(cosines[near.text, near.start], abs=1e-5) for near in found.context)
    assert len({(near.text, near.start) for near in found.context}) == 6  # a line that occurs twice counts once


def test_static_vectors_are_means_over_all_occurrences(found, words):
    names = sorted({word for _, _, word, _ in words})
    means = {name: np.mean([v for _, _, word, v in words if word == name], 0, np.float64) for name in names}
    counts = {name: sum(word == name for _, _, word, _ in words) for name in names}
    assert found.words == len(names) and found.count == counts["red"]
    expected = sorted(((cosine(means["red"], means[name]), name) for name in names
                       if name != "red" and counts[name] >= 3), reverse=True)[:6]
    assert [near.word for near in found.static] == [name for _, name in expected]
    assert [near.cosine for near in found.static] == pytest.approx([value for value, _ in expected], abs=1e-5)
    assert [near.count for near in found.static] == [counts[name] for _, name in expected]


def test_word_that_is_not_in_the_corpus_has_contextual_neighbours_only(run, corpus):
    found = N.neighbours(run, "A *dogcat* sleeps.", [corpus], k=2, layers="sum:1,2")
    assert found.count == 0 and found.static == [] and len(found.context) == 2


def test_table_keeps_the_most_frequent_words(monkeypatch):
    monkeypatch.setattr(N, "TABLE", 3)
    table, rng = N._Table(4), np.random.default_rng(0)
    vectors = {word: rng.normal(size=4) for word in "abc"}
    for i in range(40):
        table.add([*"abc", f"rare{i}"], np.array([*vectors.values(), rng.normal(size=4)]))
    assert len(table.index) <= 6
    count, near = table.nearest("a", 2, 40)
    assert count == 40 and {word.word for word in near} == {"b", "c"}
    assert {word.word: word.cosine for word in near} == pytest.approx(
        {word: cosine(vectors["a"], vectors[word]) for word in "bc"})


@pytest.mark.parametrize(("marked", "word", "text"), [
    (QUERY, "red", "The red cat sees the old dog."), ("*Cat*", "Cat", "Cat"),
    ("2 * 3 is a *sum* here", "sum", "2 * 3 is a sum here"), ("in *New York* now", "New York", "in New York now"),
])
def test_query_word_is_marked_by_asterisks(marked, word, text):
    found = N.parse(marked)
    assert (found.word, found.text, found.marked) == (word, text, marked)


def test_command_prints_both_lists(home, found):
    result = small.command("neighbours", f"--workdir={home}/run", f"--input={home}/corpus.txt", "--top=6",
                           "--min_count=3", QUERY)
    assert result.code == 0 and result.out.startswith(f"{QUERY}\n\nNearest in context:\n")
    context, static = result.out.split("\nNearest of ")
    shown = [line.split()[:2] for line in context.splitlines()[3:] if line]
    assert shown == [[f"{near.cosine:.3f}", near.word] for near in found.context]
    assert [line.split()[1] for line in static.splitlines()[1:]] == [near.word for near in found.static]
    assert all(f"*{near.word}*" in context for near in found.context)
