"""A generator of a quarter to a half of the discriminator's width is best (Clark et al., 2020, figure 3).

    lmrep reproduce electra:figure3 --workdir=claims/electra_figure3 --seeds=0-2

The paper trains discriminators with generators of several widths, and finds those of a quarter to a half best; with
larger ones the task becomes too hard. The figure has no numbers.

The miniature is `electra.py:size=tiny` with generators of a quarter, a half and the whole of the width, fine-tuned as
in electra:table5: the measure is the accuracy on pairs of segments of held-out text, the second of which may continue
the first. At the other scales it is SST-2.

In one seed the accuracies were 68.9 to 69.7 %. They are multiples of 1/119, since the held-out text has few such pairs,
so that one seed tells nothing apart.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=... .
At the other scales, the folder SST-2 of GLUE too, or --config.tuned_NAME.data.train=FILE and so on.
"""

from lmrep.claims import Claim, Measure, Row, at_scale

FRACTIONS = {"quarter": 0.25, "half": 0.5, "whole": 1.0}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, tuned, changes, metric, evaluate = at_scale(
        scale, miniature=("electra.py:size=tiny", {"steps": 1500},
                          "electra.py:size=tiny,variant=bert,format=segment_pair",
                          {"objective.sentence_pair": True, "steps": 500, "optimizer.learning_rate": 7e-4},
                          "pair_accuracy", {"split": "test"}),
        single=("electra.py:size=small,data=files", {"steps": 100_000, "execution.dtype": "bfloat16"},
                "tasks/sst2.py:data=SST-2,recipe=electra", {}, "accuracy", {}),
        paper=("electra.py:size=base,data=files", {}, "tasks/sst2.py:data=SST-2,recipe=electra", {}, "accuracy", {}))
    return Claim(
        paper="Clark et al., 2020, figure 3",
        statement="A small generator is better than one of the discriminator's size.",
        runs={name: (page, fields | {"objective.generator": fraction}) for name, fraction in FRACTIONS.items()} | {
            f"tuned_{name}": (f"{tuned},init={{{name}}}", changes) for name in FRACTIONS},
        rows={"quarter": Row("a quarter of the width", "whole", "above", run="tuned_quarter"),
              "half": Row("a half", "whole", "above", run="tuned_half"), "whole": Row("the whole", run="tuned_whole")},
        measure=Measure("accuracy of fine-tuned networks, %", metric, evaluate, lambda value: 100 * value),
        cost="an hour and 50 minutes on one core, by one of the seeds")
