"""ELECTRA (Clark et al., 2020): a small generator fills in masked tokens, and the encoder detects which were replaced.

    lmrep train --config=experiments/electra.py:size=small,data=files --workdir=runs/electra-small \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

These are the recipes of the released code, all with 10,000 steps of warm-up: small, batches of 128 sequences of 128
tokens for a million steps at 5e-4; base, 256 of 512 for 766,000 at 2e-4; large, 2,048 of 512 for 400,000 at 2e-4.
small_plus, as released, has a generator as wide as the encoder and four million steps. Otherwise the generator has a
quarter of the encoder's width (base: a third). 15 % of the tokens are predicted (large: 25 %): 85 % of them become
[MASK], 15 % stay. The discriminator's loss has weight 50.

The networks, in fields of config.model, with all parameters of pretraining:

    size        layers  width  embedding  heads   mlp   vocab  dropout   parameters
    small           12    256        128      4  1024  30,522      0.1   14,196,219
    small_plus      12    256        128      4  1024  30,522      0.1   23,122,875
    base            12    768        768     12  3072  30,522      0.1  119,386,427
    large           24   1024       1024     16  4096  30,522      0.1  354,655,291

Cost: in the paper, about four days on a V100 (small). Expected: GLUE 79.9 (small), 85.1 (base) and 89.0 (large) on the
development sets after fine-tuning.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/electra.py:size=tiny --workdir=runs/electra-tiny

size=tiny sets steps=600, batch_size=32, length=64, vocab_size=2048, learning_rate=0.0007, layers=2, width=128, mlp=512
and embedding=64.

After its 600 steps of 32 x 64 tokens the discriminator's loss is 0.368, and that of a constant 0.394; its accuracy is
86.68 % (a constant: 86.62 %), and it finds 3.1 % of the replaced tokens and takes 0.4 % of the others for replaced. The
generator's loss is 5.67 (predicting by frequency: 6.02). At a rate of 2e-3 without bias correction the discriminator
stays at its constant: 0.376 against 0.376 after 400 steps, and no token found. Of what was tried (500 steps or more,
on 512 validation examples), the rate decides; gains over the constant's loss, with the norm after the blocks as here:
1e-3, 0.005 (1,200 steps); 5e-4, 0.015; with bias correction 2e-3, 0.006 (250 steps); 5e-4, 0.024, at which the
generator does not beat frequencies. With the norm before the blocks, bias correction and 7e-4: 0.024, and no more after
1,000 steps, four epochs. A weight of 5 instead of 50 at 1e-3, or no clipping, makes no difference (one seed each).

Choices after the colon, which make each of the paper's ablations one flag:

    size       small small_plus base large; tiny: small scaled down for two cores
    variant    electra; electra_15 (predicts at the masked tokens only); replace_mlm and all_tokens_mlm (predict the
               original token, at those or at all); two_stage (the generator, as wide as the encoder, is trained first,
               and the encoder starts from it); bert (no generator: masked language modelling with the same masks)
    tie        the embeddings that generator and encoder share: all, tokens, none
    format     doc_sentences, or any other
    optimizer  bert roberta lamb adafactor adamw, with the rates and warm-up of ELECTRA
    model, objective (instead of variant), data, mesh, init: as in bert.py

The generator's width is --config.objective.generator, a fraction of the encoder's, its depth
--config.objective.generator_layers. The released data generation splits nine sequences of ten into two segments, with a
token type each and no prediction about them; here sequences are of single segments, and short ones share a sequence.
With data=python_docs, batches have at most 256 sequences.
"""

from dataclasses import asdict

from lmrep.core.errors import UserError
from lmrep.experiment.config import StageConfig
from lmrep.experiment.fine_tuning import Recipe, epochs
from lmrep.experiment.pretraining import Paper, choices, finish, start
from lmrep.objectives.replaced_token import SHARED, VARIANTS

SIZES = {size: f"electra_{size}" for size in ("small", "small_plus", "base", "large")}
PAPERS = (
    Paper("Clark et al., 2020", "the text of XLNet, 33 billion tokens", sizes=("small_plus", "large")),
    Paper("Clark et al., 2020", "BooksCorpus and English Wikipedia, 3.3 billion words"))
