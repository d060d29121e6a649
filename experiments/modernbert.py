"""ModernBERT (Warner et al., 2024): masked language modelling with rotary positions, local attention and long texts.

    lmrep train --config=experiments/modernbert.py:size=base,data=files --workdir=runs/modernbert-base \\
        --config.data.files='/data/web-and-code/*.jsonl.gz'

30 % of the tokens are predicted, of documents that are packed into sequences of 1,024; StableAdamW; a warm-up of 3
billion tokens (large: 2) to a rate of 8e-4 (5e-4), which then stays. Two further phases, each of which starts from the
run before by init=, have sequences of 8,192 and global layers with rotary positions of base 160,000: 250 billion tokens
at 3e-4 (5e-5), and 50 billion in which the rate falls to 0 as 1 - sqrt.

Every third layer, from the first on, attends to all positions, the others to 64 on either side. The networks, in fields
of config.model, with all parameters of pretraining:

    size   layers  width  heads   mlp  max_length   vocab  dropout   parameters
    base       22    768     12  1152        8192  50,368      0.0  149,655,232
    large      28   1024     16  2624        8192  50,368      0.0  395,881,664

Cost: in the paper, on 8 H100s, base 194 hours for the 1.7 trillion tokens of the first phase, 40 and 12 for the others;
large 425, 81 and 22. Expected, on the development sets after fine-tuning: GLUE 88.4 (base) and 90.4 (large).

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/modernbert.py:size=tiny --workdir=runs/modernbert-tiny

size=tiny sets steps=400, batch_size=32, length=64, vocab_size=2048, learning_rate=0.002, layers=2, width=128, heads=4
and mlp=512.

Choices after the colon:

    size       base large; tiny: base scaled down for two cores
    phase      pretraining, extension, decay; the latter two with init=, a run of the phase before
    objective  causal: the same network from left to right, as Ettin's decoders (Weller et al., 2025)
    model, objective, format, data, optimizer, mesh, init: as in bert.py

Tokens are masked 80/10/10, and 15 % of them in validation, as in the released code. Weight decay takes 1e-5 of a
parameter in a step at the peak of the rate. Batches grow for 50 billion tokens (large: 10) to the size that is set
here, in stages of as many steps. Not as in the paper: they grow by 768 sequences (448), where the paper's grow by one;
there is a dropout of 0.1 after attention; large starts from base's layers, and goes on at 5e-5 after 900 billion
tokens. Rates, warm-ups and the tokens of the first phase were compared with the paper. Batch sizes, the first
ones too, betas, the later phases, hours and GLUE were not.
"""

from dataclasses import asdict

from lmrep.experiment.pretraining import Paper, choices, finish, start
from lmrep.experiment.record import StageConfig

SIZES = {"base": "modernbert_base", "large": "modernbert_large"}
PAPERS = (Paper("Warner et al., 2024", "2 trillion tokens of English web text, code and papers"),)
BILLION = 10**9
PHASES = {  # size -> phase -> (tokens in billions, sequences in a batch, length, peak rate, warm-up in billions)
    "base": {"pretraining": (1719, 4608, 1024, 8e-4, 3), "extension": (250, 72, 8192, 3e-4, 0),
             "decay": (50, 72, 8192, 3e-4, 0)},
    "large": {"pretraining": (1719, 4928, 1024, 5e-4, 2), "extension": (250, 77, 8192, 5e-5, 0),
              "decay": (50, 78, 8192, 5e-5, 0)},
}


RAMPS = {"base": (768, 50), "large": (448, 10)}  # first batch, tokens in billions until it is full


def growing(first, billions, full, length, tokens, warmup):
    """Batches that grow by `first` sequences at a time to `full`, each for as many steps: (stages, steps, warm-up in
    steps). Tokens and warm-up are in billions."""
    sizes = range(first, full + 1, first) if first else ()
    each = billions * BILLION // (length * sum(sizes)) if sizes else 0
    steps = each * len(sizes) + (tokens - billions) * BILLION // (full * length)
    warm, left = 0.0, warmup * BILLION / length
    for size in sizes:
        warm, left = warm + min(each, left / size), max(left - each * size, 0.0)
    stages = [StageConfig(f"batch {size}", each / steps, batch_size=size) for size in sizes[:-1]]
    last = [StageConfig(f"batch {full}", 1 - len(stages) * each / steps)] if stages else []
    return tuple(map(asdict, stages + last)), steps, round(warm + left / full)


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="masked", format="packed", optimizer="stable_adamw",
                     phase=("pretraining", tuple(PHASES["base"])))
    config = start(chosen)
    tokens, config.batch_size, config.length, rate, warmup = PHASES[chosen.published][chosen.phase]
    ramp = RAMPS[chosen.published] if chosen.phase == "pretraining" else (0, 0)
    stages, config.steps, config.optimizer.schedule.warmup = growing(*ramp, config.batch_size, config.length, tokens,
                                                                     warmup)
    if chosen.objective == "masked":
        config.objective.update({"rate": 0.3, "mask": 0.8, "random": 0.1, "keep": 0.1, "masking": "dynamic",
                                 "evaluation_rate": 0.15})
    if chosen.objective == "causal":
        config.objective.head = "transform"
    if chosen.phase == "pretraining" and config.model.get("rotary_base"):
        config.model.rotary_base = 10_000.0  # of global layers too
    if chosen.optimizer == "stable_adamw":
        config.optimizer.update({"learning_rate": rate, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 1e-5 / rate})
        config.optimizer.schedule.update({"name": "warmup_stable_decay", "cooldown": "sqrt",
                                          "cooldown_fraction": 1.0 if chosen.phase == "decay" else 0.0})
    config.optimizer.schedule.warmup_fraction = 0.0
    full = config.batch_size
    finish(config, chosen)
    if config.batch_size == full:  # small data and size=tiny have smaller batches, which do not grow
        config.stages = stages
    if chosen.size == "tiny" and chosen.optimizer == "stable_adamw":  # which ends with this phase
        config.optimizer.schedule.cooldown_fraction = 0.1
    return config
