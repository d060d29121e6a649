"""Time and memory of a float32 training step under each implementation of attention that runs on this machine.

    pip install -e .
    python experiments/benchmarks/attention.py
    python experiments/benchmarks/attention.py --system=gpt2 --lengths=1024,2048 --tokens=2048

A step is that of `lmrep train` without remat, on random tokens: --tokens of them in sequences of each length, with the
preset's dropout unless --no-dropout is given. Every setting runs in a process of its own. `step` is the shortest of
--rounds; `cpu` is the least processor time, which depends less on other load of the machine; `temporary` is what XLA
allocates for a step beside its arguments and results; `peak` is the largest resident memory of the process, and
`before` that with everything compiled and no step done. LMREP_KEEP_MEMORY=1 measures with the memory setting of that
name.

bert_mini, 4,096 tokens, with dropout, two cores of an Intel Xeon that other programs used too (wall times say nothing),
jax 0.10.2, 2026-11-22, minima of two to four steps:

    length  attention     cpu  temporary      peak
     4,096  xla        14.3 s   2,539 MB  3,808 MB
     4,096  chunked     6.7 s     566 MB  1,362 MB
     2,048  xla         3.9 s   1,520 MB  2,165 MB
     2,048  chunked     3.9 s     567 MB  1,327 MB
     1,024  xla         2.5 s   1,035 MB  1,731 MB
     1,024  chunked     2.6 s     565 MB  1,323 MB
       512  xla         2.1 s     753 MB  1,447 MB
       512  chunked     2.3 s     567 MB  1,052 MB
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace

import jax
import numpy as np
from training_steps import System, build, compiled_step, lmrep_batch

from lmrep.core.host import keep_memory, processor
from lmrep.layers.stack import Execution
from lmrep.models import PRESETS

OBJECTIVE = {"bert": "masked", "gpt2": "causal"}
COLUMNS = ("length", "sequences", "attention", "step ms", "cpu ms", "temporary MB", "before MB", "peak MB", "loss")


def peak_memory():
    """Megabytes that were resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(o):
    """The row of the table of one backend and length."""
    config = PRESETS[o.system].config
    rates = {} if o.dropout else {name: 0.0 for name in ("dropout", "attention_dropout", "mlp_dropout")}
    config = replace(config, max_length=max(config.max_length, o.length), **rates)
    sequences = max(1, o.tokens // o.length)
    system = System(config, OBJECTIVE[o.system.split("_")[0]], "adamw", sequences, o.length)
    tokens = np.random.default_rng(0).integers(1000, config.vocab, (sequences, o.length))
    data = lmrep_batch(tokens)
    current, compiled = compiled_step(*build(system, Execution(attention=o.attention)), data)
    before, times = peak_memory(), []
    for _ in range(o.rounds):
        start = time.perf_counter(), time.process_time()
        current, metrics = compiled(current, data)
        loss = float(metrics["loss"][0])
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    temporary = compiled.memory_analysis().temp_size_in_bytes / 1e6
    wall, processor = (round(1000 * min(column)) for column in zip(*times, strict=True))
    return (o.length, sequences, o.attention, wall, processor, round(temporary), round(before), round(peak_memory()),
            f"{loss:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="bert_mini", choices=[name for name in PRESETS if name.startswith(
        ("bert_", "gpt2"))])
    parser.add_argument("--lengths", default="128,512,2048,4096")
    parser.add_argument("--backends", default="xla,chunked")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-dropout", dest="dropout", action="store_false")
    parser.add_argument("--attention", help=argparse.SUPPRESS)  # of one process
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if os.environ.get("LMREP_KEEP_MEMORY") == "1":
        keep_memory()
    if o.attention:
        print(json.dumps(measure(o)))
        return
    print(f"{o.system}, {o.tokens} tokens, {processor()}, {os.cpu_count()} cores, jax "
          f"{jax.__version__}")
    print("  ".join(f"{column:>12}" for column in COLUMNS))
    for length in o.lengths.split(","):
        for backend in o.backends.split(","):
            command = [sys.executable, __file__, *sys.argv[1:], f"--attention={backend}", f"--length={length}"]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            print("  ".join(f"{value:>12}" for value in json.loads(printed.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
