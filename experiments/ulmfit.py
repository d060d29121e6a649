"""ULMFiT (Howard and Ruder, 2018): a language model of general text, and then of the texts of a task.

    lmrep train --config=experiments/ulmfit.py:stage=general,data=files --workdir=runs/general \\
        --config.data.files='/data/wikitext-103/*.txt' --config.data.documents=blank_line

The second stage is the same command with `stage=target,data=files,init=runs/general`, the texts of the task and another
workdir. The classifier of the third stage starts from the second model. With `direction=backward` in both commands and
other workdirs, the models read documents from their end; the paper averages the classifiers of both directions.

The second model has the vocabulary of its own texts: words that the first model knows have their vectors, others start
from the mean vector.

Text is preprocessed as in fastai, by the paper's scripts or by fastai 1.0, which needs spaCy (the extra `fastai`).
Batches have 64 sequences of about 70 tokens (lengths=normal); Adam's second decay rate is .99, and weight decay 1e-7.
The slanted triangular learning rates rise from 1/32 of the peak to the peak for a tenth of the steps, and fall to 1/32.
The recipes of the paper and of the released scripts:

    recipe    betas[0]  rate of the table and layers 0, 1, 2, in the second stage
    paper          0.7  1/2.6^3, 1/2.6^2, 1/2.6, 1, the table below all layers
    released       0.8  1/2, 1/6, 1/3, 1

    stage    steps  learning_rate  clip  dropout is multiplied by
    general  230,000        0.005  0.12                       0.1
    target    81,000        0.004   0.3                       1.0

Steps are 10 passes over WikiText-103, of 103 million words, and 15 over 90,000 film reviews, as in the authors' course;
set them for other text. The paper does not state how the first model is trained: learning rate, clipping and the
factor of dropout are those of a later script of the authors, which has another schedule. Clipping and dropout of the
second stage are those of the scripts; the dropout that the paper states is the classifier's.

The network, in fields of config.model, with all parameters of pretraining:

    size  layers  width  embedding   vocab  parameters
    base       3   1150        400  60,002  44,212,400

Its dropout before it is multiplied: output .1, between layers .15, input .25, words .02, recurrent weights .2.

Differences from the scripts: weight decay is decoupled; the learning rate of a step is in proportion to its length;
documents are in one order in all epochs; xbos alone separates documents.

Expected: the paper has no perplexities. The authors' course has a perplexity of 49.8 on held-out film reviews in the
second stage, forward, with its own vocabulary. Nothing of this has been run with this file. The paper does not
state the cost of either stage.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/ulmfit.py:size=tiny --workdir=runs/ulmfit-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.01, layers=2, width=256 and
embedding=128, without dropout.

The perplexity of held-out text falls from 2,046 to 42.

In a short second stage, recipe=released learns more: its rate of the table, where tokens that the first model lacks
start from the mean vector, is a half. With 2 layers of width 128, 5,000 words and no dropout, 400 steps of 32 x 70
words of WikiText-2 and then 500 of film reviews at a learning rate of 0.01 give a perplexity of 196.5 on held-out
reviews with recipe=paper, and 139.9 with recipe=released; 500 steps from random values give 141.7 (one seed).

Choices after the colon:

    stage      general; target, after init=WORKDIR of a general model
    direction  forward; backward: documents are read from their end
    recipe     paper; released: the scripts of the authors
    rates      in the second stage: discriminative, which are the multiples above; equal: one rate for all layers
    schedule   slanted (triangular); constant
    tokenizer  fastai_paper: words as in the paper's scripts; fastai_v1: as in fastai 1.0, with tokens for capitals, and
               a bias of each word in the output
    size       base; tiny: two narrow layers without dropout for two cores
    order      contiguous; shuffled: each sequence starts from an empty state
    lengths    normal: random around 70, half of it for one batch in twenty; fixed
    format     stream (sequences split from one long text), packed, or any other
    optimizer  ulmfit, which is adamw with these numbers; bert roberta lamb nt_asgd adafactor adamw and others
    model, data, mesh, init: as in bert.py

`lmrep predict` continues texts, backward models to their front.
"""

from lmrep.core.errors import UserError
from lmrep.experiment.fine_tuning import Recipe, epochs
from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"base": "awd_lstm_ulmfit"}
PAPERS = (Paper("Howard and Ruder, 2018", "WikiText-103, 103 million words", unpublished=("steps", "optimizer"),
                published={"model.dropout": 0.4, "model.hidden_dropout": 0.3, "model.input_dropout": 0.4,
                           "model.embedding_dropout": 0.05, "model.weight_dropout": 0.5}),)  # the classifier's
