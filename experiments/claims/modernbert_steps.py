"""From BERT to ModernBERT, one change at a time (Warner et al., 2024, section 2).

    lmrep reproduce modernbert:steps --workdir=claims/modernbert_steps --seeds=0-2 --match=flops

The paper takes each change from earlier work and has no table of them. Here every change is made to BERT alone, and
together with those before it: no biases, rotary positions, gated feed-forward blocks (GeGLU, with two thirds of the
width, for as many parameters), local attention in two of three layers, masks of 30 % of the tokens, and the optimizer
StableAdamW with a stable rate and a decay over the last tenth. With --match=flops, all are trained with as many
operations.

The miniature is the network of `quickstart.py` with four layers; local layers see 8 positions to each side of 64. The
measure is the masked loss on held-out text with masks of 15 %, whatever a network was trained with, where lower is
better. The margin of "at least as good" is 0.02 nats.

Rotary positions are worth more than all else here, probably because learned ones take more steps. So local
attention and gated blocks, which are on the wrong side alone (+0.124 and +0.081), are not after rotary positions
(-0.027 and +0.002).

Data: the documentation that comes with Python; for other text --config.data.corpus=text_files --config.data.files=...
"""

from lmrep.claims import Claim, Measure, Row, at_scale, medium


def get_claim(scale="miniature"):
    """The claim at a scale."""
    page, fields, gated, window = at_scale(
        scale, miniature=("quickstart.py:", {"steps": 1000, "model.layers": 4}, 344, 8),
        single=("bert.py:size=base,data=files,format=packed,", medium(15_000) | {"model.norm": "pre", "stages": ()},
                1368, 64),
        paper=("bert.py:size=base,data=files,format=packed,", {"model.norm": "pre", "stages": (), "length": 512},
               2048, 64))
    fields |= {"objective.evaluation_rate": 0.15}
    changes = {  # name: (title, choice of the page, fields)
        "biases": ("no biases", "", {"model.bias": False, "model.norm_kind": "layer_without_bias"}),
        "rotary": ("rotary positions", "", {"model.positions": "rotary", "model.rotary_base": 10_000.0}),
        "gated": ("gated feed-forward blocks", "", {"model.gated": True, "model.mlp": gated}),
        "local": ("local attention", "", {"model.window": window, "model.global_every": 3}),
        "masks": ("masks of 30 %", "", {"objective.rate": 0.3}),
        "optimizer": ("StableAdamW, stable rate", "optimizer=stable_adamw", {
            "optimizer.schedule.name": "warmup_stable_decay", "optimizer.schedule.cooldown_fraction": 0.1}),
    }
    runs, rows, choice, together, before = {"bert": (page, fields)}, {"bert": Row("BERT")}, "", fields, "bert"
    for name, (title, chosen, changed) in changes.items():
        runs[name] = (f"{page}{chosen}", fields | changed)
        rows[name] = Row(f"BERT with {title}", "bert", "below", 0.02)
    for name, (title, chosen, changed) in changes.items():
        choice, together = choice or chosen, together | changed
        if name != "biases":  # the first is the same alone and together
            runs[f"to_{name}"] = (f"{page}{choice}", together)
            rows[f"to_{name}"] = Row(f"with all up to {title}", before, "below", 0.02)
            before = f"to_{name}"
        else:
            before = name
    return Claim(
        paper="Warner et al., 2024, section 2",
        statement="Each change from BERT to ModernBERT is at least as good, alone and after those before it.",
        runs=runs, rows=rows, measure=Measure("masked loss at 15 %", "mlm_loss", {"split": "test"}, format=".3f"),
        cost="two hours and ten minutes on one core beside other work")
