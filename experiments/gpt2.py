"""GPT-2 (Radford et al., 2019): a larger GPT, with norms before the blocks, on 1,024 tokens.

    lmrep train --config=experiments/gpt2.py:size=small,data=files --workdir=runs/gpt2 \\
        --config.data.files='/data/web/*.txt' --config.data.documents=file

Published are the batch, 512 rows of 1,024 tokens, the text, 40 GB of web pages, and byte-level BPE of 50,257 pieces;
not the rate, which was tuned by hand for each size, the schedule and the number of steps. Here they are GPT's 2.5e-4
and cosine, with 2,000 steps of warm-up, and 100,000 steps, some five passes over as much text. Without further training
the paper has perplexities a word of 37.5, 26.4, 22.1 and 17.5 on WikiText-103, of 29.4, 22.8, 19.9 and 18.3 on
WikiText-2.

In little, for a try of minutes on two cores, on the documentation that comes with Python:

    lmrep train --config=experiments/gpt2.py:size=tiny --workdir=runs/gpt2-tiny

Every part can be chosen after the colon:

    size       small medium large xl; tiny (two layers, for a try on two cores)
    across     no; yes: a document sees those before it in its row
    format     stream (rows cut from one long text), packed, or any other
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters, with its tokenizer
    optimizer  gpt bert roberta lamb adafactor adamw, with the rate and warm-up above
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2

`lmrep predict` continues texts, `lmrep evaluate --stride=512` has the perplexities.
"""

from lmrep.config.loading import parts
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import default_config, scale_down
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.training.optimizers import RECIPES

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}
SIZES = {"small": "gpt2", "medium": "gpt2_medium", "large": "gpt2_large", "xl": "gpt2_xl", "tiny": "gpt2"}


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("small", tuple(SIZES)), across=("no", ("no", "yes")),
                   format=("stream", tuple(FORMATS)), data=("python_docs", tuple(CORPORA)),
                   optimizer=("gpt", ("gpt", *RECIPES)), mesh="data", init="")
    recipe = "adamw" if chosen.optimizer == "gpt" else chosen.optimizer
    config = default_config(SIZES[chosen.size], "causal", chosen.format, recipe, chosen.mesh)
    config.name = "gpt2_tiny" if chosen.size == "tiny" else SIZES[chosen.size]
    config.steps, config.batch_size, config.length = 100_000, 512, 1024
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.update({"name": "byte_level_bpe", "vocab_size": config.model.vocab, "lowercase": False})
    config.objective.across = chosen.across == "yes"
    if chosen.format == "stream":
        config.format.isolate = chosen.across == "no"
    config.optimizer.learning_rate = 2.5e-4
    if chosen.optimizer == "gpt":
        config.optimizer.schedule.name = "cosine"
    config.optimizer.schedule.update({"warmup": 2_000, "warmup_fraction": 0.0})
    config.checkpoint.every = config.evaluation.every = 1_000
    if chosen.size == "tiny":
        scale_down(config)
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    return config
