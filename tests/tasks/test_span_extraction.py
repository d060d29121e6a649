"""Extractive question answering: targets from characters, windows, null scores, thresholds, and official files."""

import dataclasses
import json
import logging
import shutil

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.encoding import input_layout
from lmrep.data.records.examples import arrange
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import default_config
from lmrep.inference import task_evaluation
from lmrep.metrics import answers as qa
from lmrep.objectives.base import Carry, Keys
from lmrep.tasks import TASKS
from lmrep.tasks import span_extraction as qas
from lmrep.tasks.answer_search import max_context
from lmrep.tasks.base import Format, Outputs, TextEncoder, collate
from lmrep.tasks.span_extraction import Config
from tests import small

NAMES = ("Zoë", "Ada", "Kurt", "Emmy", "Alan", "Grace", "Çelik", "Noor")
CITIES = ("Bern", "Łódź", "Oslo", "Turin", "Basel", "Quito", "Lyon", "Kyoto")
TEXTS = [f"{name} lives in {city}. Where does {name} live? 1 2 3 4 5 6 7 8 9 0" for name in NAMES for city in CITIES]


def wordpiece(size=300):
    return tokenizers.train(tokenizers.Config(name="wordpiece", vocab_size=size), lambda: iter(TEXTS))


def question(question="Where does Ada live?", context="Ada lives in Bern.", answers=None, id="0"):
    fields = {"question": question, "context": context}
    if answers is not None:
        fields["answers"] = [(text, context.index(text)) for text in answers]
    return Record(fields, id, f"dev.json, question {id}")


def encoded(records, config=Config(unanswerable=True), length=64, stride=128, long="windows", tokenizer=None,
            context="both"):
    """(units, number of long ones, tokenizer)."""
    tokenizer = tokenizer or wordpiece()
    layout = input_layout(tokenizer.vocabulary, context, True)
    units, long = qas.encode(config, records, TextEncoder(tokenizer, layout, length, Format(long, stride)))
    return units, long, tokenizer


def span_of(units, unit):
    """The characters [start, end) of a unit's target; None for no answer."""
    details = units.details
    start, end = units.columns["start"][unit], units.columns["end"][unit]
    if start == units.columns["null"][unit]:
        return None
    shift = details["begin"][unit] - details["position"][unit] + details["bounds"][details["context"][unit]]
    return int(details["offsets"][start + shift, 0]), int(details["offsets"][end + shift, 1])


def outputs_of(units, seed=0, **changes):
    """Random logits of every unit; `changes`: {name: {(unit, position): value}}."""
    draw = np.random.default_rng(seed)
    arrays = {name: [draw.normal(size=n).astype(np.float32) for n in units.lengths] for name in ("start", "end")}
    for name, values in changes.items():
        for (unit, position), value in values.items():
            arrays[name][unit][position] = value
    return Outputs(arrays)


# Targets

SPACED = "  \n Zoë —  naïve «café😀» lives\u00a0in Łódź, 3,000 km"


@pytest.mark.parametrize("name", ["wordpiece", "byte_level_bpe", "bpe", "sentencepiece_unigram", "words"])
@pytest.mark.parametrize("answer", ["Zoë", "naïve", "in Łódź", "3,000 km", SPACED.strip()])
def test_a_target_is_the_exact_text_of_the_answer(name, answer):
    config = tokenizers.Config(name=name, vocab_size=60 if name.startswith("sent") else 320)
    tokenizer = tokenizers.train(config, lambda: iter([*TEXTS, SPACED]))
    answer += "," if (name, answer) == ("words", "in Łódź") else ""  # its tokens are what white space separates
    units, *_ = encoded([question(context=SPACED, answers=[answer])], tokenizer=tokenizer, length=256)
    start, end = span_of(units, 0)
    assert SPACED[start:end] == answer


def test_an_answer_inside_a_word_gets_the_smallest_span_of_tokens():
    tokenizer = wordpiece()
    units, *_ = encoded([question(context="Ada lives in Bern.", answers=["ve"]),
                         question(context="Ada lives in Bern.", answers=["s in B"])], tokenizer=tokenizer)
    offsets = tokenizer.encode("Ada lives in Bern.").offsets
    for unit, (low, high) in enumerate([(6, 8), (8, 14)]):
        covering = [(a, b) for a, b in offsets if a < high and b > low]
        assert span_of(units, unit) == (covering[0][0], covering[-1][1])


