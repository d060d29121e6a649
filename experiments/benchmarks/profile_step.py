"""Where the time of a training step goes: matrix products, and everything else by operation.

    python experiments/benchmarks/profile_step.py --system=electra_small

Runs a few float32 steps of `step.py`'s systems on random tokens under JAX's profiler. Operations of the compiled
program count as matrix products if they contain one, with whatever is fused to it. Durations are summed over the
operations, some of which run side by side.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

import jax
import numpy as np
from step import SYSTEMS, random_batches
from training_steps import LmrepSteps

from lmrep.core.host import keep_memory
from lmrep.planning.hlo import Program


def seconds_of_operations(run, steps):
    """{name of an operation: seconds in each of the steps that run() makes}."""
    found = Counter()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            for _ in range(steps):
                run()
        path = next(Path(directory).rglob("*.xplane.pb"))
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    if name := dict(event.stats).get("hlo_op"):
                        found[str(name)] += event.duration_ns / 1e9 / steps
    return found


def main():
    """Parses flags, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="electra_small", choices=SYSTEMS)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--top", type=int, default=20, help="operations to list")
    flags = parser.parse_args()
    keep_memory()
    batches, _ = random_batches(SYSTEMS[flags.system], np.random.default_rng(0))
    steps = LmrepSteps(SYSTEMS[flags.system], batches)

    def run():
        steps.run(0)
        steps.wait()

    program, times = Program(steps.text()), []
    for _ in range(2 + flags.steps):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    found = seconds_of_operations(run, flags.steps)
    operations = {operation.name: (operation, program.flops_of(computation, operation))
                  for computation, operation, _ in program.operations()}
    loops = {name for name, (operation, _) in operations.items() if operation.opcode in ("while", "call")}
    found = Counter({name: seconds for name, seconds in found.items() if name in operations and name not in loops})
    total = sum(found.values())
    products = sum(seconds for name, seconds in found.items() if operations[name][1])
    print(f"{flags.system}, float32, {time.strftime('%Y-%m-%d')}, jax {metadata.version('jax')}, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: a step takes {1e3 * min(times[2:]):.0f} ms, its "
          f"operations {1e3 * total:.0f} ms: matrix products {products / total:.0%}, others {1 - products / total:.0%}")
    print(f"{'ms':>8}  what is no matrix product")
    others = [(seconds, name) for name, seconds in found.most_common() if not operations[name][1]]
    for seconds, name in others[:flags.top]:
        operation = operations[name][0]
        print(f"{1e3 * seconds:8.1f}  {name} {operation.type.split('{')[0]}  {operation.source[-70:]}")
    print(f"{1e3 * sum(seconds for seconds, _ in others[flags.top:]):8.1f}  {len(others[flags.top:])} others")


if __name__ == "__main__":
    main()
