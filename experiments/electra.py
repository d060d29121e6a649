"""ELECTRA (Clark et al., 2020): a small generator fills in masked tokens, and the encoder detects which were replaced.

    lmrep train --config=experiments/electra.py:size=small,data=files --workdir=runs/electra-small \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

These are the recipes of the released code, all with 10,000 steps of warm-up: small, batches of 128 sequences of 128
tokens for a million steps at 5e-4; base, 256 of 512 for 766,000 at 2e-4; large, 2,048 of 512 for 400,000 at 2e-4.
small_plus, as released, has a generator as wide as the encoder and four million steps.

Cost: in the paper, about four days on a V100 (small). Expected: GLUE 79.9 (small), 85.1 (base) and 89.0 (large) on the
development sets after fine-tuning.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/electra.py:size=tiny --workdir=runs/electra-tiny

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
from lmrep.experiment.compose import choose, compose
from lmrep.experiment.config import StageConfig
from lmrep.objectives.replaced_token import TABLES, VARIANTS

# At 2e-3, the rate of other tiny recipes, or without bias correction, which makes the first steps several times longer,
# the discriminator stays at a constant: the encoder must learn which tokens fit together, not which ones are frequent.
TINY = {"learning_rate": 7e-4, "bias_correction": True}
GENERATOR = ("objective/generator", "objective/generator_head")
TWO_STAGES = (
    StageConfig(name="generator", fraction=0.5, objective={"weight": 0.0}),
    StageConfig(name="discriminator", fraction=0.5, objective={"generator_weight": 0.0},
                optimizer={"multipliers": {f"{path}/*": 0.0 for path in GENERATOR}},
                start={"encoder": GENERATOR[0]} | {path: path for path in GENERATOR}))


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choose(argument, {size: f"electra_{size}" for size in ("small", "small_plus", "base", "large")},
                    variant=("electra", (*VARIANTS, "two_stage", "bert")), tie=("all", tuple(TABLES)))
    if chosen.variant in ("two_stage", "bert") and chosen.tie != "all":
        raise UserError(f"tie is {chosen.tie!r}, and variant={chosen.variant} has no generator beside its encoder to "
                        "share embeddings with; leave tie out")
    recipe = chosen.recipe
    masked = chosen.objective == "replaced_token" and chosen.variant == "bert"
    two_stage = chosen.objective == "replaced_token" and chosen.variant == "two_stage"
    if masked:
        chosen.objective = "masked"
    if two_stage:
        recipe = recipe._replace(warmup=2 * recipe.warmup)  # each stage, of half the steps, has a schedule of its own
    config = compose(chosen, recipe)
    if masked:
        rate = recipe.fields.get("objective.rate", 0.15)
        config.objective.update({"rate": rate, "mask": 0.85, "keep": 0.15, "random": 0.0})
    elif two_stage:
        config.objective.update({"generator": 1.0, "tie": "none"})
        config.stages = tuple(map(asdict, TWO_STAGES))
    elif chosen.objective == "replaced_token":
        config.objective.update({"variant": chosen.variant, "tie": chosen.tie})
    if chosen.size == "tiny" and chosen.objective == "replaced_token" and chosen.optimizer == "bert":
        config.steps = 600
        config.optimizer.update(TINY)
        config.checkpoint.every = config.evaluation.every = 150
    return config