def test_the_first_of_several_answers_is_the_target():
    units, *_ = encoded([question(answers=["Bern", "in Bern"])])
    assert span_of(units, 0) == (13, 17)


def test_windows_without_the_full_answer_have_no_answer():
    context = " ".join(["Ada lives in Oslo."] * 10 + ["Kurt lives in Lyon."] + ["Ada lives in Oslo."] * 10)
    units, long, _ = encoded([question(context=context, answers=["Kurt lives in Lyon"])], length=40, stride=7)
    assert long == 1 and len(units.example) > 5
    details, targets = units.details, [span_of(units, i) for i in range(len(units.example))]
    start = context.index("Kurt")
    found = qas.answer_tokens(details["offsets"], "Kurt lives in Lyon", start)
    contained = (details["begin"] <= found[0]) & (found[1] < details["end"])
    assert 1 <= contained.sum() < len(contained)
    partly = (details["begin"] <= found[1]) & (found[0] < details["end"]) & ~contained
    assert partly.any()
    expected = (start, start + len("Kurt lives in Lyon"))
    assert targets == [expected if inside else None for inside in contained]
    assert np.diff(details["begin"]).tolist()[:3] == [7, 7, 7]  # from start to start


def test_every_token_is_in_a_window_however_large_the_stride():
    context = " ".join(TEXTS[:6])
    units, *_ = encoded([question(context=context, answers=[])], length=32, stride=128)
    begin, end = units.details["begin"], units.details["end"]
    assert begin[0] == 0 and (begin[1:] <= end[:-1]).all() and end[-1] == len(units.details["offsets"])
    assert units.lengths.max() == 32


def test_long_questions_are_cut_and_counted(caplog):
    long = question(question=" ".join(["Where"] * 90) + " does Ada live?", answers=["Bern"])
    with caplog.at_level(logging.WARNING):
        units, *_, tokenizer = encoded([long, question(answers=["Bern"])], length=128)
    assert "1 of 2 questions have more than 64 tokens" in caplog.text
    assert units.details["position"].tolist()[0] == 64 + 2  # [CLS] question [SEP]
    assert span_of(units, 0) == (13, 17)
    with pytest.raises(UserError, match=r"length is 64, and a question of 64 tokens leaves none.*max_question_tokens"):
        encoded([long], length=64, tokenizer=tokenizer)


def test_contexts_longer_than_a_unit_are_refused_or_truncated():
    record = question(context=" ".join(TEXTS[:6]), answers=["Turin"])
    with pytest.raises(UserError, match=r"dev.json, question 0 has a context of .* set --config.format.long=windows"):
        encoded([record], length=32, long="refuse")
    units, long, _ = encoded([record], length=32, long="truncate")
    assert long == len(units.example) == 1 and span_of(units, 0) is None


def test_each_context_is_tokenized_once(monkeypatch):
    tokenizer, calls = wordpiece(), []
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: calls.append(text) or encode(text))
    records = [question(answers=["Bern"]), question("Who?", answers=[]), question(context="Kurt.", answers=["Kurt"])]
    units, *_ = encoded(records, tokenizer=tokenizer)
    assert calls == ["Ada lives in Bern.", "Kurt."]
    assert [span_of(units, i) for i in range(3)] == [(13, 17), None, (0, 4)]


def test_no_answer_is_the_first_token_or_the_last_of_a_network_that_reads_from_left_to_right():
    records = [question(answers=[]), question(answers=["Bern"]), question()]
    both, *_ = encoded(records)
    assert both.columns["null"].tolist() == [0, 0, 0] and both.columns["start"].tolist()[::2] == [0, -1]
    left, *_ = encoded(records, Config("left", True), context="left")
    last = (left.lengths - 1).tolist()
    assert left.columns["null"].tolist() == last and left.columns["end"].tolist()[::2] == [last[0], -1]
    assert span_of(left, 1) == (13, 17)


