"""XLNet (Yang et al., 2019): each of some tokens is predicted from those before it in a random order of the text.

    lmrep train --config=experiments/xlnet.py:size=large,data=files --workdir=runs/xlnet-large \\
        --config.data.files='/data/xlnet-text/*.txt' --config.data.documents=blank_line

The network is a Transformer-XL that sees both sides: relative positions and segments, a memory of 384 positions, and
two streams with the same parameters. Examples are windows of a continuous text, 256 tokens whose states are remembered
and a pair of texts; half of each batch reads backward. One of 6 tokens is predicted, in spans of 1 to 5. Adam without
bias correction, epsilon 1e-6, weight decay 0.01, at 4e-4 after 40,000 steps of warm-up, for 500,000 steps of 8,192
sequences of 512 tokens. (The released command has 2,048.) The paper gives this recipe for the large size; the base size
has it here too.

The networks, in fields of config.model, with all parameters of pretraining:

    size   layers  width  heads   mlp  memory   vocab  dropout   parameters
    base       12    768     12  3072     384  32,000      0.1  116,750,336
    large      24   1024     16  4096     384  32,000      0.1  360,300,800

Cost: in the paper, 5.5 days on 512 TPU v3 chips (large). Expected: on the development sets of GLUE, MNLI 89.8, QNLI
93.9, QQP 91.8, RTE 83.8, SST-2 95.6, MRPC 89.2, CoLA 63.6, STS-B 91.8 (large), and 86.8, 91.7, 91.4, 74.0, 94.7, 88.2,
60.2, 89.5 (base), as the released code reports. Neither has been run with this file.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/xlnet.py:size=tiny --workdir=runs/xlnet-tiny

size=tiny sets steps=400, batch_size=16, length=128, vocab_size=2048, learning_rate=0.001, layers=2, width=128, heads=4,
mlp=512 and memory=96.

On 3 MB of Wikipedia and 2,048 pieces, its held-out loss falls from 8.13 to 5.58, and the accuracy rises to 14.3 %,
where the most frequent token has 8.5 %.

Choices after the colon; each ablation of the paper is one flag:

    size           base large; tiny: scaled down for two cores
    k              6, or 7: one of so many tokens is predicted
    memory         yes, or no
    spans          yes, or no: independent tokens
    bidirectional  yes, or no: all examples read forward
    nsp            no, or yes: with next-sentence prediction
    objective      permutation; masked: a denoising autoencoder (DAE), BERT's objective on this network; causal
    reuse          tokens of a window that are remembered; 0: half of the window
    optimizer      xlnet bert roberta lamb adafactor adamw, at the rate above
    model, format, data, mesh, init: as in bert.py

The paper's ablations, base size on Books and Wikipedia, medians of five runs: RACE, SQuAD 2.0 F1, MNLI matched, SST-2.

    DAE          65.03  79.56  84.88  92.60    memory=no         65.55  80.15  85.32  92.78
    k=7          66.05  81.33  85.84  92.66    spans=no          65.95  80.61  85.49  93.12
    k=6          66.66  80.98  85.63  93.35    bidirectional=no  66.34  80.65  85.31  92.66
    BERT         64.3   76.30  84.34  92.78    nsp=yes           66.76  79.83  85.32  92.89

`lmrep inspect` shows the orders that are drawn, and `lmrep predict` fills in <mask>.
"""

from lmrep.core.errors import UserError
from lmrep.experiment.fine_tuning import Recipe, epochs, steps
from lmrep.experiment.pretraining import Paper, choices, finish, has_pair_label, start

SIZES = {"base": "xlnet_base", "large": "xlnet_large"}
XLNET_TEXT = "the text of XLNet, 33 billion tokens"
PAPERS = (
    Paper("Yang et al., 2019", XLNET_TEXT, sizes=("large",), unpublished=("optimizer.schedule.final",)),
    Paper("Yang et al., 2019", XLNET_TEXT, sizes=("base",), unpublished=(
        "steps", "batch_size", "optimizer.learning_rate", "optimizer.schedule.warmup", "optimizer.schedule.final")))
YES, NO = ("yes", ("yes", "no")), ("no", ("no", "yes"))

SQUAD = steps(8000, 48, 3e-5, warmup=1000, length=512, eps=1e-6, layer_decay=0.75, layer_decay_of="gradient")
FINE_TUNING = {"xlnet": Recipe({  # the README and the scripts of zihangdai/xlnet; "": the rate and batch of most sets
    "": epochs(3, 32, 2e-5, weight_decay=0.0, bias_correction=True, eps=1e-8),
    "stsb": steps(1200, 32, 5e-5, warmup=120),
    "imdb": steps(4000, 32, 2e-5, warmup=500, length=512),
    "squad1": SQUAD,
    "squad2": SQUAD,
})}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="permutation", format="stream_pair", optimizer="xlnet",
                     k=6, memory=YES, spans=YES, bidirectional=YES, nsp=NO, reuse=0)
    _check(chosen)
    config = start(chosen)
    config.steps, config.batch_size, config.length = 500_000, 8192, 512
    if chosen.format == "stream_pair":
        config.format.update({"bidirectional": chosen.bidirectional == "yes", "reuse": chosen.reuse})
    if chosen.objective == "permutation":
        config.objective.update({"k": float(chosen.k), "spans": chosen.spans == "yes", "max_span": 5})
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = chosen.nsp == "yes"
    if chosen.optimizer == "xlnet":  # Adam; biases and norms have no weight decay
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-6, "bias_correction": False, "weight_decay": 0.01,
                                 "clip": 1.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "warmup", "final": 0.001})
    config.optimizer.learning_rate = 4e-4
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": 40_000 / 500_000})
    config = finish(config, chosen)
    if chosen.size == "tiny":
        config.update({"length": 128, "batch_size": 16})
        if config.optimizer.name == "adamw":  # at 2e-3, it stays with the frequencies of tokens for hundreds of steps
            config.optimizer.learning_rate = 1e-3
        config.model.update({"memory": 96, "attention_dropout": 0.0} if "memory" in config.model else {})
        if config.model.get("max_length"):  # another network, with learned positions
            config.model.max_length = config.length
    if "memory" in config.model:
        if chosen.memory == "no":
            config.model.memory = 0
        elif chosen.reuse:
            config.model.reuse = chosen.reuse
    return config


def _check(chosen):
    """Refuses choices without effect."""
    if chosen.objective != "permutation" and (chosen.k != 6 or chosen.spans == "no"):
        raise UserError(f"k and spans are choices of objective=permutation, and objective is {chosen.objective!r}; "
                        "leave them out")
    if chosen.format != "stream_pair" and (chosen.bidirectional == "no" or chosen.reuse):
        raise UserError(f"bidirectional and reuse are choices of format=stream_pair, and format is {chosen.format!r}; "
                        "leave them out")
    if chosen.nsp == "yes" and not has_pair_label(chosen.format):
        raise UserError(f"nsp is 'yes', and examples of format {chosen.format!r} are no pairs; choose "
                        "format=stream_pair")
