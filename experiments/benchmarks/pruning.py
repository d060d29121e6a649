"""What removing attention heads costs and saves: importance order against random orders, and the time of a step.

    python experiments/benchmarks/pruning.py runs/sst2-0 runs/sst2-1 runs/sst2-2

The workdirs are runs of one task that differ in their seed. --fraction of the heads of each are gated off: the least
important ones (`lmrep heads`), computed once and computed again after each 5 %, and --orders random choices. Training
steps of the first run with all heads and without the least important ones (`lmrep prune`) alternate on the same random
tokens; the table has medians and minima of wall time and of processor time, which depends less on other load.

BERT-mini of `downstream.py` (4 layers of 4 heads) fine-tuned on SST-2, three seeds, validation accuracy without 4
heads, with six random orders of each run; two cores of an Intel Xeon, jax 0.10.2, 2026-11-23:

    all heads 82.1, least important removed 81.3 (once or computed again), random removed 80.0

    a step, 32 x 64 tokens, load 2.9   wall ms, median  minimum  cpu ms, median  minimum
    all heads                                    233.2    224.3           420.1    409.3
    without 4 of 16                              209.0    201.9           378.7    368.6
"""

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import lmrep
from lmrep import optimizers
from lmrep.analysis import head_importance, heads, pruning
from lmrep.core.host import keep_memory, processor
from lmrep.core.params import count
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
        "all heads": score(()), "least important removed": score(heads.lowest(once, kept, number, 1)),
        "the same, computed again": score(exact[:number]), "random removed, mean": statistics.mean(scores),
        "random removed, lowest": min(scores), "random removed, highest": max(scores)}


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

    def run(self):
        """(wall time, processor time) of a step, in ms."""
        start = time.perf_counter(), time.process_time()
        self.state, metrics = self.step(self.state, self.batch)
        jax.block_until_ready((self.state, metrics))
        return 1000 * (time.perf_counter() - start[0]), 1000 * (time.process_time() - start[1])


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
    networks = {"all heads": Steps(run, batch), f"without {found.pruned_heads}": Steps(smaller, batch)}
    times = {name: [] for name in networks}
    for i in range(o.rounds + 1):
        for name, steps in networks.items():
            measured = steps.run()
            if i:  # the first step of each is not counted
                times[name].append(measured)
    print(f"\nA training step, {o.batch_size} sequences of {o.length} tokens, {o.rounds} rounds, alternating; "
          f"{count(run.params):,} and {count(smaller.params):,} parameters; {processor()}, jax {jax.__version__}, load "
          f"{os.getloadavg()[0]:.1f}")
    print(f"{'':32}{'wall ms, median':>16}{'minimum':>9}{'cpu ms, median':>16}{'minimum':>9}")
    for name, measured in times.items():
        columns = [(statistics.median(column), min(column)) for column in zip(*measured, strict=True)]
        print(f"{name:32}{columns[0][0]:16.1f}{columns[0][1]:9.1f}{columns[1][0]:16.1f}{columns[1][1]:9.1f}")
    full, pruned = (list(zip(*measured, strict=True)) for measured in times.values())
    ratios = [statistics.median(pruned[i]) / statistics.median(full[i]) for i in range(2)]
    print(f"ratio of the medians: wall {ratios[0]:.3f}, cpu {ratios[1]:.3f}")


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
    o = parser.parse_args()
    keep_memory()
    runs = [lmrep.load(workdir) for workdir in o.workdirs]
    time_steps(runs[0], o)
    found = []
    for run in runs:
        metric, scores = compare(run, o)
        found.append(scores)
        print(f"\n{run.directory.name}, {metric}, {o.fraction:.0%} of the heads")
        for name, value in scores.items():
            print(f"  {name:28}{value:.4f}", flush=True)
    print(f"\nmean of {len(found)} runs")
    for name in found[0]:
        values = [scores[name] for scores in found]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        print(f"  {name:28}{statistics.mean(values):.4f}{spread}")


if __name__ == "__main__":
    main()
