"""From BERT to ModernBERT, one change at a time (Warner et al., 2024, section 2).

    lmrep reproduce modernbert:steps --workdir=claims/modernbert_steps --seeds=0-2 --match=flops

The paper takes each change from earlier work and has no table of them. Here every change is made to BERT alone, and
together with those before it: `ablations/bert_to_modernbert.py` says what each is. With --match=flops, all are trained
with as many operations.

The measure is the masked loss on held-out text with masks of 15 %, whatever a network was trained with, where lower is
better. The margin of "at least as good" is 0.02 nats.

Rotary positions are worth more than all else here, probably because learned ones take more steps. So local
attention and gated blocks, which are on the wrong side alone (+0.124 and +0.081), are not after rotary positions
(-0.027 and +0.002).

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, one_gpu

CHANGES = {  # of the page: title
    "biases": "no biases",
    "rotary": "rotary positions",
    "gated": "gated feed-forward blocks",
    "local": "local attention",
    "masks": "masks of 30 %",
    "optimizer": "StableAdamW, stable rate",
}


def get_claim(scale="miniature"):
    """The claim at a scale."""
    choices, fields = at_scale(scale, miniature=("size=tiny", {}), single=("size=medium,data=files", one_gpu(15_000)),
                               paper=("size=base,data=files", {}))
    page = f"ablations/bert_to_modernbert.py:{choices}"
    runs, rows, before = {"bert": (page, fields)}, {"bert": Row("BERT")}, "biases"
    for name, title in CHANGES.items():
        runs[name] = (f"{page},alone={name}", fields)
        rows[name] = Row(f"BERT with {title}", "bert", "below", 0.02)
    for name, title in list(CHANGES.items())[1:]:  # the first is the same alone and together
        runs[f"to_{name}"] = (f"{page},up_to={name}", fields)
        rows[f"to_{name}"] = Row(f"with all up to {title}", before, "below", 0.02)
        before = f"to_{name}"
    return Claim(
        paper="Warner et al., 2024, section 2",
        statement="Each change from BERT to ModernBERT is at least as good, alone and after those before it.",
        runs=runs, rows=rows, measure=Measure("masked loss at 15 %", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="two hours and ten minutes on one core beside other work")
