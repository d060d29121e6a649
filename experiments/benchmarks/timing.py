"""Timing of programs that run in turn in one process, and its table, for the benchmarks beside this file."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import NamedTuple

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


class Row(NamedTuple):
    """A row of `print_table`: the seconds of each round of two programs.

    Attributes:
      setting: what both programs run.
      seconds: of the rounds of the first program.
      others: of the rounds of the second one.
      work: how many times as many tokens a round of the first program has.
    """

    setting: str
    seconds: Sequence[float]
    others: Sequence[float]
    work: float = 1.0


def print_table(head, rows, *remarks):
    """Prints a table of the least times of two programs, with the ratio of their tokens per second, and the machine.

    Args:
      head: the names of the settings, of the first program and of the second one.
      rows: a `Row` for each setting.
      remarks: more about the setting.
    """
    print(f"\n| {' | '.join(head)} | ratio |\n| --- | --- | --- | --- |")
    for row in rows:
        least, other = min(row.seconds), min(row.others)
        print(f"| {row.setting} | {1000 * least:,.0f} ms | {1000 * other:,.0f} ms | {row.work * other / least:.2f} |")
    versions = []
    for package in ("jax", "torch", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{package} {metadata.version(package)}")
    print("\n" + "; ".join([f"minima of {len(rows[0].seconds)} rounds", *remarks, f"{processor()}, {os.cpu_count()} "
                            f"cores, load {os.getloadavg()[0]:.1f}", ", ".join(versions), time.strftime("%Y-%m-%d")]))


def products_alone(products, repeats=20):
    """Seconds of the matrix products of a program (`flops.Products`), each of them compiled and run alone, which
    estimates a floor of the program's time. Each shape takes the fastest of `repeats`."""
    times = Counter()
    for equation, number in products:
        operands = tuple((x.aval.shape, x.aval.dtype) for x in equation.invars)
        options = (equation.params[name] for name in ("dimension_numbers", "precision", "preferred_element_type"))
        times[operands, *options] += number
    seconds = 0.0
    for (operands, dimensions, precision, dtype), number in times.items():
        product = jax.jit(partial(jax.lax.dot_general, dimension_numbers=dimensions, precision=precision,
                                  preferred_element_type=dtype))
        run = partial(product, *(jnp.ones(*operand) for operand in operands))
        seconds += number * min(alternate({"": lambda _, run=run: run().block_until_ready()}, repeats)[""])
    return seconds


def matrix_rate(n, i, o, repeats=30):
    """Floating-point operations per second of float32 products [n, i] x [i, o] in JAX, the fastest of `repeats`."""
    x, w = jnp.ones((n, i)), jnp.ones((i, o))
    product = jax.jit(jnp.matmul)
    return 2 * n * i * o / min(alternate({"": lambda _: product(x, w).block_until_ready()}, repeats)[""])
