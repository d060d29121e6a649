"""Schemes of tags: which one data have, what they refuse, conversion, and decoding."""

import itertools

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import schemes, tagging
from tests.tasks.tags import encoder


def record(words, tags):
    return Record({"words": words.split(), "tags": tags.split()}, "0", "dev.conll, line 7")


@pytest.mark.parametrize(("tags", "scheme"), [
    ("O B-X I-X O", "BIO"), ("B-X B-X O", "BIO"), ("I-X I-X B-X O", "IOB1"), ("B-X E-X S-Y O", "BIOES"),
    ("B-X I-X L-X U-Y O", "BILOU"), ("NOUN VERB I O", "none"), ("-LRB- NN-X O", "none"), ("B I O", "BIO"),
    ("B-X I-X", "BIO"), ("I-X I-X O B-Y I-Y O I-X", "IOB1"), ("B-X I-X O I-Y", "BIO")])
def test_the_scheme_is_detected(tags, scheme):
    given = [record(" ".join("abcdef"[: len(tags.split())]), tags)]
    assert schemes.detect(given, False) == scheme
    c = tagging.resolve(tagging.Config(), given)
    assert c.scheme == scheme
    assert c.metrics == (("token_accuracy",) if scheme == "none" else tagging.METRICS)
    if tags != "B-X I-X O I-Y":
        tagging.check(c, given[0])


@pytest.mark.parametrize(("tags", "message"), [
    ("O PER B-X O", r"word 2, 'b', has the tag 'PER', and others begin with B- or I-"),
    ("O L-X B-X E-X", r"begin with B, E, L, O, which is no scheme"),
    ("O O O O", r"has the only tag 'O'")])
def test_tags_of_no_scheme_are_refused(tags, message):
    with pytest.raises(UserError, match=message):
        tagging.resolve(tagging.Config(), [record("a b c d", tags)])


@pytest.mark.parametrize(("scheme", "tags", "word"), [
    ("BIO", "O I-X", 2), ("BIO", "B-Y I-X", 2), ("BIO", "I-X", 1),
    ("BIOES", "B-X O", 2), ("BIOES", "B-X E-Y", 2), ("BIOES", "O E-X", 2), ("BIOES", "S-X I-X", 2),
    ("BIOES", "O B-X", 2), ("BILOU", "U-X L-X", 2)])
def test_tags_that_may_not_follow_each_other_are_refused(scheme, tags, word):
    c = tagging.Config(scheme=scheme, labels=("O", *(f"{p}-{t}" for p in "BIESLU" for t in "XY")))
    with pytest.raises(UserError, match=rf"dev\.conll, line 7: word {word}, .* which {scheme}, .*, does not allow"):
        tagging.check(c, record("a b"[: len(tags.split()) * 2 - 1], tags))


def test_b_of_iob1_that_follows_no_entity_of_its_type_begins_one_and_is_counted(caplog):
    """As in the training file of CoNLL-2003."""
    train = [record("a b c d", "I-X I-X O I-Y"), record("e f g h", "O B-Z I-Z B-Z")]
    c = tagging.resolve(tagging.Config(), train)
    assert c.scheme == "IOB1" and c.labels == ("O", "B-Z", "I-X", "I-Y", "I-Z")
    for each in train:
        tagging.check(c, each)
    assert tagging.tags_of(c, train[1]) == ["O", "I-Z", "I-Z", "B-Z"]
    tagging.encode(c, train, encoder())
    [message] = caplog.messages
    assert "line 7: word 2, 'f', has the tag 'B-Z'" in message and "IOB1" in message and "(1 such tag)" in message
    with pytest.raises(UserError, match=r"word 4, 'd', has the tag 'I-Y' after 'O', which BIO, the .*scheme=IOB1"):
        data = [record("a b", "B-X I-X"), record("a b c d", "B-X I-X O I-Y")]
        tagging.check(tagging.resolve(tagging.Config(), data), data[1])


def test_a_tag_of_another_scheme_is_refused():
    with pytest.raises(UserError, match=r"word 1, 'a', has the tag 'E-X', which is not of the scheme BIO"):
        tagging.check(tagging.Config(scheme="BIO", labels=("E-X", "O")), record("a", "E-X"))


def test_repair_converts_tags_to_the_scheme():
    same = {"IOB1": ["O", "I-X", "I-X", "B-X", "I-Y", "O"], "BIO": ["O", "B-X", "I-X", "B-X", "B-Y", "O"],
            "BIOES": ["O", "B-X", "E-X", "S-X", "S-Y", "O"], "BILOU": ["O", "B-X", "L-X", "U-X", "U-Y", "O"]}
    for (scheme, expected), tags in itertools.product(same.items(), same.values()):
        assert schemes.convert(scheme, tags) == expected
    given = record("a b c d e f", " ".join(same["IOB1"]))
    c = tagging.resolve(tagging.Config(scheme="BIOES", repair=True), [given])
    tagging.check(c, given)
    assert c.labels == ("O", "B-X", "E-X", "S-X", "S-Y")
    every = itertools.product(("O", "B-X", "I-X", "B-Y", "I-Y"), repeat=4)
    for scheme, tags in itertools.product(same, every):
        fixed = schemes.convert(scheme, tags)
        assert schemes.fault(scheme, fixed) < 0
        assert schemes.convert("BIO", fixed) == schemes.convert("BIO", tags)
        if scheme in ("BIO", "IOB1"):  # conlleval does not know S- and U-
            assert TASK_METRICS["conll_f1"].function([tags], [fixed]) == (1 if set(tags) != {"O"} else 0)


@pytest.mark.parametrize("scheme", ["BIO", "IOB1", "BIOES", "BILOU"])
def test_viterbi_finds_the_most_probable_allowed_sequence(scheme):
    labels = ["O", *(f"{p}-{t}" for p in schemes.PREFIXES[scheme] for t in "XY")][:7]
    for seed in range(5):
        scores = np.random.default_rng(seed).normal(size=(4, len(labels)))
        allowed = [path for path in itertools.product(range(len(labels)), repeat=4)
                   if schemes.fault(scheme, [labels[i] for i in path]) < 0]
        best = max(allowed, key=lambda path: scores[np.arange(4), list(path)].sum())
        assert schemes.best_sequence(scores, labels, scheme).tolist() == list(best)


@pytest.mark.parametrize(("labels", "scheme"), [
    (("O", "B-PER", "I-PER"), "BIO"), (("I-PER", "O"), "BIO"), (("O", "B-x", "I-x", "E-x", "S-x"), "BIOES"),
    (("O", "B-x", "I-x", "L-x", "U-x"), "BILOU"), (("NOUN", "VERB"), "none"), (("O", "PER"), "none"),
    (("O", "B-x", "NOUN"), "none"),
])
def test_the_scheme_of_a_published_tagger_is_that_of_its_labels(labels, scheme):
    assert schemes.of_labels(labels) == scheme