DROPOUT = {"dropout": 0.1, "hidden_dropout": 0.15, "input_dropout": 0.25, "embedding_dropout": 0.02,
           "weight_dropout": 0.2}

# The third stage: the paper, with what it leaves open as in the course's notebook; and the released scripts. Every
# stage has a schedule of its own.
CLASSIFIER = {"eps": 1e-8, "bias_correction": True, "layer_decay": 1 / 2.6, "layer_decay_of": "groups",
              "optimizer__schedule__name": "slanted_triangular", "optimizer__schedule__warmup_fraction": 0.0}
FINE_TUNING = {
    "ulmfit": Recipe({"": epochs(50, 64, 0.01, betas=(0.7, 0.99), weight_decay=0.0, clip=0.25, **CLASSIFIER) | {
        "unfreezing": "gradual"}}),
    "ulmfit_released": Recipe({"": epochs(
        50, 64, 0.01, betas=(0.8, 0.99), weight_decay=1e-6, clip=25.0, **CLASSIFIER,
        optimizer__schedule__cut_fraction=1 / 8, optimizer__schedule__ratio=8.0) | {
            "unfreezing": "gradual_released"}}),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective=("causal",), format="stream", optimizer="ulmfit",
                     stage=("general", ("general", "target")), direction=("forward", ("forward", "backward")),
                     recipe=("paper", ("paper", "released")), rates=("discriminative", ("discriminative", "equal")),
                     schedule=("slanted", ("slanted", "constant")),
                     tokenizer=("fastai_paper", ("fastai_paper", "fastai_v1")),
                     order=("contiguous", ("contiguous", "shuffled")), lengths=("normal", ("normal", "fixed")))
    target = chosen.stage == "target"
    if target and not chosen.init:
        raise UserError("stage=target continues a general language model, and there is no init; add init=WORKDIR of "
                        "one, or use stage=general, which starts from random values")
    config = start(chosen)
    recurrent = config.model.name == "awd_lstm"
    config.tokenizer.update({"name": chosen.tokenizer, "lowercase": chosen.tokenizer == "fastai_paper",
                             "direction": chosen.direction})
    config.objective.bias = chosen.tokenizer == "fastai_v1"
    config.init_vocabulary = "match" if target else "same"
    config.steps, config.batch_size, config.length = 81_000 if target else 230_000, 64, 70
    if recurrent:
        config.model.update({name: round(rate * (1.0 if target else 0.1), 4) for name, rate in DROPOUT.items()})
    if chosen.format == "stream":
        config.format.order = chosen.order
        if chosen.order == "contiguous" and recurrent:
            config.format.lengths = chosen.lengths
    elif chosen.format == "stream_pair" and recurrent:
        config.format.order = "shuffled"  # its examples overlap, and a state would know the next one
    config.optimizer.learning_rate = 0.004 if target else 0.005
    if chosen.optimizer == "ulmfit":
        config.optimizer.update({
            "betas": (0.7 if chosen.recipe == "paper" else 0.8, 0.99), "eps": 1e-8, "bias_correction": True,
            "weight_decay": 1e-7, "decay_skip": (), "clip": 0.3 if target else 0.12})
        config.optimizer.schedule = {"name": "constant"} if chosen.schedule == "constant" else {
            "name": "slanted_triangular", "cut_fraction": 0.1, "ratio": 32.0}
    config = finish(config, chosen)
    if chosen.size == "tiny":
        config.optimizer.learning_rate = 0.01
        if chosen.optimizer == "ulmfit":
            config.optimizer.schedule.warmup_fraction = 0.0
    if target and recurrent and chosen.rates == "discriminative":
        config.optimizer.multipliers = rates(chosen.recipe, config.model.layers, config.objective.bias)
    return config


def rates(recipe, layers, bias):
    """The factors of the learning rate: discriminative fine-tuning."""
    if recipe == "paper":
        factors = [2.6 ** -depth for depth in range(layers, -1, -1)]
    else:
        factors = [1 / 2, *(1 / 6, 1 / 3, 1)[-layers:]]
    paths = ["encoder/embedding/*", *(f"encoder/layers/{i}/*" for i in range(layers))]
    found = {path: factor for path, factor in zip(paths, factors, strict=True) if factor != 1}
    return found | ({"objective/causal/bias": factors[0]} if bias else {})
