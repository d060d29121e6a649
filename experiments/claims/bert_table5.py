"""Next-sentence prediction helps, and masks are better than left to right (Devlin et al., 2019, table 5).

    lmrep reproduce bert:table5 --workdir=claims/bert_table5 --seeds=0-2

The paper fine-tunes BERT-base, the same without next-sentence prediction (NSP), and the latter trained left to right.
Accuracy on SST-2 is 92.7, 92.6 and 92.1, and on MNLI 84.4, 83.9 and 82.1.

The miniature is the network of `quickstart.py`, 1,600 steps of each, fine-tuned on the sentences of SST-2 for two
epochs.

Data: the documentation that comes with Python, and the folder sst-trees in the current directory, with train.txt and
dev.txt of the Stanford Sentiment Treebank (Socher et al., 2013), or --config.tuned_NAME.data.train=FILE and
--config.tuned_NAME.data.validation=FILE for each NAME. At the other scales, the folder SST-2 of GLUE.
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes = at_scale(
        scale, miniature=("quickstart.py:", {"steps": 1600}, "tasks/sst2_trees.py:data=sst-trees", {
            "data.phrases": False, "epochs": 2.0, "length": 64}),
        single=("bert.py:size=base,data=files,", medium(60_000), "tasks/sst2.py:data=SST-2", {}),
        paper=("bert.py:size=base,data=files,", {}, "tasks/sst2.py:data=SST-2", {}))
    runs = {"full": "format=segment_pair", "no_nsp": "format=packed", "causal": "format=packed,objective=causal"}
    return Claim(
        paper="Devlin et al., 2019, table 5",
        statement="BERT is better than without NSP, and that better than left to right.",
        runs={name: (page + choices, fields) for name, choices in runs.items()} | {
            f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in runs},
        rows={"full": Row("masks and NSP", published=92.7, run="tuned_full"),
              "no_nsp": Row("masks", "full", "below", published=92.6, run="tuned_no_nsp"),
              "causal": Row("left to right", "no_nsp", "below", published=92.1, run="tuned_causal")},
        published="accuracy on SST-2 in %", measure=Measure("accuracy, %", "accuracy", {}, lambda value: 100 * value),
        cost="85 minutes of CPU time, by one of the seeds, with the files of SST-2")
