"""ELECTRA (Clark et al., 2020): a small generator fills in hidden tokens, and the encoder tells which were replaced.

    lmrep train --config=experiments/electra.py:size=small,data=files --workdir=runs/electra-small \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

The recipes of the released code, all with 10,000 steps of warm-up: small, 128 rows of 128 tokens for a million steps at
5e-4, which takes about 4 days on a V100; base, 256 rows of 512 for 766,000 at 2e-4; large, 2,048 rows for 400,000 at
2e-4. After fine-tuning, the paper reports GLUE 79.9, 85.1 and 89.0 (development sets). small_plus, as released, has a
generator as wide as the encoder and four million steps.

In little, for a try of minutes on two cores, on the documentation that comes with Python:

    lmrep train --config=experiments/electra.py:size=tiny --workdir=runs/electra-tiny

Every part can be chosen after the colon, which makes each of the paper's ablations one flag:

    size       small small_plus base large; tiny (small's, of two layers, for a try on two cores)
    variant    electra; electra_15 (asked of the hidden tokens alone); replace_mlm and all_tokens_mlm (which word it
               was, at those or at all); two_stage (the generator, as wide as the encoder, is trained first, and the
               encoder starts from it); bert (no generator: masked language modelling with the same masks)
    tie        all, tokens, none: the tables that generator and encoder share
    format     doc_sentences, or any other
    data       python_docs, files, jsonl or parquet (give --config.data.files) or tfds (give --config.data.tfds_name)
    init       a workdir, or a directory in Hugging Face's layout: starts from its parameters
    optimizer  bert roberta lamb adafactor adamw, with the rates and warm-up of ELECTRA
    mesh       data, fsdp, or sizes data x fsdp x tensor as 2x2x2

The generator's width is --config.objective.generator, a share of the encoder's, its depth
--config.objective.generator_layers. The released data generation cuts nine rows of ten into two texts, with a token
type each and no question about them; here rows are of single texts, of which short ones share a row.
"""

from dataclasses import asdict

from lmrep.config.loading import parts
from lmrep.core.errors import UserError
from lmrep.data.formats import FORMATS
from lmrep.experiment.config import StageConfig, default_config, scale_down
from lmrep.interop.init_from import adopt_checkpoint
from lmrep.objectives.replaced_token import TABLES, VARIANTS
from lmrep.training.optimizers import RECIPES

CORPORA = {"python_docs": "python_docs", "files": "text_files", "jsonl": "jsonl", "parquet": "parquet", "tfds": "tfds"}
SIZES = {  # length, rows, steps, rate, generator's share of the width, share of tokens hidden
    "small": (128, 128, 1_000_000, 5e-4, 0.25, 0.15),
    "small_plus": (128, 128, 4_000_000, 5e-4, 1.0, 0.15),
    "base": (512, 256, 766_000, 2e-4, 1 / 3, 0.15),
    "large": (512, 2048, 400_000, 2e-4, 0.25, 0.25),
}
GENERATOR = ("objective/generator", "objective/generator_head")


def get_config(argument=""):
    """The config; `argument` chooses parts, as above."""
    chosen = parts(argument, size=("small", (*SIZES, "tiny")), variant=("electra", (*VARIANTS, "two_stage", "bert")),
                   tie=("all", tuple(TABLES)), format=("doc_sentences", tuple(FORMATS)),
                   data=("python_docs", tuple(CORPORA)), optimizer=("bert", tuple(RECIPES)), mesh="data", init="")
    if chosen.variant in ("two_stage", "bert") and chosen.tie != "all":
        raise UserError(f"tie is {chosen.tie!r}, and variant={chosen.variant} has no generator beside its encoder to share "
                        "tables with; leave tie out")
    objective = "masked" if chosen.variant == "bert" else "replaced_token"
    size = "small" if chosen.size == "tiny" else chosen.size
    config = default_config(f"electra_{size}", objective, chosen.format, chosen.optimizer, chosen.mesh)
    config.name = f"electra_{chosen.size}"
    config.length, config.batch_size, config.steps, rate, generator, hidden = SIZES[size]
    config.data.corpus = CORPORA[chosen.data]
    config.tokenizer.vocab_size = config.model.vocab
    config.objective.rate = hidden
    if chosen.variant == "bert":
        config.objective.update({"mask": 0.85, "keep": 0.15, "random": 0.0})
    elif chosen.variant == "two_stage":
        config.objective.update({"generator": 1.0, "tie": "none"})
        config.stages = (
            asdict(StageConfig(name="generator", fraction=0.5, objective={"weight": 0.0})),
            asdict(StageConfig(name="discriminator", fraction=0.5, objective={"generator_weight": 0.0},
                               optimizer={"multipliers": {f"{part}/*": 0.0 for part in GENERATOR}},
                               start={"encoder": GENERATOR[0]} | {part: part for part in GENERATOR})))
    else:
        config.objective.update({"variant": chosen.variant, "generator": generator, "tie": chosen.tie})
    config.optimizer.learning_rate = rate
    config.optimizer.schedule.update({"warmup": 10_000, "warmup_fraction": 0.0})
    if chosen.optimizer == "bert":
        config.optimizer.schedule.decay_from = "both"
    config.checkpoint.every = config.evaluation.every = 10_000
    if chosen.size == "tiny":
        scale_down(config)
    if chosen.init:
        adopt_checkpoint(config, chosen.init)
    config.samples = ("The [MASK] of a list is an integer.",)
    if chosen.variant != "bert":
        config.samples = ("The length of a list is an elephant.", *config.samples)
    return config
