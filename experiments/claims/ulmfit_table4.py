"""Pretraining helps a classifier, most on small sets (Howard and Ruder, 2018, table 4).

    lmrep reproduce ulmfit:table4 --workdir=claims/ulmfit_table4 --seeds=0-2

The paper trains classifiers with and without a language model of WikiText-103. The errors are 5.63 and 5.00 % on IMDb,
10.67 and 5.69 on TREC-6, and 5.52 and 5.38 on AG.

The miniature is `ulmfit.py:size=tiny`, whose language model reads the documentation of Python, and the classifier of
TREC-6. Without pretraining the classifier starts from one step of it, which gives it the same tokenizer. The second
stage, on the texts of the task, is left out of both.

Data: the documentation that comes with Python, and the folder trec in the current directory, with train_5500.label and
TREC_10.label (Li and Roth, 2002), or --config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for the rows
scratch and pretrained.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, classifier, changes = at_scale(
        scale, miniature=("ulmfit.py:size=tiny", {"steps": 2000},
                          "tasks/ulmfit.py:task=trec,data=trec", {"epochs": 8.0}),
        single=("ulmfit.py:data=files", {"steps": 115_000}, "tasks/ulmfit.py:task=trec,data=trec", {}),
        paper=("ulmfit.py:data=files", {}, "tasks/ulmfit.py:task=trec,data=trec", {}))
    return Claim(
        paper="Howard and Ruder, 2018, table 4", statement="A pretrained classifier has fewer errors.",
        runs={"untrained": (page, fields | {"steps": 1}), "general": (page, fields),
              "scratch": (f"{classifier},init={{untrained}}", changes),
              "pretrained": (f"{classifier},init={{general}}", changes)},
        rows={"scratch": Row("without pretraining", published=10.67),
              "pretrained": Row("with pretraining", "scratch", "below", published=5.69)},
        published="error on TREC-6, in %",
        measure=Measure("error, %", "accuracy", {}, lambda accuracy: 100 - 100 * accuracy),
        cost="35 minutes on one core, by one of the seeds, with the files of TREC")
