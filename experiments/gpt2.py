"""GPT-2 (Radford et al., 2019): a larger GPT, with layer norm before each block, on 1,024 tokens.

    lmrep train --config=experiments/gpt2.py:size=small,data=files --workdir=runs/gpt2 \\
        --config.data.files='/data/web/*.txt' --config.data.documents=file

Published are the batch, 512 sequences of 1,024 tokens, the text, 40 GB of web pages, and byte-level BPE with a
vocabulary of 50,257. The rate, which was tuned by hand for each size, the schedule and the number of steps are not.
Here they are GPT's 2.5e-4 and cosine, with 2,000 steps of warm-up, and 100,000 steps, about five epochs of as much
text.

The networks, in fields of config.model, with all parameters of pretraining:

    size    layers  width  heads   mlp  max_length   vocab  dropout     parameters
    small       12    768     12  3072        1024  50,257      0.1    124,439,808
    medium      24   1024     16  4096        1024  50,257      0.1    354,823,168
    large       36   1280     20  5120        1024  50,257      0.1    774,030,080
    xl          48   1600     25  6400        1024  50,257      0.1  1,557,611,200

Expected: the paper has, without further training, perplexities per word of 37.5, 26.4, 22.1 and 17.5 on WikiText-103
and of 29.4, 22.8, 19.9 and 18.3 on WikiText-2, from small to xl. It does not state the cost.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/gpt2.py:size=tiny --workdir=runs/gpt2-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon:

    size       small medium large xl; tiny: small scaled down for two cores
    across     no; yes: a document sees the ones before it in its sequence
    format     stream (sequences split from one long text), packed, or any other
    optimizer  gpt bert roberta lamb adafactor adamw, with the rate and warm-up above
    model, objective, data, mesh, init: as in bert.py

With data=python_docs, batches have 256 sequences. `lmrep predict` continues texts, and `lmrep evaluate --stride=512`
computes perplexities.
"""

from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"small": "gpt2", "medium": "gpt2_medium", "large": "gpt2_large", "xl": "gpt2_xl"}
PAPERS = (Paper("Radford et al., 2019", "WebText, 40 GB of web pages",
                unpublished=("objective.across", "format.isolate", "steps", "optimizer")),)


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="causal", format="stream", optimizer="gpt",
                     across=("no", ("no", "yes")))
    config = start(chosen)
    config.steps, config.batch_size, config.length = 100_000, 512, 1024
    if chosen.objective == "causal":
        config.objective.across = chosen.across == "yes"
    if chosen.format == "stream":
        config.format.isolate = chosen.across == "no"
    if chosen.optimizer == "gpt":  # Adam; biases and norms have no weight decay
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-8, "bias_correction": True, "weight_decay": 0.01,
                                 "clip": 1.0})
        config.optimizer.schedule.name = "cosine"
    config.optimizer.learning_rate = 2.5e-4
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 2_000 / 100_000})
    return finish(config, chosen)
