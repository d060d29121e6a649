"""`lmrep score` of submissions to GLUE: their formats, what is printed, and what is refused."""

import pytest

from lmrep.metrics import glue
from tests.cli import figures

GOLD = {
    "CoLA": ("gj04\t1\t\tA.\ngj04\t0\t*\tB.\ngj04\t0\t*\tC.\n", "1 0 1", {"matthews": 0.5}),
    "SST-2": ("sentence\tlabel\nfine \t1\nbad \t0\nugh\t0\n", "1 0 1", {"accuracy": 2 / 3}),
    "MRPC": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
             "1\t7\t8\ta\t\" b\n1\t5\t6\tc\td\n0\t1\t2\te\tf\n", "1 0 0",
             {"f1": 2 / 3, "accuracy": 2 / 3}),
    "QQP": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n201\t1\t2\ta\tb\t0\n118\t3\t4\tc\td\t1\n"
            "7\t5\t6\te\tf\t1\n", "0 1 0", {"f1": 2 / 3, "accuracy": 2 / 3}),
    "STS-B": ("index\tsentence1\tsentence2\tscore\n0\ta\tb\t5.000\n1\tc\td\t1.0\n2\te\tf\t3\n", "9 1 2",
              {"pearson": 0.9176629, "spearman": 1.0}),
    "MNLI-m": ("index\tsentence1\tsentence2\tlabel1\tgold_label\n"
               "0\ta\tb\tneutral\tentailment\n1\tc\td\tneutral\tneutral\n",
               "entailment contradiction", {"accuracy": 0.5}),
    "RTE": ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tnot_entailment\n1\tc\td\tentailment\n",
            "not_entailment entailment", {"accuracy": 1.0}),
    "WNLI": ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n1\tc\td\t1\n", "1 0", {"accuracy": 0.0}),
    "AX": ("Domain\tPremise\tHypothesis\tLabel\nx\ta\tb\tneutral\nx\tc\td\tentailment\nx\te\tf\tcontradiction\n",
           "neutral entailment contradiction", {"matthews": 1.0}),
}
GOLD["QNLI"] = GOLD["RTE"]
GOLD["MNLI-mm"] = GOLD["MNLI"] = GOLD["MNLI-m"]


@pytest.mark.parametrize("task", glue.TASKS)
def test_glue(score, task):
    gold, labels, expected = GOLD[task]
    labels = labels.split()
    words = (f"--metric=glue:{task}", "--gold=dev.tsv", "--json")
    submission = "index\tprediction\n" + "".join(f"{i}\t{label}\n" for i, label in reversed(list(enumerate(labels))))
    found = figures(score(*words, "--predictions=sub.tsv", dev_tsv=gold, sub_tsv=submission))
    assert found == {"total": len(labels)} | {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()}
    assert figures(score(*words, "--predictions=p.txt", p_txt="\n".join(labels))) == found


def test_glue_prints_a_line_for_each_figure(score):
    gold, labels, _ = GOLD["MRPC"]
    result = score("--metric=glue:mrpc", "--gold=dev.tsv", "--predictions=p.txt", dev_tsv=gold,
                   p_txt=labels.replace(" ", "\n"))
    assert result == (0, "F1 of the positive class: 66.67%\nAccuracy: 66.67%\nExamples: 3\n", "")


def test_glue_matches_by_id_where_the_gold_file_has_ids(score):
    gold = GOLD["QQP"][0]
    submission = "id\tprediction\n7\t0\n118\t1\n201\t0\n"
    assert figures(score("--metric=glue:QQP", "--gold=dev.tsv", "--predictions=s.tsv", "--json", dev_tsv=gold,
                         s_tsv=submission))["accuracy"] == pytest.approx(2 / 3)


