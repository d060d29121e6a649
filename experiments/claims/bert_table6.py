"""A larger network is better, on little text too (Devlin et al., 2019, table 6).

    lmrep reproduce bert:table6 --workdir=claims/bert_table6 --seeds=0-2

The paper trains networks of 3 to 24 layers, widths of 768 and 1,024, and 3 to 16 heads, and reports that accuracy rises
with size on all tasks, of which one, MRPC, has 3,600 examples. The perplexity of masked tokens is 5.84, 4.68 and 3.99
with 3, 6 and 12 layers of width 768, and 3.54 with 12 layers of width 1,024.

The miniature is the network of `quickstart.py` with 1, 2 and 4 layers of width 128, and 2 of width 256, all with as
many steps. The documentation has half a million tokens. The measure is the perplexity of masked tokens of held-out
text. All have the rate of `quickstart.py`, 0.004, with which three seeds contradicted the claim for the wide network,
at a perplexity of 285. The cause is the rate: with half of it one seed reached 86.8, where the network of half the
width had 117. Deeper networks did not gain in 1,500 steps; their rate was not varied.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

import math

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, shallow, middle, deep, wide = at_scale(
        scale, miniature=("quickstart.py", {"steps": 1500}, (1, 128), (2, 128), (4, 128), (2, 256)),
        single=("bert.py:size=base,data=files", medium(40_000, 3e-4), (3, 512), (6, 512), (12, 512), (12, 768)),
        paper=("bert.py:size=base,data=files", {}, (3, 768), (6, 768), (12, 768), (12, 1024)))

    def run(size):
        layers, width = size
        heads = {} if scale == "miniature" else {"model.heads": width // 64}
        return page, fields | {"model.layers": layers, "model.width": width, "model.mlp": 4 * width} | heads

    return Claim(
        paper="Devlin et al., 2019, table 6", statement="Deeper and wider networks have a lower perplexity.",
        runs={"shallow": run(shallow), "middle": run(middle), "deep": run(deep), "wide": run(wide)},
        published="perplexity of masked tokens, held-out training data",
        rows={"shallow": Row(f"{shallow[0]} layers of width {shallow[1]}", published=5.84),
              "middle": Row(f"{middle[0]} layers of width {middle[1]}", "shallow", "below", published=4.68),
              "deep": Row(f"{deep[0]} layers of width {deep[1]}", "middle", "below", published=3.99),
              "wide": Row(f"{wide[0]} layers of width {wide[1]}", "middle", "below", published=3.54)},
        measure=Measure("masked perplexity", "mlm_loss", {"split": "test"}, math.exp, ".2f"),
        cost="an hour on one core")
