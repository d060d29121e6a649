"""Any task as text to text: templates and targets, and metrics that are those of heads."""

import json

import pytest

import lmrep
from lmrep.core.errors import UserError
from lmrep.data.records import Record
from lmrep.experiment.config import parse
from lmrep.experiment.fine_tuning import compose_known
from lmrep.experiment.inspection import label_statistics
from lmrep.experiment.task_data import prepare_examples
from lmrep.metrics.tasks import TASK_METRICS
from lmrep.tasks import as_text, text_to_text
from lmrep.tasks.known import KNOWN
from lmrep.tasks.text_metrics import TEXT_METRICS, Gold, gold_of, options
from lmrep.tasks.text_templates import from_texts, render
from tests.tasks import tiny
from tests.tasks.tiny import Tiny, as_records

# Of each task two examples, the template of its text form and the targets as texts.
EXAMPLES = {
    "classification": ([{"text": "cat dog", "text2": "bird", "label": "good"}, {"text": "fish", "label": "bad"}],
                       "classification text: cat dog", ["good", "bad"]),
    "regression": ([{"text": "cat dog", "label": "3.77"}, {"text": "fish", "label": "1"}],
                   "regression text: cat dog", ["3.8", "1.0"]),
    "tagging": ([{"words": ["cat", "dog"], "tags": ["O", "B-X"]}, {"words": ["fish"], "tags": ["O"]}],
                "tagging words: cat dog", ["O B-X", "O"]),
    "multiple_choice": ([{"text": "cat", "choices": ["dog", "bird"], "label": "1"},
                         {"text": "fish", "choices": ["tree", "stone"], "label": "0"}],
                        "multiple_choice text: cat choice1: dog choice2: bird", ["choice2", "choice1"]),
    "span_extraction": ([{"question": "cat", "context": "dog bird", "answers": [["bird", 4], ["dog bird", 0]]},
                         {"question": "fish", "context": "tree stone", "answers": [["tree", 0]]}],
                        "span_extraction question: cat context: dog bird", ["bird", "tree"]),
    "word_in_context": ([{"text": "cat", "text2": "dog bird", "span": [0, 3], "span2": [4, 8], "label": "T"},
                         {"text": "fish", "text2": "tree", "span": [0, 4], "span2": [0, 4], "label": "F"}],
                        "word_in_context text: cat text2: dog bird", ["T", "F"]),
}


def config(task, train, argument="as_text=true,mesh=1x1x1", **fields):
    return tiny.config(task, train, train, argument, tokenizer__name="wordpiece", **fields)


def test_every_form_is_tested():
    assert EXAMPLES.keys() == as_text.FORMS.keys()


@pytest.mark.parametrize("task", EXAMPLES)
def test_a_task_as_text_has_its_inputs_and_targets_in_texts_and_its_head_the_same_examples(task, tmp_path):
    """Examples that are validated on have the same fingerprint, so that reports compare both runs."""
    own, source, targets = EXAMPLES[task]
    train = tiny.write(tmp_path / "train.jsonl", own)
    experiment = parse(config(task, train))
    prepared = prepare_examples(experiment, experiment.tokenizer)
    c = text_to_text.Config(**{name: value for name, value in experiment.objective.items() if name in (
        "template", "target", "round_to")})
    records = prepared.records["train"]
    assert text_to_text._source(c, records[0]) == source
    assert [text_to_text.target(c, record) for record in records] == targets
    head = parse(config(task, train, "mesh=1x1x1"))
    others = prepare_examples(head, head.tokenizer)
    assert [label_statistics(each)["validation"]["records"] for each in (prepared, others)] == [
        label_statistics(prepared)["validation"]["records"]] * 2


