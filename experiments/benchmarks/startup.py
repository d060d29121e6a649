"""Time from the command `lmrep train` to the end of the first step, with and without compiled programs on disk.

    pip install -e .
    python experiments/benchmarks/startup.py --rounds=3

The time ends when metrics.jsonl has the line of the first training step. The table has the least of --rounds.
Importing, opening the prepared data, and the validation before training are included. A run has no compiled program on
disk first; then the same command runs again in another workdir. The data is Python's own documentation, which a first
run prepares; it is not counted. Every run is killed after its first step. For Linux.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from arguments import TEXT, parse_flags

from lmrep.core.host import processor

PAGES = Path(__file__).parents[1]
SYSTEMS = {
    "quick start": ("quickstart.py",),
    "BERT-mini, 16 sequences of 128 tokens": (
        "bert.py:size=mini,data=python_docs,format=packed", "--config.stages=()", "--config.batch_size=16",
        "--config.length=128", "--config.model.vocab=0", "--config.tokenizer.vocab_size=16000"),
}
POLL = 0.005  # seconds


def first_step_done(workdir):
    """Whether metrics.jsonl has the line of the first training step."""
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return any(line["split"] == "train" for line in map(json.loads, lines))


def measure(system, home, *flags):
    """Seconds from the command to the end of the first step."""
    page, *fields = SYSTEMS[system]
    workdir = Path(tempfile.mkdtemp(dir=home)) / "run"
    environment = os.environ | {"LMREP_DATA_DIR": str(home / "data")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-m", "lmrep", "train", f"--config={PAGES / page}", f"--workdir={workdir}", *fields,
               "--config.steps=100", "--config.log.every=1", *flags]
    with open(home / "output.txt", "w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            while not first_step_done(workdir):
                if process.poll() is not None:
                    sys.exit(f"it ended with code {process.returncode}: {' '.join(command)}\n"
                             + (home / "output.txt").read_text())
                time.sleep(POLL)
            return time.perf_counter() - start
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    o = parse_flags(parser, rounds=1)
    small = [f"--config.{name}={value}" for name, value in TEXT.items()] if o.tiny else []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the run that is measured, too
    print("| run | programs compiled before | not compiled |\n| --- | --- | --- |")
    for system in [*SYSTEMS][: 1 if o.tiny else None]:
        home = Path(tempfile.mkdtemp(prefix="startup-"))
        try:
            measure(system, home, "--nocompilation_cache", *small)  # prepares the data
            cold, warm = [], []
            for _ in range(o.rounds):
                shutil.rmtree(home / "data" / "compiled", ignore_errors=True)
                cold.append(measure(system, home, *small))
                warm.append(measure(system, home, *small))
            print(f"| {system} | {min(warm):.1f} s | {min(cold):.1f} s |", flush=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    print(f"\n{processor()}, {os.cpu_count()} cores, jax {metadata.version('jax')}, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
