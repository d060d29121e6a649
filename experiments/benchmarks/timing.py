"""Timing of programs that run in turn in one process, and its table, for the benchmarks beside this file."""

import os
import string
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
from lmrep.planning import flops


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


def describe_floor(products, repeats=20):
    """Says how many operations the matrix products of a program of lmrep have (`flops.Products`), and what they take
    alone, which estimates a floor of its time: by JAX, where each is compiled by itself, and by PyTorch. Each shape
    takes the fastest of `repeats`; a product is computed with its operands in the caches."""
    import torch

    times = Counter()
    for equation, number in products:
        operands = tuple((x.aval.shape, x.aval.dtype) for x in equation.invars)
        options = (equation.params[name] for name in ("dimension_numbers", "precision", "preferred_element_type"))
        times[operands, *options] += number
    seconds = Counter()
    for (operands, dimensions, precision, dtype), number in times.items():
        product = jax.jit(partial(jax.lax.dot_general, dimension_numbers=dimensions, precision=precision,
                                  preferred_element_type=dtype))
        arrays = [jnp.ones(*operand) for operand in operands]
        tensors = [torch.ones(shape) for shape, _ in operands]
        runs = {"JAX": lambda _, run=product, given=arrays: run(*given).block_until_ready(),
                "PyTorch": lambda _, run=einsum(operands, dimensions), given=tensors: torch.einsum(run, *given)}
        for library, taken in alternate(runs, repeats).items():
            seconds[library] += number * min(taken)
    return (f"{flops.total(products) / 1e9:.1f} GFLOP in matrix products, which alone take "
            + " and ".join(f"{1000 * taken:,.0f} ms by {library}" for library, taken in seconds.items()))


def einsum(operands, dimensions):
    """The equation of `einsum` for a product of `jax.lax.dot_general`, such as abc,acB->abB."""
    (contracted, other_contracted), (batch, other_batch) = dimensions
    left, right = ([*letters[:len(shape)]] for letters, (shape, _) in
                   zip((string.ascii_lowercase, string.ascii_uppercase), operands, strict=True))
    for i, j in zip((*contracted, *batch), (*other_contracted, *other_batch), strict=True):
        right[j] = left[i]
    shared = [left[i] for i in batch]
    rest = [letter for letter in left + right if (letter in left) != (letter in right)]
    return f"{''.join(left)},{''.join(right)}->{''.join(shared + rest)}"


def matrix_rate(n, i, o, repeats=30):
    """Floating-point operations per second of float32 products [n, i] x [i, o] in JAX, the fastest of `repeats`."""
    x, w = jnp.ones((n, i)), jnp.ones((i, o))
    product = jax.jit(jnp.matmul)
    return 2 * n * i * o / min(alternate({"": lambda _: product(x, w).block_until_ready()}, repeats)[""])
