"""T5 (Raffel et al., 2019): an encoder-decoder that generates the spans that were taken out of a text.

    lmrep train --config=experiments/t5.py:size=base,data=files --workdir=runs/t5-base \\
        --config.data.files='/data/c4/*.txt' --config.data.documents=blank_line

This is the baseline of the paper's study, with the last models' spans: sequences of 568 tokens, of which 15 % are taken
out, in spans of 3 on average, make sources of 512 and targets of 114; 128 of them in a batch, for 524,288 steps;
Adafactor at 1 / sqrt(max(step, 10,000)); a SentencePiece vocabulary of 32,000 and 100 sentinels, in a table of 32,128.

The networks, in fields of config.model, with all parameters of pretraining:

    size       layers  width  heads  head_width     mlp   vocab  dropout      parameters
    base           12    768     12          64    3072  32,128      0.1     222,903,552
    small           6    512      8          64    2048  32,128      0.1      60,506,624
    large          24   1024     16          64    4096  32,128      0.1     737,668,096
    3b             24   1024     32         128  16,384  32,128      0.1   2,851,598,336
    11b            24   1024    128         128  65,536  32,128      0.1  11,307,321,344
    1_1_small       8    512      6          64    1024  32,128      0.0      76,961,152
    1_1_base       12    768     12          64    2048  32,128      0.0     247,577,856
    1_1_large      24   1024     16          64    2816  32,128      0.0     783,150,080
    1_1_xl         24   2048     32          64    5120  32,128      0.0   2,849,757,184
    1_1_xxl        24   4096     64          64  10,240  32,128      0.0  11,135,332,352

Cost: the paper does not state it. Expected of the study's baseline (noise=tokens) after fine-tuning: GLUE 83.28, SQuAD
80.88 (exact match), SuperGLUE 71.36, BLEU 26.98 (English to German).

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/t5.py:size=tiny --workdir=runs/t5-tiny

size=tiny sets steps=400, batch_size=32, length=128, vocab_size=2048, learning_rate=0.05, layers=2, width=128, heads=4
and mlp=512.

With data=files and 26 million characters of English Wikipedia (8.7 million tokens), 4,000 steps took 34 minutes beside
other programs, and the validation loss was 8.27 before, 4.53 after 800 steps and 3.94 at the end (two EPYC cores,
2026-11-23, jax 0.10.2).

Choices after the colon:

    size       base small large 3b 11b; 1_1_small 1_1_base 1_1_large 1_1_xl 1_1_xxl (gated, tables not tied); tiny: base
               scaled down for two cores
    variant    replace_spans drop_tokens mask (MASS-style) bert deshuffling prefix (a prefix language model)
    noise      which tokens are noise, where the variant has any: spans, or tokens, independent ones. By default as in
               the paper: tokens, but for replace_spans
    format     stream (sequences split from one long text), packed, or any other; a sequence is one text
    optimizer  adafactor bert roberta lamb adamw, with the rate and warm-up above
    model      another encoder-decoder: transformer_base, transformer_big, cove (of LSTMs), encoder_decoder
    data, mesh, init: as in bert.py

Rows of the paper's tables: 4 and 5 are variant=prefix, bert, deshuffling, mask and drop_tokens, and
variant=replace_spans,noise=tokens, the baseline of the study; 6 is that with --config.objective.rate=0.1, 0.25 or 0.5
(0.15 by default); 7 is variant=replace_spans with --config.objective.mean_span=2, 3 (by default), 5 or 10.
With data=python_docs, batches have 128 sequences and the vocabulary 8,000 pieces.
"""

from lmrep.experiment.fine_tuning import Recipe, steps
from lmrep.experiment.pretraining import Paper, choices, finish, start
from lmrep.objectives.span_corruption import VARIANTS

SIZES = {size: f"t5_{size}" for size in (
    "base", "small", "large", "3b", "11b", "1_1_small", "1_1_base", "1_1_large", "1_1_xl", "1_1_xxl")}
# The last models were trained for a million steps of 2,048 sequences, on a mixture with labelled tasks; the released
# 1.1 models on text alone. The numbers are from the study's baseline.
PAPERS = (Paper("Raffel et al., 2019", "C4, 745 GB of web pages"),)
# What is noise in the paper's tables, of the variants that have any; of replace_spans, in the last models.
NOISE = {"replace_spans": "spans", "drop_tokens": "tokens", "mask": "tokens", "bert": "tokens"}
PUBLISHED_IDS = 32_100  # with the sentinels; the table has more rows

FINE_TUNING = {"t5": Recipe({"": steps(  # the paper's study
    2**18, 128, 1e-3, warmup=0, name="adafactor", weight_decay=0.0, clip=0.0, optimizer__schedule__name="constant")})}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective=("span_corruption",), format="stream", optimizer="adafactor",
                     variant=("replace_spans", VARIANTS), noise=("", ("", "spans", "tokens")))
    config = start(chosen)
    config.steps, config.batch_size, config.length = 524_288, 128, 568
    config.tokenizer.vocab_size = min(config.tokenizer.vocab_size, PUBLISHED_IDS)
    config.objective.update({"variant": chosen.variant, "rate": 0.15, "mean_span": 3.0})
    if chosen.variant in NOISE:
        config.objective.noise = chosen.noise or NOISE[chosen.variant]
    if chosen.optimizer == "adafactor":
        config.optimizer.update({"factor_from": 128, "moment_power": 0.8, "rms_clip": 1.0, "parameter_scale": True,
                                 "weight_decay": 0.0, "clip": 0.0})
        config.optimizer.schedule.update({"name": "inverse_sqrt", "warmup_from": 1.0})
    config.optimizer.learning_rate = 0.01  # 1 / sqrt(10,000); with Adafactor constant over the warm-up (warmup_from)
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 10_000 / 524_288})
    config = finish(config, chosen)
    if chosen.size == "tiny":
        config.optimizer.learning_rate = 5e-2
        config.length = 128
    return config
