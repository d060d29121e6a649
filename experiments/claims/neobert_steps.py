"""From BERT to NeoBERT, step by step (Le Breton et al., 2025, figure 1).

    lmrep reproduce neobert:steps --workdir=claims/neobert_steps --seeds=0-2

The paper trains models M0 to M10, each with one change more than the last that was kept, and draws their scores on
GLUE. More text (M2) and a larger network (M7) help most. Another vocabulary (M3) and packed sequences (M6) hurt, and
are dropped. The values of the figure were not at hand, nor what it shows of the other changes, so nothing is claimed of
these here.

The rows are changes that it keeps, and after which losses can be compared: rotary positions, SwiGLU, RMS norm without
biases, weight decay and a cosine, 20 % of the tokens, a larger network, a deeper and narrower one, larger batches.
Their order was not checked with the paper. The tokens that are predicted are [MASK], random or unchanged as in BERT,
because only then is the measure the same; NeoBERT masks all of them. Not here: other text, and longer sequences.

The miniature starts at the network of `quickstart.py`. The measure is the masked loss on held-out text with masks of
15 %, whatever a network was trained with, where lower is better.

Rotary positions (-1.151), masks of 20 % (-0.092) and larger batches at equal steps (-0.487) lower the loss; the larger
network does not (+0.025, -0.031 to +0.081). All have the learning rate of the smallest: with half of it (one seed) the
larger network is better by 0.126, 4.043 against 4.169, and both are worse than with the whole rate.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, sizes, batch = at_scale(  # sizes: (layers, width, heads, width of gated blocks)
        scale, miniature=("quickstart.py:", {"steps": 800},
                          ((2, 128, 4, 344), (4, 160, 4, 432), (6, 128, 4, 344)), 64),
        single=("bert.py:size=base,data=files,format=packed", {
            **medium(10_000), "model.norm": "pre", "stages": ()},
                ((8, 512, 8, 1368), (12, 640, 10, 1712), (18, 512, 8, 1368)), 512),
        paper=("bert.py:size=base,data=files,format=packed", {
            "model.norm": "pre", "stages": (), "length": 512},
               ((12, 768, 12, 2048), (16, 1056, 16, 2816), (28, 768, 12, 2048)), 4096))
    first, larger, deeper = (dict(zip(("model.layers", "model.width", "model.heads", "model.mlp"), size, strict=True))
                             for size in sizes)
    steps = {  # name: (title, fields, claimed)
        "rotary": ("rotary positions", {"model.positions": "rotary", "model.rotary_base": 10_000.0}, ""),
        "gated": ("SwiGLU", {"model.gated": True, "model.activation": "silu", "model.mlp": first["model.mlp"]}, ""),
        "norm": ("RMS norm, no biases", {"model.norm_kind": "rms", "model.bias": False}, ""),
        "optimizer": ("weight decay and a cosine", {
            "optimizer.weight_decay": 0.01, "optimizer.schedule.name": "cosine", "optimizer.schedule.final": 0.1}, ""),
        "masks": ("masks of 20 %", {"objective.rate": 0.2}, ""),
        "larger": ("a larger network", larger, "below"),
        "deeper": ("more layers, less width", deeper, ""),
        "batches": ("larger batches", {"batch_size": batch}, ""),
    }
    fields |= {"objective.evaluation_rate": 0.15, "optimizer.weight_decay": 0.0}
    runs, rows, before = {"bert": (page, fields)}, {"bert": Row("BERT")}, "bert"
    for name, (title, changed, claimed) in steps.items():
        fields = fields | changed
        runs[name], rows[name], before = (page, fields), Row(f"with {title}", before, claimed), name
    return Claim(
        paper="Le Breton et al., 2025, figure 1",
        statement="On the way from BERT to NeoBERT, a larger network is better.",
        runs=runs, rows=rows, measure=Measure("masked loss at 15 %", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="75 minutes on one core beside other work")
