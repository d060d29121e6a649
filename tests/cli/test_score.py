"""`lmrep score`: the formats of files, what is printed, and what is refused."""

import json
import random

import pytest
from seqeval.metrics import classification_report
from seqeval.scheme import IOBES

from lmrep.metrics import glue
from lmrep.metrics.scoring import SCORERS
from tests.cli import figures

# SQuAD

def squad(answers):
    questions = [{"id": key, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in texts]}
                 for key, texts in answers.items()]
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": "c", "qas": questions}]}]}


FILES = ("--gold=gold.json", "--predictions=pred.json")


def test_squad_prints_the_line_of_the_official_script(score):
    code, out, err = score("--metric=squad", *FILES, gold_json=squad({"a": ["Paris", "in Paris"], "b": ["the cat"]}),
                           pred_json={"a": "Paris!", "b": "cat food"})
    assert (code, out, err) == (0, '{"exact_match": 50.0, "f1": 83.33333333333333}\n', "")


def test_squad_counts_a_missing_prediction_as_wrong_and_warns(score):
    code, out, err = score("--metric=squad", *FILES, gold_json=squad({"a": ["x"], "b": ["y"]}), pred_json={"a": "x"})
    assert (code, out) == (0, '{"exact_match": 50.0, "f1": 50.0}\n')
    assert err == "warning: pred.json has no prediction for 1 of 2 questions, such as b; each will receive score 0\n"


@pytest.mark.parametrize("metric", ["squad", "squad2"])
def test_predictions_for_other_questions_do_not_count(score, metric):
    gold, predicted = squad({"a": ["Paris"], "b": ["cat"]}), {"b": "dog", "a": "Paris"}
    expected = score(f"--metric={metric}", *FILES, gold_json=gold, pred_json=predicted)
    code, out, err = score(f"--metric={metric}", *FILES, gold_json=gold, pred_json={"z": "cat", **predicted})
    assert (code, out) == expected[:2]
    assert "pred.json has 1 predictions for questions that gold.json does not have, such as z; they are left out" in err


def test_squad2_prints_the_json_of_the_official_script(score):
    gold = squad({"a": ["Paris"], "b": ["cat"], "c": [], "d": []})
    code, out, _ = score("--metric=squad2", *FILES, gold_json=gold,
                         pred_json={"a": "Paris", "b": "dog", "c": "", "d": "x"})
    assert code == 0
    assert out == "{\n" + ",\n".join(f'  "{name}": {value}' for name, value in (
        ("exact", 50.0), ("f1", 50.0), ("total", 4), ("HasAns_exact", 50.0), ("HasAns_f1", 50.0), ("HasAns_total", 2),
        ("NoAns_exact", 50.0), ("NoAns_f1", 50.0), ("NoAns_total", 2))) + "\n}\n"


def test_squad2_with_null_scores(score):
    files = {"gold_json": squad({"a": ["Paris"], "b": ["cat"], "c": [], "d": []}),
             "pred_json": {"a": "Paris", "b": "dog", "c": "", "d": "x"},
             "null_json": {"a": -2, "b": 3, "c": 0, "d": 1.5}}
    found = figures(score("--metric=squad2", *FILES, "--null_scores=null.json", "--na_prob_thresh=1", **files))
    assert (found["exact"], found["NoAns_exact"]) == (75, 100)
    assert (found["best_exact"], found["best_exact_thresh"], found["best_f1_thresh"]) == (75, -2, -2)
    files["null_json"] = {"a": 1}
    assert score("--metric=squad2", *FILES, "--null_scores=null.json", **files)[2].startswith(
        "lmrep: error: null.json has no null score for 3 questions, such as 'b'")


@pytest.mark.parametrize("gold, predicted, message", [
    (squad({"a": ["x"]}), {"y": "x", "z": "y"}, "pred.json has predictions for other questions than gold.json, such"),
    (squad({"a": ["x"]}), {"a": None}, "pred.json: the value of 'a' is None; expected the text of an answer"),
    (squad({"a": []}), {"a": "x"}, "1 questions have no answer, such as 'a'; SQuAD 1.1 has none of these: use"),
    ({"data": [{}]}, {}, "gold.json is not in SQuAD's format"),
    (squad({"a": ["x", 5]}), {"a": "x"}, "gold.json, question a has 5 as its id or an answer's text"),
    (squad({"a": ["x"]}), "[1]", "pred.json is [1]; expected a JSON object"),
    (squad({"a": ["x"]}), "{", "pred.json is not JSON"),
])
def test_bad_squad_files_are_refused(score, gold, predicted, message):
    code, out, err = score("--metric=squad", *FILES, gold_json=gold, pred_json=predicted)
    assert (code, out) == (2, "") and err.startswith("lmrep: error: ") and message in err


