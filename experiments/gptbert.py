"""GPT-BERT (Charpentier and Samuel, 2024): masked next-token prediction and causal language modelling in one network.

    lmrep train --config=experiments/gptbert.py:size=small,data=files --workdir=runs/gptbert \\
        --config.data.files='/data/babylm/*.txt' --config.data.documents=blank_line

15 of 16 examples are masked and read from both sides, the others are read from left to right; in both, the output at a
position predicts the token after it. The trained model fills in masks, continues texts, and scores minimal pairs by
masks or, with --pll=log_probability, from left to right.

The numbers are the defaults of the scripts released with the paper, for 10 million words (small) and 100 million
(base): batches of 32,768 sequences of 128 tokens, of half as many of 256 after 70 % of the steps, and of a quarter as
many of 512 after 90 %; LAMB at 0.0141 (small, 7,812 steps) or 0.01 (base, 15,625 steps), 1.6 % of warm-up, then a
cosine to a tenth; weight decay 0.1 but for biases and norms, gradients clipped at 2; 30 % of the tokens masked at
first, 15 % at the end and on validation; z-loss 1e-4. Means of both losses are weighted 15 to 1, as their examples are.

The networks, in fields of config.model:

    size   layers  width  heads   mlp  max_length   vocab  dropout
    small      12    384      6  1280         512   8,192      0.1
    base       12    768     12  2560         512  16,384      0.1

What differs from the released code:

- The network is a Transformer with pre norm, GeGLU and rotary positions. GPT-BERT has relative positions as DeBERTa's,
  a gate on the output of attention, and two norms a block without gains. As there, after each block a learned sum of
  the outputs of all blocks so far replaces the last one (DWA, layer_weights="dense_blocks").
- Single tokens are masked, in place of spans of one to three, and no count is kept of how often each was.
- A batch has its full size from the beginning, where the released one grows linearly from a quarter. The rate ends at a
  tenth of the peak, without the last 1.6 % of the steps in which it falls to 0.
- The parameters are those of the last step; the released code also keeps a moving average with a decay of 0.999.

The figures of the paper's appendix were not compared with these defaults.

Cost: not known here. Expected: the paper's abstract says that both objectives together outperform masked or causal
pretraining alone; no figure is known for this network.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/gptbert.py:size=tiny --workdir=runs/gptbert-tiny

size=tiny sets steps=400, batch_size=32, length=32 (64 at the end), vocab_size=2048, learning_rate=0.01, layers=2,
width=128, heads=4 and mlp=512.

Choices after the colon:

    size       small base; tiny: small scaled down for two cores
    share      15/16 7/8 3/4 1/2 1/4, of masked examples; 1: masked alone; 0: causal alone
    rate       falling (from 30 to 15 %), fixed (15 %)
    format     packed, or any other
    optimizer  lamb bert roberta adafactor adamw, with the rate and warm-up above
    model, objective, data, mesh, init: as in bert.py

The masking rate falls for `objective.rate_steps` updates, which are the steps of the page: change both. With
data=python_docs, batches have 256 sequences.
"""

from dataclasses import asdict
from fractions import Fraction

from lmrep.experiment.config import StageConfig
from lmrep.experiment.pretraining import choices, finish, start

TOKENIZER_OF = "roberta_base"
SHARES = ("15/16", "7/8", "3/4", "1/2", "1/4", "1", "0")


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, dict.fromkeys(("small", "base"), TOKENIZER_OF), objective="masked_next_token",
                     format="packed", optimizer="lamb", share=("15/16", SHARES),
                     rate=("falling", ("falling", "fixed")))
    chosen.preset = chosen.model or "transformer"
    config = start(chosen)
    config.name = f"{chosen.size}_gptbert"
    is_base = chosen.size == "base"
    config.steps, config.batch_size, config.length = 15_625 if is_base else 7_812, 32_768, 128
    config.stages = (asdict(StageConfig(name="128", fraction=0.7)),
                     asdict(StageConfig(name="256", fraction=0.2, length=256)),
                     asdict(StageConfig(name="512", fraction=0.1, length=512)))
    if chosen.preset == "transformer":
        config.tokenizer.vocab_size = 16_384 if is_base else 8_192
        width, heads, mlp = (768, 12, 2560) if is_base else (384, 6, 1280)
        config.model.update({
            "layers": 12, "width": width, "heads": heads, "mlp": mlp, "max_length": 512, "token_types": 0,
            "positions": "rotary", "norm": "pre", "norm_eps": 1e-5, "gated": True, "activation": "gelu_tanh",
            "layer_weights": "dense_blocks", "dropout": 0.1, "attention_dropout": 0.1, "init": "truncated_normal",
            "init_stddev": (2 / (5 * width)) ** 0.5})
    if chosen.objective in ("masked", "masked_next_token"):
        config.objective.update({
            "rate": 0.15, "final_rate": 0.0, "rate_steps": 0, "evaluation_rate": 0.15, "mask": 0.8, "random": 0.1,
            "keep": 0.1, "count": "floor", "random_specials": False, "masking": "dynamic"})
    if "z_loss" in config.objective:
        config.objective.z_loss = 1e-4
    if chosen.objective == "masked_next_token":
        config.objective.share = float(Fraction(chosen.share))
    if chosen.optimizer == "lamb":  # biases and norms have neither weight decay nor a trust ratio
        config.optimizer.update({"betas": (0.9, 0.98), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.1,
                                 "clip": 2.0})
        config.optimizer.schedule.update({"name": "cosine", "final": 0.1, "decay_from": "warmup"})
    if chosen.optimizer != "adafactor":  # which has its schedule too
        config.optimizer.learning_rate = 1e-2 if is_base else 1.41e-2
        config.optimizer.schedule.warmup_fraction = 0.016
    full = config.batch_size
    config = finish(config, chosen)
    if config.batch_size == full:  # as many tokens in a step
        config.stages = tuple({**stage, "batch_size": full * 128 // (stage["length"] or 128)}
                              for stage in config.stages)
    if "final_rate" in config.objective and chosen.rate == "falling":
        config.objective.update({"rate": 0.3, "final_rate": 0.15, "rate_steps": config.steps})
    return config
