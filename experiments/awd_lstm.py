"""AWD-LSTM (Merity et al., 2018): an LSTM language model whose recurrent weights have dropout, on words.

    lmrep train --config=experiments/awd_lstm.py:size=wt2,data=files --workdir=runs/awd \\
        --config.data.files='/data/wikitext-2/wiki.train.tokens' --config.data.documents=line

    lmrep evaluate --workdir=runs/awd --split=test

Sizes, dropout, penalties, SGD at 30, weight decay 1.2e-6, clipping at .25, sequences of about 70 words and batches are
those of the released commands; the batch of ptb has 24 sequences (20 there), so that eight devices can split it. The
length of a batch varies (lengths=normal), and the learning rate of its step with it. Steps are the epochs of the
commands: 500 of the Penn Treebank, 750 of WikiText-2. A run is validated after every epoch. Once its loss is above the
lowest of all validations but the last five, parameters are averaged (NT-ASGD).

The second training, fine-tuning in the paper, is the same command with `size=wt2,training=second,init=runs/awd` and
another workdir. It starts from the averages of the best checkpoint of the first run, averages all parameters from its
first step on, and ends at the first validation whose loss is above the lowest of all but the last five. The pointer of
the paper is `lmrep evaluate --pointer_window=2000 --pointer_weight=0.1 --pointer_theta=1 --batch_size=1` (ptb).

The learning rate of a step follows the length of its batch. In the released code, once parameters are averaged, it
follows the length of the batch before, since PyTorch's ASGD computes the rate of a step after the step before it.

Text is words between white space, cased; each line is a document, whose end is a token. The five special tokens of the
tokenizer count in the vocabulary; the corpora have two of them.

The networks, in fields of config.model, with all parameters of pretraining:

    size  layers  width  embedding   vocab  dropout  hidden_dropout  input_dropout  weight_dropout  parameters
    ptb        3   1150        400  10,000      0.4            0.25            0.4             0.5  24,221,600
    wt2        3   1150        400  33,278      0.4             0.2           0.65             0.5  33,556,078

embedding_dropout is 0.1 in both. model=awd_lstm_ulmfit is the language model of ULMFiT (Howard and Ruder, 2018;
44,212,400 parameters), whose own file is ulmfit.py.

Expected: the paper has test perplexities per word of 57.3 (ptb) and 65.8 (wt2) with its full recipe; without varying
lengths 58.9 and 66.2, without the second training 58.8 and 66.0, without averages 63.7 and 69.7. Nothing of this has
been run with this file.
Cost: the released code states 65 s (ptb) and 180 s (wt2) for an epoch on a Quadro GP100.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/awd_lstm.py:size=tiny --workdir=runs/awd-tiny

Its 2,048 words are split at white space, and others are <unk>. Averages begin at step 220; the perplexity of held-out
text falls from 2,049 to 111, and in a second training (`size=tiny,training=second,init=runs/awd-tiny`) to 88. On the
test split it is then 96.5, and 81.1 with a cache pointer (--batch_size=1 --pointer_window=500 --pointer_theta=0.5).

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=20, layers=2, width=256 and
embedding=128.

Choices after the colon:

    size       ptb wt2; tiny: two narrow layers without dropout for two cores
    order      contiguous; shuffled: each sequence starts from an empty state
    lengths    normal: random around 70, half of it for one batch in twenty; fixed
    training   first; second: averages from the first step on, after init=WORKDIR of a first training
    format     stream (sequences split from one long text), packed, or any other
    optimizer  nt_asgd; sgd, without averages; bert roberta lamb adafactor adamw and others, with a rate of 1e-3
    model, data, mesh, init: as in bert.py

`lmrep predict` continues texts.
"""

from lmrep.core.errors import UserError
from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"ptb": "awd_lstm_ptb", "wt2": "awd_lstm_wt2"}
PAPERS = (  # the batch of ptb is a multiple of 8 here
    Paper("Merity et al., 2018", "the Penn Treebank, 0.9 million words", sizes=("ptb",), published={"batch_size": 20}),
    Paper("Merity et al., 2018", "WikiText-2, 2 million words", sizes=("wt2",)))


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective=("causal",), format="stream", optimizer="nt_asgd",
                     order=("contiguous", ("contiguous", "shuffled")), lengths=("normal", ("normal", "fixed")),
                     training=("first", ("first", "second")))
    if chosen.training == "second" and not chosen.init:
        raise UserError("training=second continues a first training, and there is no init; add init=WORKDIR of one, or "
                        "leave training=second out")
    config = start(chosen)
    config.length = 70
    config.batch_size = {"ptb": 24, "wt2": 80}[chosen.published]
    config.objective.bias = chosen.preset != "awd_lstm_ulmfit"
    if chosen.format == "stream":
        config.format.order = chosen.order
        if chosen.order == "contiguous" and config.model.name == "awd_lstm":
            config.format.lengths = chosen.lengths
    elif chosen.format == "stream_pair" and chosen.family == "awd_lstm":
        config.format.order = "shuffled"  # its examples overlap, and a state would know the next one
    epochs = {"ptb": 500, "wt2": 750}[chosen.published]
    batches = {"fixed": {"ptb": 554, "wt2": 373}, "normal": {"ptb": 571, "wt2": 385}}  # in an epoch
    epoch = batches[config.format.get("lengths", "fixed")][chosen.published]
    config.steps = epochs * epoch
    config.optimizer.learning_rate = 1e-3
    if chosen.optimizer in ("nt_asgd", "sgd"):
        config.optimizer.update({"learning_rate": 30.0, "weight_decay": 1.2e-6, "clip": 0.25})
    if chosen.training == "second" and chosen.optimizer == "nt_asgd":
        config.optimizer.averages = "always"
    config.optimizer.schedule.update({"name": "constant", "warmup": 0, "warmup_fraction": 0.0})
    config = finish(config, chosen)
    if chosen.size == "tiny":
        config.optimizer.learning_rate = 20.0 if chosen.optimizer in ("nt_asgd", "sgd") else 1e-2
        config.optimizer.schedule.warmup_fraction = 0.0
        epoch = 20  # so that averages begin
    config.evaluation.every = config.checkpoint.every = epoch
    config.checkpoint.load = "best"
    config.evaluation.examples = 256 if chosen.size == "tiny" else 0  # 0: all
    return config