# Tags

TOKENS = """\
U.N. NNP B-ORG I-ORG
official NN O O
Ekeus NNP B-PER B-PER
heads VBZ O O

for IN O O
Baghdad NNP B-LOC B-ORG
. . O O
"""

def test_conlleval_prints_the_text_of_the_official_script(score):
    expected = """\
processed 7 tokens with 3 phrases; found: 3 phrases; correct: 2.
accuracy:  71.43%; precision:  66.67%; recall:  66.67%; FB1:  66.67
              LOC: precision:   0.00%; recall:   0.00%; FB1:   0.00  0
              ORG: precision:  50.00%; recall: 100.00%; FB1:  66.67  2
              PER: precision: 100.00%; recall: 100.00%; FB1: 100.00  1
"""
    assert score("--metric=conlleval", "--predictions=both.txt", both_txt=TOKENS) == (0, expected, "")
    columns = [line.split() for line in TOKENS.splitlines()]
    gold, predicted = ("\n".join("\t".join([*cells[:1], *cells[column:column + 1]]) for cells in columns)
                       for column in (2, 3))
    assert score("--metric=conlleval", "--gold=gold.txt", "--predictions=pred.txt", gold_txt=gold,
                 pred_txt=predicted) == (0, expected, "")


def test_conlleval_without_entities(score):
    assert score("--metric=conlleval", "--predictions=x.txt", x_txt="a O O\n")[1] == (
        "processed 1 tokens with 0 phrases; found: 0 phrases; correct: 0.\n"
        "accuracy: 100.00%; precision:   0.00%; recall:   0.00%; FB1:   0.00\n")


def test_conlleval_warns_of_tags_that_it_does_not_know(score):
    code, _, err = score("--metric=conlleval", "--predictions=x.txt", x_txt="a S-A S-A\nb S-A S-A\n")
    assert code == 0 and "warning: conlleval does not know S-" in err and "--scheme=BIOES" in err


@pytest.mark.parametrize("metric", ["conlleval", "seqeval"])
def test_tags_of_no_entities_give_a_warning(score, metric):
    code, _, err = score(f"--metric={metric}", "--predictions=x.txt", x_txt="a NN NN\nb B-A I-A\nc VB O\n")
    assert code == 0
    assert err == ("warning: 2 tags, such as NN, are not of the form O, B-TYPE or I-TYPE: entities may not be "
                   "found in them\n")


def test_seqeval_prints_its_report(score):
    rng = random.Random(0)
    tags = ["O", "B-A", "I-A", "E-A", "S-A", "S-B"]
    gold = [[rng.choice(tags) for _ in range(8)] for _ in range(5)]
    predicted = [[rng.choice(tags) for _ in range(8)] for _ in range(5)]
    text = "\n".join("".join(f"w {a} {b}\n" for a, b in zip(*pair, strict=True))
                     for pair in zip(gold, predicted, strict=True))
    assert score("--metric=seqeval", "--predictions=x.txt", x_txt=text)[1] == (
        classification_report(gold, predicted, zero_division=0))
    strict = ("--metric=seqeval", "--predictions=x.txt", "--strict", "--scheme=BIOES")
    assert score(*strict)[1] == classification_report(gold, predicted, mode="strict", scheme=IOBES, zero_division=0)
    assert figures(score(*strict, "--json")) == classification_report(
        gold, predicted, mode="strict", scheme=IOBES, zero_division=0, output_dict=True)


def test_conlleval_and_strict_seqeval_differ_on_the_same_file(score):
    lenient = figures(score("--metric=seqeval", "--predictions=x.txt", "--json", x_txt=TOKENS))
    strict = figures(score("--metric=seqeval", "--predictions=x.txt", "--json", "--strict"))
    conlleval = figures(score("--metric=conlleval", "--predictions=x.txt", "--json"))
    assert conlleval["f1"] == pytest.approx(100 * lenient["micro avg"]["f1-score"]) == pytest.approx(200 / 3)
    assert strict["micro avg"]["f1-score"] == pytest.approx(2 / 5)


