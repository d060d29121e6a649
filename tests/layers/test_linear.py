"""Dense layers."""

import jax.numpy as jnp
import numpy as np
import pytest

from lmrep.core import params as P
from lmrep.layers import linear
from tests import reference

SPECS = linear.specs(6, 4, ("embed", "mlp"))
PARAMS = reference.random_params(SPECS, seed=5)


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 5, 6)])
def test_acts_on_the_last_axis(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.testing.assert_allclose(linear.apply(PARAMS, x), x @ PARAMS["kernel"] + PARAMS["bias"], atol=1e-5)


def test_specs_name_shapes_and_axes():
    assert SPECS["kernel"].shape == (6, 4)
    assert SPECS["kernel"].axes == ("embed", "mlp")
    assert SPECS["bias"].axes == ("mlp",)
    assert P.count(SPECS) == 6 * 4 + 4


def test_computes_in_the_dtype_of_its_input():
    x = jnp.ones((2, 6), jnp.bfloat16)
    y = linear.apply(PARAMS, x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), linear.apply(PARAMS, x.astype(np.float32)), atol=0.02)
