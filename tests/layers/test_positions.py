"""Fixed sinusoids."""

import numpy as np
import pytest

from lmrep.layers.embedding import sinusoidal
from tests import reference


def test_formula():
    table = sinusoidal(40, 14)
    assert table.dtype == np.float32
    np.testing.assert_allclose(table, reference.sinusoids(40, 14), atol=1e-6)
    assert table[0].tolist() == [0, 1] * 7


def test_products_depend_on_the_distance_alone():
    table = sinusoidal(64, 32).astype(np.float64)
    products = table @ table.T
    for distance in (0, 1, 7, 30):
        np.testing.assert_allclose(np.diagonal(products, distance), products[0, distance], atol=1e-4)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="even width; got 7"):
        sinusoidal(4, 7)
