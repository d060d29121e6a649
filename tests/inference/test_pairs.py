"""Minimal pairs: the scores of each objective, accuracies and their intervals, and `lmrep evaluate --pairs`."""

import dataclasses
import json
import logging
import sys
from functools import partial

import jax
import numpy as np
import pytest
from scipy.stats import binomtest

import lmrep
from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import flatten, unflatten
from lmrep.inference import pairs
from lmrep.inference import perplexity as sliding
from lmrep.inference.scores import Scores, Text, score_texts
from lmrep.interop import conversion
from lmrep.objectives import scoring
from lmrep.objectives.scoring import Scoring
from lmrep.objectives.uses import Uses
from tests import given, runs, small
from tests.interop.test_published import GOLDEN
from tests.reference import random_params

OBJECTIVES = ("masked", "causal", "masked_next_token", "replaced_token", "span_boundary")
SENTENCES = ["The old cat sees the dog.", "cat", "the bluebirds finds fishes", "the red horse likes the small mouse.",
             "dogs eat.", "The mousetrap"]  # some of their words are several tokens
LINE = {"sentence_good": "The cat sees.", "sentence_bad": "The cat see.", "UID": "agreement",
        "linguistics_term": "morphology"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of each objective by its name, those that are not shared with random parameters; and `gpt2`."""
    home = workdirs(tmp_path_factory.mktemp("pairs"), "masked_next_token", "replaced_token", "span_boundary")
    runs.copy("causal", home / "causal")
    return home


def workdirs(home, *objectives):
    """Copies the shared `masked` run, and writes runs of other objectives with random parameters, and `gpt2`."""
    runs.copy("masked", home / "masked")
    for objective in objectives:
        workdir = given.workdir(home / f"{objective}-files", objective, layers=1,
                                params=lambda specs, tokenizer: random_params(specs, stddev=0.1))
        workdir.rename(home / objective)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)  # it takes seconds to import
        conversion.to_workdir(GOLDEN / "gpt2", home / "gpt2")
    return home


@pytest.fixture(scope="module", name="runs")
def _runs(home):
    return {name: lmrep.load(home / name) for name in OBJECTIVES}


def texts_of(run, sentences, end_mark=False):
    return [pairs.tokenize(run, sentence, "here", end_mark) for sentence in sentences]


def scores(run, sentences, name="", end_mark=False, **options):
    known = run.objective.uses.scorings
    found = pairs.score(run, texts_of(run, sentences, end_mark), known[name or next(iter(known))], **options)
    return found.sums


def replaced(run, **values):
    """The run with zeros for all parameters but those whose path ends in a name of `values`, with "/" for "__"."""
    flat = {path: np.zeros_like(value) for path, value in flatten(run.params).items()}
    for name, value in values.items():
        [path] = [path for path in flat if path.endswith(name.replace("__", "/"))]
        flat[path] = value
    return dataclasses.replace(run, params=unflatten(flat))


def write(directory, *lines, name="a.jsonl"):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("".join(f"{json.dumps(LINE | line) if isinstance(line, dict) else line}\n"
                                          for line in lines))
    return directory


def pair(good, bad, paradigm="one", phenomenon="all"):
    return pairs.Pair(good, bad, paradigm, phenomenon, "here")


# Scores


def by_hand(run, sentence, word_l2r):
    """The pseudo-log-likelihood, one token at a time, from all the probabilities that the run predicts for a mask."""
    encoded, mask, total = run.tokenize(sentence), run.tokenizer.vocabulary.specials["mask"], 0.0
    for i, (token, word) in enumerate(zip(encoded.ids, encoded.words, strict=True)):
        if word is None:
            continue
        masked = encoded.ids.copy()
        masked[i] = mask
        for later in range(i + 1, len(masked)):
            if word_l2r and encoded.words[later] == word:
                masked[later] = mask
        found = run.predict_batch({"tokens": masked[None], "segment_ids": np.ones_like(masked[None]),
                                   "predicted": np.array([[i]])}, k=run.tokenizer.size)
        total += np.log(found["probabilities"][0, 0][found["words"][0, 0] == token].astype(np.float64)).item()
    return total


@pytest.mark.parametrize("objective", ["masked", "masked_next_token",
                                       pytest.param("span_boundary", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["pll", "pll_word_l2r"])
def test_pseudo_log_likelihood_masks_one_token_at_a_time(runs, objective, name):
    run = runs[objective]
    expected = [by_hand(run, sentence, name == "pll_word_l2r") for sentence in SENTENCES]
    np.testing.assert_allclose(scores(run, SENTENCES, name), expected, rtol=1e-5)


def test_scores_of_words_from_left_to_right_differ_for_split_words_alone(runs):
    run, words = runs["masked"], [run_words(runs["masked"], sentence) for sentence in SENTENCES]
    split = np.array([len(set(each)) < len(each) for each in words])
    assert 0 < split.sum() < len(split)
    np.testing.assert_array_equal(scores(run, SENTENCES, "pll") != scores(run, SENTENCES, "pll_word_l2r"), split)


def run_words(run, sentence):
    return run.tokenizer.encode(sentence).words


def test_views_mask_what_they_must():
    ids, words = np.array([[1, 10, 11, 12, 13, 2]], np.int32), np.array([[-1, 0, 0, 0, 1, -1]])
    views = scoring.masked_views(ids, words, mask=9, word_l2r=False)
    assert views.tokens.tolist() == [[1, 9, 11, 12, 13, 2], [1, 10, 9, 12, 13, 2], [1, 10, 11, 9, 13, 2],
                                     [1, 10, 11, 12, 9, 2]]
    views = scoring.masked_views(ids, words, mask=9, word_l2r=True)
    assert views.tokens.tolist() == [[1, 9, 9, 9, 13, 2], [1, 10, 9, 9, 13, 2], [1, 10, 11, 9, 13, 2],
                                     [1, 10, 11, 12, 9, 2]]
    assert views.predicted.tolist() == [[1], [2], [3], [4]] and views.targets.tolist() == [[10], [11], [12], [13]]


@pytest.mark.parametrize("end_mark", [False, True])
@pytest.mark.parametrize("name", ["causal", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_log_probability_is_that_of_sliding_windows(home, name, end_mark):
    run = lmrep.load(home / name)
    special = run.tokenizer.vocabulary.specials
    marks = ([special["cls"]], [special["sep"]]) if name == "causal" else ([special["eos"]], [special["eos"]])
    marks = marks[0], marks[1] * end_mark
    assert pairs.around_document(run, end_mark) == marks
    compute = partial(jax.jit(partial(sliding.sum_nll, objective=run.objective, model=run.model)), run.params)
    sentences = [sentence for sentence in SENTENCES if len(sentence) < 20]  # the converted network takes 23 tokens
    for sentence, found in zip(sentences, scores(run, sentences, end_mark=end_mark), strict=True):
        ids = np.array([*marks[0], *run.tokenizer.encode(sentence).ids, *marks[1]])
        [(nll, count)] = sliding.sliding_window_nll(compute, [ids], run.model.max_length, 9, 0, 8, 8)
        assert count == len(ids) - 1 and found == pytest.approx(-nll, rel=1e-5)


def test_replaced_token_score_adds_up_originals(runs):
    run = runs["replaced_token"]
    expected = [sum(np.log1p(-token.probability) for token in found) for found in run.detect_replaced(SENTENCES)]
    np.testing.assert_allclose(scores(run, SENTENCES), expected, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_scores_do_not_depend_on_batches(runs, objective):
    run, some = runs[objective], SENTENCES[1:5]
    expected = [scores(run, [sentence])[0] for sentence in some]
    for tokens in (8, 4096):
        np.testing.assert_allclose(scores(run, some[::-1], tokens=tokens)[::-1], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("max_padding", [0, 30, 10**6])
@pytest.mark.parametrize(("tokens", "multiple"), [(1, 1), (20, 1), (50, 4), (10**5, 1)])
def test_each_view_is_in_one_batch(max_padding, tokens, multiple):
    """Scored by "networks" whose log probabilities are the targets, and which see few shapes and little padding."""
    draw, shapes, padding, reported = np.random.default_rng(0), set(), 0, []
    lengths = draw.integers(3, 9, 40)
    texts = [Text(draw.integers(10, 99, n).astype(np.int32), np.array([-1, *range(n - 2), -1])) for n in lengths]

    def compute(batch):
        nonlocal padding
        shapes.add(batch["tokens"].shape)
        padding += sum((row == 0).sum() for row in batch["segment_ids"] if row.any())
        assert len(batch["tokens"]) % multiple == 0
        assert ((batch["tokens"] == 7) == (batch["segment_ids"] == 0)).all()
        return batch["targets"].astype(np.float32)

    views = partial(scoring.masked_views, mask=3, word_l2r=False)
    for make, kept in ((views, slice(1, -1)), (scoring.next_token_views, slice(1, None)),
                       (scoring.token_views, slice(1, -1))):
        found = score_texts(compute, texts, Scoring("", make, None), pad=7, tokens=tokens, multiple=multiple,
                            max_padding=max_padding, report=lambda done, total: reported.append(done / total))
        np.testing.assert_array_equal(found.sums, [text.ids[kept].sum() for text in texts])
        np.testing.assert_array_equal(found.counts, [len(text.ids[kept]) for text in texts])
        if max_padding == 10**6:
            assert len(shapes) == 1
            shapes.clear()
    assert reported == [] or 0 < min(reported) <= max(reported) <= 1
    if not max_padding and tokens == 1 and multiple == 1:
        assert padding == 0


@pytest.mark.slow
def test_runs_in_bfloat16_are_scored_in_float32(runs):
    run, some = runs["masked"], [pair(SENTENCES[0], SENTENCES[3]), pair(SENTENCES[1], SENTENCES[5])]
    experiment = dataclasses.replace(run.experiment, execution=dataclasses.replace(
        run.experiment.execution, dtype="bfloat16"))
    own = {name: scoring._replace(log_probabilities=None) for name, scoring in run.objective.uses.scorings.items()}
    rounded = dataclasses.replace(run, experiment=experiment, objective=run.objective._replace(
        uses=run.objective.uses._replace(scorings=own)))
    exact, name = pairs.in_float32(rounded), "pll"
    found = pairs.score(rounded, texts_of(rounded, SENTENCES), exact.uses.scorings[name]).sums
    np.testing.assert_array_equal(found, scores(run, SENTENCES))
    assert pairs.evaluate(rounded, some) == pairs.evaluate(run, some)


# Decisions


def test_a_model_prefers_what_it_is_biased_to(runs):
    run = runs["masked"]
    bias = np.zeros(run.model.vocab_size, np.float32)
    bias[run.tokenizer.encode("cat").ids] = 2.0
    biased = replaced(run, masked__bias=bias)
    some = [pair(f"the {word} cat.", f"the {word} dog.") for word in small.ADJECTIVES]
    found = pairs.evaluate(biased, some)
    assert found["accuracy"] == found["per_token_accuracy"] == 1 and found["ties"] == found["disagreeing"] == 0
    assert pairs.evaluate(biased, [pair(each.bad, each.good) for each in some])["accuracy"] == 0


def test_ties_count_one_half(runs):
    """A model without parameters gives all tokens the same probability."""
    run = replaced(runs["masked"])
    some = [pair("the cat sees the dog.", "dog the the sees cat."), pair("The dog", "the dog"),
            pair("the old mouse", "the red fish")]
    found = pairs.evaluate(run, some)
    assert (found["accuracy"], found["ties"], found["identical"], found["disagreeing"]) == (0.5, 3, 1, 0)
    shorter = pairs.evaluate(run, [pair("the dog", "the old dog"), pair("the old dog", "the dog")])
    assert (shorter["accuracy"], shorter["ties"]) == (0.5, 0)  # one is right by its length, and one is wrong
    assert (shorter["per_token_accuracy"], shorter["disagreeing"]) == (0.5, 2)


def test_rounding_makes_no_difference():
    good, bad = np.array([-10.0, -10.0, -10.0, -10.0, 0.0]), np.array([-10.000001, -10.001, -9.999, -9.999999, 0.0])
    assert pairs.outcomes(good, bad).tolist() == [0.5, 1, 0, 0.5, 0.5]


# Accuracies


def test_identical_sentences_are_ties_whatever_their_scores():
    some, scores = [pair("The dog", "the dog")] * 2, Scores(np.array([-1.0, -1.1]), np.array([2, 2]))
    found = pairs.figures(some, scores, np.array([0, 0]), np.array([1, 1]), np.array([True, False]))
    assert (found["accuracy"], found["per_token_accuracy"]) == (0.75, 0.75)
    assert found["ties"] == found["identical"] == 1


def test_accuracies_are_means_over_paradigms():
    some = [pair("", "", "a", "x")] * 4 + [pair("", "", "b", "x")] * 2 + [pair("", "", "c", "y")] * 2
    good = np.arange(8)
    sums = np.concatenate([-np.array([1, 1, 1, 3, 3, 3, 1, 2.0]), np.full(8, -2.0)])
    found = pairs.figures(some, Scores(sums, np.array([1] * 8 + [1] * 7 + [2])), good, good + 8, good < 0)
    assert {name: entry["accuracy"] for name, entry in found["paradigms"].items()} == {"a": 0.75, "b": 0, "c": 0.75}
    assert {name: entry["accuracy"] for name, entry in found["phenomena"].items()} == {"x": 0.375, "y": 0.75}
    assert found["accuracy"] == 0.5 and found["pairs"] == 8 and (found["ties"], found["identical"]) == (1, 0)
    assert found["disagreeing"] == 1 and found["paradigms"]["c"]["per_token_accuracy"] == 0.5
    assert found["paradigms"]["b"]["phenomenon"] == "x"
    text = pairs.table(found | {"summary": "a score"})
    assert "mean over 3 paradigms" in text and "37.5%" in text and "per token" in text


@pytest.mark.parametrize(("correct", "n"), [(0, 5), (7, 10), (1000, 1000), (431, 1000)])
def test_interval_of_a_paradigm_is_wilson_s(correct, n):
    expected = binomtest(correct, n).proportion_ci(method="wilson")
    assert pairs.wilson(correct / n, n) == pytest.approx(tuple(expected), abs=1e-12)
    assert pairs.mean_interval(np.array([correct / n]), np.array([n])) == pytest.approx(tuple(expected), abs=1e-12)


def test_interval_of_a_mean_covers_it_in_95_percent_of_samples():
    p, n, draw = np.array([0.5, 0.8, 0.95, 0.3, 0.99]), np.array([40, 20, 30, 60, 25]), np.random.default_rng(0)
    intervals = [pairs.mean_interval(draw.binomial(n, p) / n, n) for _ in range(2000)]
    covered = np.mean([low <= p.mean() <= high for low, high in intervals])
    assert 0.935 < covered < 0.975
    assert np.mean([high - low for low, high in intervals]) < 4.2 * np.sqrt((p * (1 - p) / n).sum()) / len(p)


# Input


def test_objectives_without_a_score_are_refused(runs, tmp_path):
    some = write(tmp_path / "pairs", LINE)
    headless = dataclasses.replace(runs["masked"], params={"encoder": runs["masked"].params["encoder"]})
    with pytest.raises(UserError, match="lacks the head masked"):
        pairs.evaluate(headless, pairs.read(some))
    with pytest.raises(UserError, match="gives sentences no score"):
        pairs.evaluate(dataclasses.replace(runs["masked"], objective=runs["masked"].objective._replace(uses=Uses())),
                       pairs.read(some))


def test_scores_that_are_not_finite_stop_the_evaluation(runs):
    broken = replaced(runs["masked"], masked__bias=np.full(runs["masked"].model.vocab_size, np.nan, np.float32))
    with pytest.raises(RunFault, match="the score of 'the cat' is nan"):
        pairs.evaluate(broken, [pair("the cat", "the dog")])


@pytest.mark.parametrize("name, text, messages", [("gpt2", "the cat", 0), ("causal", "the cat", 0),
                                                  ("causal", "the \u732b", 1)])
def test_words_that_the_vocabulary_lacks_are_reported(home, caplog, monkeypatch, name, text, messages):
    """But not the token that precedes texts, which GPT-2's files name as that of unknown words too."""
    monkeypatch.setattr(logging.getLogger("lmrep"), "propagate", True)
    caplog.set_level(logging.INFO, "lmrep")
    run = lmrep.load(home / name)
    pairs._log_unknown(run, texts_of(run, [text], end_mark=True))
    assert len(caplog.messages) == messages


def test_the_number_of_examples(tmp_path):
    directory = write(tmp_path / "pairs", *[{"sentence_good": f"The {noun}"} for noun in small.NOUNS], "")
    write(directory, *[{"UID": "other"}] * 2, name="b.jsonl")
    assert len(pairs.read(directory)) == len(small.NOUNS) + 2
    some = pairs.read(directory, 3)
    assert [each.paradigm for each in some] == ["agreement"] * 3 + ["other"] * 2
    assert some[1].good == "The dog" and some[1].where.endswith("a.jsonl, line 2")
    assert len(pairs.read(directory / "b.jsonl")) == 2


def test_pairs_of_two_sentences_alone_have_the_file_s_name_as_paradigm(runs, tmp_path):
    some = write(tmp_path, json.dumps({name: LINE[name] for name in ("sentence_good", "sentence_bad")}), name="q.jsonl")
    values = pairs.evaluate(runs["causal"], pairs.read(some), end_mark=True)
    assert list(values["paradigms"]) == list(values["phenomena"]) == ["q"]
    assert values["score"] == "log_probability_with_end" and "[SEP]" in values["summary"]
    assert [line.split()[0] for line in pairs.table(values).splitlines()[1:3]] == ["q", "mean"]


# The command


def test_the_command_prints_stores_and_reports(home, tmp_path):
    some = write(tmp_path / "pairs", *[{"sentence_good": f"The {noun} sees.", "sentence_bad": f"the {noun} sees."}
                                       for noun in small.NOUNS], {"UID": "<b>", "linguistics_term": "syntax & co"})
    found = small.command("evaluate", f"--workdir={home}/masked", f"--pairs={some}", "--pll=word_l2r", "--examples=4")
    assert found.code == 0, found
    assert "morphology" in found.out and "mean over 2 paradigms" in found.out and "4 of them are identical" in found.out
    result = json.loads((home / "masked/eval.json").read_text())
    assert result == json.loads((home / "masked/eval.jsonl").read_text().splitlines()[-1])
    assert (result["score"], result["examples"], result["metrics"]["pairs"]) == ("pll_word_l2r", 5, 5)
    assert result["paradigms"]["agreement"]["accuracy"] == 0.5 and result["phenomena"]["syntax & co"]["pairs"] == 1
    values = lmrep.evaluate(home / "masked", pairs=some, pll="word_l2r", examples=4)
    assert values["accuracy"] == result["metrics"]["accuracy"] and values["paradigms"] == result["paradigms"]
