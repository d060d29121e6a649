"""Extractive question answering: answers, null scores, thresholds and official files from logits."""

import json

import numpy as np
import pytest

from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.inference import evaluate_task
from lmrep.metrics import answers as qa
from lmrep.metrics import scripts
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import span_extraction as qas
from lmrep.tasks.answers import answer_tokens, max_context, of_starts, tokens_of
from lmrep.tasks.span_extraction import Config
from tests.data.sentencepiece_texts import CORPUS
from tests.tasks.questions import CITIES, NAMES, TEXTS, encoded, outputs_of, question, span_of, wordpiece


def windowed(answers=("Quito",)):
    """A question whose context has several windows, with its units."""
    context = "  " + " ".join(f"{name} lives in {city}." for name, city in zip(NAMES, CITIES, strict=True))
    record = question("Where?", context, list(answers))
    units, long, _ = encoded([record], length=28, stride=6)
    assert long == 1 and len(units.example) > 2
    return record, units


def test_the_null_score_is_the_smallest_over_all_windows_of_every_question():
    record, units = windowed()
    other = question("Who?", answers=[])
    count = len(units.example)
    # The answer is certain in its own window, and the other windows are just as certain that they have none.
    details = units.details
    token = answer_tokens(details["offsets"], "Quito", record.fields["context"].index("Quito"))[0]
    own = max_context(np.stack([details["begin"], details["end"]], 1))[token]
    answer = {(own, units.columns["start"][own]): 50.0}, {(own, units.columns["end"][own]): 50.0}
    null = {(u, 0): 40.0 if u != own else -30.0 for u in range(count)}
    found = qas.score(Config(unanswerable=True), [record], units, outputs_of(
        units, start=answer[0] | null, end=answer[1] | null))
    assert found.predictions[0]["answer"] == "Quito" == found.predicted[0]
    assert found.predictions[0]["null_score"] == -60 and found.predictions[0]["score"] == 100
    # A null score is there for every question, whether it is answered or not.
    units, *_ = encoded([record, other])
    predictions = qas.score(Config(unanswerable=True), [record, other], units, outputs_of(units)).predictions
    assert all(isinstance(each["null_score"], float) for each in predictions)


def test_an_answer_that_windows_cut_is_found_where_it_is_complete():
    record, units = windowed(["lives in Turin. Alan lives in Basel"])
    complete = [u for u in range(len(units.example)) if span_of(units, u)]
    assert 0 < len(complete) < len(units.example)
    best = next(u for u in complete if units.columns["start"][u] > units.details["position"][u])
    changes = {name: {(u, units.columns[name][u]): 30.0 for u in complete} for name in ("start", "end")}
    found = qas.score(Config(unanswerable=True), [record], units, outputs_of(units, **changes))
    assert best is not None and found.predicted == ["lives in Turin. Alan lives in Basel"]
    assert found.metrics["exact_match"] == 1


def test_a_start_counts_only_in_the_window_where_it_has_most_context():
    record, units = windowed()
    details = units.details
    # The last token of the first window has more context in a later one; its high scores there do not count.
    edge = int(details["position"][0] + details["end"][0] - details["begin"][0] - 1)
    found = qas.score(Config(), [record], units, outputs_of(units, start={(0, edge): 90.0}))
    assert found.predictions[0]["score"] < 80


def test_spans_of_starts_are_the_best_of_all():
    """Against every span of every start, in windows that overlap."""
    draw = np.random.default_rng(0)
    windows, usable = np.array([[0, 8], [4, 12], [9, 15]]), draw.random(15) > 0.3
    for _ in range(50):
        first = np.stack([draw.permutation(np.arange(a - 2, b))[:4] for a, b in windows])  # some precede the context
        start, end = draw.normal(size=(3, 4)), draw.normal(size=(3, 4, 5))
        start[first < windows[:, :1]] = -1e30
        end[first[..., None] + np.arange(5) >= windows[:, 1, None, None]] = -1e30
        found = of_starts(first, start, end, windows, usable, 3)
        owner = max_context(windows)
        spans = sorted(((start[w, j] + end[w, j, m], first[w, j], first[w, j] + m)
                        for w in range(3) for j in range(4) for m in range(5)
                        if start[w, j] > -1e29 and end[w, j, m] > -1e29 and owner[first[w, j]] == w
                        and usable[first[w, j]] and usable[first[w, j] + m]), reverse=True)
        assert len(spans) > 3 and list(zip(*found, strict=True)) == spans[:3]


@pytest.mark.parametrize(("first", "usable", "scores"), [
    ([[2], [3]], 6, [1, 0]), ([[2], [3]], 3, [1]), ([[2], [3]], 0, [1, 0]), ([[3], [2]], 6, [1, 0]),
    ([[2], [2]], 6, [1])])
def test_without_a_start_in_its_own_window_others_count(first, usable, scores):
    """And those at white space, where there are no others."""
    found = of_starts(np.array(first), np.array([[1.0], [1.0]]), np.array([[[0.0]], [[-1.0]]]),
                      np.array([[0, 4], [2, 6]]), np.arange(6) < usable, 2)
    assert found.scores.tolist() == scores


