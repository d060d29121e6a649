"""Pretraining helps; the language-model loss beside the task helps on large sets and not on small ones (Radford et al.,
2018, table 5).

    lmrep reproduce gpt:table5 --workdir=claims/gpt_table5 --seeds=0-2

The paper fine-tunes with a language-model loss of weight 0.5 beside the task, without it, and without pretraining.
Accuracy on SST-2 is 91.3, 92.0 and 84.0; on MNLI, 81.8, 81.1 and 75.7. SST-2 is the set here: the claims are that
pretraining helps, and that the auxiliary loss does not.

The miniature is `gpt.py:size=tiny` with layer norm and initial values as in `quickstart.py`, fine-tuned on the
sentences of SST-2 for two epochs. The row without pretraining starts from one step of it, which gives it the same
tokenizer. In three seeds pretraining gained nothing. The likely cause, which was not tested, is its text: the
documentation of a programming language has little in common with film reviews.

Data: the documentation that comes with Python, and the folder sst-trees in the current directory, with train.txt and
dev.txt of the Stanford Sentiment Treebank (Socher et al., 2013), or --config.RUN.data.train=FILE and
--config.RUN.data.validation=FILE for the runs tuned, plain and scratch. At the other scales, the folder SST-2 of GLUE.
"""

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes = at_scale(
        scale, miniature=("gpt.py:size=tiny", {"steps": 3000, "model.norm": "pre", "model.init_stddev": 0.08},
                          "tasks/sst2_trees.py:data=sst-trees", {"data.phrases": False, "epochs": 2.0, "length": 64}),
        single=("gpt.py:size=base,data=files", {"steps": 75_000, "optimizer.schedule.warmup_fraction": 0.02,
                                                   "execution.dtype": "bfloat16"},
                "tasks/sst2.py:data=SST-2,recipe=gpt", {}),
        paper=("gpt.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,recipe=gpt", {}))
    auxiliary, plain = ({**changes, "objective.auxiliary": weight} for weight in (0.5, 0.0))
    return Claim(
        paper="Radford et al., 2018, table 5",
        statement="Pretraining helps; on SST-2 the auxiliary loss does not.",
        runs={"untrained": (page, fields | {"steps": 1}), "gpt": (page, fields),
              "scratch": (f"{tuned},init={{untrained}}", auxiliary), "tuned": (f"{tuned},init={{gpt}}", auxiliary),
              "plain": (f"{tuned},init={{gpt}}", plain)},
        rows={"tuned": Row("pretraining, auxiliary loss", published=91.3),
              "plain": Row("without the auxiliary loss", "tuned", "above", published=92.0),
              "scratch": Row("without pretraining", "tuned", "below", published=84.0)},
        published="accuracy on SST-2 in %", measure=Measure("accuracy, %", "accuracy", {}, lambda value: 100 * value),
        cost="76 minutes on one core beside other work, with the files of SST-2")
