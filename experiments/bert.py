"""BERT (Devlin et al., 2019): masked language modelling and next-sentence prediction on pairs of segments.

    lmrep train --config=experiments/bert.py:size=base,data=files --workdir=runs/bert-base \\
        --config.data.files='/data/books-and-wikipedia/*.txt' --config.data.documents=blank_line

This is the recipe of the released code: batches of 256 for a million steps, 90 % of them on 128 tokens and the rest on
512; ten passes over the text, each with its own pairs and static masks; Adam without bias correction at 1e-4 after
10,000 steps of warm-up, then linear to 0, with weight decay 0.01 but for biases and norms, and gradients clipped at 1.
15 % of the tokens are predicted: 80 % of them become [MASK], 10 % a random token, 10 % stay.

The networks, in fields of config.model, with all parameters of pretraining:

    size         layers  width  heads   mlp  max_length   vocab  dropout   parameters
    base             12    768     12  3072         512  30,522      0.1  110,106,428
    mini              4    256      4  1024         512  30,522      0.1   11,267,900
    small             4    512      8  2048         512  30,522      0.1   29,058,876
    medium            8    512      8  2048         512  30,522      0.1   41,668,412
    base_cased       12    768     12  3072         512  28,996      0.1  108,932,934
    large            24   1024     16  4096         512  30,522      0.1  336,226,108
    large_cased      24   1024     16  4096         512  28,996      0.1  334,661,958
    bert_tiny         2    128      2   512         512  30,522      0.1    4,433,468

Cost: in the paper, four days on 4 Cloud TPUs (base) or 16 (large). Expected: GLUE 79.6 (base) and 82.1 (large), test
averages after fine-tuning.

On two cores, in minutes, on the documentation that comes with Python:

    lmrep train --config=experiments/bert.py:size=tiny --workdir=runs/bert-tiny

size=tiny sets steps=400, batch_size=32, length=32 (64 at the end), vocab_size=2048, learning_rate=0.002, layers=2,
width=128, heads=4 and mlp=512.

Choices after the colon:

    size       base bert_tiny mini small medium base_cased large large_cased; tiny: scaled down for two cores
    model      any preset of lmrep.models.PRESETS or network of MODELS instead, such as roberta_base
    objective  masked, causal ("no NSP & LTR"), replaced_token, span_boundary
    format     segment_pair or sentence_pair (with next-sentence prediction), packed or any other (without)
    data       python_docs, files, jsonl or parquet (set --config.data.files), tfds (set --config.data.tfds_name)
    optimizer  bert roberta lamb adafactor adamw; lamb and adafactor with the rates of their papers, the others 1e-4
    mesh       data, fsdp, or sizes data x fsdp x tensor such as 2x2x2; 2x1x1x4: data x fsdp x tensor x sequence,
               which shards long sequences
    init       a workdir or a Hugging Face directory: starts from its parameters, network and tokenizer
"""

from dataclasses import asdict

from lmrep.experiment.config import StageConfig
from lmrep.experiment.fine_tuning import Recipe, epochs
from lmrep.experiment.pretraining import Paper, choices, finish, has_pair_label, start

SIZES = {size: f"bert_{size}" for size in ("base", "mini", "small", "medium", "base_cased", "large", "large_cased")}
SIZES["bert_tiny"] = "bert_tiny"
BOOKS_AND_WIKIPEDIA = "BooksCorpus and English Wikipedia, 3.3 billion words"
PAPERS = (
    Paper("Devlin et al., 2019, with the network of Turc et al., 2019", BOOKS_AND_WIKIPEDIA,
          sizes=("bert_tiny", "mini", "small", "medium")),
    Paper("Devlin et al., 2019", BOOKS_AND_WIKIPEDIA))

FINE_TUNING = {
    # 2 to 4 epochs, batches of 16 or 32, rates of 5e-5, 3e-5 or 2e-5 (Devlin et al., 2019), with bias correction, whose
    # absence makes runs on small data sets fail (Zhang et al., 2021).
    "bert": Recipe({
        "": epochs(3, 32, 3e-5, bias_correction=True),
        "squad1": epochs(3, 32, 5e-5),
        "squad2": epochs(2, 48, 5e-5),
        "swag": epochs(3, 16, 2e-5),
    }, grid={"batch_size": (16, 32), "optimizer.learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2.0, 3.0, 4.0)},
        network="bert_base", optimizer="bert"),
    # As released: without bias correction.
    "bert_released": Recipe({"": epochs(3, 32, 5e-5)}),
    # Turc et al., 2019: the small networks.
    "bert_small": Recipe({"": epochs(4, 32, 3e-4, bias_correction=True)}, grid={
        "batch_size": (8, 16, 32, 64, 128), "optimizer.learning_rate": (3e-4, 1e-4, 5e-5, 3e-5)}),
    # Mosbach et al., 2021: stable on small data sets.
    "mosbach": Recipe({"": epochs(20, 16, 2e-5, bias_correction=True)}),
}


def get_config(argument=""):
    """The config; `argument` makes the choices above."""
    chosen = choices(argument, SIZES, objective="masked", format="segment_pair", optimizer="bert")
    config = start(chosen)
    config.steps, config.batch_size, config.length = 1_000_000, 256, 128
    config.stages = (asdict(StageConfig(name="128", fraction=0.9)),
                     asdict(StageConfig(name="512", fraction=0.1, length=512)))
    config.format.duplicates = 10
    if chosen.format == "stream":
        config.format.isolate = True
    if chosen.objective == "masked":
        config.objective.update({"rate": 0.15, "mask": 0.8, "random": 0.1, "keep": 0.1, "masking": "static",
                                 "count": "round", "mask_specials": False, "random_specials": True})
    if "sentence_pair" in config.objective:
        config.objective.sentence_pair = has_pair_label(chosen.format)
    if chosen.optimizer == "bert":  # Adam; biases and norms have no weight decay
        config.optimizer.update({"learning_rate": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6, "bias_correction": False,
                                 "weight_decay": 0.01, "clip": 1.0})
        config.optimizer.schedule.update({"name": "linear", "decay_from": "start"})
    if chosen.optimizer == "lamb":
        config.optimizer.learning_rate = 1.76e-3  # ALBERT's, for 4,096 sequences
    if chosen.optimizer != "adafactor":  # which has its schedule too
        config.optimizer.schedule.warmup_fraction = 10_000 / 1_000_000
    return finish(config, chosen)
