"""GPT (Radford et al., 2018): a Transformer that reads from left to right, before it is fine-tuned.

    lmrep train --config=experiments/gpt.py:data=files --workdir=runs/gpt \\
        --config.data.files='/data/books/*.txt' --config.data.documents=file

The paper's recipe: 64 rows of 512 tokens a step, 100 passes over BooksCorpus, which are about three million steps; Adam
at 2.5e-4, warmed up over 2,000 steps and down to 0 along a cosine; decay 0.01. It took a month on 8 P600s and ended at
perplexity 18.4 a token. After fine-tuning, GLUE is 75.2 (test, by its average in the BERT paper).

In little, for a try of minutes on two cores, on the documentation that comes with Python:

    lmrep train --config=experiments/gpt.py:size=tiny --workdir=runs/gpt-tiny

Every part can be chosen after the colon:

    size       base (the paper's); tiny (two layers, for a try on two cores)
    across     no; yes: a document sees those before it in its row
    format     stream (rows cut from one long text), packed, or any other
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters, with its tokenizer
    optimizer  gpt bert roberta lamb adafactor adamw, with the rate and warm-up of GPT
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2

A vocabulary is trained as the paper's, by BPE on lower-cased text; GPT's own is read from a published directory
(`init=`, or --config.tokenizer.vocab_file), and cased text has --config.tokenizer.name=byte_level_bpe. `lmrep predict`
continues texts, `lmrep evaluate --stride=256` has the perplexities.
"""

from lmrep.config.loading import parts
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import default_config, scale_down
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.training.optimizers import RECIPES

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("base", ("base", "tiny")), across=("no", ("no", "yes")),
                   format=("stream", tuple(FORMATS)), data=("python_docs", tuple(CORPORA)),
                   optimizer=("gpt", ("gpt", *RECIPES)), mesh="data", init="")
    recipe = "adamw" if chosen.optimizer == "gpt" else chosen.optimizer
    config = default_config("gpt", "causal", chosen.format, recipe, chosen.mesh)
    config.name = "gpt_tiny" if chosen.size == "tiny" else "gpt"
    config.steps, config.batch_size, config.length = 3_000_000, 64, 512
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.update({"name": "bpe", "vocab_size": config.model.vocab})
    config.objective.across = chosen.across == "yes"
    if chosen.format == "stream":
        config.format.isolate = chosen.across == "no"
    config.optimizer.learning_rate = 2.5e-4
    if chosen.optimizer == "gpt":
        config.optimizer.schedule.name = "cosine"
    config.optimizer.schedule.update({"warmup": 2_000, "warmup_fraction": 0.0})
    config.checkpoint.every = config.evaluation.every = 10_000
    if chosen.size == "tiny":
        scale_down(config)
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    return config