def test_known_sets_have_words_for_classes_and_the_names_of_their_inputs():
    sst2, stsb, squad = (compose_known("as_text=true,size=tiny", name) for name in ("sst2", "stsb", "squad2"))
    assert sst2.objective.template == "sst2 sentence: {text}" and sst2.data.label_map["1"] == "positive"
    assert stsb.objective.template == "stsb sentence1: {text} sentence2: {text2}" and stsb.objective.round_to == 0.2
    assert squad.objective.template == "question: {question} context: {context}"
    assert (squad.objective.target, squad.checkpoint.best) == ("{answers}", "answer_f1")
    tfds = compose_known("as_text=true,size=tiny,data=tfds", "mrpc")  # its classes are words there
    assert tfds.objective.positive == "equivalent" and not tfds.data.label_map
    wic = compose_known("as_text=true,size=tiny", "wic").objective
    assert wic.template == "wic sentence1: {text} sentence2: {text2} word: {lemma}"
    for name in (name for name, known in KNOWN.items() if known.task in as_text.FORMS):
        parse(compose_known("as_text=true,size=tiny", name))
    with pytest.raises(UserError, match="network=bilstm is below a head"):
        compose_known("as_text=true,size=tiny,network=bilstm", "sst2")
    with pytest.raises(UserError, match="word_senses has no form as text"):
        compose_known("as_text=true", "word_senses")


def test_templates_read_lists_answers_and_choices():
    record = Record({"words": ["a", "b"], "choices": ["x", "y"], "label": "1", "answers": [], "tags": ["O", "O"]}, "0",
                    "train.jsonl, line 1")
    assert render("w: {words} {choices}", record, "template") == "w: a b choice1: x choice2: y"
    assert render("{label}|{answers}|{tags}", record, "target") == "choice2||O O"
    with pytest.raises(UserError, match=r"line 1 has no context, which config\.objective\.template reads"):
        render("{context}", record, "config.objective.template")


def test_texts_fill_a_template_in_order():
    assert from_texts(("question", "context"), ["a", "b c"]) == {"question": "a", "context": "b c"}
    assert from_texts(("words",), ["a b"]) == {"words": ["a", "b"]}
    assert from_texts(("text", "choices"), ["a", "b", "c"]) == {"text": "a", "choices": ["b", "c"]}
    with pytest.raises(ValueError, match="at most 1: text"):
        from_texts(("text",), ["a", "b"])


def test_tags_in_texts_are_measured_as_those_of_a_tagger():
    """Missing tags, and for entities those that are none, count as O; further ones are cut."""
    tags = [("B-PER", "I-PER", "O"), ("O", "B-LOC"), ("B-LOC",)]
    gold = [Gold(" ".join(each), (), each) for each in tags]
    texts = ["B-PER I-PER O O", "O", "nonsense"]
    as_tags = [["B-PER", "I-PER", "O"], ["O", "O"], ["O"]]
    for name in ("token_accuracy", "entity_f1", "conll_f1"):
        own = options(gold, "", "BIO").get(name, {})
        assert TEXT_METRICS[name].function(gold, texts, **own) == TASK_METRICS[name].function(tags, as_tags, **own)
        assert TEXT_METRICS[name].function(gold, [each.text for each in gold], **own) == 1


def test_answers_are_measured_by_the_best_of_several_and_none_by_the_script_of_squad_2():
    gold = [Gold("the cat", ("the cat", "cats"), ()), Gold("dog", ("dog",), ())]
    assert TEXT_METRICS["exact_match"].function(gold, ["Cats.", "a bird"], **options(gold, "", "BIO")["exact_match"]) \
        == 0.5
    none = [*gold, Gold("", (), ())]
    version = options(none, "", "BIO")["answer_f1"]
    assert version == {"version": "2.0"}
    assert TEXT_METRICS["answer_f1"].function(none, ["cat", "dog", ""], **version) == 1


def test_the_most_frequent_tag_is_the_baseline_of_tags():
    records = [{"words": ["cat", "dog"], "tags": ["A", "A"], "target": "A A"},
               {"words": ["fish", "bird"], "tags": ["A", "B"], "target": "A B"}]
    own = Tiny("text_to_text", records, "encoder_decoder", sizes={"head_width": 0, "max_length": 0},
               template="{words}", target="{tags}", metrics=("token_accuracy",), max_target=8)
    assert own.score().metrics["majority_accuracy"] == 0.75


def test_pairs_of_which_one_text_is_read_are_named(caplog):
    records = [{"text": "cat", "text2": "dog", "target": "good"}, {"text": "fish", "target": "bad"}]
    own = Tiny("text_to_text", records, "encoder_decoder", sizes={"head_width": 0, "max_length": 0}, max_target=8)
    own.encode()
    assert "1 of 2 examples have text2, such as train.jsonl, line 1, and config.objective.template is" in caplog.text


