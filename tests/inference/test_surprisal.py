"""Surprisals of words, and `lmrep surprisal`."""

import csv
import math

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.inference import pairs
from lmrep.inference.surprisal import surprisals
from tests import given, runs, small
from tests.reference import random_params

SENTENCES = ["The old cat sees the  dog.", "cat", "the bluebirds finds fishes", "The mousetrap!"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of each objective by its name."""
    home = tmp_path_factory.mktemp("surprisal")
    for objective in ("masked", "causal"):
        runs.copy(objective, home / objective)
    given.workdir(home / "files", "masked_next_token", layers=1,
                  params=lambda specs, tokenizer: random_params(specs, stddev=0.1)).rename(home / "masked_next_token")
    return home


@pytest.mark.parametrize(("objective", "pll"), [
    ("masked", ""), ("masked", "word_l2r"), ("causal", ""), ("masked_next_token", ""),
    ("masked_next_token", "log_probability")])
def test_the_words_of_a_sentence_add_up_to_its_score(home, objective, pll):
    run = lmrep.load(home / objective)
    found = surprisals(run, SENTENCES, pll)
    scoring = pairs.in_float32(run).uses.scorings[pairs.scoring_name(run, pll)]
    scores = pairs.score(run, [pairs.tokenize(run, text, "here") for text in SENTENCES], scoring)
    for text, words, total, count in zip(SENTENCES, found, *scores, strict=True):
        assert [word.text for word in words] == text.split()
        assert sum(word.tokens for word in words) == len(run.tokenizer.encode(" ".join(text.split())).ids)
        known = [word for word in words if word.surprisal is not None]
        lacking = [word for word in words if word.surprisal is None]
        assert lacking in ([], words[:1]) and all(word.surprisal >= 0 for word in known)
        if not lacking:
            assert math.log(2) * sum(word.surprisal for word in known) == pytest.approx(-total, rel=1e-6)
        else:  # the first token has nothing before it
            assert sum(word.tokens for word in known) <= count


def test_the_table(home):
    (home / "texts.txt").write_text("The old, red cat.\n\nthe bluebirds\n")
    result = small.command("surprisal", f"--workdir={home}/masked", f"--input={home}/texts.txt",
                           f"--output={home}/table.csv")
    assert result.code == 0 and "table.csv: 6 words of 2 texts" in result.out, result
    with open(home / "table.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["line"], row["number"], row["word"]) for row in rows] == [
        ("1", "1", "The"), ("1", "2", "old,"), ("1", "3", "red"), ("1", "4", "cat."), ("3", "1", "the"),
        ("3", "2", "bluebirds")]
    words = surprisals(lmrep.load(home / "masked"), ["The old, red cat.", "the bluebirds"])
    assert [float(row["surprisal"]) for row in rows] == pytest.approx(
        [word.surprisal for found in words for word in found], abs=1e-6)
    printed = small.command("surprisal", f"--workdir={home}/masked", f"--input={home}/texts.txt").out
    assert printed.splitlines()[0] == "line,number,word,tokens,surprisal" and len(printed.splitlines()) == 7


def test_other_scores_are_refused(home):
    """ELECTRA's is the probability that tokens are original."""
    electra = given.workdir(home / "electra", "replaced_token", layers=1,
                            params=lambda specs, tokenizer: random_params(specs, stddev=0.1))
    with pytest.raises(UserError, match="gives words no surprisal: its score is the sum of the log probabilities that"):
        surprisals(lmrep.load(electra), SENTENCES)
    run = lmrep.load(home / "causal")
    run.tokenizer.backward = True
    with pytest.raises(UserError, match="it reads from right to left"):
        surprisals(run, SENTENCES)


@pytest.mark.parametrize(("flags", "message"), [
    ([], "needs --input"), (["--input=empty.txt"], "has no text"), (["--input=long.txt"], "long.txt, line 2")])
def test_refusals(home, flags, message, monkeypatch):
    monkeypatch.chdir(home)
    (home / "empty.txt").write_text("\n")
    (home / "long.txt").write_text("a cat\n" + "the cat " * 200)
    result = small.command("surprisal", f"--workdir={home}/masked", *flags)
    assert result.code == 2 and message in result.err, result