def test_no_answer_is_longer_than_the_limit():
    record = question(context=" ".join(TEXTS[:4]), answers=[" ".join(TEXTS[:4])])  # longer than any prediction
    units, *_ = encoded([record], length=256)
    start, end = (int(units.columns[name][0]) for name in ("start", "end"))
    assert span_of(units, 0) == (0, len(record.fields["context"])) and end - start > 30
    outputs = outputs_of(units, start={(0, start): 50.0}, end={(0, end): 50.0})
    for limit in (1, 30):
        answer = qas.score(Config(max_answer_tokens=limit), [record], units, outputs).predictions[0]
        tokens = len(wordpiece().encode(answer["answer"]).ids)
        assert tokens <= limit and answer["answer"] == record.fields["context"][answer["start"]:answer["end"]]


def test_answers_lie_in_the_context_even_where_other_tokens_score_higher():
    record = question("Where does Ada live?", answers=["Bern"])
    units, *_ = encoded([record])
    outside = [p for p in range(units.lengths[0]) if p < units.details["position"][0] or p == units.lengths[0] - 1]
    changes = {name: {(0, p): 80.0 for p in outside} for name in ("start", "end")}
    answer = qas.score(Config(), [record], units, outputs_of(units, **changes)).predictions[0]
    assert answer["answer"] and answer["score"] < 40 and "null_score" not in answer


def test_answers_neither_begin_nor_end_with_white_space():
    tokenizer = tokenizers.train(tokenizers.Config(name="byte_level_bpe", vocab_size=300), lambda: iter(TEXTS))
    record = question(context="Ada\n\n lives  \n in Bern.", answers=["in Bern"])
    units, *_ = encoded([record], tokenizer=tokenizer)
    offsets = units.details["offsets"]
    blank = units.details["position"][0] + np.flatnonzero(offsets[:, 0] == offsets[:, 1])
    assert len(blank) > 3  # tokens of line breaks and spaces
    changes = {name: {(0, position): 80.0 for position in blank} for name in ("start", "end")}
    answer = qas.score(Config(), [record], units, outputs_of(units, **changes)).predictions[0]["answer"]
    assert answer == answer.strip() != ""


def graded(n=60, answerable=0.6, seed=0):
    """Questions whose logits are right more often than not, and biased towards no answer."""
    draw = np.random.default_rng(seed)
    records = []
    for i in range(n):
        name, city = draw.choice(NAMES), draw.choice(CITIES)
        context = f"  {name} — aged {draw.integers(90)} — lives in {city}, near {draw.choice(CITIES)}."
        answers = [city, f"in {city}"] if draw.random() < answerable else []
        records.append(question(f"Where does {name} live?", context, answers, id=f"q{i}"))
    units, *_ = encoded(records)
    outputs = outputs_of(units, seed)
    for u in range(n):
        for name in ("start", "end"):
            outputs[name][u][units.columns[name][u]] += draw.normal(3, 2)
            outputs[name][u][0] += 2.5
    return records, units, outputs


def official(records, files, threshold):
    """The figures of the official script from the written files."""
    _, figures = scripts.squad2(
        {record.id: [text for text, _ in record.fields["answers"]] for record in records},
        json.loads(files["predictions.json"]), json.loads(files["null_odds.json"]), threshold)
    return figures


@pytest.mark.parametrize(("name", "lowercase"), [
    ("wordpiece", True), ("sentencepiece_unigram", False), *(pytest.param(name, lowercase, marks=pytest.mark.slow)
                                                             for name, lowercase in (
        ("wordpiece", False), ("bpe", True), ("sentencepiece_unigram", True), ("byte_level_bpe", True),
        ("byte_level_bpe", False)))])
def test_the_answer_of_a_span_ends_with_the_marks_that_the_tokenizer_removes(name, lowercase):
    """Accents, variation selectors, joiners: exact match is of the text with them."""
    config = tokenizers.Config(name, 263, lowercase=lowercase or name == "bpe")
    tokenizer = tokenizers.train(config, lambda: iter([*CORPUS, "cafe\u0301 \u2764\ufe0f \u0e14\u0e35"]))
    for answer in ("cafe\u0301", "re\u0301sume\u0301", "\u2764\ufe0f", "1\ufe0f\u20e3", "soft\u00ad", "a\u0301\u0302",
                   "\u0e01\u0e47\u0e14\u0e35", "\u0928\u092e\u0938\u094d\u0924\u0947", "x\u200d\ufe0f", "plain"):
        for after in ("", " end.", ".", "\n\u0301x"):
            context = f"The {answer}{after}"
            _, offsets = tokens_of(context, tokenizer, "here")
            first, last = answer_tokens(offsets, answer, 4)
            assert context[offsets[first, 0] : offsets[last, 1]] == answer, (answer, after)