GENERATOR = ("objective/generator", "objective/generator_head")
TWO_STAGES = (
    StageConfig(name="generator", fraction=0.5, objective={"weight": 0.0}),
    StageConfig(name="discriminator", fraction=0.5, objective={"generator_weight": 0.0},
                optimizer={"multipliers": {f"{path}/*": 0.0 for path in GENERATOR}},
                start={"encoder": GENERATOR[0]} | {path: path for path in GENERATOR}))

BOTH_ORDERS = {"format.both_orders": True}
FINE_TUNING = {  # the released code: rates by layer, 10 epochs for the smallest sets
    "electra": Recipe({
        "": epochs(3, 32, 1e-4, layer_decay=0.8),
        "rte": epochs(10, 32, 1e-4),
        "stsb": epochs(10, 32, 1e-4) | BOTH_ORDERS,
        "mrpc": BOTH_ORDERS,
        "squad1": epochs(2, 32, 1e-4, length=512),
        "squad2": epochs(2, 32, 1e-4, length=512),
    }, grid={"optimizer.learning_rate": (3e-4, 1e-4, 5e-5)}),
    "electra_large": Recipe({
        "": epochs(3, 32, 5e-5, layer_decay=0.9),
        "rte": epochs(10, 32, 5e-5),
        "stsb": epochs(10, 32, 5e-5) | BOTH_ORDERS,
        "mrpc": BOTH_ORDERS,
        "squad1": epochs(2, 32, 5e-5, length=512),
        "squad2": epochs(2, 32, 5e-5, length=512),
    }),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="replaced_token", format="doc_sentences", optimizer="bert",
                     variant=("electra", (*VARIANTS, "two_stage", "bert")), tie=("all", tuple(SHARED)))
    if chosen.variant in ("two_stage", "bert") and chosen.tie != "all":
        raise UserError(f"tie is {chosen.tie!r}, and variant={chosen.variant} has no generator beside its encoder to "
                        "share embeddings with; leave tie out")
    masked = chosen.objective == "replaced_token" and chosen.variant == "bert"
    if masked:
        chosen.objective = "masked"
    config = start(chosen)
    config.steps, config.batch_size, config.length, config.optimizer.learning_rate, generator, rate = {
        "small": (1_000_000, 128, 128, 5e-4, 0.25, 0.15),
        "small_plus": (4_000_000, 128, 128, 5e-4, 1.0, 0.15),
        "base": (766_000, 256, 512, 2e-4, 1 / 3, 0.15),
        "large": (400_000, 2048, 512, 2e-4, 0.25, 0.25),
    }[chosen.published]
    warmup = 10_000
    if masked:
        config.objective.update({"rate": rate, "mask": 0.85, "keep": 0.15, "random": 0.0})
    elif chosen.objective == "replaced_token":
        config.objective.update({"generator": generator, "rate": rate, "mask": 0.85, "keep": 0.15, "random": 0.0,
                                 "temperature": 1.0, "generator_weight": 1.0, "weight": 50.0})
        if chosen.variant == "two_stage":
            config.objective.update({"generator": 1.0, "tie": "none"})
            config.stages = tuple(map(asdict, TWO_STAGES))
            warmup = 20_000  # 10,000 in each stage, which has half of the steps and its own schedule
        else:
            config.objective.update({"variant": chosen.variant, "tie": chosen.tie})
    if chosen.optimizer == "bert":  # Adam; biases and norms have no weight decay
        config.optimizer.update({"betas": (0.9, 0.999), "eps": 1e-6, "bias_correction": False, "weight_decay": 0.01,
                                 "clip": 1.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "both"})
    config.optimizer.schedule.update({"warmup": 0, "warmup_fraction": warmup / config.steps})
    config = finish(config, chosen)
    if chosen.size == "tiny" and chosen.objective == "replaced_token" and chosen.optimizer == "bert":
        # At 2e-3, the rate of other tiny recipes, or without bias correction, which makes the first steps several times
        # longer, the discriminator stays at a constant: the encoder must learn which tokens fit together, not which
        # ones are frequent.
        config.steps = 600
        config.optimizer.update({"learning_rate": 7e-4, "bias_correction": True})
        config.checkpoint.every = config.evaluation.every = 150
    return config