def test_an_answer_without_tokens_counts_as_none(caplog):
    context = "Ada \u200b lives"
    units, *_ = encoded([Record({"question": "Who?", "context": context, "answers": [("\u200b", 4)]}, "0", "a")])
    assert span_of(units, 0) is None and "1 of 1 answers have no token" in caplog.text


def test_what_is_refused():
    with pytest.raises(UserError, match=r"question 0 has no answer; set --config.objective.unanswerable=true"):
        qas.check(Config(), question(answers=[]))
    for fine in (question(answers=["Bern"]), question()):
        qas.check(Config(), fine)
    with pytest.raises(UserError, match="question 0 is not Unicode"):
        encoded([question(context="Ada \ud800")])
    with pytest.raises(UserError, match="finds no token in the context"):
        encoded([question(context="\u200b")])


# The objective


def network(config=Config(unanswerable=True), tokenizer=None, context="both"):
    """(objective, parameters) of a small network."""
    preset = "bert_tiny" if context == "both" else "gpt2"
    c = default_config(preset, "span_extraction", "examples", layout="1x1x1")
    c.model.update({"vocab": 0, "width": 32, "layers": 1, "heads": 4, "mlp": 64, "max_length": 128})
    c.data.train, c.length = "train.json", 128
    c.objective.update({"context": context, "unanswerable": True})
    model = experiments.build_model(experiments.parse(c), tokenizer.size)
    objective = qas.build(config, model, tokenizer.vocabulary)
    from lmrep.core.params import init

    return objective, init(objective.specs, jax.random.key(0))


def batch_of(units, tokenizer, packed=0):
    examples = arrange(units, tokenizer.vocabulary, 0, "", packed)
    return examples, examples.gather(np.arange(examples.examples))


@pytest.mark.parametrize("context", ["both", "left"])
def test_loss_and_logits_are_the_same_packed_and_alone(context):
    tokenizer = wordpiece()
    records = [question(answers=["Bern"]), question("Who?", TEXTS[3], []), question("Who lives?", answers=["Ada"]),
               question("Where does Kurt live?", " ".join(TEXTS[:5]), ["Turin"])]
    config = Config(context, True)
    units, *_ = encoded(records, config, length=48, stride=16, tokenizer=tokenizer, context=context)
    objective, params = network(config, tokenizer, context)
    found = []
    for packed in (0, 128):
        examples, batch = batch_of(units, tokenizer, packed)
        assert (examples.slots > 1) == bool(packed)
        keys = Keys(jax.random.split(jax.random.key(0), examples.examples), jax.random.key(1))
        prepared = objective.prepare(keys, batch)
        loss, (metrics, _) = jax.jit(lambda p, prepared=prepared: objective.loss(p, prepared, None, Carry()))(params)
        outputs = collate([batch | jax.device_get(jax.jit(objective.predict)(params, batch))], units)
        found.append((float(loss), metrics["span_accuracy"], outputs))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5) and found[0][1] == found[1][1]
    for name in ("start", "end"):
        for one, other in zip(found[0][2].arrays[name], found[1][2].arrays[name], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    # The mean over units of the cross-entropies of start and end, each over the unit's own tokens.
    expected = np.mean([np.log(np.exp(y).sum()) - y[units.columns[name][u]] for name in ("start", "end")
                        for u, y in enumerate(found[0][2].arrays[name])])
    assert found[1][0] == pytest.approx(expected, abs=1e-5)
    assert qas.score(config, records, units, found[1][2]).metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_units_without_targets_change_neither_loss_nor_gradients():
    tokenizer = wordpiece()
    units, *_ = encoded([question(answers=["Bern"])], tokenizer=tokenizer)
    objective, params = network(tokenizer=tokenizer)
    examples, _ = batch_of(units, tokenizer)

    def value(numbers):
        batch = examples.gather(np.array(numbers))
        keys = Keys(jax.random.split(jax.random.key(0), len(numbers)), jax.random.key(1))
        batch = objective.prepare(keys, batch)
        return jax.jit(jax.value_and_grad(lambda p: objective.loss(p, batch, None, Carry())[0]))(params)

    (one, gradient), (padded, other) = value([0]), value([0, -1])
    assert float(one) == pytest.approx(float(padded), abs=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, other)


# Answers


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
    token = qas.answer_tokens(details["offsets"], "Quito", record.fields["context"].index("Quito"))[0]
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
            outputs.arrays[name][u][units.columns[name][u]] += draw.normal(3, 2)
            outputs.arrays[name][u][0] += 2.5
    return records, units, outputs


def official(records, files, threshold):
    """The figures of the official script from the written files."""
    return qa.squad2_figures({record.id: [text for text, _ in record.fields["answers"]] for record in records},
                             json.loads(files["predictions.json"]), json.loads(files["null_odds.json"]), threshold)


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
    candid = qas.submission(c, records, qas.score(Config(unanswerable=True, threshold=1e9), records, units, outputs))
    assert official(records, candid, 1e9)["best_f1"] == pytest.approx(100 * metrics["answer_f1"])
    at_zero = official(records, candid, 0.0)
    assert 100 * metrics["answer_f1_at_0"] == pytest.approx(at_zero["f1"])
    assert 100 * metrics["exact_match_at_0"] == pytest.approx(at_zero["exact"])
    unanswerable = np.mean([not record.fields["answers"] for record in records])
    assert metrics["always_empty_f1"] == pytest.approx(unanswerable)
    assert qa.answer_f1(found.gold, found.predicted) == pytest.approx(metrics["answer_f1"])


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
        intervals = task_evaluation.intervals(found)
        assert intervals == {name: [found.metrics[name]] * 2 for name in ("exact_match", "answer_f1")}


def test_a_submission_needs_different_ids():
    records, units, outputs = graded(2)
    records[1], c = records[1]._replace(id="q0"), Config(unanswerable=True)
    with pytest.raises(UserError, match="have the same id, 'q0'"):
        qas.submission(c, records, qas.score(c, records, units, outputs))


# Runs


def squad_file(path, n, seed):
    """Writes n questions in SQuAD's format, a third of them without an answer."""
    draw, paragraphs = np.random.default_rng(seed), []
    for i in range(n):
        people = draw.choice(NAMES, 3, replace=False)
        cities = draw.choice(CITIES, 2, replace=False)
        context = f"{people[0]} lives in {cities[0]}. {people[1]} lives in {cities[1]}."
        which = i % 3
        answers = [] if which == 2 else [{"text": cities[which], "answer_start": context.index(f"{cities[which]}.")}]
        paragraphs.append({"context": context, "qas": [{
            "id": f"q{i}", "question": f"Where does {people[which]} live?", "answers": answers,
            "is_impossible": which == 2}]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs}]}))
    return str(path)


