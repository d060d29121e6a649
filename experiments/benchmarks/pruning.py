"""What removing attention heads costs and saves: importance order against random orders, and the time of a step.

    python experiments/benchmarks/pruning.py runs/sst2-0 runs/sst2-1 runs/sst2-2

The workdirs are runs of one task that differ in their seed. --fraction of the heads of each are gated off: the least
important ones (`lmrep heads`), computed once and computed again after each 5 %, and --orders random choices. It prints
a table of the mean validation metric, and the time of a training step of the first run without the least important
heads (`lmrep prune`), as a fraction of the time with all heads. These steps alternate on the same random tokens.
"""

import argparse
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from arguments import parse_flags
from timing import alternate

import lmrep
from lmrep import optimizers
from lmrep.analysis import head_importance, heads, pruning
from lmrep.core.host import keep_memory, processor
from lmrep.experiment.config import stage_at
from lmrep.training.state import TrainState, trainable
from lmrep.training.step import train_step


def compare(run, o):
    """{order: metric} of a run."""
    own = head_importance.gated(run, o.examples, o.validation_examples)
    kept, number = run.model.heads.kept(), int(sum(map(len, run.model.heads.kept())) * o.fraction)

    def score(removed):
        return own.score(heads.gates_without(removed, kept, run.model.heads.number))

    def importance(removed):
        return own.importance(heads.gates_without(removed, kept, run.model.heads.number))

    once = importance(())
    exact = next(removed for removed in heads.removals(importance, kept, 1, exact=True) if len(removed) >= number)
    shape = once.shape
    random = [heads.lowest(np.random.default_rng(seed).permutation(shape[0] * shape[1]).reshape(shape), kept, number, 1)
              for seed in range(o.orders)]
    scores = [score(removed) for removed in random]
    return own.metric, {
        "all": score(()), f"without the {number} least important": score(heads.lowest(once, kept, number, 1)),
        "the same, computed again after each 5 %": score(exact[:number]),
        f"without {number} random ones": statistics.mean(scores)}


class Steps:
    """Training steps of a run's network and task, from its parameters."""

    def __init__(self, run, batch):
        stage = stage_at(run.experiment, run.step)
        objective, self.batch = run.objective, batch
        optimizer = optimizers.build(stage.optimizer, objective.specs, run.experiment.steps)
        self.state = TrainState(jnp.int32(0), run.params, jax.jit(optimizer.init)(trainable(run.params)),
                                objective.carry(len(batch["tokens"])))
        step = partial(train_step, objective=objective, optimizer=optimizer, seed=0)
        self.step = jax.jit(step).lower(self.state, batch).compile()

    def run(self, _):
        """A step."""
        self.state, metrics = self.step(self.state, self.batch)
        jax.block_until_ready((self.state, metrics))


def random_batch(run, o):
    """A batch of random tokens without padding, for classification."""
    shape, ones = (o.batch_size, o.length), np.ones((o.batch_size, 1), np.int32)
    tokens = np.random.default_rng(0).integers(5, run.tokenizer.size, shape).astype(np.int32)
    return {"tokens": tokens, "segment_ids": np.ones_like(tokens), "token_type_ids": np.zeros_like(tokens),
            "positions": np.broadcast_to(np.arange(o.length, dtype=np.int32), shape),
            "example": np.arange(o.batch_size, dtype=np.int32),
            "unit": np.arange(o.batch_size, dtype=np.int32)[:, None],
            "first": 0 * ones, "last": (o.length - 1) * ones, "label": 0 * ones}


def time_steps(run, o):
    """Prints the time of steps with all heads and without the least important ones."""
    with tempfile.TemporaryDirectory() as home:
        removed = pruning.least_important(run, o.fraction, o.examples)
        found = pruning.prune(run, Path(home) / "pruned", removed)
        smaller = lmrep.load(Path(home) / "pruned")
    batch = random_batch(run, o)
    seconds = alternate({"all": Steps(run, batch).run, "pruned": Steps(smaller, batch).run}, o.rounds)
    ratio = statistics.median(seconds["pruned"]) / statistics.median(seconds["all"])
    print(f"\nA training step without {found.pruned_heads}, {o.batch_size} sequences of {o.length} tokens, takes "
          f"{ratio:.2f} of the time: medians of {o.rounds} rounds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdirs", nargs="+")
    parser.add_argument("--fraction", type=float, default=0.3)
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--validation_examples", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    o = parse_flags(parser, fraction=0.5, orders=1, examples=8, validation_examples=8, rounds=1, batch_size=2,
                    length=16)
    keep_memory()
    runs = [lmrep.load(workdir) for workdir in o.workdirs]
    found = []
    for run in runs:
        metric, scores = compare(run, o)
        found.append(scores)
        print(f"{run.directory.name}: {scores}", flush=True)
    print(f"\n| heads | {metric} |\n| --- | --- |")
    for name in found[0]:
        print(f"| {name} | {100 * statistics.mean(scores[name] for scores in found):.1f} |")
    time_steps(runs[0], o)
    print(f"{processor()}, jax {jax.__version__}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