def test_figures_are_those_of_the_official_script_on_the_written_files():
    records, units, outputs = graded()
    c = Config(unanswerable=True)
    found = qas.score(c, records, units, outputs)
    metrics, threshold = found.metrics, found.metrics["threshold"]
    assert threshold != 0 and metrics["answer_f1"] > metrics["answer_f1_at_0"]
    files = qas.submission(c, records, found)
    assert json.loads(files["null_odds.json"]).keys() == {record.id for record in records}
    figures = official(records, files, threshold)
    for name, other in {"exact_match": "exact", "answer_f1": "f1", "has_answer_exact_match": "HasAns_exact",
                        "has_answer_f1": "HasAns_f1", "no_answer_accuracy": "NoAns_exact"}.items():
        assert 100 * metrics[name] == pytest.approx(figures[other]), name
    # Without a threshold in the way, the best that the script finds is what was found.
    always = qas.score(Config(unanswerable=True, threshold=1e9), records, units, outputs)
    assert always.metrics["has_answer_f1"] == metrics["forced_f1"] >= metrics["has_answer_f1"]
    assert always.metrics["has_answer_exact_match"] == metrics["forced_exact_match"]
    candid = qas.submission(c, records, always)
    assert official(records, candid, 1e9)["best_f1"] == pytest.approx(100 * metrics["answer_f1"])
    at_zero = official(records, candid, 0.0)
    assert 100 * metrics["answer_f1_at_0"] == pytest.approx(at_zero["f1"])
    assert 100 * metrics["exact_match_at_0"] == pytest.approx(at_zero["exact"])
    unanswerable = np.mean([not record.fields["answers"] for record in records])
    assert metrics["always_empty_f1"] == pytest.approx(unanswerable)
    assert TASK_METRICS["answer_f1"].function(found.gold, found.predicted) == pytest.approx(metrics["answer_f1"])


def test_a_given_threshold_is_used_and_not_tuned():
    records, units, outputs = graded()
    tuned = qas.score(Config(unanswerable=True), records, units, outputs)
    same = qas.score(Config(unanswerable=True, threshold=tuned.metrics["threshold"]), records, units, outputs)
    assert same.metrics == tuned.metrics and same.predictions == tuned.predictions
    zero = qas.score(Config(unanswerable=True, threshold=0.0), records, units, outputs)
    assert zero.metrics["answer_f1"] == zero.metrics["answer_f1_at_0"] == tuned.metrics["answer_f1_at_0"]
    bare = [record._replace(fields={**record.fields, "answers": None}) for record in records]
    for record in bare:
        del record.fields["answers"]
    unlabelled = qas.score(Config(unanswerable=True, threshold=tuned.metrics["threshold"]), bare, units, outputs)
    assert unlabelled.metrics == {} and unlabelled.predictions == tuned.predictions


def test_predictions_have_exact_texts_and_probabilities():
    records, units, outputs = graded()
    found = qas.score(Config(unanswerable=True), records, units, outputs)
    assert {bool(each["answer"]) for each in found.predictions} == {True, False}
    for record, each in zip(records, found.predictions, strict=True):
        text = record.fields["context"][each["start"]:each["end"]]
        assert text == text.strip() != "" and each["answer"] in (text, "")
        refused = each["null_score"] - each["score"] > found.metrics["threshold"]
        assert refused == (not each["answer"]) and 0 < each["probability"] <= 1


def test_figures_of_questions_that_all_have_answers_are_those_of_squad_1():
    records, units, outputs = graded(answerable=1.0)
    found = qas.score(Config(), records, units, outputs)
    assert found.metrics.keys() == {"loss", "exact_match", "answer_f1"}
    gold = [[text for text, _ in record.fields["answers"]] for record in records]
    answers = json.loads(qas.submission(Config(), records, found)["predictions.json"])
    for name, scores in (("exact_match", qa.exact_scores), ("answer_f1", qa.f1_scores)):
        assert found.metrics[name] == pytest.approx(scores(gold, list(answers.values()), "1.1").mean())
    assert all(answers.values()) and qas.submission(Config(), records, found).keys() == {"predictions.json"}


def test_intervals_follow_the_script_of_the_figures():
    record = question(context="the cat", answers=["the", "cat"])  # SQuAD 2.0 alone ignores answers without words
    units, *_ = encoded([record])
    at = {name: {(0, units.columns[name][0]): 50.0} for name in ("start", "end")}
    for unanswerable, exact in ((False, 1.0), (True, 0.0)):
        c = Config(unanswerable=unanswerable, threshold=1e9)
        found = qas.score(c, [record], units, outputs_of(units, **at))
        assert found.predicted == ["the"] and found.metrics["exact_match"] == exact
        intervals = evaluate_task.intervals(found)
        assert intervals == {name: [found.metrics[name]] * 2 for name in ("exact_match", "answer_f1")}


def test_a_submission_needs_different_ids():
    records, units, outputs = graded(2)
    records[1], c = records[1]._replace(id="q0"), Config(unanswerable=True)
    with pytest.raises(UserError, match="have the same id, 'q0'"):
        qas.submission(c, records, qas.score(c, records, units, outputs))