@pytest.mark.parametrize("gold, predicted, message", [
    ("a O\nb O\n", "a O\n", "sentence 1 has 2 tokens in gold.txt, line 1, and 1 in pred.txt, line 1"),
    ("a O\n\nb O\n", "a O\n", "gold.txt has 2 sentences and pred.txt has 1"),
    ("a O\nb O\n", "a O\nc O\n", "pred.txt, line 2 has the token 'c'; gold.txt, line 2 has 'b'"),
    ("a O\nb\n", "a O\nb O\n", "gold.txt, line 2 has 1 column; expected 2, as on the first line"),
    ("\n", "a O\n", "gold.txt has no tokens"),
    ("", "a O\n", "gold.txt has no tokens"),
])
def test_bad_tag_files_are_refused(score, gold, predicted, message):
    code, out, err = score("--metric=conlleval", "--gold=gold.txt", "--predictions=pred.txt", gold_txt=gold,
                           pred_txt=predicted)
    assert (code, out) == (2, "") and message in err


def test_seqeval_refuses_a_tag_of_another_scheme(score):
    code, _, err = score("--metric=seqeval", "--strict", "--predictions=x.txt", x_txt="a S-A S-A\n")
    assert code == 2 and "the tag 'S-A' is not of the scheme IOB2" in err


# Plain files

def test_plain_files(score):
    words = ("--gold=g.txt", "--predictions=p.txt")
    assert score("--metric=accuracy", *words, g_txt="cat\ndog\ncat\n", p_txt="cat\ncat\ncat")[1] == (
        "Accuracy: 66.67%\nExamples: 3\n")
    assert score("--metric=f1", "--positive=cat", *words)[1] == "F1 of the positive class: 80.00%\nExamples: 3\n"
    assert score("--metric=macro_f1", *words)[1] == "Macro-averaged F1: 40.00%\nExamples: 3\n"
    assert score("--metric=pearson", *words, g_txt="1\n2\n3", p_txt="2\n4\n6")[1] == (
        "Pearson correlation: 1.0000\nExamples: 3\n")


def test_json_lines_and_tsv_are_matched_by_id(score):
    found = score("--metric=accuracy", "--gold=g.jsonl", "--predictions=p.tsv",
                  g_jsonl='{"id": "x", "label": 1}\n{"id": "y", "label": 0}\n', p_tsv="id\tprediction\ny\t0\nx\t1\n")
    assert found == (0, "Accuracy: 100.00%\nExamples: 2\n", "")


def test_fields_are_named_by_flags(score):
    words = ("--metric=spearman", "--gold=g.jsonl", "--predictions=p.tsv", "--gold_field=truth")
    files = {"g_jsonl": '{"truth": 1.5}\n{"truth": 2}\n', "p_tsv": "guess\n7\n8\n"}
    assert score(*words, "--prediction_field=guess", **files)[1] == "Spearman correlation: 1.0000\nExamples: 2\n"
    assert "p.tsv, line 2 has no field 'prediction', only guess; name the field with" in score(*words, **files)[2]


def test_predictions_of_a_run_are_read(score):
    words = ("--gold=v.jsonl", "--predictions=v.jsonl")
    classes = [{"id": str(i), "text": "t", "label": label, "prediction": {"label": "b", "probabilities": {"b": 0.7}}}
               for i, label in enumerate("abb")]
    content = "\n".join(map(json.dumps, classes))
    assert score("--metric=accuracy", *words, v_jsonl=content)[1] == "Accuracy: 66.67%\nExamples: 3\n"
    assert score("--metric=accuracy", *words, "--prediction_field=prediction.label")[1].startswith("Accuracy: 66.67%")
    code, _, err = score("--metric=accuracy", *words, "--prediction_field=prediction.probabilities")
    assert code == 2 and "--prediction_field=prediction.probabilities.b" in err and "0.7" not in err
    code, _, err = score("--metric=accuracy", *words, "--prediction_field=prediction.name")
    assert code == 2 and "v.jsonl, line 1 has no field 'prediction.name'" in err
    numbers = "\n".join(json.dumps({"label": str(i), "prediction": {"value": 2.0 * i}}) for i in range(3))
    assert score("--metric=pearson", *words, v_jsonl=numbers)[1] == "Pearson correlation: 1.0000\nExamples: 3\n"
    tags = json.dumps({"tags": ["O"], "prediction": {"tags": ["O"], "probabilities": [1.0]}})
    code, _, err = score("--metric=accuracy", *words, "--gold_field=tags", v_jsonl=tags)
    assert code == 2 and "'tags' is a list; expected one value" in err


