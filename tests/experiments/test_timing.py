"""What the benchmarks of speed share."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments/benchmarks"


@pytest.mark.parametrize(("left", "right", "dimensions"), [
    ((3, 4), (4, 5), (((1,), (0,)), ((), ()))),
    ((2, 3, 4), (5, 2, 4), (((2,), (2,)), ((0,), (1,)))),
    ((2, 3, 4, 6), (4, 2, 5, 6, 3), (((2, 1), (0, 4)), ((3, 0), (3, 1)))),
    ((3,), (3,), (((0,), (0,)), ((), ()))),
])
def test_the_equation_of_a_product_is_that_of_dot_general(left, right, dimensions, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    timing = importlib.import_module("timing")
    x, y = (np.random.default_rng(0).normal(size=shape).astype(np.float32) for shape in (left, right))
    found = np.einsum(timing.einsum([(left, x.dtype), (right, y.dtype)], dimensions), x, y)
    np.testing.assert_allclose(found, jax.lax.dot_general(x, y, dimensions), rtol=1e-5, atol=1e-5)