def run_config(home, **changes):
    c = default_config("bert_tiny", "span_extraction", "examples", "bert", "1x1x1")
    c.data.update({"train": squad_file(home / "train.json", 96, 0), "validation": squad_file(home / "dev.json", 30, 1)})
    c.model.update({"vocab": 0, "width": 32, "layers": 1, "heads": 4, "mlp": 64, "max_length": 48, "dropout": 0.0,
                    "attention_dropout": 0.0})
    c.tokenizer.update({"name": "words", "vocab_size": 64})
    c.steps, c.batch_size, c.length = 12, 16, 48
    c.objective.unanswerable = True
    c.format.long = "windows"
    c.optimizer.learning_rate = 1e-2
    c.checkpoint.update({"every": 6, "keep": 4})
    c.evaluation.every = 6
    c.log.update({"every": 6, "tensorboard": False, "report": False})
    c.update_from_flattened_dict(changes)
    return c


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("squad")
    lmrep.train(run_config(home), home / "run")
    return home


def test_a_run_predicts_with_the_threshold_of_its_checkpoint(home):
    validations = {line["step"]: line for line in small.lines(home / "run", "validation")}
    assert validations.keys() == {0, 6, 12}
    for step in (6, 12):
        run = lmrep.load(home / "run", step)
        assert run.experiment.objective["threshold"] == validations[step]["threshold"]
    best = lmrep.load(home / "run")
    metrics = validations[best.step]
    assert metrics["answer_f1"] >= metrics["always_empty_f1"] - 1e-9
    lines = [json.loads(line) for line in (home / "run/predictions/validation.jsonl").read_text().splitlines()]
    assert len(lines) == 30
    threshold = metrics["threshold"]
    for line in lines:
        each = line["prediction"]
        assert (each["answer"] == "") == (each["null_score"] - each["score"] > threshold)
    gold = [[text for text, _ in line["answers"]] for line in lines]
    predicted = [line["prediction"]["answer"] for line in lines]
    assert qa.answer_f1(gold, predicted) == pytest.approx(metrics["answer_f1"], abs=1e-6)


