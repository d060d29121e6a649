"""Sharing layers costs little, and sharing attention alone almost nothing (Lan et al., 2019, table 4).

    lmrep reproduce albert:table4 --workdir=claims/albert_table4 --seeds=0-2

The paper trains the base network with tables as wide as its layers. The average of its five tasks is 82.3 where nothing
is shared, 81.6 with shared attention, 79.5 with shared feed-forward layers and 79.8 with both: 108, 83, 57 and 31
million parameters.

The miniature is the network of `quickstart.py` with four layers. The measure is the masked loss on held-out text, where
lower is better. The margin of "costs little" is 0.1 nats for all layers and the feed-forward ones, which in the paper
cost four times as much as attention, and 0.03 for attention.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields = at_scale(scale, miniature=("quickstart.py", {"steps": 1200, "model.layers": 4}),
                            single=("albert.py:size=base,data=files", medium(
                                20_000, learning_rate=9e-4, batch_size=1024, length=128) | {"model.embedding": 512}),
                            paper=("albert.py:size=base,data=files", {"model.embedding": 768}))
    return Claim(
        paper="Lan et al., 2019, table 4", statement="A network that shares its layers is almost as good.",
        runs={share: (page, fields | {"model.share": share}) for share in ("none", "attention", "mlp", "all")},
        published="average of five tasks, for which higher is better",
        rows={"none": Row("nothing is shared", published=82.3),
              "attention": Row("attention is shared", "none", "below", 0.03, published=81.6),
              "mlp": Row("feed-forward layers are", "none", "below", 0.1, published=79.5),
              "all": Row("both are", "none", "below", 0.1, published=79.8)},
        measure=Measure("masked loss", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="45 minutes on one core, by one of the seeds")
