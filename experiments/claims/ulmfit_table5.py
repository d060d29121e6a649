"""A classifier from a language model with dropout is better than one from the same model without (Howard and Ruder,
2018, table 5).

    lmrep reproduce ulmfit:table5 --workdir=claims/ulmfit_table5 --seeds=0-2

The paper compares a plain LSTM, the same network without any dropout, with AWD-LSTM. The errors are 5.98 and 5.00 % on
IMDb, 7.41 and 5.69 on TREC-6, and 5.76 and 5.38 on AG. Here no dropout is no dropout of the network in the language
model and in the classifier; the classifier's last blocks keep theirs.

The miniature is `ulmfit.py:size=tiny` with half of the dropout of ULMFiT's language models; it reads the documentation
of Python. The second stage, on the texts of the task, is left out.

Data: the documentation that comes with Python, and the folder trec in the current directory, with train_5500.label and
TREC_10.label (Li and Roth, 2002), or --config.NAME.data.train=FILE and --config.NAME.data.validation=FILE for the rows
vanilla and awd. At the other scales, the text of the language models is --config.general_NAME.data.files=FILES.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

RATES = {"dropout": 0.1, "hidden_dropout": 0.15, "input_dropout": 0.25, "embedding_dropout": 0.02,
         "weight_dropout": 0.2}
NONE = {f"model.{name}": 0.0 for name in RATES}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, rates, changes = at_scale(
        scale, miniature=("ulmfit.py:size=tiny", {"steps": 2000},
                          {f"model.{name}": rate / 2 for name, rate in RATES.items()}, {"epochs": 8.0}),
        single=("ulmfit.py:data=files", {"steps": 115_000}, {}, {}), paper=("ulmfit.py:data=files", {}, {}, {}))
    classifier = "tasks/ulmfit.py:task=trec,data=trec,init="
    return Claim(
        paper="Howard and Ruder, 2018, table 5", statement="A language model with dropout gives a better classifier.",
        runs={"general_vanilla": (page, fields | NONE), "general_awd": (page, fields | rates),
              "vanilla": (f"{classifier}{{general_vanilla}}", changes | NONE),
              "awd": (f"{classifier}{{general_awd}}", changes)},
        rows={"vanilla": Row("LSTM without dropout", published=7.41),
              "awd": Row("AWD-LSTM", "vanilla", "below", published=5.69)},
        published="error on TREC-6, in %",
        measure=Measure("error, %", "accuracy", {}, lambda accuracy: 100 - 100 * accuracy),
        cost="55 minutes on one core, by one of the seeds, with the files of TREC")
