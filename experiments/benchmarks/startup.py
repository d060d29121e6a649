"""Time from the command `lmrep train` to the end of the first step, with and without compiled programs on disk.

    pip install -e .
    python experiments/benchmarks/startup.py --rounds=3

`wall` is the time until metrics.jsonl has the line of the first training step; `cpu` is the processor time until then,
of all threads and processes, which depends less on other load of the machine. Both are the least of --rounds.
Importing, opening the prepared data, and the validation before training are included. `cold` is without any compiled
program, `warm` the same command again in another workdir. The data is Python's own documentation, which a first run
prepares; it is not counted. Every run is killed after its first step. For Linux.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGES = Path(__file__).parents[1]
SYSTEMS = {
    "quickstart": ("quickstart.py",),
    "bert_mini": ("bert.py:size=mini,data=python_docs,format=packed", "--config.stages=()", "--config.batch_size=16",
                  "--config.length=128", "--config.model.vocab=0", "--config.tokenizer.vocab_size=16000"),
}
POLL = 0.005  # seconds
TICKS = os.sysconf("SC_CLK_TCK")  # of processor time, per second


def cpu_seconds(session):
    """Of the living processes of a session, and of their children that have ended."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == session:
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def first_step_done(workdir):
    """Whether metrics.jsonl has the line of the first training step."""
    path = workdir / "metrics.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return any(line["split"] == "train" for line in map(json.loads, lines))


def measure(system, home, *flags):
    """(wall seconds, processor seconds) from the command to the end of the first step."""
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
            return time.perf_counter() - start, cpu_seconds(process.pid)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the run that is measured, too
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print("".join(f"{column:>12}" for column in ("system", "cache", "wall", "cpu")))
    for system in o.systems.split(","):
        home = Path(tempfile.mkdtemp(prefix="startup-"))
        try:
            measure(system, home, "--nocompilation_cache")  # prepares the data
            times = {"cold": [], "warm": []}
            for _ in range(o.rounds):
                shutil.rmtree(home / "data" / "compiled", ignore_errors=True)
                for results in times.values():
                    results.append(measure(system, home))
            for cache, results in times.items():
                wall, cpu = map(min, zip(*results, strict=True))
                print(f"{system:>12}{cache:>12}{wall:>10.1f} s{cpu:>10.1f} s", flush=True)
        finally:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
