"""Reading times: surprisals of words given the text before, and what they explain beyond a baseline."""

import csv
import json

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import lmrep
from lmrep.core.errors import UserError
from lmrep.inference import pairs, reading_times, suite
from tests import given, runs, small
from tests.docs import world
from tests.reference import random_params

TEXTS = [("The old", "cat"), ("The old", "mousetrap!"), ("the cat sees the", "bluebirds")]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of each objective by its name."""
    home = tmp_path_factory.mktemp("reading")
    runs.copy("masked", home / "masked")
    for objective in ("causal", "masked_next_token", "replaced_token"):
        given.workdir(home / f"{objective}-files", objective, layers=1, params=lambda specs, tokenizer: random_params(
            specs, stddev=0.1)).rename(home / objective)
    return home


def table(home, change=lambda rows: None):
    """Reads a table of random times after `change` of its rows."""
    rows = [*csv.DictReader(world.reading_times(60).splitlines())]
    change(rows)
    with open(home / "reading.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    [words] = reading_times.read(home / "reading.csv")
    return words


# The regression


def test_the_fraction_is_known_where_the_residuals_are():
    """A measure of the baseline, 3 times what it leaves of surprisal, and an error of known size."""
    draw = np.random.default_rng(0)
    predictors, surprisal, error, weights = (draw.normal(size=shape) for shape in ((3, 50), 50, 50, 7))
    a, b, c = predictors
    design = np.stack([np.ones(50), a, b, c, a * b, a * c, b * c], 1)
    rest = surprisal - design @ np.linalg.pinv(design) @ surprisal
    both = np.column_stack([design, rest])
    error -= both @ np.linalg.pinv(both) @ error
    signal, noise = 9 * (rest @ rest), error @ error
    measure = design @ weights + 3 * rest + error
    assert reading_times.explained(measure, predictors, surprisal) == pytest.approx(signal / (signal + noise))
    assert reading_times.explained(measure - error, predictors, surprisal) == pytest.approx(1)
    assert reading_times.explained(measure - 3 * rest, predictors, surprisal) == pytest.approx(0, abs=1e-12)
    assert reading_times.explained(design @ weights, predictors, surprisal) == 0
    assert reading_times.explained(np.full(50, 3.0), predictors, surprisal) == 0


@pytest.mark.parametrize("k", [3, 5])
def test_the_fraction_is_the_one_of_two_regressions(k):
    """As the pipeline computes it, from R² of predictors in their units, with all products of two of them."""
    draw = np.random.default_rng(k)
    predictors = draw.gamma(3, 2, (k, 300)) + np.arange(k)[:, None]
    surprisal = draw.gamma(2, 3, 300) + predictors[0]
    measure = 200 + 5 * predictors[0] * predictors[1] + 7 * surprisal + 40 * draw.normal(size=300)
    products = [predictors[i] * predictors[j] for i in range(k) for j in range(i)]
    baseline, full = np.stack([*predictors, *products], 1), np.stack([*predictors, *products, surprisal], 1)
    without, among = (LinearRegression().fit(x, measure).score(x, measure) for x in (baseline, full))
    found = reading_times.explained(measure, predictors, surprisal)
    assert found == pytest.approx((among - without) / (1 - without)) and 0.01 < found < 0.99


# Surprisals


def test_a_causal_surprisal_is_a_difference_of_log_probabilities(home):
    run = lmrep.load(home / "causal")
    scoring = pairs.in_float32(run).uses.scorings["log_probability"]
    ids = [pairs.tokenize(run, text, "here") for context, word in TEXTS for text in (context, f"{context} {word}")]
    sums = pairs.score(run, ids, scoring).sums
    assert reading_times.surprisals(run, TEXTS, ["here"] * 3) == pytest.approx(sums[::2] - sums[1::2], rel=1e-5)


@pytest.mark.parametrize("name", ["masked", "masked_next_token"])
def test_a_masked_surprisal_hides_the_rest(home, name):
    """Each token is predicted at the first of three masks, given the tokens before it alone."""
    run = lmrep.load(home / name)
    scoring = pairs.in_float32(run).uses.scorings["pll"]
    before, after = run.special_tokens
    mask, expected = run.tokenizer.vocabulary.specials["mask"], []
    for context, word in TEXTS:
        given_ids, ids = run.tokenizer.encode(context).ids, run.tokenizer.encode(f"{context} {word}").ids
        total = 0.0
        for i in range(len(given_ids), len(ids)):
            tokens = np.array([[*before, *ids[:i], mask, mask, mask, *after]], np.int32)
            at = len(before) + i - (name == "masked_next_token")  # which predicts a mask one position before
            total -= float(scoring.log_probabilities(run.params, {
                "tokens": tokens, "segment_ids": np.ones_like(tokens), "predicted": np.array([[at]]),
                "targets": np.array([[ids[i]]])})[0, 0])
        expected.append(total)
    found = reading_times.surprisals(run, TEXTS, ["here"] * 3)
    assert found == pytest.approx(expected, rel=1e-4)
    assert reading_times.surprisals(run, TEXTS, ["here"] * 3, "word_l2r") == pytest.approx(found, rel=1e-5)


# A table


def test_times_that_surprisal_makes_are_explained(home):
    run = lmrep.load(home / "causal")
    surprisal = reading_times.surprisals(run, table(home).texts, ["here"] * 60)

    def times(rows):
        for row, bits in zip(rows, surprisal, strict=True):
            row["RTfirstfix"] = row["RTgopast"] = row["self_paced_reading_time"] = repr(200 + 30 * float(bits))

    values = reading_times.evaluate(run, table(home, times))
    parts = values["parts"]
    assert parts["RTfirstfix"]["explained"] == pytest.approx(1) == values["self_paced"]
    assert 0 <= parts["RTfirstpass"]["explained"] < 0.5
    assert values["eye_tracking"] == pytest.approx(np.mean(
        [parts[name]["explained"] for name in reading_times.MEASURES["eye_tracking"]]))


def test_values_that_pandas_reads_as_missing_are_missing(home):
    """As of the pipeline: the text before the previous word too, where it is "None", but not the text before a word,
    which is "None" where it is missing, as in the challenge's file."""
    def missing(rows):
        rows[5].update(item="None of", word="the", prev_item="None", prev_word="of", RTgopast="null")
        rows[8].update(item="None", word="of", prev_item="", prev_word="None")
        rows[11].update(item="", word="of")

    words, whole = table(home, missing), table(home)
    assert words.texts[5] == ("None of", "the") and words.texts[8] == words.texts[11] == ("None", "of")
    assert words.previous[5] is words.previous[8] is None and whole.previous[5] is not None is not whole.previous[8]
    assert np.isnan(words.numbers["RTgopast"][5]) and np.isfinite(whole.numbers["RTgopast"][5])
    run = lmrep.load(home / "causal")
    items = [reading_times.evaluate(run, each)["parts"]["self_paced_reading_time"]["items"] for each in (words, whole)]
    assert items[1] - items[0] == 2


