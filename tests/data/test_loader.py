"""The order of the examples, and the batches of hosts and of resumed runs."""

import itertools
import pathlib
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lmrep.core.errors import RunFault
from lmrep.data.formats import plan
from lmrep.data.formats.packed import Packed
from lmrep.data.loader import batches, evaluation_batches
from lmrep.data.order import example_numbers


@pytest.fixture(scope="module")
def packed(random_store):
    return plan("packed", Packed(), random_store(0, 60), 32, 0)


def assert_same(ones, others):
    ones, others = list(ones), list(others)
    assert len(ones) == len(others)
    for one, other in zip(ones, others, strict=True):
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


# --- Order ---


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 17, 1000, 65537])
def test_every_epoch_shows_each_example_once(n):
    epochs = example_numbers(n, 5, np.arange(3 * n)).reshape(3, n)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(n), (3, 1)))
    if n > 10:
        assert len({epoch.tobytes() for epoch in epochs}) == 3


def test_a_position_has_its_example_whatever_else_is_requested():
    positions = np.arange(500)
    together = example_numbers(70, 3, positions)
    separate = [example_numbers(70, 3, positions[i : i + 1]) for i in positions]
    np.testing.assert_array_equal(np.concatenate(separate), together)
    np.testing.assert_array_equal(example_numbers(70, 3, positions.reshape(20, 25)), together.reshape(20, 25))
    assert (example_numbers(70, 4, positions) != together).any()
    assert (example_numbers(70, 4, positions[:70]) != together[70:140]).any()  # a seed does not continue another


def test_late_positions_in_large_plans():
    n = 5 * 10**9
    positions = 10**15 + np.arange(10_000)
    numbers = example_numbers(n, 0, positions)
    assert ((numbers >= 0) & (numbers < n)).all() and len(set(numbers.tolist())) == len(positions)
    assert stats.kstest(numbers / n, "uniform").pvalue > 1e-4


def test_a_thousand_hosts_show_each_example_once_in_the_order_of_one():
    """Each computes its own positions alone; `test_format_properties.py` reads the batches of some hosts."""
    hosts, share, steps = 1000, 8, 50
    n = hosts * share * steps
    positions = np.arange(n).reshape(steps, hosts, share)
    numbers = np.stack([example_numbers(n, 7, positions[:, host]) for host in range(hosts)], 1)
    np.testing.assert_array_equal(np.sort(numbers, None), np.arange(n))
    np.testing.assert_array_equal(numbers.ravel(), example_numbers(n, 7, np.arange(n)))


def orders_p(n, epochs, numbers):
    """p-value: all n! orders of an epoch are equally likely."""
    codes = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
    counts = np.bincount([codes[tuple(epoch)] for epoch in numbers.reshape(epochs, n).tolist()], minlength=len(codes))
    return stats.chisquare(counts).pvalue


@pytest.mark.slow
def test_all_orders_are_equally_likely():
    n, epochs = 5, 600
    assert orders_p(n, epochs, example_numbers(n, 1, np.arange(epochs * n))) > 1e-4


def test_orders_that_only_rotate_are_rejected():
    shift = np.random.default_rng(0).integers(0, 4, (1500, 1))
    assert orders_p(4, 1500, (np.arange(4) + shift) % 4) < 1e-4


def test_consecutive_examples_are_independent():
    n, seeds = 1009, 1500
    pairs = np.array([example_numbers(n, seed, np.array([n, n + 1])) for seed in range(seeds)])
    tenths = pairs * 10 // n
    expected = np.bincount(np.arange(n) * 10 // n) * seeds / n
    assert stats.chisquare(np.bincount(tenths[:, 0], minlength=10), expected).pvalue > 1e-4
    assert stats.chi2_contingency(np.histogram2d(*tenths.T, bins=10)[0]).pvalue > 1e-4
    tenths[: seeds // 5, 1] = tenths[: seeds // 5, 0]
    assert stats.chi2_contingency(np.histogram2d(*tenths.T, bins=10)[0]).pvalue < 1e-4


# --- Batches ---


def run_of(plan, indices=range(8), first=0, last=12, **options):
    return batches(plan, batch_size=8, indices=np.array(indices), seed=3, first_step=first, last_step=last, **options)


def test_batches_are_the_examples_in_order(packed):
    for step, batch in enumerate(run_of(packed)):
        numbers = example_numbers(packed.examples, 3, step * 8 + np.arange(8))
        assert_same([batch], [packed.gather(numbers)])
    assert step == 11


class Counting:
    """A plan that records the calls of `gather`."""

    def __init__(self, plan):
        self.plan, self.calls = plan, []

    def __getattr__(self, name):
        return getattr(self.plan, name)

    def gather(self, numbers, length=0):
        self.calls.append(numbers)
        return self.plan.gather(numbers)


class Failing(Counting):
    """A plan whose eighth batch fails."""

    def gather(self, numbers, length=0):
        return super().gather(numbers) if len(self.calls) < 7 else 1 / 0


def test_a_late_step_is_reached_without_a_replay(packed):
    counting = Counting(packed)
    iterator = run_of(counting, first=100_000, last=10**9, prefetch=4)
    next(iterator)
    iterator.close()
    assert len(counting.calls) <= 6


@pytest.mark.parametrize("ending", ["closed", "exhausted", "failed"])
def test_threads_end_with_the_iterator(ending, packed):
    before = set(threading.enumerate())
    iterator = run_of(Failing(packed) if ending == "failed" else packed, threads=3)
    next(iterator)
    workers = set(threading.enumerate()) - before
    assert len(workers) > 0
    caught = None  # keeps the frames of the failed run alive, as a debugger would
    if ending == "closed":
        iterator.close()
    else:
        try:
            list(iterator)
        except ZeroDivisionError as error:
            caught = error
    assert (caught is not None) == (ending == "failed")
    for thread in workers:
        thread.join(timeout=10)
        assert not thread.is_alive()


@pytest.mark.slow
def test_the_interpreter_can_exit_in_the_middle_of_a_run():
    code = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import conftest, numpy
from lmrep.data.formats import plan
from lmrep.data.formats.packed import Packed
from lmrep.data.loader import batches
packed = plan("packed", Packed(), conftest.random_store(0, 60), 32, 0)
run = batches(packed, batch_size=8, indices=numpy.arange(8), seed=0, first_step=0, last_step=10**9)
print(next(run)["tokens"].shape)
"""
    folder = str(pathlib.Path(__file__).parent)
    ended = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "(8, 32)\n", "")


# --- Evaluation ---


def test_a_plan_smaller_than_a_batch_is_evaluated(make_store):
    (batch,) = evaluation_batches(plan("packed", Packed(), make_store([[3]]), 8, 0), batch_size=4, indices=np.arange(4))
    np.testing.assert_array_equal(batch["example"], [0, -1, -1, -1])


# --- Errors ---


@pytest.mark.parametrize("wrong", [-1, 10**5])
def test_ids_outside_of_the_vocabulary_are_refused_and_the_example_is_named(packed, wrong):
    stream = packed.store.stream.copy()
    stream[packed.spans.starts[packed.spans.offsets[6]]] = wrong
    damaged = replace(packed, store=replace(packed.store, stream=stream))
    with pytest.raises(RunFault, match=rf"example 6 of the plan has ids .*{wrong}.*expected 0 to"):
        list(evaluation_batches(damaged, batch_size=8, indices=np.arange(8)))
    with pytest.raises(RunFault, match="example 6 "):
        list(run_of(damaged, last=packed.examples))