@pytest.mark.parametrize("metric, gold, predicted, message", [
    ("accuracy", "a\nb\n", "a\nc\n", "p.txt, line 2 has the label 'c', which g.txt lacks; there are a, b"),
    ("accuracy", "a\n\nb\n", "a\nb\n", "g.txt, line 2 is empty"),
    ("pearson", "1\n2\n", "1\nx\n", "p.txt, line 2 is 'x'; expected a finite number"),
    ("pearson", "1\n2\n", "1\n1_0\n", "p.txt, line 2 is '1_0'; expected a finite number"),
    ("f1", "yes\nno\n", "yes\nno\n", "no gold value of g.txt is the positive class '1'; set --positive to one of no"),
    ("matthews", "1\n2\n", "1\n", "g.txt has 2 examples and p.txt has 1 predictions"),
])
def test_bad_plain_files_are_refused(score, metric, gold, predicted, message):
    code, out, err = score(f"--metric={metric}", "--gold=g.txt", "--predictions=p.txt", g_txt=gold, p_txt=predicted)
    assert (code, out) == (2, "") and message in err


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(score, tmp_path):
    (tmp_path / "g.txt").write_bytes(b"a\n\xff\n")
    assert score("--metric=accuracy", "--gold=g.txt", "--predictions=g.txt")[2] == (
        "lmrep: error: g.txt is not UTF-8 text: line 2 has the byte 0xff; convert it to UTF-8\n")


def test_byte_order_marks_and_crlf_are_removed(score, tmp_path):
    (tmp_path / "g.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    assert score("--metric=accuracy", "--gold=g.txt", "--predictions=p.txt", p_txt="a\nb\n")[1].startswith(
        "Accuracy: 100.00%")


# Flags

def test_bootstrap_intervals(score):
    words = ("--metric=accuracy", "--gold=g.txt", "--predictions=p.txt", "--bootstrap=200")
    _, out, _ = score(*words, g_txt="a\nb\n" * 50, p_txt="a\nb\nb\nb\n" * 25)
    assert out.splitlines()[:2] == ["Accuracy: 75.00%", "Examples: 100"]
    low, high = figures(score(*words, "--json"))["accuracy_interval"]
    assert out.splitlines()[2] == f"95 % interval of accuracy: {low:.4g} to {high:.4g} (200 resamples)"
    assert 0.6 < low < 0.75 < high < 0.9


def test_every_metric_gives_intervals_around_its_figures(score):
    found = figures(score("--metric=squad2", *FILES, "--bootstrap=50", "--json",
                          gold_json=squad({"a": ["x"], "b": [], "c": ["y"]}),
                          pred_json={"a": "x", "b": "y", "c": "y"}))
    for name in ("exact", "f1"):
        low, high = found[f"{name}_interval"]
        assert found[name] == pytest.approx(200 / 3) and low < found[name] < high <= 100
    found = figures(score("--metric=squad", *FILES, "--bootstrap=50", "--json",
                          gold_json=squad({"a": ["the", "x"]}), pred_json={"a": "the"}))  # wrong in SQuAD 2.0
    assert found["exact_match"] == 100 and found["exact_match_interval"] == [100, 100]
    out = score("--metric=conlleval", "--predictions=x.txt", "--bootstrap=50", x_txt=TOKENS)[1]
    assert "95 % interval of f1: 0 to 100 (50 resamples)" in out  # all of one sentence is right, none of the other


@pytest.mark.parametrize("words, message", [
    ([], "lmrep score needs --metric"),
    (["--metric=squad3"], "there is no metric 'squad3'; did you mean 'squad'?"),
    (["--metric=x"], "there is no metric 'x'; there are squad, squad2, conlleval, seqeval, glue:TASK, bleu, chrf, "),
    (["--metric=glue"], "glue needs a task: glue:CoLA"),
    (["--metric=glue:QNIL"], "GLUE has no task 'QNIL'; did you mean 'QNLI'?"),
    (["--metric=f1"], "--metric=f1 needs --gold=FILE and --predictions=FILE"),
    (["--metric=conlleval"], "--metric=conlleval needs --predictions=FILE"),
    (["--metric=squad", "--strict"], "--strict is an option of seqeval, not of squad; leave it out"),
    (["--metric=squad", "--null_scores=x"], "--null_scores is an option of squad2, not of squad"),
    (["--metric=squad", "--gold=none.json", "--predictions=none.json"], "cannot read none.json"),
])
def test_bad_flags_are_refused(score, words, message):
    code, out, err = score(*words)
    assert (code, out) == (2, "") and message in err and err.count("\n") == 1


def test_help_names_every_metric_and_task(score):
    _, out, _ = score("--help")
    for name in (*SCORERS, *set(glue.TASKS) - {"MNLI"}):
        assert name in out