def test_spill_over_has_the_previous_word(home):
    """Times of the previous word's surprisal are those of the baseline; rows without a value are left out."""
    run = lmrep.load(home / "causal")
    previous = [text for text in table(home).previous if text]
    surprisal = iter(reading_times.surprisals(run, previous, ["here"] * len(previous)))

    def times(rows):
        for row in rows:
            value = float(next(surprisal)) if row["prev_item"] else 0.0
            row["RTfirstfix"] = row["self_paced_reading_time"] = repr(value)
        rows[2]["self_paced_reading_time"] = rows[3]["RTgopast"] = rows[4]["RTgopast"] = ""

    values = reading_times.evaluate(run, table(home, times))
    assert values["self_paced"] == pytest.approx(0, abs=1e-6) and values["items"] == 60
    assert values["parts"]["self_paced_reading_time"]["items"] == len(previous) - 1
    assert values["parts"]["RTgopast"]["items"] == 58 and values["parts"]["RTfirstfix"]["items"] == 60


def test_a_suite_of_reading_times_alone(home, tmp_path):
    world.suite(tmp_path / "babylm")
    found = small.command("evaluate", f"--workdir={home}/causal", f"--suite={tmp_path}/babylm/reading")
    assert found.code == 0 and "self-paced" in found.out and "mean" not in found.out.split("\n\n")[0], found
    result = json.loads((home / "causal/eval.json").read_text())
    [words] = reading_times.read(tmp_path / "babylm")
    expected = reading_times.evaluate(lmrep.load(home / "causal"), words)
    assert result["metrics"]["reading_data/eye_tracking"] == pytest.approx(expected["eye_tracking"])
    assert result["examples"] == expected["items"] == 40 and words.task == "reading"
    (tmp_path / "babylm/blimp/other.csv").write_text("a,b\n1,2\n")
    values = lmrep.evaluate(home / "causal", suite=tmp_path / "babylm", examples=1)
    assert values["reading/self_paced"] == pytest.approx(expected["self_paced"]) and 0 <= values["accuracy"] <= 1
    assert "self-paced" in suite.table(values)


def _without(column):
    return lambda text: "\n".join(",".join(cell for i, cell in enumerate(line.split(",")) if i != column)
                                  for line in text.splitlines())


@pytest.mark.parametrize(("change", "named"), [
    (_without(2), ("lacks the columns word;", "expected item, word")),
    (lambda text: text.replace("0.", "x.", 1), ("line 2", "'x.", "expected a number")),
    (lambda text: "\n".join(text.splitlines()[:12]), ("7 rows with all values for self_paced",
                                                          "more than 17")),
    (lambda text: text + ",the, ,,,\n", ("line 42: word is ' '",)),
    (lambda text: text + ",the," + "cat " * 200 + ",,\n", ("tokens",))])
def test_tables_are_refused(home, tmp_path, change, named):
    (tmp_path / "times.csv").write_text(change(world.reading_times()))
    with pytest.raises(UserError) as error:
        lmrep.evaluate(home / "causal", suite=tmp_path)
    assert all(text in str(error.value) for text in named), error.value


def test_scores_and_names_are_refused(home, tmp_path):
    with pytest.raises(UserError, match=r"reading.csv: .* gives words no surprisal: its score is the sum of"):
        reading_times.evaluate(lmrep.load(home / "replaced_token"), table(home))
    (tmp_path / "a").mkdir()
    (tmp_path / "a/a.csv").write_text(world.reading_times())
    (tmp_path / "a/a.jsonl").write_text('{"sentence_good": "The cat sees.", "sentence_bad": "The cat see."}\n')
    with pytest.raises(UserError, match="the task a has choices and reading times"):
        lmrep.evaluate(home / "causal", suite=tmp_path)
