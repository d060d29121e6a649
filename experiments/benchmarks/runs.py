"""What benchmarks that train several runs share: running lmrep, reading the metrics of runs, tables of means."""

import json
import math
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from scipy import stats

from lmrep.core.host import processor


def run_lmrep(log, *words):
    """Runs a command of lmrep, with its output at the end of a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf8") as file:
        code = subprocess.run([sys.executable, "-m", "lmrep", *words], stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        raise SystemExit(f"lmrep {' '.join(words)}\nended with code {code}; see {log}")


def lines(file, split):
    """The lines of one split in a file of metrics or of times."""
    return [line for line in map(json.loads, file.read_text(encoding="utf8").splitlines()) if line["split"] == split]


def best(run, metric):
    """The largest value of a metric in the validations of a run, after the one before training."""
    return max(line[metric] for line in lines(run / "metrics.jsonl", "validation") if line["step"] > 0)


def mean_and_deviation(values):
    """(mean, standard deviation), of the seeds of a table's row."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def paired_interval(values, others):
    """(mean, lower end, upper end) of values - others, at 95 %, by Student's t over the pairs of runs of one seed."""
    differences = [own - other for own, other in zip(values, others, strict=True)]
    (mean, deviation), n = mean_and_deviation(differences), len(differences)
    half = stats.t.ppf(0.975, n - 1) * deviation / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def write_table(workdir, table, remark, file="table.md"):
    """Prints the lines of a table, and writes them to a file in WORKDIR with a remark, the machine and the versions."""
    text = "\n".join([*table, "", f"{remark}; {processor()}, {time.strftime('%Y-%m-%d')}, "
                                  f"jax {metadata.version('jax')}"])
    (Path(workdir) / file).write_text(text + "\n", encoding="utf8")
    print("\n" + text)
