"""The time of Transformer-XL's float32 training step, with and without memory, beside that of a causal Transformer of
the same size.

    python experiments/benchmarks/transformer_xl_step.py --rounds=20

All are lmrep's, and train on the same tokens, without dropout. The floor is the ratio of the floating-point operations
of all matrix products. Relative positions add two products to those of a layer: W R, once for the batch, and that of
each query with the keys of its distances. A memory doubles the keys that a query is compared with, which it masks; keys
and values of the memory are computed again in each step. Steps alternate, each after an unmeasured one.

Two cores of an AMD EPYC, at the highest priority beside other programs (load 23), jax 0.10.2, 2026-11-23, one of two
runs, whose ratios of minima were 1.04 and 1.10, and 1.32 and 1.35:

    4 layers of width 256, 4 heads, 8,192 words, 8 x 128
                                  ms, median   minimum   GFLOP   by median  by minimum   floor
    Transformer                        186.9     158.5    33.8        1.00        1.00    1.00
    Transformer-XL, no memory          200.3     165.4    34.9        1.07        1.04    1.03
    Transformer-XL, memory 128         251.0     209.0    40.7        1.34        1.32    1.20
"""

import argparse

import numpy as np
from timing import alternate, print_times
from training_steps import SPECIALS, ObjectiveSteps, lmrep_batch

from lmrep import optimizers
from lmrep.core.host import keep_memory
from lmrep.core.vocabulary import Vocabulary
from lmrep.models import MODELS
from lmrep.objectives import causal


def steps(name, o, batch, **fields):
    """Training of one network on one batch."""
    config = MODELS[name].config(vocab=o.words, layers=o.layers, width=o.width, heads=o.heads, mlp=4 * o.width,
                                 max_length=o.length, dropout=0.0, attention_dropout=0.0, activation="relu", **fields)
    vocabulary = Vocabulary(o.words, SPECIALS, np.ones(o.words, bool), np.ones(o.words, np.int64))
    objective = causal.build(causal.Config(), MODELS[name].build(config), vocabulary)
    return ObjectiveSteps(objective, optimizers.build(optimizers.recipes()["adamw"], objective.specs, 1000), [batch])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 4, "width": 256, "heads": 4, "length": 128, "memory": 128, "batch_size": 8,
                        "words": 8192, "rounds": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()
    keep_memory()
    tokens = np.random.default_rng(0).integers(1000, o.words, (o.batch_size, o.length)).astype(np.int32)
    batch = lmrep_batch(tokens) | {"reset": np.zeros(o.batch_size, np.int32)}
    runs = {"Transformer": steps("transformer", o, batch, token_types=0),
            "Transformer-XL, no memory": steps("transformer_xl", o, batch),
            f"Transformer-XL, memory {o.memory}": steps("transformer_xl", o, batch, memory=o.memory)}
    seconds = alternate({name: run.run_to_end for name, run in runs.items()}, o.rounds, unmeasured=0, warm=True)
    print_times(f"{o.layers} layers of width {o.width}, {o.heads} heads, {o.words:,} words, {o.batch_size} x "
                f"{o.length}", seconds)
    for name, run in runs.items():
        print(f"{name}: {run.flops / 1e9:.1f} GFLOP, floor {run.flops / runs['Transformer'].flops:.2f}")


if __name__ == "__main__":
    main()
