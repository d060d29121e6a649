"""Classifiers that start from a sequence autoencoder or a language model (Dai and Le, 2015).

    lmrep train --config=experiments/tasks/dai_le.py:init=runs/autoencoder,data=aclImdb --workdir=runs/imdb

    lmrep train --config=experiments/tasks/dai_le.py:set=dbpedia,linear_gain=yes,layers=3 --workdir=runs/dbpedia \\
        --config.data.train=train.jsonl --config.data.validation=test.jsonl

`init` is a run of `experiments/dai_le.py`; without it, an LSTM of the paper's size starts from random parameters. The
state at the last token goes through a layer of ReLU units. Texts are cut to their first tokens, unless `bptt` is set:
then all of a text is read, in chunks of 400 tokens, and gradients reach the last chunk. Linear gain, joint training and
word dropout need the vectors of all tokens, and are refused there. Cells are clipped as in `experiments/dai_le.py`.

Expected (test error in %): the rows of the paper, by what follows the colon. `lm` and `sa` are runs of
`experiments/dai_le.py` with objective=causal and without it; those for DBpedia have characters=yes, and `sa_3_layers`
has layers=3. The figures of IMDb are those that Dieng et al. (2017) report. Figures with ? come from summaries of the
paper, which disagree or were not checked. Nothing of this has been run with this file at the paper's size;
`experiments/benchmarks/dai_le.py` compares the rows of IMDb in miniature.

    row                     IMDb   Rotten T.  20 Newsgr.  DBpedia  after the colon, with set=SET
    LSTM                    13.50  20.5?      18.0?       13.64    (nothing)
    LSTM, linear gain                         71.6?       1.32     linear_gain=yes
    LM-LSTM                 7.64   21.7?      15.3?       1.50?    init=runs/lm
    SA-LSTM                 7.24   20.3?      15.6        2.34?    init=runs/sa
    SA-LSTM, linear gain    9.17                          1.23?    init=runs/sa,linear_gain=yes
    SA-LSTM, 3 layers, gain                               1.19     init=runs/sa_3_layers,linear_gain=yes
    SA-LSTM, joint          14.70                                  joint=sequence_autoencoder

Rotten Tomatoes has 18.6? with an `init` of IMDb's unlabelled reviews, and 16.7? with one of Amazon's.
Cost: the code released later states 1.8 hours for 10,000 steps on a Pascal Titan X.

20 epochs, batches of 64, Adam at 0.0005 after a warm-up over a tenth of the steps, then linear to 0; sequences of 400
tokens. Training ends early if five validations in a row are not better, and the best checkpoint is used.

size=tiny sets batch_size=16, length=400, vocab_size=4096, learning_rate=0.001, layers=1, width=256 and embedding=128;
the epochs are as many as 1,500 updates take, 3 to 30.

Choices after the colon; each ablation is one flag:

    set          imdb 20_newsgroups: 400 tokens; rotten_tomatoes: 64; dbpedia: 400 characters
    data         set=imdb: the folder of the published files, or tfds; other sets take --config.data.train=FILE
    linear_gain  no; yes: every position predicts the label, with a weight that grows to the end of the text
    joint        no, sequence_autoencoder, language_model: a loss of the texts beside the labels'
    layers       1; 3 for DBpedia (without init)
    bptt         no; end, start: truncated backpropagation, with chunks of 400 tokens counted from there
    unknown      keep; remove: unknown words have no token (without init)
    hidden       512 units of the head (released: 30)
    word_dropout 0.0: the rate at which whole words are left out in training
    init, size, recipe, head, features, vectors, mesh: as in classify.py
"""

from lmrep.config import loading
from lmrep.experiment.fine_tuning import compose_task

LENGTHS = {"imdb": 400, "rotten_tomatoes": 64, "20_newsgroups": 400, "dbpedia": 400}
LONGEST = {"imdb": 2600, "rotten_tomatoes": 64, "20_newsgroups": 12_000, "dbpedia": 13_500}  # of all texts


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    yes = ("no", ("no", "yes"))
    own = {"set": ("imdb", tuple(LENGTHS)), "linear_gain": yes, "hidden": 512, "layers": (1, (1, 2, 3)),
           "joint": ("no", ("no", "sequence_autoencoder", "language_model")), "word_dropout": 0.0,
           "bptt": ("no", ("no", "end", "start")), "unknown": ("keep", ("keep", "remove"))}
    given = [part for part in argument.split(",") if part.partition("=")[0] in own]
    chosen = loading.parse_argument(",".join(given), **own)
    rest = ",".join(part for part in argument.split(",") if part not in given)
    config = compose_task(rest, "classification", chosen.set if chosen.set == "imdb" else "", model="lstm", base="lstm")
    config.name, config.length = chosen.set, LENGTHS[chosen.set]
    config.objective.update({"dense": True, "hidden": chosen.hidden, "activation": "relu", "dropout": 0.5,
                             "linear_gain": chosen.linear_gain == "yes", "word_dropout": chosen.word_dropout})
    if chosen.joint != "no":
        config.objective.update({"auxiliary": 1.0, "auxiliary_loss": chosen.joint})
    if chosen.bptt != "no":
        config.length = LONGEST[chosen.set]
        config.objective.chunks.update({"size": 400, "counted_from": chosen.bptt})
    config.checkpoint.load = "best"
    config.evaluation.patience = 5
    tiny = not config.init and config.model.get("width") == 256
    if not tiny:
        config.epochs, config.batch_size, config.optimizer.learning_rate = 20.0, 64, 5e-4
        config.optimizer.update({"weight_decay": 0.0, "clip": 1.0, "bias_correction": True})
    if config.model.name == "lstm" and not tiny:
        config.model.dropout = 0.5
    if config.model.name == "lstm" and not config.init:
        words = {"name": "words_text", "lowercase": False, "vocab_size": 4096 if tiny else 86_934,
                 "unknown": chosen.unknown}
        config.tokenizer.update({"name": "bytes", "lowercase": False} if chosen.set == "dbpedia" else words)
        config.model.update({"layers": chosen.layers, "clip_cell": 3.0})
        if not tiny:
            config.model.update({"width": 1024, "embedding": 512})
    return config
