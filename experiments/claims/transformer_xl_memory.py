"""A memory lowers the perplexity, and one that is longer in evaluation lowers it again (Dai et al., 2019).

    lmrep reproduce transformer_xl:memory --workdir=claims/transformer_xl_memory --seeds=0-2

The paper compares networks with and without the memory of earlier segments, and evaluates with memories longer than in
training: its best results have 640 positions after training with 150 (base), and 1,600 after 384 (large). The figures
of these comparisons are not repeated here: they could not be checked.

The miniature is `transformer_xl.py:size=tiny` with segments of 32 words and a memory of 32. The longer memory of 96 is
the same network, trained for one more step at a rate that changes nothing. The measure is the perplexity of held-out
words.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, memory, longer = at_scale(
        scale, miniature=("transformer_xl.py:size=tiny", {"steps": 2500, "length": 32}, 32, 96),
        single=("transformer_xl.py:size=base,data=files", {"steps": 100_000, "execution.dtype": "bfloat16"}, 150, 640),
        paper=("transformer_xl.py:size=base,data=files", {}, 150, 640))
    frozen = {**fields, "steps": 1, "optimizer.learning_rate": 1e-12, "model.memory": longer}
    return Claim(
        paper="Dai et al., 2019",
        statement="A memory lowers the perplexity, and a longer one in evaluation lowers it again.",
        runs={"none": (f"{page},memory=no", fields), "memory": (page, fields | {"model.memory": memory}),
              "longer": (f"{page},init={{memory}}", frozen)},
        rows={"none": Row("no memory"), "memory": Row(f"a memory of {memory}", "none", "below"),
              "longer": Row(f"of {longer} in evaluation", "memory", "below")},
        measure=Measure("perplexity", "lm_loss", {"split": "test"}, math.exp),
        cost="25 minutes on one core")
