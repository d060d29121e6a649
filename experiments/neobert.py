"""NeoBERT (Le Breton et al., 2025): a deep, narrow encoder with rotary positions, RMS norm and SwiGLU.

    lmrep train --config=experiments/neobert.py:size=base,data=files --workdir=runs/neobert \\
        --config.data.files='/data/web/*.jsonl.gz'

This is the recipe of the released scripts: 20 % of the tokens are predicted, and all of these become [MASK]; batches of
2,048 sequences of 1,024 tokens for a million steps; AdamW with betas of 0.9 and 0.95 at 1e-4 after 2,000 steps of
warm-up, then a cosine down to a tenth; weight decay 0.01, and gradients clipped at 1. A second phase, which starts from
the run by init=, has 512 sequences of 4,096 tokens for 50,000 steps at the same rate, which stays.

The network, in fields of config.model, with all parameters of pretraining:

    size   layers  width  heads   mlp  max_length   vocab  dropout   parameters
    base       28    768     12  2048        4096  30,522      0.0  245,136,954

Cost: 2.1 trillion tokens in the paper; hours are not stated here. Expected: GLUE 89.0, on the development sets after
fine-tuning.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/neobert.py:size=tiny --workdir=runs/neobert-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon:

    size       base; tiny: scaled down for two cores
    phase      pretraining; extension, with init=, a run of the first phase
    model, objective, format, data, optimizer, mesh, init: as in bert.py

All numbers are those of the released code, but for GLUE, which was not compared with the paper. Not as there: the
cosine ends at the last step, not after 90 % of them; documents are packed, not cut and padded; and the rotary positions
turn the two halves of a head against each other, not neighbours, which is the same function of other weights:
`lmrep convert` reorders those of published checkpoints. The code's rates are given where the paper may have others.
"""

from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"base": "neobert"}
PAPERS = (Paper("Le Breton et al., 2025", "RefinedWeb, 2.8 TB of English text"),)
PHASES = {"pretraining": (1_000_000, 2048, 1024), "extension": (50_000, 512, 4096)}  # steps, batch, length


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="masked", format="packed", optimizer="adamw",
                     phase=("pretraining", tuple(PHASES)))
    config = start(chosen)
    config.steps, config.batch_size, config.length = PHASES[chosen.phase]
    if chosen.objective == "masked":
        config.objective.update({"rate": 0.2, "mask": 1.0, "random": 0.0, "keep": 0.0, "masking": "dynamic",
                                 "head": "table"})
    if chosen.optimizer == "adamw":
        config.optimizer.update({"learning_rate": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01,
                                 "clip": 1.0})
        config.optimizer.schedule.update({"name": "cosine", "final": 0.1} if chosen.phase == "pretraining" else {
            "name": "constant"})
    config.optimizer.schedule.update({"warmup": 2000, "warmup_fraction": 0.0})
    return finish(config, chosen)
