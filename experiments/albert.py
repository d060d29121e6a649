"""ALBERT (Lan et al., 2019): one layer's parameters for all layers, narrow tables, runs of words masked together, and
the order of two passages asked for.

    lmrep train --config=experiments/albert.py:size=base,data=files --workdir=runs/albert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The recipe of the released code: 4,096 rows of 512 tokens a step for 125,000 steps, LAMB at 1.76e-3, warmed up over
3,125 steps; static masks, forty of each example; a SentencePiece vocabulary of 30,000. The paper trained xxlarge so in
32 hours. After fine-tuning, base has MNLI 81.6, SQuAD 1.1 F1 89.3 and SQuAD 2.0 F1 80.0 (development sets), large 83.5,
90.6 and 82.3, xlarge 86.4, 92.5 and 86.1; xxlarge, after a million steps and more, 90.8, 94.8 and 90.2.

In little, for a try of minutes on two cores, on the documentation that comes with Python:

    lmrep train --config=experiments/albert.py:size=tiny --workdir=runs/albert-tiny

Every part can be chosen after the colon, which makes each of the paper's ablations one flag:

    size       base large xlarge xxlarge; tiny (base's, of two layers, for a try on two cores)
    share      what all layers use one copy of: all, attention, mlp, none
    pairs      sop (are the two in order), nsp (is the second the real next), none (no question)
    format     segment_pair (with a question about the pair; sentence_pair knows only nsp), or any other (without)
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters
    optimizer  lamb bert roberta adafactor adamw; with others than lamb, 1e-4 is a rate to begin with
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2

The width of the tables is --config.model.embedding (128; 0: as wide as the layers), the longest run of words
--config.objective.ngram (3). The released command masks 20 tokens a row, 4 % of them, where the paper says 15 %: this
follows the paper; --config.objective.max_predictions=20 the command. Dropout is that of version 1; version 2 has none:
--config.model.dropout=0 --config.model.attention_dropout=0.
"""

from lmrep.config.loading import parts
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import default_config, scale_down
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.models.transformer import SHARING
from lmrep.objectives.masked import RULES
from lmrep.training.optimizers import RECIPES

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("base", ("base", "large", "xlarge", "xxlarge", "tiny")),
                   share=("all", tuple(SHARING)), pairs=("sop", ("sop", "nsp", "none")),
                   format=("segment_pair", tuple(FORMATS)), data=("python_docs", tuple(CORPORA)),
                   optimizer=("lamb", tuple(RECIPES)), mesh="data", init="")
    size = "base" if chosen.size == "tiny" else chosen.size
    config = default_config(f"albert_{size}", "masked", chosen.format, chosen.optimizer, chosen.mesh)
    config.name = f"albert_{chosen.size}"
    config.steps, config.batch_size, config.length = 125_000, 4096, 512
    config.model.share = chosen.share
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.update({"name": "sentencepiece_unigram", "vocab_size": config.model.vocab, "lowercase": True})
    config.objective.update(RULES["albert"])
    config.objective.masking = "static"
    config.objective.sentence_pair = chosen.format in ("segment_pair", "sentence_pair") and chosen.pairs != "none"
    if chosen.format == "segment_pair" and chosen.pairs != "none":
        config.format.pairs = chosen.pairs
    config.format.duplicates = 40
    if chosen.optimizer == "lamb":
        config.optimizer.learning_rate = 1.76e-3
    if chosen.optimizer != "adafactor":
        config.optimizer.schedule.warmup_fraction = 0.025  # 3,125 steps
    config.checkpoint.every = config.evaluation.every = 1_250
    if chosen.size == "tiny":
        scale_down(config, learning_rate=1e-2 if chosen.optimizer == "lamb" else 2e-3)
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    config.samples = ("The [MASK] of a list is an integer.",)
    return config
