"""Extractive question answering: targets from characters, windows, and the loss."""

import logging

import jax
import numpy as np
import pytest

from lmrep.core.params import init
from lmrep.data import tokenizers
from lmrep.data.records import Record
from lmrep.data.records.examples import arrange
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import default_config
from lmrep.objectives.base import Carry, FrozenPart, Keys
from lmrep.tasks import TASKS, distillation
from lmrep.tasks import span_extraction as qas
from lmrep.tasks.answers import answer_tokens
from lmrep.tasks.base import collate
from lmrep.tasks.span_extraction import Config
from tests.tasks.questions import TEXTS, encoded, question, span_of, wordpiece

# Targets

SPACED = "  \n Zoë —  naïve «café😀» lives\u00a0in Łódź, 3,000 km"


@pytest.mark.parametrize("name", ["wordpiece", "byte_level_bpe", "bpe", "sentencepiece_unigram", "words"])
def test_a_target_is_the_exact_text_of_the_answer(name):
    config = tokenizers.Config(name=name, vocab_size=60 if name.startswith("sent") else 320)
    tokenizer = tokenizers.train(config, lambda: iter([*TEXTS, SPACED]))
    answers = ["Zoë", "naïve", "in Łódź" + "," * (name == "words"),  # whose tokens are what white space separates
               "3,000 km", SPACED.strip()]
    units, *_ = encoded([question(context=SPACED, answers=[answer]) for answer in answers], tokenizer=tokenizer,
                        length=256)
    assert [SPACED[slice(*span_of(units, i))] for i in range(len(answers))] == answers


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


def test_with_cls_last_the_context_is_first_and_no_answer_is_cls():
    """context <sep> question <sep> <cls>, as XLNet's code."""
    units, *_, tokenizer = encoded([question(answers=["Bern"]), question(answers=[])], cls_last=True)
    special, encode = tokenizer.vocabulary.specials, lambda text: tokenizer.encode(text).ids.tolist()
    context, asked = encode("Ada lives in Bern."), encode("Where does Ada live?")
    start, end = units.offsets[:2]
    assert units.tokens[start:end].tolist() == [
        *context, special["sep"], *asked, special["sep"], special["cls"]]
    assert units.token_types[start:end].tolist() == [0] * (len(context) + 1) + [1] * (len(asked) + 1) + [2]
    assert span_of(units, 0) == (13, 17) and span_of(units, 1) is None
    assert units.columns["null"].tolist() == [end - start - 1] * 2


def test_windows_without_the_full_answer_have_no_answer():
    context = " ".join(["Ada lives in Oslo."] * 10 + ["Kurt lives in Lyon."] + ["Ada lives in Oslo."] * 10)
    units, long, _ = encoded([question(context=context, answers=["Kurt lives in Lyon"])], length=40, stride=7)
    assert long == 1 and len(units.example) > 5
    details, targets = units.details, [span_of(units, i) for i in range(len(units.example))]
    start = context.index("Kurt")
    found = answer_tokens(details["offsets"], "Kurt lives in Lyon", start)
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
        units, *_ = encoded([long, question(answers=["Bern"])], length=128)
    assert "1 of 2 questions have more than 64 tokens" in caplog.text
    assert units.details["position"].tolist()[0] == 64 + 2  # [CLS] question [SEP]
    assert span_of(units, 0) == (13, 17)


def test_contexts_longer_than_a_unit_are_truncated():
    record = question(context=" ".join(TEXTS[:6]), answers=["Turin"])
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
    left, *_ = encoded(records, Config(context="left", unanswerable=True), context="left")
    last = (left.lengths - 1).tolist()
    assert left.columns["null"].tolist() == last and left.columns["end"].tolist()[::2] == [last[0], -1]
    assert span_of(left, 1) == (13, 17)


def test_an_answer_without_tokens_counts_as_none(caplog):
    context = "Ada \u200b lives"
    units, *_ = encoded([Record({"question": "Who?", "context": context, "answers": [("\u200b", 4)]}, "0", "a")])
    assert span_of(units, 0) is None and "1 of 1 answers have no token" in caplog.text


# The objective


def network(config=Config(unanswerable=True), tokenizer=None, context="both"):
    """(objective, parameters) of a small network."""
    objective = qas.build(config, default_model(tokenizer, context), tokenizer.vocabulary)
    return objective, init(objective.specs, jax.random.key(0))


def default_model(tokenizer, context="both"):
    preset = "bert_tiny" if context == "both" else "gpt2"
    c = default_config(preset, "span_extraction", "examples", "bert", "1x1x1")
    c.model.update({"vocab": 0, "width": 32, "layers": 1, "heads": 4, "mlp": 64, "max_length": 128})
    c.data.train, c.length = "train.json", 128
    c.objective.update({"context": context, "unanswerable": True})
    return experiments.build_model(experiments.parse(c), tokenizer.size)


def batch_of(units, tokenizer, packed=0):
    examples = arrange(units, tokenizer.vocabulary, 0, "", packed)
    return examples, examples.gather(np.arange(examples.examples))


def test_the_task_is_registered_with_its_baseline():
    task = TASKS["span_extraction"]
    assert task.best == "answer_f1" and task.objective.metrics["answer_f1"].baseline == "always_empty_f1"
    assert build.ALL_OBJECTIVES["span_extraction"] is task.objective


@pytest.mark.slow
def test_a_teacher_gives_the_mean_divergence_of_start_and_end():
    tokenizer = wordpiece()
    units, *_ = encoded([question(answers=["Bern"]), question("Who?", TEXTS[3], [])], tokenizer=tokenizer)
    objective, params = network(tokenizer=tokenizer)
    c = Config(unanswerable=True, teacher=distillation.Config(alpha_ce=0.5, alpha_task=0.25, temperature=2.0))
    model = default_model(tokenizer)
    part = FrozenPart("teacher", "run", objective.specs, [], model, objective, Config(unanswerable=True))
    taught = qas.build(c, model, tokenizer.vocabulary, {"teacher": part})
    theirs = init(objective.specs, jax.random.key(5))
    examples, batch = batch_of(units, tokenizer)
    batch = taught.prepare(Keys(None, None), batch)
    alone, _ = objective.loss(params, batch, None, Carry())
    total, (metrics, _) = taught.loss(params | {"frozen": {"teacher": theirs}}, batch, None, Carry())
    outputs = [collate([batch | jax.device_get(objective.predict(each, batch))], units) for each in (params, theirs)]

    def distribution(y):
        e = np.exp((y - y.max()) / 2.0)
        return e / e.sum()

    found = []
    for name in ("start", "end"):
        for ours, other in zip(outputs[0][name], outputs[1][name], strict=True):
            q, p = distribution(ours.astype(np.float64)), distribution(other.astype(np.float64))
            found.append(4 * (p * np.log(p / q)).sum())
    assert examples.examples == 2 and np.mean(found) > 1e-3
    assert float(total) == pytest.approx(0.25 * float(alone) + 0.5 * np.mean(found), rel=1e-4)
    assert float(metrics["distillation_loss"][0] / metrics["distillation_loss"][1]) == pytest.approx(
        np.mean(found), rel=1e-4)
