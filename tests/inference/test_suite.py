"""Zero-shot tasks: the forms of lines, the parts that are scored, accuracies, and `lmrep evaluate --suite`."""

import json
import math
import re
import shutil

import numpy as np
import pytest
from scipy.stats import spearmanr

import lmrep
from lmrep.core.errors import UserError
from lmrep.inference import pairs, reading_times, suite
from tests import small
from tests.docs import world
from tests.inference.test_pairs import replaced, workdirs

CONTEXT, PARTS = "The old cat sees the", ("dog.", "bluebirds", "mousetrap!")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run of each objective by its name, `gpt2`, and a suite, `babylm`."""
    home = workdirs(tmp_path_factory.mktemp("suite"), "causal", "masked_next_token", "replaced_token")
    world.suite(home / "babylm")
    return home


def scores(run, texts, pll=""):
    scoring = pairs.in_float32(run).uses.scorings[pairs.scoring_name(run, pll)]
    return pairs.score(run, texts, scoring)


def choice(*options, group=("task", "file", ""), ratio=None):
    return suite.Choice(options, group, "here", ratio)


def write(directory, **lines):
    directory.mkdir(parents=True, exist_ok=True)
    for name, line in lines.items():
        (directory / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in line))
    return directory


# Scores of parts


@pytest.mark.parametrize("name", ["causal", "gpt2"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_after_a_context_has_the_difference_of_log_probabilities(home, name, part):
    run, context = lmrep.load(home / name), CONTEXT if name == "causal" else "The cat"
    text = pairs.tokenize(run, f"{context} {part}", "here", start=len(context))
    whole, alone, scored = scores(run, [text._replace(scored=None), pairs.tokenize(run, context, "here"), text]).sums
    assert 0 < text.scored < len(text.ids)
    assert scored == pytest.approx(whole - alone, rel=1e-5)


@pytest.mark.parametrize(("name", "pll"), [
    ("masked", ""), ("masked", "word_l2r"), ("masked_next_token", ""), ("masked_next_token", "log_probability"),
    ("causal", "")])
def test_a_part_has_the_last_terms_of_the_whole(home, name, pll):
    """Whatever other texts are scored with it."""
    run, terms = lmrep.load(home / name), {}
    texts = [pairs.tokenize(run, f"{CONTEXT} {part}", "here", start=start)
             for part in PARTS for start in (0, 3, len(CONTEXT))]
    scoring = pairs.in_float32(run).uses.scorings[pairs.scoring_name(run, pll)]

    def keep(views, values):
        for i, row, used in zip(views.text, values, views.predicted != -1, strict=True):
            terms.setdefault(i, []).extend(row[used])

    pairs.score(run, [text._replace(scored=None) for text in texts], scoring, each=keep)
    found = scores(run, texts, pll)
    for i, text in enumerate(texts):
        last = terms[i][-text.scored:] if text.scored else terms[i]
        assert found.counts[i] == len(last) and (not text.scored or len(last) == text.scored)
        assert found.sums[i] == pytest.approx(sum(last), rel=1e-5)


def test_a_part_has_the_white_space_before_it(home):
    """And the token that begins in the context and ends in it."""
    run = lmrep.load(home / "causal")

    def scored(text, start):
        return pairs.tokenize(run, text, "here", start=start).scored

    one = len(run.tokenizer.encode("dog.").ids)
    assert scored("the cat dog.", 7) == scored("the cat dog.", 8) == scored("the  cat   dog.", 9) == one
    assert scored("the cat dog.", 5) == scored("the cat dog.", 4) == one + len(run.tokenizer.encode("cat").ids)
    with pytest.raises(UserError, match="no token for"):
        scored("the cat \u200b", 7)


# Accuracies


def test_the_part_alone_decides(home):
    """A model that prefers one word, whatever precedes it."""
    run = lmrep.load(home / "masked")
    bias = np.zeros(run.model.vocab_size, np.float32)
    bias[run.tokenizer.encode("cat").ids] = 2.0
    biased = replaced(run, masked__bias=bias)
    assert suite.evaluate(biased, [choice(("the dog", " cat"), ("the cat cat", " dog"))])["accuracy"] == 1
    assert suite.evaluate(biased, [choice(("the cat cat", " dog"), ("the dog", " cat"))])["accuracy"] == 0


@pytest.mark.parametrize("name", ["masked", "causal"])
def test_only_the_scores_decide_which_option_is_chosen(home, name):
    """Exactly one of the options is right, wherever it is."""
    run = lmrep.load(home / name)
    options = [(CONTEXT, f" {part}") for part in PARTS]
    values = [suite.evaluate(run, [choice(*options[i:], *options[:i])])["accuracy"] for i in range(3)]
    assert sorted(values) == [0, 0, 1]
    assert values == [suite.evaluate(run, [choice(options[i], *options[:i], *options[i + 1:])])["accuracy"]
                      for i in range(3)]
    assert suite.evaluate(run, [choice(*options)])["chance"] == pytest.approx(1 / 3)


def test_ties_share_the_credit(home):
    run = replaced(lmrep.load(home / "masked"))  # all tokens have the same probability
    values = suite.evaluate(run, [choice(("", "the cat"), ("", "the dog")), choice(("", "the cat"), ("", "the Cat"))])
    assert (values["accuracy"], values["ties"]) == (0.5, 2)
    values = suite.evaluate(run, [choice(("the", " cat"), ("the", " dog"), ("the old", " cat"))])
    assert (values["accuracy"], values["chance"], values["ties"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3), 1)
    assert suite.credit(np.array([-2.0, -2.0000001, -2.1])) == 0.5 and suite.credit(np.array([-3.0, -2.0, -2.0])) == 0


def test_minimal_pairs_have_the_accuracy_of_pairs(home, tmp_path):
    lines = [{"sentence_good": f"The {noun} sees.", "sentence_bad": f"the {noun} see.", "UID": str(i % 3)}
             for i, noun in enumerate(small.NOUNS)]
    run, some = lmrep.load(home / "causal"), write(tmp_path / "a/b", c=lines)
    expected, values = pairs.evaluate(run, pairs.read(some)), suite.evaluate(run, suite.read(some.parent))
    for name in ("accuracy", "low", "high", "ties"):
        assert values[name] == pytest.approx(expected[name])
    parts = values["tasks"]["b"]["parts"]
    assert {name: part["accuracy"] for name, part in parts.items()} == {
        name: part["accuracy"] for name, part in expected["paradigms"].items()}


def test_a_task_is_the_mean_over_its_files(tmp_path, home):
    """Of the mean over the subsets of each file, as the challenge has it of entity tracking."""
    run = lmrep.load(home / "masked")
    good, bad = [suite.evaluate(run, [choice(("", "the cat"), ("", "the old dog"))])["accuracy"] for _ in range(2)]
    right, wrong = ("", "the cat"), ("", "the old dog")
    if good == bad == 0:
        right, wrong = wrong, right
    some = [choice(right, wrong, group=("t", "a", "0"))] * 3 + [choice(wrong, right, group=("t", "a", "1"))] + [
        choice(right, wrong, group=("t", "b", "0")), choice(wrong, right, group=("u", "u", ""))]
    values = suite.evaluate(run, some)
    assert values["t/accuracy"] == 0.75 and values["u/accuracy"] == 0 and values["accuracy"] == 0.375
    task = values["tasks"]["t"]
    assert (task["parts"]["a"]["accuracy"], task["parts"]["b"]["accuracy"]) == (0.5, 1) and task["items"] == 5
    assert (task["low"], task["high"]) == pytest.approx(pairs.combined(np.array([0.5, 1]), np.array(
        [pairs.mean_interval(np.array([1.0, 0]), np.array([3, 1])), pairs.wilson(1, 1)])))
    assert list(task["parts"]["a"]["parts"]) == ["0", "1"] and task["parts"]["b"]["parts"] == {}


def test_ratios_are_correlated_with_preferences(home):
    run, draw = lmrep.load(home / "causal"), np.random.default_rng(0)
    options = [(("", f"the {noun} sees"), ("", f"the {noun} finds fishes")) for noun in small.NOUNS]
    ratios = draw.integers(0, 5, len(options)) / 4
    values = suite.evaluate(run, [choice(*some, ratio=ratio) for some, ratio in zip(options, ratios, strict=True)])
    sums = scores(run, [pairs.tokenize(run, text, "here") for some in options for _, text in some]).sums
    expected = spearmanr(sums[::2] - sums[1::2], ratios)[0]
    assert values["task/spearman"] == pytest.approx(expected) and "accuracy" not in values
    low, high = values["tasks"]["task"]["low"], values["tasks"]["task"]["high"]
    assert -1 <= low < expected < high <= 1


def test_preferences_that_differ_by_rounding_are_equal():
    """A model that does not see the context prefers one ending to another by the same difference everywhere."""
    first, second = np.array([[-150.0, -158.0], [-152.0, -157.5], [-149.0, -157.0], [-151.0, -156.5]]).T
    noise = np.array([2e-5, -2e-5, -3e-5, 1e-5])
    assert suite.preferences(np.stack([first + noise, second], 1)).tolist() == [2, 1, 2, 1]
    draw = np.random.default_rng(0).normal(-50, 3, (30, 2))
    assert suite.preferences(draw).argsort().tolist() == (draw[:, 0] - draw[:, 1]).argsort().tolist()
    assert len({*suite.preferences(draw)}) == 30


def test_interval_of_a_correlation_covers_it_in_95_percent_of_samples():
    rho, n, draw = 0.6, 40, np.random.default_rng(0)
    population = 6 / math.pi * math.asin(rho / 2)  # Spearman's of a normal distribution
    samples = draw.multivariate_normal([0, 0], [[1, rho], [rho, 1]], (1000, n))
    intervals = [suite.correlation_interval(spearmanr(sample)[0], n) for sample in samples]
    assert 0.93 < np.mean([low <= population <= high for low, high in intervals]) < 0.97
    assert suite.correlation_interval(1.0, 10)[1] == pytest.approx(1) and suite.correlation_interval(0.9, 3) == (-1, 1)


# Input


def test_the_forms(home):
    [blimp, *_], [comps, *_], [tracking, *_], [ewok, *_], [wug, *_] = (
        suite.read(home / "babylm" / task) for task in ("blimp", "comps", "entity_tracking", "ewok", "wug"))
    noun = small.NOUNS[0]
    assert blimp.options == (("", f"The {noun} sees."), ("", f"The {noun} see.")) and blimp.ratio is None
    assert comps.options == ((f"A {noun} ", "finds the fish."), ("A red ", "finds the fish."))
    assert tracking.options == tuple(("The box has", part) for part in (f" the {noun}.", " the old red.", " the box."))
    assert tracking.group == ("entity_tracking", "entity_tracking", f"numops {len(noun) % 2}")
    assert ewok.options == ((f"The {noun} is old. ", "It is old."), (f"The {noun} is old. ", "It is small."))
    assert ewok.group[2] == "age" and ewok.where.endswith("ewok.jsonl, line 1")
    assert wug.options == (("", f"the {noun} sees"), ("", f"the {noun}ness sees")) and wug.ratio == len(noun) / 10
    some = suite.read(home / "babylm", examples=2)
    assert {each.group[0] for each in some} == {"blimp", "comps", "entity_tracking", "ewok", "wug"} and len(some) <= 12


LINE = {"sentence_good": "The cat sees.", "sentence_bad": "The cat see."}
TRACKING = {"input_prefix": "The box has", "options": [" a", " b"]}
WUG = {"sentences": "the cat\tthe dog", "ratio": 0.5}
# Lines of a file. Row: (the lines, what the message names).
REFUSED = [
    ([LINE, {"sentence": "a"}], ("a.jsonl, line 2", "the fields sentence;", "sentence_good", "Context1",
                                 "property_phrase", "input_prefix", "ratio")),
    ([[1]], ("line 1", "[1]")), ([], ("holds nothing",)), ([LINE | {"sentence_bad": " "}], ("sentence_bad", "' '")),
    ([TRACKING | {"options": [" a"]}], ("options", "two or more")), ([TRACKING | {"options": "ab"}], ("options",)),
    ([TRACKING | {"options": [" a", 1]}], ("options",)), ([TRACKING | {"input_prefix": ""}], ("input_prefix",)),
    ([WUG | {"sentences": "the cat"}], ("sentences", "tab")), ([WUG | {"ratio": "half"}], ("ratio", "'half'")),
    ([WUG, LINE], ("line 2", "task a", "ratio")), ([LINE | {"sentence_bad": "the cat " * 40}], ("line 1", "tokens")),
]


@pytest.mark.parametrize(("lines", "named"), REFUSED)
def test_lines_are_refused(home, tmp_path, lines, named):
    with pytest.raises(UserError) as error:
        lmrep.evaluate(home / "causal", suite=write(tmp_path, a=lines))
    assert all(text in str(error.value) for text in named), error.value


@pytest.mark.parametrize("name", ["masked", "causal"])
def test_a_file_with_a_text_that_is_too_long_is_not_scored(home, tmp_path, name):
    """The others are, as if it were not there; the command says which text it is."""
    run, long = lmrep.load(home / name), "the cat " * 100
    write(tmp_path / "s/blimp", short=[LINE], long=[LINE, LINE | {"sentence_good": long}])
    write(tmp_path / "s/tracking", tracking=[TRACKING | {"input_prefix": long}])
    head, *rows = world.reading_times().splitlines()
    (tmp_path / "s/reading").mkdir()
    (tmp_path / "s/reading/reading.csv").write_text("\n".join([head, *rows, rows[0].replace("the", long.strip(), 1)]))
    values = suite.evaluate(run, suite.read(tmp_path / "s"), words=reading_times.read(tmp_path / "s"))
    alone = suite.evaluate(run, suite.read(write(tmp_path / "alone/blimp", short=[LINE]).parent))
    assert alone.pop("unscored") == {} and {key: values[key] for key in alone} == alone
    places = {"blimp/long": ("long.jsonl, line 2", 2), "tracking": ("tracking.jsonl, line 1", 1),
              "reading": ("reading.csv, line 42", 41)}
    for key, (place, items) in places.items():
        entry = values["unscored"].pop(key)
        assert entry["items"] == items and place in entry["reason"]
        tokens, positions = re.search(r" has (\d+) tokens.*; the model takes (\d+) at most", entry["reason"]).groups()
        assert int(tokens) > 200 and int(positions) == run.model.max_length
    assert not values["unscored"]
    found = small.command("evaluate", f"--workdir={home}/{name}", f"--suite={tmp_path}/s")
    assert found.code == 0 and found.out.count(" not scored") == found.out.count("\nNot scored") == 3, found
    stored = json.loads((home / name / "eval.json").read_text())
    assert stored["examples"] == 1 and stored["unscored"].keys() == places.keys()
    found = small.command("evaluate", f"--workdir={home}/{name}", f"--suite={tmp_path}/s", "--checkpoints=all")
    assert found.code == 0 and found.out.count("\nNot scored") == 3, found
    shutil.rmtree(tmp_path / "s/blimp")
    found = small.command("evaluate", f"--workdir={home}/{name}", f"--suite={tmp_path}/s")
    assert found.code == 2 and "no file is scored" in found.err and "reading.csv, line 42" in found.err, found


def test_parts_need_the_scores_of_tokens(home, tmp_path):
    run = lmrep.load(home / "replaced_token")
    assert 0 <= suite.evaluate(run, suite.read(write(tmp_path / "whole", a=[LINE])))["accuracy"] <= 1
    with pytest.raises(UserError, match=r"a.jsonl, line 1: only a part of a text .* its score is the sum of"):
        suite.evaluate(run, suite.read(write(tmp_path / "part", a=[TRACKING])))
    run = lmrep.load(home / "causal")
    run.tokenizer.backward = True
    with pytest.raises(UserError, match="right to left"):
        suite.evaluate(run, suite.read(tmp_path / "part"))


# Predictions of the challenge's pipeline

COMPS = {"prefix_acceptable": "A cat", "prefix_unacceptable": "A red", "property_phrase": "sees the dog."}
EWOK = {"Context1": "It is old.", "Context2": "It is red.", "Domain": "age", "Target1": "The old.", "Target2": "A dog."}


def test_predictions_have_the_form_and_the_folders_of_the_pipeline(home, tmp_path):
    """Ids count up in each subset, in the order of lines; the chosen text is the one with the highest score."""
    sentence = {"sentence_good": "the cat sees", "sentence_bad": "sees the the"}
    files = {"blimp_filtered": ("agreement", [sentence | {"UID": "agreement"}, LINE | {"UID": "agreement"}]),
             "supplement_filtered": ("hypernym", [sentence]), "ewok_filtered": ("age", [EWOK]),
             "comps": ("comps_wugs_dist-before", [COMPS]), "wug_past_tense": ("wug_past_tense", [WUG]),
             "entity_tracking_fast": ("regular", [TRACKING | {"numops": 2}])}
    for task, (name, lines) in files.items():
        write(tmp_path / "full" / task, **{name: lines})
    (tmp_path / "full/reading").mkdir()
    (tmp_path / "full/reading/reading_data.csv").write_text(world.reading_times(60))
    lmrep.evaluate(home / "causal", suite=tmp_path / "full", predictions=tmp_path / "out")
    found = {path.parent.relative_to(tmp_path / "out").as_posix(): json.loads(path.read_text())
             for path in (tmp_path / "out").rglob("*.json")}
    subsets = {"blimp/blimp_filtered": "agreement", "blimp/supplement_filtered": "hypernym",
               "ewok/ewok_filtered": "age", "comps/comps": "wugs_dist_before", "wug_past/wug_past_tense": "wug_past",
               "entity_tracking/entity_tracking_fast": "regular_2_ops", "reading": "reading"}
    assert {task: [*content] for task, content in found.items()} == {task: [name] for task, name in subsets.items()}
    run, reading = lmrep.load(home / "causal"), found["reading"]["reading"]["predictions"]
    for choice in suite.read(tmp_path / "full"):
        folder = next(name for name in subsets if name.endswith("/" + choice.group[0]))
        number = int(choice.where.rpartition(" ")[2]) - 1
        line = found[folder][subsets[folder]]["predictions"][number]
        texts = [pairs.tokenize(run, "".join(option), "here", start=len(option[0])) for option in choice.options]
        sums = scores(run, texts).sums
        best = choice.options[int(np.argmax(sums))]
        assert line["id"] == f"{subsets[folder]}_{number}"
        assert line["pred"] == ("".join(best) if choice.group[0] == "comps" else best[1])
        if choice.ratio is not None:
            assert line["prob"] == pytest.approx(np.exp(sums[0]) / np.exp(sums).sum(), rel=1e-4)
    [words] = reading_times.read(tmp_path / "full")
    assert [row["id"] for row in reading] == [*range(60)]
    np.testing.assert_allclose([row["pred"] for row in reading],
                               reading_times.surprisals(run, words.texts, words.places), rtol=1e-5)
    assert [math.isnan(row["prev_pred"]) for row in reading] == [text is None for text in words.previous]
    stored = json.loads((home / "causal/eval.json").read_text())["tasks"]
    assert "predictions" not in json.dumps(stored)
    with pytest.raises(UserError, match="give suite too"):
        lmrep.evaluate(home / "causal", predictions=tmp_path / "out")
    answer = small.command("evaluate", f"--workdir={home}/causal", f"--suite={tmp_path}/full", "--checkpoints=all",
                           f"--predictions={tmp_path}/out")
    assert answer.code == 2 and "give --step instead" in answer.err


def test_the_first_of_tied_texts_is_the_prediction(home):
    values = suite.evaluate(lmrep.load(home / "causal"), [choice(("", "the Cat"), ("", "the cat"))])
    assert values["predictions"] == {"task": {"": {"predictions": [{"id": "_0", "pred": "the Cat"}]}}}


# The command


def test_the_command_prints_and_stores(home):
    found = small.command("evaluate", f"--workdir={home}/masked", f"--suite={home}/babylm", "--pll=word_l2r")
    assert found.code == 0, found
    names = [line.split("  ")[0].strip() for line in found.out.splitlines()]
    assert names[1:3] == ["blimp", "comps"] and "mean over 4 tasks" in names and "rho" in found.out
    result = json.loads((home / "masked/eval.json").read_text())
    assert result == json.loads((home / "masked/eval.jsonl").read_text().splitlines()[-1])
    metrics = result["metrics"]
    assert (result["score"], result["examples"]) == ("pll_word_l2r", metrics["items"] + result["tasks"]["wug"]["items"])
    assert metrics["accuracy"] == pytest.approx(np.mean([
        metrics[f"{task}/accuracy"] for task in ("blimp", "comps", "entity_tracking", "ewok")]))
    assert result["tasks"]["wug"]["spearman"] == metrics["wug/spearman"]
    assert result["tasks"]["entity_tracking"]["chance"] == pytest.approx(1 / 3)


def test_all_checkpoints_and_the_report(home):
    found = small.command("evaluate", f"--workdir={home}/masked", f"--suite={home}/babylm", "--checkpoints=all",
                          "--examples=1")
    assert found.code == 0 and "blimp/accuracy" in found.out and len(found.out.splitlines()) == 4, found
    found = small.command("report", home / "masked", f"--output={home}/report.html")
    assert found.code == 0, found
    assert "accuracy; blimp, " in (home / "report.html").read_text()


@pytest.mark.parametrize(("flags", "named"), [
    (["--pairs={home}/babylm"], "leave one out"), (["--files=b"], "files"), (["--end_mark"], "end_mark"),
    (["--batch_size=4"], "batch_size")])
def test_flags_are_refused(home, flags, named):
    found = small.command("evaluate", f"--workdir={home}/causal", f"--suite={home}/babylm",
                          *(flag.format(home=home) for flag in flags))
    assert found.code == 2 and named in found.err, found
