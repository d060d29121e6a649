"""More text and longer training help (Liu et al., 2019, table 4).

    lmrep reproduce roberta:table4 --workdir=claims/roberta_table4 --seeds=0-2

The paper trains a large network with batches of 8,000: for 100,000 steps on 16 GB of text, on 160 GB, and on these for
300,000 and 500,000 steps. F1 on SQuAD 2.0 is 87.3, 87.7, 88.7 and 89.4.

The miniature is the network of `quickstart.py`, with 600 steps on a tenth of the text, 600 on all of it, and three and
five times as many steps. The measure is the perplexity of masked tokens of held-out text, where lower is better. At the
paper's scale, --config.little.data.files is the smaller part of the text.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, steps, tenth = at_scale(
        scale, miniature=("quickstart.py", {}, 600, {"data.validation": 0.86}),  # which is not trained on
        single=("roberta.py:size=base,data=files,batch=256", medium(0), 7_500, {"data.validation": 0.88}),
        paper=("roberta.py:size=large,data=files", {}, 100_000, {}))
    return Claim(
        paper="Liu et al., 2019, table 4", statement="More text and longer training lower the perplexity.",
        runs={"little": (page, fields | {"steps": steps, **tenth}), "more": (page, fields | {"steps": steps}),
              "longer": (page, fields | {"steps": 3 * steps}), "longest": (page, fields | {"steps": 5 * steps})},
        published="F1 on SQuAD 2.0, for which higher is better",
        rows={"little": Row("little text", published=87.3),
              "more": Row("more text", "little", "below", published=87.7),
              "longer": Row("and three times the steps", "more", "below", published=88.7),
              "longest": Row("and five times", "longer", "below", published=89.4)},
        measure=Measure("masked perplexity", "mlm_loss", {"split": "test"}, math.exp, ".2f"),
        cost="45 minutes on one core")
