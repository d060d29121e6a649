"""From BERT to ModernBERT, one flag at a time (Warner et al., 2024, section 2).

    lmrep train --config=experiments/ablations/bert_to_modernbert.py:size=base,alone=rotary,data=files \\
        --workdir=runs/bert-rotary --config.data.files='/data/books-and-wikipedia/*.txt'

trains BERT with one change; up_to=rotary makes all changes up to this one, and without either it is the BERT that they
are compared with. The paper takes each change from earlier work and has no table of them. Their order is ours:

    biases     no biases, neither of linear layers nor of norms
    rotary     rotary positions of base 10,000 in place of learned ones
    gated      gated feed-forward blocks (GeGLU) of two thirds of the width, for as many parameters
    local      local attention in two of three layers, 64 positions to each side (tiny: 8)
    masks      30 % of the tokens predicted, in place of 15 %
    optimizer  StableAdamW in place of Adam, and a stable rate that decays over the last tenth

The BERT is that of bert.py, with layer norm before each block, documents packed into sequences (without next-sentence
prediction), and one length. Validation masks 15 % of the tokens, whatever training does, so that losses compare:

    size    page                  layers  width  heads   mlp  gated  length  sequences      steps
    base    bert.py:size=base         12    768     12  3072   2048     512        256  1,000,000
    medium  bert.py:size=medium        8    512      8  2048   1368     128        256  1,000,000
    tiny    quickstart.py              4    128      4   512    344      64         32      1,000

Cost: four minutes a run of size=tiny, on one core beside other work; that of the others is not known here. Expected: at
size=tiny, a masked loss of 5.14 on the test split without a change, and 3.96 with alone=rotary; `lmrep reproduce
modernbert:steps` compares all changes with three seeds.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/ablations/bert_to_modernbert.py:size=tiny,alone=rotary --workdir=runs/tiny-rotary

size=tiny sets steps=1000, batch_size=32, length=64, vocab_size=2048, learning_rate=0.004, layers=4, width=128, heads=4
and mlp=512.

Choices after the colon:

    size    base medium tiny
    alone   one of the changes above
    up_to   one of them: all changes from the first to this one
    format  packed, or any other that has no pairs: documents has one to a sequence, cut to the length
    data, mesh: as in bert.py
"""

from pathlib import Path

from lmrep.config import loading

CHANGES = ("biases", "rotary", "gated", "local", "masks", "optimizer")


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = loading.parse_argument(
        argument, size=("base", ("base", "medium", "tiny")), alone=("", ("", *CHANGES)), up_to=("", ("", *CHANGES)),
        format=("packed", ("packed", "documents", "full_sentences", "doc_sentences")), data="python_docs", mesh="data")
    changes = CHANGES[:CHANGES.index(chosen.up_to) + 1] if chosen.up_to else (chosen.alone,)
    page, choices = ("quickstart.py", "steps=1000") if chosen.size == "tiny" else ("bert.py", f"size={chosen.size}")
    if "optimizer" in changes:
        choices += ",optimizer=stable_adamw"
    config = loading.load(Path(__file__).parents[1] / page,
                          f"{choices},format={chosen.format},data={chosen.data},mesh={chosen.mesh}")
    config.objective.evaluation_rate = 0.15
    if chosen.size == "tiny":
        config.model.layers = 4
    else:
        config.model.norm, config.stages = "pre", ()
    if chosen.size == "base":
        config.length = 512
    if "biases" in changes:
        config.model.update({"bias": False, "norm_kind": "layer_without_bias"})
    if "rotary" in changes:
        config.model.update({"positions": "rotary", "rotary_base": 10_000.0})
    if "gated" in changes:
        config.model.update({"gated": True, "mlp": 8 * -(-config.model.width // 3)})  # 2/3 of 4, a multiple of 8
    if "local" in changes:
        config.model.update({"window": 8 if chosen.size == "tiny" else 64, "global_every": 3})
    if "masks" in changes:
        config.objective.rate = 0.3
    if "optimizer" in changes:
        with config.unlocked():
            config.optimizer.schedule.update({"name": "warmup_stable_decay", "cooldown_fraction": 0.1})
    return config