@pytest.mark.parametrize(("fields", "target"), [
    ({"words": ["a", "b"], "tags": ["O", "I-X"]}, "{tags}"), ({"text": "a b", "target": "O I-X"}, "{target}"),
    ({"words": ["a", "b"], "tags": ["O", "NEW"]}, "{tags}")])
@pytest.mark.parametrize("metric", ["token_accuracy", "entity_f1"])
def test_tags_that_break_the_scheme_are_read_as_conlleval_does_where_entities_are_measured(
        fields, target, metric, caplog):
    own = Tiny("text_to_text", [{"text": "a", "target": "O"}], "encoder_decoder",
               sizes={"head_width": 0, "max_length": 0}, max_target=8, metrics=(metric,), target=target,
               template="{words}" if "words" in fields else "{text}")
    [record] = as_records([fields])
    example = text_to_text.convert(own.config, record)
    text, *_, last = text_to_text.target(own.config, example), *(fields.get("tags") or fields["target"].split())
    read = last if metric == "token_accuracy" else f"B-{last.removeprefix('I-')}"
    assert text == f"O {read}" and gold_of(example, text, own.config.scheme).tags[-1] in ("B-X", "B-NEW")
    assert fields.get("tags") == example.fields.get("tags")  # as in the file, for fingerprints
    own.encode([example])
    assert sum("(1 of 2 tags)" in message for message in caplog.messages) == (metric == "entity_f1")


@pytest.mark.slow
def test_a_run_answers_questions_from_texts_and_files_without_answers(tmp_path):
    """Predictions are those of `lmrep predict` and of SQuAD's script; a question has the fields of the template."""
    own = EXAMPLES["span_extraction"][0]
    train = tiny.write(tmp_path / "train.jsonl", own * 8)
    c = config("span_extraction", train, model__head_width=0, model__max_length=0, steps=2, batch_size=4,
               objective__max_target=6)
    directory = tmp_path / "run"
    lmrep.train(c, directory)
    run = lmrep.load(directory)
    [texts, fields] = run.predict([("cat", "dog bird"), {"question": "cat", "context": "dog bird"}])
    assert texts["text"] == fields["text"]
    with pytest.raises(UserError, match=r"has no context, which config\.objective\.template reads"):
        run.predict(["cat"])
    with pytest.raises(UserError, match="has 3 texts; expected at most 2: question, context"):
        run.predict([("cat", "dog", "bird")])
    with pytest.raises(UserError, match=r"has no question, which .* it has text"):
        run.predict([{"text": "cat"}])
    test = tiny.write(tmp_path / "test.jsonl", [{name: each[name] for name in ("question", "context")} | {"id": str(i)}
                                                for i, each in enumerate(own)])
    lmrep.evaluate(directory, files=str(test))
    assert json.loads((directory / "predictions/test.json").read_text()).keys() == {"0", "1"}


def test_the_worst_texts_are_those_unlike_every_right_answer():
    record = Record({"question": "q", "context": "dog bird", "answers": [("bird", 4), ("dog bird", 0)],
                     "target": "bird"}, "0", "dev.json")
    c = text_to_text.Config(target="{answers}")
    losses = [text_to_text.compare(c, record, {"text": text}).loss for text in ("dog bird", "dog birds", "fish", "")]
    assert losses[0] == 0 and losses == sorted(losses) and losses[-1] == 1
    empty = record._replace(fields={"answers": [], "target": ""})
    assert text_to_text.compare(c, empty, {"text": ""}).loss == 0
    assert text_to_text.compare(c, empty, {"text": "bird"}).loss > 0


def test_a_generated_text_stands_beside_the_field_text_of_its_example():
    capability = text_to_text.DEFINITION.objective.capabilities[0]
    assert {"text": "cat"} | capability.to_json({"text": "dog", "score": -1.0, "texts": ["dog", "bird"]}) == {
        "text": "cat", "generated": "dog", "score": -1.0, "texts": ["dog", "bird"]}