def test_the_average_of_glue_takes_the_mean_of_each_task_first(score, tmp_path):
    """MRPC, QQP and STS-B have two figures, and MNLI two sets. AX does not count."""
    (tmp_path / "sub").mkdir()
    for task, (gold, labels, _) in GOLD.items():
        if task != "MNLI":
            file = tmp_path / glue.gold_file("glue", task)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(gold)
            (tmp_path / "sub" / f"{task}.tsv").write_text(
                "index\tprediction\n" + "".join(f"{i}\t{label}\n" for i, label in enumerate(labels.split())))
    assert (tmp_path / "glue/MNLI/dev_mismatched.tsv").is_file()
    words = ("--metric=glue", "--gold=glue", "--predictions=sub")
    expected = (0.5 + 2 / 3 + 2 / 3 + (0.9176629 + 1) / 2 + 2 / 3 + 0.5 + 1 + 1 + 0) / 9
    found = figures(score(*words, "--json"))
    assert found["average"] == pytest.approx(expected) and found["tasks"] == 9
    assert found["STS-B"] == pytest.approx({"pearson": 0.9176629, "spearman": 1})
    lines = score(*words)[1].splitlines()
    assert lines[2] == "MRPC: F1 of the positive class: 66.67%, Accuracy: 66.67%"
    assert lines[-1] == f"Average of 9 tasks of 9: {100 * expected:.1f}"
    for file in (tmp_path / "sub").iterdir():
        file.unlink()
    assert "sub has no predictions; expected a file of each task, such as CoLA.tsv" in score(*words)[2]


@pytest.mark.parametrize("row, score", [  # of the README of google-research/bert, with 62.3 for WNLI
    ((0.0, 85.9, (81.1, 71.8), (75.4, 73.3), (66.4, 86.2), 74.8, 74.3, 84.1, 57.9, 62.3), 65.8),
    ((27.8, 89.7, (83.4, 76.2), (78.8, 77.0), (68.1, 87.0), 77.6, 77.0, 86.4, 61.8, 62.3), 71.2),
    ((38.0, 89.6, (86.6, 81.6), (80.4, 78.4), (69.6, 87.9), 80.0, 79.1, 87.7, 62.2, 62.3), 73.5)])
def test_the_average_of_glue_is_that_of_published_figures(row, score):
    values = {task: dict(enumerate(each if isinstance(each, tuple) else (each,)))
              for task, each in zip(glue.AVERAGED, row, strict=True)}
    found, tasks = glue.average(values)
    assert round(found, 1) == score and tasks == 9


def test_glue_warns_of_constant_predictions(score):
    code, out, err = score("--metric=glue:CoLA", "--gold=dev.tsv", "--predictions=p.txt", dev_tsv=GOLD["CoLA"][0],
                           p_txt="1\n1\n1\n")
    assert (code, out) == (0, "Matthews correlation: 0.0000\nExamples: 3\n")
    assert err == "warning: the predictions are constant: the Matthews correlation is not defined, and reported as 0\n"


RTE = GOLD["RTE"][0]


@pytest.mark.parametrize("gold, predicted, message", [
    (RTE, "entailment\nneutral\n", "p.txt, line 2 has the label 'neutral'; those of RTE are entailment, "),
    (RTE, "entailment\n", "dev.tsv has 2 examples and p.txt has 1 predictions"),
    (RTE, "index\tprediction\n0\tentailment\n2\tentailment\n", "p.txt has no prediction for 1 id ('1') of dev.tsv"),
    (RTE, "0\tentailment\n1\tentailment\n2\tentailment\n", "p.txt has predictions for 1 id ('2'), which dev.tsv does"),
    (RTE, "0\tentailment\n0\tentailment\n", "p.txt, line 2: the id '0' is on line 1 too"),
    (RTE, "0\tentailment\nentailment\n", "p.txt, line 2 has 1 column; expected index and prediction"),
    (RTE, "", "p.txt has no examples"),
    ("index\tsentence1\tsentence2\n0\ta\tb\n", "entailment\n", "expected one named 'label', as in dev.tsv of RTE"),
    (RTE + "2\tonly two\n", "entailment\n", "dev.tsv, line 4 has 2 columns and the first line 4"),
])
def test_bad_glue_files_are_refused(score, gold, predicted, message):
    code, out, err = score("--metric=glue:RTE", "--gold=dev.tsv", "--predictions=p.txt", dev_tsv=gold, p_txt=predicted)
    assert (code, out) == (2, "") and message in err
