"""ALBERT (Lan et al., 2019): layers that share their parameters, narrow embeddings, masked n-grams, and sentence-order
prediction.

    lmrep train --config=experiments/albert.py:size=base,data=files --workdir=runs/albert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

This is the recipe of the released code: batches of 4,096 sequences of 512 tokens for 125,000 steps, LAMB at 1.76e-3
after 3,125 steps of warm-up; forty static masks for each example; a SentencePiece vocabulary of 30,000.

The networks, in fields of config.model, with all parameters of pretraining:

    size     layers  width  embedding  heads     mlp   vocab  dropout   parameters
    base         12    768        128     12    3072  30,000      0.1   11,813,810
    large        24   1024        128     16    4096  30,000      0.1   17,847,474
    xlarge       24   2048        128     16    8192  30,000      0.1   59,021,490
    xxlarge      12   4096        128     64  16,384  30,000      0.0  223,158,450

Cost: in the paper, 32 hours for xxlarge. Expected, on the development sets after fine-tuning:

             MNLI   SQuAD 1.1 F1   SQuAD 2.0 F1
    base     81.6   89.3           80.0
    large    83.5   90.6           82.3
    xlarge   86.4   92.5           86.1
    xxlarge  90.8   94.8           90.2   (after more than a million steps)

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/albert.py:size=tiny --workdir=runs/albert-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.01, layers=2, width=128, heads=4,
mlp=512 and embedding=64.

Choices after the colon, which make each of the paper's ablations one flag:

    size       base large xlarge xxlarge; tiny: base scaled down for two cores
    share      what all layers share: all (ALBERT), attention, mlp, none; left out, as the network has it
    pairs      sop (are the two in order?), nsp (is the second the real next one?), none (no such prediction)
    format     segment_pair (sentence_pair has nsp only), or any other, without pairs
    optimizer  lamb bert roberta adafactor adamw; all but lamb and adafactor start from a rate of 1e-4
    model, objective, data, mesh, init: as in bert.py

With data=python_docs, batches have 256 sequences and the vocabulary 8,000 pieces. The width of the embeddings is
--config.model.embedding (128; 0: as wide as the layers), the longest masked n-gram --config.objective.ngram (3).
The released command masks 20 tokens of a sequence, 4 % of them, where the paper says 15 %. This follows the paper, and
--config.objective.max_predictions=20 the command. Dropout is as in version 1; version 2 has none:
--config.model.dropout=0 --config.model.attention_dropout=0.
"""

from lmrep.experiment.fine_tuning import Recipe, steps
from lmrep.experiment.pretraining import Paper, choices, finish, has_pair_label, start
from lmrep.models.transformer import SHARING

SIZES = {size: f"albert_{size}" for size in ("base", "large", "xlarge", "xxlarge")}
PAPERS = (Paper("Lan et al., 2019", "BooksCorpus and English Wikipedia, 3.3 billion words"),)

# run_glue.sh of google-research/albert, which gives steps for every set; and its run_squad.sh, with a warm-up over a
# tenth.
FINE_TUNING = {"albert": Recipe({
    "": {"batch_size": 32, "optimizer.learning_rate": 1e-5},
    "cola": steps(5336, 16, 1e-5, warmup=320),
    "stsb": steps(3598, 16, 2e-5, warmup=214),
    "sst2": steps(20_935, 32, 1e-5, warmup=1256),
    "mnli": steps(10_000, 128, 3e-5, warmup=1000),
    "qnli": steps(33_112, 32, 1e-5, warmup=1986),
    "qqp": steps(14_000, 128, 5e-5, warmup=1000),
    "rte": steps(800, 32, 3e-5, warmup=200),
    "mrpc": steps(800, 32, 2e-5, warmup=200),
    "squad1": {"batch_size": 48, "optimizer.learning_rate": 5e-5, "steps": 3649},
    "squad2": {"batch_size": 48, "optimizer.learning_rate": 3e-5, "steps": 8144},
})}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="masked", format="segment_pair", optimizer="lamb",
                     share=("", ("", *SHARING)), pairs=("sop", ("sop", "nsp", "none")))
    config = start(chosen)
    config.steps, config.batch_size, config.length = 125_000, 4096, 512
    config.format.duplicates = 40
    if chosen.format == "segment_pair":
        config.format.pairs = "nsp" if chosen.pairs == "none" else chosen.pairs
    if chosen.share:
        config.model.share = chosen.share
    if chosen.objective == "masked":
        config.objective.update({"rate": 0.15, "mask": 0.8, "random": 0.1, "keep": 0.1, "masking": "static",
                                 "count": "round", "mask_specials": False, "random_specials": True})
        if chosen.family == "albert":  # another paper's network is masked as BERT is
            config.objective.ngram = 3
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = has_pair_label(chosen.format) and chosen.pairs != "none"
    if chosen.optimizer == "lamb":  # biases and norms have neither weight decay nor a trust ratio
        config.optimizer.update({"learning_rate": 1.76e-3, "betas": (0.9, 0.999), "eps": 1e-6, "bias_correction": False,
                                 "weight_decay": 0.01, "clip": 1.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "start"})
    if chosen.optimizer != "adafactor":  # which has its schedule too
        config.optimizer.schedule.warmup_fraction = 3_125 / 125_000
    return finish(config, chosen)