@pytest.mark.parametrize("threshold", [-1e6, 1e6])
def test_predictions_follow_the_threshold_that_validation_found(home, tmp_path, threshold):
    shutil.copytree(home / "run", tmp_path / "run")
    metrics = tmp_path / "run/metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line | {"threshold": threshold} if "threshold" in line else line) + "\n"
                               for line in lines))
    found = lmrep.load(tmp_path / "run").predict([("Where does Ada live?", "Ada lives in Bern.")])
    assert bool(found[0]["answer"]) == (threshold > 0)


def test_a_converted_run_keeps_its_threshold(home, tmp_path):
    c = run_config(tmp_path, **{"tokenizer.name": "wordpiece", "tokenizer.vocab_size": 128, "steps": 2,
                                "objective.threshold": -1.25})
    lmrep.train(c, tmp_path / "run")
    for words in (("run", "published", "--to=huggingface"), ("published", "again")):
        assert small.command("convert", *(tmp_path / word for word in words[:2]), *words[2:]).code == 0
    run, again = lmrep.load(tmp_path / "run"), lmrep.load(tmp_path / "again")
    assert again.experiment.objective == run.experiment.objective and run.experiment.objective["threshold"] == -1.25
    example = ("Where does Ada live?", "Ada lives in Bern.")
    assert again.predict([example])[0]["score"] == pytest.approx(run.predict([example])[0]["score"], abs=1e-5)


def test_a_run_answers_questions_in_any_form(home):
    run = lmrep.load(home / "run")
    context = "Ada lives in Bern. Kurt lives in Oslo."
    found = run.predict([("Where does Ada live?", context), {"question": "Where does Ada live?", "context": context},
                         f"Where does Ada live?\t{context}"])
    assert found[0] == found[1] == found[2] and context[found[0]["start"]:found[0]["end"]]
    printed = run.capabilities[0].to_text(("Where?", context), found[0], run.tokenizer)
    assert printed.endswith(f"\tWhere?\t{context}") and "%" in printed
    with pytest.raises(UserError, match="has no 'context'"):
        run.predict(["Where does Ada live?"])


def test_a_stopped_and_resumed_run_has_the_same_thresholds(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/12")
    lmrep.train(run_config(home), tmp_path / "run")
    assert small.lines(tmp_path / "run", "validation") == small.lines(home / "run", "validation")
    assert lmrep.load(tmp_path / "run", 12).experiment == lmrep.load(home / "run", 12).experiment


def test_without_validation_the_threshold_is_0(home, tmp_path, caplog):
    c = run_config(tmp_path, **{"data.validation": "", "checkpoint.best": "loss", "steps": 2})
    lmrep.train(c, tmp_path / "run")
    with caplog.at_level(logging.INFO):
        run = lmrep.load(tmp_path / "run")
    assert run.experiment.objective["threshold"] == 0 and "has no validation" in caplog.text


def test_packed_sequences_give_the_same_answers(home, tmp_path):
    run = lmrep.load(home / "run")
    records = [question(f"Where does {name} live?", f"{name} lives in {city}.", [city], id=name)
               for name, city in zip(NAMES, CITIES, strict=True)]
    alone = run.score_records(records)
    form = {**run.experiment.format, "packed": True}
    packed = dataclasses.replace(run, experiment=dataclasses.replace(run.experiment, format=form))
    together = packed.score_records(records)
    for one, other in zip(alone.predictions, together.predictions, strict=True):
        assert one["answer"] == other["answer"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert one["null_score"] == pytest.approx(other["null_score"], abs=1e-4)


def test_the_task_is_registered_with_its_baseline():
    task = TASKS["span_extraction"]
    assert task.best == "answer_f1" and task.objective.metrics["answer_f1"].baseline == "always_empty_f1"
    assert build.ALL_OBJECTIVES["span_extraction"] is task.objective
