"""From BERT to NeoBERT, step by step (Le Breton et al., 2025, figure 1).

    lmrep reproduce neobert:steps --workdir=claims/neobert_steps --seeds=0-2

The paper trains models M0 to M10, each with one change more than the last that was kept, and draws their scores on
GLUE. More text (M2) and a larger network (M7) help most. Another vocabulary (M3) and packed sequences (M6) hurt, and
are dropped. The values of the figure were not at hand, nor what it shows of the other changes, so nothing is claimed of
these here.

The rows are changes that it keeps, and after which losses can be compared: rotary positions, SwiGLU, RMS norm without
biases, weight decay and a cosine, 20 % of the tokens, a larger network, a deeper and narrower one, larger batches.
Their order was not checked with the paper. The tokens that are predicted are [MASK], random or unchanged as in BERT,
because only then is the measure the same; NeoBERT masks all of them. Not here: other text, and longer sequences,
which are flags and a choice of `ablations/bert_to_neobert.py`.

The miniature starts at the network of `quickstart.py`. The measure is the masked loss on held-out text with masks of
15 %, whatever a network was trained with, where lower is better.

Rotary positions (-1.151), masks of 20 % (-0.092) and larger batches at equal steps (-0.487) lower the loss; the larger
network does not (+0.025, -0.031 to +0.081). All have the learning rate of the smallest: with half of it (one seed) the
larger network is better by 0.126, 4.043 against 4.169, and both are worse than with the whole rate.

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, one_gpu

CHANGES = {  # of the page: title
    "rotary": "rotary positions",
    "gated": "SwiGLU",
    "norm": "RMS norm, no biases",
    "optimizer": "weight decay and a cosine",
    "masks": "masks of 20 %",
    "larger": "a larger network",
    "deeper": "more layers, less width",
    "batches": "larger batches",
}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    choices, fields = at_scale(scale, miniature=("size=tiny", {"steps": 800}),
                               single=("size=medium,data=files", one_gpu(10_000)), paper=("size=base,data=files", {}))
    page = f"ablations/bert_to_neobert.py:{choices}"
    runs, rows, before = {"bert": (page, fields)}, {"bert": Row("BERT")}, "bert"
    for name, title in CHANGES.items():
        runs[name] = (f"{page},up_to={name}", fields)
        rows[name], before = Row(f"with {title}", before, "below" if name == "larger" else ""), name
    return Claim(
        paper="Le Breton et al., 2025, figure 1",
        statement="On the way from BERT to NeoBERT, a larger network is better.",
        runs=runs, rows=rows, measure=Measure("masked loss at 15 %", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="75 minutes on one core beside other work")
