"""Timing of programs that run in turn in one process, and its table, for the benchmarks beside this file."""

import os
import statistics
import time
from contextlib import suppress
from importlib import metadata

import jax
import jax.numpy as jnp

from lmrep.core.host import processor


def alternate(runs, rounds, unmeasured=1, warm=False):
    """{name: seconds of each round} of functions of the number of the round, which return when all is done.

    Rounds alternate; the first ones, `unmeasured`, do not count. With `warm`, each measured call follows one that is
    not, so that the caches hold the program's own data.
    """
    seconds = {name: [] for name in runs}
    for i in range(unmeasured + rounds):
        for name, run in runs.items():
            if warm:
                run(i)
            start = time.perf_counter()
            run(i)
            if i >= unmeasured:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def print_times(title, seconds):
    """Prints a line of the setting, and a table of medians, minima and their ratios to those of the first."""
    versions = []
    for package in ("jax", "torch", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    print(f"{title}; {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {', '.join(versions)}, "
          f"{time.strftime('%Y-%m-%d')}")
    width = max(map(len, seconds)) + 2
    print(f"{'':{width}}{'ms, median':>12}{'minimum':>10}{'ratios':>10}")
    first = next(iter(seconds.values()))
    for name, own in seconds.items():
        medians, minima = (f(own) / f(first) for f in (statistics.median, min))
        print(f"{name:{width}}{1000 * statistics.median(own):12.1f}{1000 * min(own):10.1f}{medians:10.2f}{minima:6.2f}")


def matrix_rate(n, i, o, repeats=30):
    """Floating-point operations per second of float32 products [n, i] x [i, o] in JAX, the fastest of `repeats`."""
    x, w = jnp.ones((n, i)), jnp.ones((i, o))
    product = jax.jit(jnp.matmul)
    return 2 * n * i * o / min(alternate({"": lambda _: product(x, w).block_until_ready()}, repeats)[""])
