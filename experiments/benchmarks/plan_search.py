"""The step times of the settings that `lmrep plan --search` ranks, run on devices of the CPU.

    python experiments/benchmarks/plan_search.py --devices=4

The first choice should be faster than the median one. The settings run in turn, a step each, so that all see the same
load of the machine.
"""

import argparse
import os
import statistics
import time
from functools import partial
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from lmrep.core.host import keep_memory
from lmrep.core.sharding import make_mesh, use_mesh
from lmrep.experiment import config as experiments
from lmrep.experiment import shapes
from lmrep.interop.checkpoint_config import load_config
from lmrep.planning import hardware, search
from lmrep.planning.table import duration, markdown
from lmrep.training.state import create, layout
from lmrep.training.step import compiled_train_step


def stepper(choice, devices):
    """A function that runs a training step of a choice, on random tokens, and returns its seconds."""
    mesh = make_mesh(*experiments.check_mesh(choice.experiment, devices))
    one = shapes.without_data(choice.experiment, None, mesh)[0]
    stage, random = one.stage, np.random.default_rng(0)
    batch = {name: jax.device_put(random.integers(0, 2, x.shape).astype(x.dtype), x.sharding)
             for name, x in shapes.batch(one, mesh).items()}
    with use_mesh(mesh):
        states = [jax.jit(partial(create, stage.objective, stage.optimizer, stage.batch_size, 0),
                          out_shardings=layout(stage.objective, stage.optimizer, stage.batch_size, mesh))()]
        step = compiled_train_step(stage.objective, stage.optimizer, mesh, stage.batch_size, 0, stage.microbatches)
        step = step.lower(states[0], batch).compile()

    def run():
        began = time.perf_counter()
        states[0], metrics = step(states[0], batch)
        jax.block_until_ready((states[0], metrics))
        return time.perf_counter() - began

    return run


def main():
    """Searches, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32)
    flags = parser.parse_args()
    keep_memory()
    jax.config.update("jax_num_cpu_devices", flags.devices)
    config = load_config(str(Path(__file__).parents[1] / "bert.py"), "model=bert_mini", [
        ("stages", "()"), ("batch_size", str(flags.batch_size)), ("length", "128")])
    choices = search.search(config, hardware.find(f"cpu:{flags.devices}"), flags.candidates)
    steps = [stepper(choice, flags.devices) for choice in choices]
    seconds = [[step() for step in steps] for _ in range(1 + flags.rounds)][1:]
    measured = [min(times) for times in zip(*seconds, strict=True)]
    print(f"{flags.devices} devices of {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, "
          f"jax {metadata.version('jax')}, load {os.getloadavg()[0]:.1f}\n")
    print(markdown(["choice", "at least", "measured, fastest of the rounds"]), markdown(["---"] * 3), sep="\n")
    for choice, own in zip(choices, measured, strict=True):
        print(markdown([choice.flags.replace("--config.", ""), duration(choice.plans[0].seconds), duration(own)]))
    median = statistics.median(measured)
    print(f"\nfirst {duration(measured[0])}, median {duration(median)}: {median / measured[0]:.2f} times")


if __name__ == "__main__":
    main()
