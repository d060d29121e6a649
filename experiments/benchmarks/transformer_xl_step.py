"""The time of Transformer-XL's float32 training step, with and without memory, beside that of a causal Transformer of
the same size.

    python experiments/benchmarks/transformer_xl_step.py --rounds=20

All are lmrep's, and train on the same tokens, without dropout. The last lines are the ratios of the floating-point
operations of all matrix products. Relative positions add two products to those of a layer: W R, once for the batch, and
that of each query with the keys of its distances. A memory doubles the keys that a query is compared with, which it
masks; keys and values of the memory are computed again in each step. Steps alternate, each after an unmeasured one.
"""

import argparse

import numpy as np
from arguments import parse_flags
from timing import Row, alternate, print_table
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
    return ObjectiveSteps(objective, optimizers.build(optimizers.recipe("adamw"), objective.specs, 1000), [batch])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 4, "width": 256, "heads": 4, "length": 128, "memory": 128, "batch_size": 8,
                        "words": 8192, "rounds": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parse_flags(parser, layers=1, width=32, heads=1, length=16, memory=16, batch_size=2, words=1200, rounds=1)
    keep_memory()
    tokens = np.random.default_rng(0).integers(1000, o.words, (o.batch_size, o.length)).astype(np.int32)
    batch = lmrep_batch(tokens) | {"reset": np.zeros(o.batch_size, np.int32)}
    runs = {"": steps("transformer", o, batch, token_types=0), "none": steps("transformer_xl", o, batch),
            f"{o.memory}": steps("transformer_xl", o, batch, memory=o.memory)}
    seconds = alternate({name: run.run_to_end for name, run in runs.items()}, o.rounds, unmeasured=0, warm=True)
    first, first_seconds = runs.pop(""), seconds.pop("")
    print_table(("memory", "Transformer", "Transformer-XL"),
                [Row(name, first_seconds, others) for name, others in seconds.items()],
                f"{o.layers} layers of width {o.width}, {o.words:,} words, {o.batch_size} x {o.length}")
    for name, run in runs.items():
        print(f"memory {name}: {run.flops / 1e9:.1f} GFLOP, {run.flops / first.flops:.2f} of the Transformer's")


if __name__ == "__main__":
    main()
