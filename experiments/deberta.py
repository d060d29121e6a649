"""DeBERTaV3 (He et al., 2023): ELECTRA with attention to relative positions apart from content, and a token table that
the generator alone trains.

    lmrep train --config=experiments/deberta.py:size=base,data=files --workdir=runs/deberta-base \\
        --config.data.files='/data/text/*.txt'

A generator of the same width and half the layers fills in masked tokens, and the encoder detects which were replaced.
15 % of the tokens are predicted, and all of these become [MASK]. Tokens are embedded by the generator's table, and in
the encoder by its sum with a second one, which starts at zero and gets the encoder's gradient alone
(gradient-disentangled embedding sharing, GDES). Positions are 256 buckets of distances to each side.

The networks, in fields of config.model, with all parameters of pretraining, which are those of the generator and both
tables too:

    size   layers  width  heads   mlp    vocab  dropout   parameters
    base       12    768     12  3072  128,100      0.1  326,447,461
    small       6    768     12  3072  128,100      0.1  262,656,613
    large      24   1024     16  4096  128,100      0.1  719,100,005

Cost: hours are not stated in the paper. Expected, on the development sets after fine-tuning: MNLI 90.6 and SQuAD 2.0
88.4 F1 (base), 91.8 and 91.5 (large).

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/deberta.py:size=tiny --workdir=runs/deberta-tiny

size=tiny sets steps=600, batch_size=32, length=64, vocab_size=2048, learning_rate=0.0007, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon:

    size       base small large; tiny: base scaled down for two cores
    tie        the token table of generator and encoder: gdes, tokens (one table with both gradients), none; or all
               embeddings
    model, objective, format, data, optimizer, mesh, init: as in bert.py

Networks, generators, sharing and masks were compared with the released code (rtd_base.json and others, rtd_task.py).
Batches, steps, rates, warm-up, betas, weight decay, clipping and the weight 50 of the detection loss are the paper's as
far as we know, and were not compared with it; the released script has batches of 256 and a rate of 1e-4 for a small
corpus, and the default of its weight is 10. Not as released: that code updates generator and encoder by two optimizers,
each with its own clipping; its generator decodes masks with absolute positions, as here with
--config.model.mask_decoder=2, and its detector reads the first vector too. The networks of version 2, which are masked
language models, are bert.py:model=deberta_v2_xlarge,format=full_sentences, with that decoder by the same field.
"""

from lmrep.experiment.pretraining import Paper, choices, finish, start

SIZES = {"base": "deberta_v3_base", "small": "deberta_v3_small", "large": "deberta_v3_large"}
PAPERS = (Paper("He et al., 2023", "160 GB of English text, that of version 2"),)
RATES = {"base": 6e-4, "small": 6e-4, "large": 3e-4}
GDES = {"gdes": "tokens"}  # objective.tie, with a second table in the encoder


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="replaced_token", format="full_sentences", optimizer="bert",
                     tie=("gdes", ("gdes", "tokens", "none", "all")))
    config = start(chosen)
    config.steps, config.batch_size, config.length, warmup = 500_000, 8192, 512, 10_000
    config.optimizer.learning_rate = RATES[chosen.published]
    if chosen.objective == "replaced_token":
        config.objective.update({
            "rate": 0.15, "mask": 1.0, "keep": 0.0, "random": 0.0, "with_replacement": False, "temperature": 1.0,
            "generator": 1.0, "generator_weight": 1.0, "weight": 50.0, "tie": GDES.get(chosen.tie, chosen.tie)})
        if "embedding_delta" in config.model:
            config.model.embedding_delta = chosen.tie == "gdes"
    if chosen.optimizer == "bert":  # Adam; biases and norms have no weight decay
        config.optimizer.update({"betas": (0.9, 0.98), "eps": 1e-6, "bias_correction": True, "weight_decay": 0.01,
                                 "clip": 1.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "warmup"})
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": warmup / config.steps})
    config = finish(config, chosen)
    if chosen.objective == "replaced_token":
        config.objective.generator_layers = max(1, config.model.get("layers", 2) // 2)
        if chosen.size == "tiny" and chosen.optimizer == "bert":  # as in electra.py
            config.steps, config.optimizer.learning_rate = 600, 7e-4
            config.checkpoint.every = config.evaluation.every = 150
    return config
