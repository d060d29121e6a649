"""The numbers with which papers fine-tune their networks: `recipe=NAME` on the pages of tasks.

A row is what a paper does on a data set; the row "" is for all others, and gives what another row leaves out. All have
linear decay and, where nothing else is said, a warm-up over the first tenth of the steps.
"""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]  # fields of a config by dotted path


def epochs(number: float, batch_size: int, rate: float, **more: Any) -> Row:
    """Passes over the training data. `more` are fields of the config, with __ for dots, or of its optimizer."""
    return {"epochs": float(number), "batch_size": batch_size, "optimizer.learning_rate": rate, **_fields(more)}


def steps(number: int, batch_size: int, rate: float, warmup: int, **more: Any) -> Row:
    """A number of steps, the first `warmup` of which raise the rate."""
    return {"steps": number, "batch_size": batch_size, "optimizer.learning_rate": rate,
            "optimizer.schedule.warmup": warmup, "optimizer.schedule.warmup_fraction": 0.0, **_fields(more)}


def _fields(more: Mapping[str, Any]) -> Row:
    return {name.replace("__", ".") if "__" in name or name == "length" else f"optimizer.{name}": value
            for name, value in more.items()}


BOTH_ORDERS = {"format.both_orders": True}
XLNET_SQUAD = {"length": 512, "eps": 1e-6, "layer_decay": 0.75, "layer_decay_of": "gradient"}

RECIPES: Mapping[str, Mapping[str, Row]] = {
    # Devlin et al., 2019 (2 to 4 epochs, batch 16 or 32, rate 5e-5, 3e-5 or 2e-5), with bias correction, whose absence
    # makes runs on small data sets fail (Zhang et al., 2021).
    "bert": {
        "": epochs(3, 32, 3e-5, bias_correction=True),
        "squad1": epochs(3, 32, 5e-5),
        "squad2": epochs(2, 48, 5e-5),
        "swag": epochs(3, 16, 2e-5),
    },
    # As released: without bias correction.
    "bert_released": {"": epochs(3, 32, 5e-5)},
    # Turc et al., 2019: the small networks.
    "bert_small": {"": epochs(4, 32, 3e-4, bias_correction=True)},
    # Mosbach et al., 2021: stable on small data sets.
    "mosbach": {"": epochs(20, 16, 2e-5, bias_correction=True)},
    # fairseq's configs; for other sets the paper's grid.
    "roberta": {
        "": epochs(10, 32, 1e-5, betas=(0.9, 0.98), weight_decay=0.1, clip=0.0, bias_correction=True, decay_skip=(),
                   optimizer__schedule__warmup_fraction=0.06),
        "mnli": steps(123_873, 32, 1e-5, warmup=7432),
        "qnli": steps(33_112, 32, 1e-5, warmup=1986),
        "qqp": steps(113_272, 32, 1e-5, warmup=28_318),
        "rte": steps(2036, 16, 2e-5, warmup=122),
        "sst2": steps(20_935, 32, 1e-5, warmup=1256),
        "mrpc": steps(2296, 16, 1e-5, warmup=137),
        "cola": steps(5336, 16, 1e-5, warmup=320),
        "stsb": steps(3598, 16, 2e-5, warmup=214),
    },
    # The released code: rates by layer, 10 epochs for the smallest sets.
    "electra": {
        "": epochs(3, 32, 1e-4, layer_decay=0.8),
        "rte": epochs(10, 32, 1e-4),
        "stsb": epochs(10, 32, 1e-4) | BOTH_ORDERS,
        "mrpc": BOTH_ORDERS,
        "squad1": epochs(2, 32, 1e-4, length=512),
        "squad2": epochs(2, 32, 1e-4, length=512),
    },
    "electra_large": {
        "": epochs(3, 32, 5e-5, layer_decay=0.9),
        "rte": epochs(10, 32, 5e-5),
        "stsb": epochs(10, 32, 5e-5) | BOTH_ORDERS,
        "mrpc": BOTH_ORDERS,
        "squad1": epochs(2, 32, 5e-5, length=512),
        "squad2": epochs(2, 32, 5e-5, length=512),
    },
    # run_glue.sh of google-research/albert, which gives steps for every set; and its run_squad.sh, with a warm-up over
    # a tenth.
    "albert": {
        "": {"batch_size": 32, "optimizer.learning_rate": 1e-5},
        "cola": steps(5336, 16, 1e-5, warmup=320),
        "stsb": steps(3598, 16, 2e-5, warmup=214),
        "sst2": steps(20_935, 32, 1e-5, warmup=1256),
        "mnli": steps(10_000, 128, 3e-5, warmup=1000),
        "qnli": steps(33_112, 32, 1e-5, warmup=1986),
        "qqp": steps(14_000, 128, 5e-5, warmup=1000),
        "rte": steps(800, 32, 3e-5, warmup=200),
        "mrpc": steps(800, 32, 2e-5, warmup=200),
        "squad1": {"batch_size": 48, "optimizer.learning_rate": 5e-5, "steps": 3649},
        "squad2": {"batch_size": 48, "optimizer.learning_rate": 3e-5, "steps": 8144},
    },
    # The README and the scripts of zihangdai/xlnet. For other sets, the rate and batch of most of them.
    "xlnet": {
        "": epochs(3, 32, 2e-5, weight_decay=0.0, bias_correction=True, eps=1e-8),
        "stsb": steps(1200, 32, 5e-5, warmup=120),
        "imdb": steps(4000, 32, 2e-5, warmup=500, length=512),
        "squad1": steps(8000, 48, 3e-5, warmup=1000, **XLNET_SQUAD),
        "squad2": steps(8000, 48, 3e-5, warmup=1000, **XLNET_SQUAD),
    },
    # The README of facebookresearch/SpanBERT.
    "spanbert": {
        "": epochs(10, 32, 2e-5, bias_correction=True),
        "squad1": epochs(4, 32, 2e-5, length=512),
        "squad2": epochs(4, 32, 2e-5, length=512),
    },
    # What is trained above frozen vectors, from random values: Adam as in Peters et al., 2017, whose gradients are
    # clipped at 5.
    "features": {"": epochs(20, 32, 1e-3, weight_decay=0.0, clip=5.0, bias_correction=True, eps=1e-8)},
    # The study of Raffel et al., 2019, of tasks as text to text.
    "t5": {"": steps(2**18, 128, 1e-3, warmup=0, name="adafactor", weight_decay=0.0, clip=0.0,
                     optimizer__schedule__name="constant")},
    # Radford et al., 2018. Their language-model loss needs a network that reads from left to right, and is a field of
    # the task: objective.auxiliary=0.5.
    "gpt": {"": epochs(3, 32, 6.25e-5, eps=1e-8, bias_correction=True, optimizer__schedule__warmup_fraction=0.002)},
}


def settings(recipe: str, known: str = "") -> Row:
    """The fields that a recipe sets for a data set."""
    rows = RECIPES[recipe]
    return {**rows[""], **rows.get(known, {})}


# The papers' grids, for `lmrep sweep --grid=NAME`: field -> values.
GRIDS: Mapping[str, Mapping[str, tuple]] = {
    "bert": {"batch_size": (16, 32), "optimizer.learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2.0, 3.0, 4.0)},
    "bert_small": {"batch_size": (8, 16, 32, 64, 128), "optimizer.learning_rate": (3e-4, 1e-4, 5e-5, 3e-5)},
    "roberta": {"batch_size": (16, 32), "optimizer.learning_rate": (1e-5, 2e-5, 3e-5)},
    "electra": {"optimizer.learning_rate": (3e-4, 1e-4, 5e-5)},
}
