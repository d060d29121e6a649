"""GPT (Radford et al., 2018): a left-to-right language model.

    lmrep train --config=experiments/gpt.py:data=files --workdir=runs/gpt \\
        --config.data.files='/data/books/*.txt' --config.data.documents=file

The paper's recipe: batches of 64 sequences of 512 tokens, 100 epochs of BooksCorpus, which are about three million
steps; Adam at 2.5e-4 with 2,000 steps of warm-up and a cosine down to 0; weight decay 0.01.

The network, in fields of config.model, with all parameters of pretraining:

    size  layers  width  heads   mlp  max_length   vocab  dropout   parameters
    base      12    768     12  3072         512  40,478      0.1  116,534,784

Cost: in the paper, a month on 8 P600s. Expected: perplexity 18.4 per token; GLUE 75.2 after fine-tuning (test, by its
average in the BERT paper).

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/gpt.py:size=tiny --workdir=runs/gpt-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon:

    size       base; tiny: scaled down for two cores
    across     no; yes: a document sees the ones before it in its sequence
    format     stream (sequences split from one long text), packed, or any other
    optimizer  gpt bert roberta lamb adafactor adamw, with the rate and warm-up of GPT
    model, objective, data, mesh, init: as in bert.py

A vocabulary is trained by BPE on lower-cased text, as in the paper. GPT's own is read from a published directory
(`init=`, or --config.tokenizer.vocab_file); for cased text, set --config.tokenizer.name=byte_level_bpe.
`lmrep predict` continues texts, and `lmrep evaluate --stride=256` computes perplexities.
"""

from lmrep.experiment.fine_tuning import Recipe, epochs
from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"base": "gpt"}
PAPERS = (Paper("Radford et al., 2018", "BooksCorpus, 800 million words",
                unpublished=("objective.across", "format.isolate")),)

# The paper's language-model loss beside it needs a network that reads from left to right, and is a field of the task:
# objective.auxiliary=0.5.
FINE_TUNING = {"gpt": Recipe({
    "": epochs(3, 32, 6.25e-5, eps=1e-8, bias_correction=True, optimizer__schedule__warmup_fraction=0.002)})}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="causal", format="stream", optimizer="gpt",
                     across=("no", ("no", "yes")))
    config = start(chosen)
    config.steps, config.batch_size, config.length = 3_000_000, 64, 512
    if chosen.objective == "causal":
        config.objective.across = chosen.across == "yes"
    if chosen.format == "stream":
        config.format.isolate = chosen.across == "no"
    if chosen.optimizer == "gpt":  # Adam; biases and norms have no weight decay
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.01,
                                 "clip": 1.0})
        config.optimizer.schedule.name = "cosine"
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 2_000 / 3_000_000})
    return finish(config, chosen)
