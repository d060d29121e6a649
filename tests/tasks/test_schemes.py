"""Schemes of tags: which one data have, what they refuse, conversion, and decoding."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lmrep.data.records import Record
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import schemes, tagging
from tests.tasks.tags import encoder


def record(words, tags):
    return Record({"words": words.split(), "tags": tags.split()}, "0", "dev.conll, line 7")


@pytest.mark.parametrize(("tags", "scheme"), [
    ("O B-X I-X O", "BIO"), ("B-X B-X O", "BIO"), ("I-X I-X B-X O", "IOB1"), ("B-X E-X S-Y O", "BIOES"),
    ("B-X I-X L-X U-Y O", "BILOU"), ("NOUN VERB I O", "none"), ("-LRB- NN-X O", "none"), ("B I O", "BIO"),
    ("B-X I-X", "BIO"), ("I-X I-X O B-Y I-Y O I-X", "IOB1"), ("B-X I-X O I-Y", "BIO"), ("B-X B-Y I-Y S-X", "BIO"),
    ("S-X B-Y I-Y E-Y B-X O", "BIOES")])
def test_the_scheme_is_detected(tags, scheme):
    given = [record(" ".join("abcdef"[: len(tags.split())]), tags)]
    assert schemes.detect(given) == scheme
    c = tagging.resolve(tagging.Config(), given)
    assert c.scheme == scheme
    assert c.metrics == (("token_accuracy",) if scheme == "none" else tagging.METRICS)


@pytest.mark.parametrize(("scheme", "tags", "read"), [
    ("BIO", "O I-X I-X O", "O B-X I-X O"), ("BIO", "B-Y I-X", "B-Y B-X"), ("BIO", "I-X", "B-X"),
    ("BIO", "B-X E-X S-Y", "B-X I-X B-Y"), ("BIO", "O X Y B-X", "O B-X B-Y B-X"),
    ("IOB1", "O B-Z I-Z B-Z", "O I-Z I-Z B-Z"), ("BIOES", "B-X O", "S-X O"), ("BIOES", "B-X E-Y", "S-X S-Y"),
    ("BIOES", "O E-X", "O S-X"), ("BIOES", "S-X I-X", "S-X S-X"), ("BIOES", "O B-X", "O S-X"),
    ("BILOU", "U-X L-X", "U-X U-X"), ("none", "O I-X E-X", "O I-X E-X")])
def test_held_out_tags_that_break_the_scheme_are_read_as_conlleval_does_and_counted(scheme, tags, read, caplog):
    labels = ("O", *(f"{p}-{t}" for p in "BIESLU" for t in "XYZ"))
    given, c = record("a b c d"[:len(tags.split()) * 2 - 1], tags), tagging.Config(scheme=scheme, labels=labels)
    assert list(tagging.tags_of(c, given)) == read.split()
    tagging.encode(c, [given, given._replace(fields={"words": ["a"]})], encoder())
    wrong = [(i, tag) for i, tag in enumerate(tags.split()) if tag != read.split()[i]]
    assert len(caplog.messages) == bool(wrong) == (scheme != "none")
    for (i, tag), message in zip(wrong, caplog.messages, strict=False):
        assert f"line 7: word {i + 1}, {'abcd'[i]!r}, has the tag {tag!r}, which {scheme} does not" in message
        assert f"({len(wrong)} of {len(tags.split())} tags)" in message
    tagging.encode(replace(c, repair=scheme != "none"), [given], encoder())
    assert len(caplog.messages) == bool(wrong)


def test_training_tags_that_break_the_scheme_are_read_alike(caplog):
    """As `B-` after `O` in the training file of CoNLL-2003, which is of IOB1."""
    train = [record("a b c d", "I-X I-X O I-Y"), record("e f g h", "O B-Z I-Z B-Z")]
    c = tagging.resolve(tagging.Config(), train)
    assert c.scheme == "IOB1" and c.labels == ("O", "B-Z", "I-X", "I-Y", "I-Z")
    tagging.encode(c, train, encoder())
    [message] = caplog.messages
    assert "line 7: word 2, 'f', has the tag 'B-Z'" in message and "IOB1" in message and "(1 of 8 tags)" in message


@pytest.mark.parametrize("scheme", schemes.PREFIXES)
def test_conversion_leaves_exactly_the_sequences_that_the_scheme_allows(scheme):
    tags = ("O", *(f"{p}-{t}" for p in schemes.PREFIXES[scheme] for t in "XY"))
    for path in itertools.product(tags, repeat=3):
        legal = all(itertools.starmap(partial(schemes.follows, scheme), itertools.pairwise(("O", *path, "O"))))
        assert legal == (not schemes.changed(scheme, path)), path


def test_repair_converts_tags_to_the_scheme():
    same = {"IOB1": ["O", "I-X", "I-X", "B-X", "I-Y", "O"], "BIO": ["O", "B-X", "I-X", "B-X", "B-Y", "O"],
            "BIOES": ["O", "B-X", "E-X", "S-X", "S-Y", "O"], "BILOU": ["O", "B-X", "L-X", "U-X", "U-Y", "O"]}
    for (scheme, expected), tags in itertools.product(same.items(), same.values()):
        assert schemes.convert(scheme, tags) == expected
    given = record("a b c d e f", " ".join(same["IOB1"]))
    c = tagging.resolve(tagging.Config(scheme="BIOES", repair=True), [given])
    assert c.labels == ("O", "B-X", "E-X", "S-X", "S-Y")
    every = itertools.product(("O", "B-X", "I-X", "B-Y", "I-Y"), repeat=4)
    for scheme, tags in itertools.product(same, every):
        fixed = schemes.convert(scheme, tags)
        assert not schemes.changed(scheme, fixed)
        assert schemes.convert("BIO", fixed) == schemes.convert("BIO", tags)
        if scheme in ("BIO", "IOB1"):  # conlleval does not know S- and U-
            assert TASK_METRICS["conll_f1"].function([tags], [fixed]) == (1 if set(tags) != {"O"} else 0)


@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BIOES", "BILOU"])
def test_viterbi_finds_the_most_probable_allowed_sequence(scheme):
    labels = ["O", *(f"{p}-{t}" for p in schemes.PREFIXES[scheme] for t in "XY")][:7]
    for seed in range(5):
        scores = np.random.default_rng(seed).normal(size=(4, len(labels)))
        allowed = [path for path in itertools.product(range(len(labels)), repeat=4)
                   if not schemes.changed(scheme, [labels[i] for i in path])]
        best = max(allowed, key=lambda path: scores[np.arange(4), list(path)].sum())
        assert schemes.best_sequence(scores, labels, scheme).tolist() == list(best)


@pytest.mark.parametrize(("labels", "scheme"), [
    (("O", "B-PER", "I-PER"), "BIO"), (("I-PER", "O"), "BIO"), (("O", "B-x", "I-x", "E-x", "S-x"), "BIOES"),
    (("O", "B-x", "I-x", "L-x", "U-x"), "BILOU"), (("NOUN", "VERB"), "none"), (("O", "PER"), "none"),
    (("O", "B-x", "NOUN"), "none"),
])
def test_the_scheme_of_a_published_tagger_is_that_of_its_labels(labels, scheme):
    assert schemes.of_labels(labels) == scheme
