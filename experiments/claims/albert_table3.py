"""A narrow table of tokens costs little where layers are shared (Lan et al., 2019, table 3).

    lmrep reproduce albert:table3 --workdir=claims/albert_table3 --seeds=0-2

The paper trains ALBERT-base with tables of width 64, 128, 256 and 768. The average of its five tasks is 79.0, 80.1,
79.6 and 79.8, with 10, 12, 16 and 31 million parameters: from 128 on, the width hardly matters.

The miniature is the network of `quickstart.py` with shared layers of width 128, and tables of width 16, 32, 64 and 128.
The measure is the masked loss on held-out text, where lower is better. "At least as good as the widest" has a margin of
0.05 nats, about a percent of the loss.

Three seeds contradicted it. The likely cause is the layer between a narrow table and the others, with which the network
learns more slowly, and hardly the width: in one seed, a table of width 120, which has this layer, had a loss of 4.87
and of width 64 4.92, where width 128, without it, had 4.20. After 6,000 steps the difference between widths 64 and 128
was 0.39 in place of 0.71.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium

PUBLISHED = (79.0, 80.1, 79.6, 79.8)


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, widths = at_scale(
        scale, miniature=("quickstart.py", {"steps": 2000, "model.share": "all"}, (16, 32, 64, 128)),
        single=("albert.py:size=base,data=files,share=all", medium(
            20_000, learning_rate=9e-4, batch_size=1024, length=128), (64, 128, 256, 512)),
        paper=("albert.py:size=base,data=files,share=all", {}, (64, 128, 256, 768)))
    widest = f"width_{widths[-1]}"
    rows = {"narrowest": Row(f"tables of width {widths[0]}", widest), "narrow": Row(
        f"of width {widths[1]}", widest, "below", 0.05), "middle": Row(f"of width {widths[2]}", widest, "below", 0.05),
        widest: Row(f"of width {widths[3]}, as the layers")}
    return Claim(
        paper="Lan et al., 2019, table 3", statement="Narrow tables are about as good as tables as wide as the layers.",
        runs={name: (page, fields | {"model.embedding": width}) for name, width in zip(rows, widths, strict=True)},
        published="average of five tasks, for which higher is better",
        rows={name: row._replace(published=value) for (name, row), value in zip(rows.items(), PUBLISHED, strict=True)},
        measure=Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="an hour on one core")
