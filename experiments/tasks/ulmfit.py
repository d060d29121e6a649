"""The classifier of ULMFiT (Howard and Ruder, 2018, section 3.3), from an AWD-LSTM language model.

    lmrep train --config=experiments/tasks/ulmfit.py:init=runs/awd,task=imdb,data=aclImdb --workdir=runs/ulmfit
    lmrep predict --workdir=runs/ulmfit "A fine film."

The last output, the maximum and the mean of the outputs go through two blocks with batch normalization. Documents are
read in chunks of 70 tokens; gradients reach the last 1,400 tokens, and stop between chunks (BPT3C). `lmrep
inspect` shows the stages and the learning rate of each layer.

    recipe           unfreezing                                betas       weight decay  clip  slanted triangle
    ulmfit           a layer more in each of the first epochs  0.7, 0.99              0  0.25  a tenth, ratio 32
    ulmfit_released  head; with the last layer; all            0.8, 0.99           1e-6    25  an eighth, ratio 8

ulmfit has the numbers of the paper and, for weight decay and clipping, which it does not state, those of the course's
notebook; ulmfit_released has those of its scripts, whose first two stages rise for a third of their steps. Both, as the
scripts for IMDb: 50 epochs, batches of 64, Adam at 0.01 for the head by slanted triangles; sequences of 4096 tokens.
Each group below learns 2.6 times more slowly: the last layer, the layers below it, the embeddings. Weight decay is
decoupled here, and added to the gradient there. The dropout of the network is that of the classifier, and 0 with
size=tiny.

Choices after the colon, with which the rows of the paper's table 7 are made, beside the choices of `classify.py`:

    task        files (--config.data.train), imdb, or trec, with data=FOLDER or data=tfds
    unfreezing  gradual; full: everything at once; last: the head alone; chain_thaw: layer by layer
    rates       discriminative; equal: 0.001 for all. chain_thaw has equal rates: 0.001, then 0.0001
    schedule    slanted (triangular), cosine, constant
    recipe      ulmfit, ulmfit_released, or another one, whose schedule and rates then stay

A row of the table without pretraining has no `init`, and random parameters.

Cost: 25,000 reviews of some 300 tokens an epoch. Expected: the paper has errors of 5.30 % on IMDb's test set with one
direction and 4.6 with the mean of two (--ensemble), and 3.6 on TREC-6. Nothing of this has been run with this file.
Validation data are not a tenth of the training data, as in the paper. With ulmfit_released, the network reads padding
before shorter texts of a batch, and maximum and mean are over it too, as in the scripts; with ulmfit they leave it out,
as in fastai 1.0. Each text begins with the token that ends documents in pretraining, fastai's xbos.

size=tiny sets epochs=5, batch_size=64, length=512, vocab_size=4096, learning_rate=0.001, layers=2, width=256 and
embedding=128, with random parameters, for two cores.
"""

from lmrep.config import loading
from lmrep.experiment.fine_tuning import compose_known, compose_task

SCHEDULES = {"slanted": "slanted_triangular", "cosine": "cosine", "constant": "constant"}
DROPOUT = {"dropout": 0.0, "hidden_dropout": 0.3, "input_dropout": 0.4, "embedding_dropout": 0.05,
           "weight_dropout": 0.5}  # that on the output is in the blocks
EQUAL = {"learning_rate": 1e-3, "layer_decay": 1.0}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    own = {"task": ("files", ("files", "imdb", "trec")), "rates": ("discriminative", ("discriminative", "equal")),
           "unfreezing": ("gradual", ("gradual", "full", "last", "chain_thaw")),
           "schedule": ("slanted", tuple(SCHEDULES))}
    given = [part for part in argument.split(",") if part.partition("=")[0] in own]
    chosen = loading.parse_argument(",".join(given), **own)
    rest = [part for part in argument.split(",") if part and part not in given]
    if not any(part.startswith("recipe=") for part in rest):
        rest.append("recipe=ulmfit")
    known = None if chosen.task == "files" else chosen.task
    made = {"network": "ulmfit", "base": "awd_lstm_ulmfit"}
    config = (compose_known(",".join(rest), known, **made) if known else
              compose_task(",".join(rest), "classification", **made))
    config.name = known or "ulmfit"
    if chosen.unfreezing != "gradual":
        config.unfreezing = chosen.unfreezing
    if config.recipe.startswith("ulmfit"):
        config.optimizer.schedule.name = SCHEDULES[chosen.schedule]
        if chosen.rates == "equal" or chosen.unfreezing == "chain_thaw":
            config.optimizer.update(EQUAL)
    tiny = "size=tiny" in rest
    config.length = 512 if tiny else 4096
    if config.model.name == "awd_lstm":
        config.model.update(dict.fromkeys(DROPOUT, 0.0) if tiny else DROPOUT)
    if config.init or config.model.name in ("awd_lstm", "lstm"):
        config.objective.chunks.update({"size": 70, "kept": 1400, "padding": config.recipe == "ulmfit_released"})
    config.objective.update({"start_of_text": True, "end_of_text": False})
    return config
