"""Parameters as data: initialisation, counts and paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lmrep.core import params as P
from lmrep.core import prng
from lmrep.core.params import ParamSpec
from tests.chance import REJECT

KEY = jax.random.key(7)
SPECS = {
    "table": ParamSpec((6, 4), ("vocab", "embed")),
    "nothing": {},
    "block": {"kernel": ParamSpec((4, 3), ("embed", None)), "bias": ParamSpec((3,), (None,), P.zeros),
              "scale": ParamSpec((3,), (None,), P.ones)},
    "number": ParamSpec((), (), P.ones),
}


def same(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_parameter_depends_only_on_seed_and_path():
    params = P.init(SPECS, KEY)
    block = {"bias2": ParamSpec((9,), (None,)), **SPECS["block"]}
    more = {"a_first": ParamSpec((5,), (None,)), **SPECS, "block": block}
    larger = P.init(dict(reversed(more.items())), KEY)
    assert np.array_equal(larger["table"], params["table"])
    assert same({name: larger["block"][name] for name in params["block"]}, params["block"])
    assert np.array_equal(P.init({"table": SPECS["table"]}, KEY)["table"], params["table"])
    alike = {name: {other: SPECS["table"] for other in ("key", "yek", "out")} for name in ("one", "two", "eno")}
    drawn = P.flatten(P.init(alike | SPECS, KEY))
    assert len({drawn[path].tobytes() for path in [*P.flatten(alike), "table"]}) == 10
    assert not np.array_equal(P.init(SPECS, jax.random.key(8))["table"], params["table"])


def test_init_gives_float32_of_the_declared_shapes_and_constants():
    params = P.init(SPECS, KEY)
    assert jax.tree.structure(params) == jax.tree.structure(SPECS, is_leaf=P.is_spec)
    jax.tree.map(lambda s, x, a: (np.testing.assert_equal(x.shape, s.shape), np.testing.assert_equal(a.shape, s.shape),
                                  np.testing.assert_equal((x.dtype, a.dtype), (np.float32, np.float32))),
                 SPECS, params, P.abstract(SPECS), is_leaf=P.is_spec)
    assert (params["block"]["bias"] == 0).all()
    assert (params["block"]["scale"] == 1).all()
    assert params["number"] == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_normal_initializers_have_the_stated_distribution(seed):
    """A Kolmogorov-Smirnov test at p < 1e-4, which distinguishes the two and detects a deviation 3 % too large."""
    key, shape = jax.random.key(seed), (64, 1024)
    plain, cut = np.ravel(P.normal(0.5)(key, shape)), np.ravel(P.truncated_normal(0.5)(key, shape))
    assert stats.kstest(plain, stats.norm(0, 0.5).cdf).pvalue > REJECT
    assert stats.kstest(cut, stats.truncnorm(-2, 2, 0, 0.5).cdf).pvalue > REJECT
    assert np.abs(cut).max() <= 1.0  # two standard deviations
    assert np.abs(plain).max() > 1.0
    assert cut.std() == pytest.approx(0.5 * 0.8796, rel=0.01)  # TensorFlow's, whose std argument is that before the cut
    for planted in (plain, 1.03 * cut, cut + 0.02):
        assert stats.kstest(planted, stats.truncnorm(-2, 2, 0, 0.5).cdf).pvalue < REJECT


def test_stacked_layers_have_a_leading_axis_and_differ():
    stack = P.stacked(SPECS["block"], 3)
    assert stack["kernel"].shape == (3, 4, 3)
    assert stack["kernel"].axes == ("layers", "embed", None)
    params = P.init(stack, KEY)
    kernels = params["kernel"]
    assert all(not np.isclose(kernels[i], kernels[j]).any() for i in range(3) for j in range(i))
    assert (params["scale"] == 1).all()
    shallow = P.init(P.stacked(SPECS["block"], 2), KEY)
    assert np.array_equal(shallow["kernel"], kernels[:2])  # a deeper stack begins alike


def test_count_adds_up_scalars():
    assert P.count(SPECS) == 24 + 12 + 3 + 3 + 1
    assert P.count(P.stacked(SPECS, 5)) == 5 * P.count(SPECS)
    assert P.count({}) == P.count({"nothing": {}}) == 0
    assert P.count(SPECS) == sum(x.size for x in jax.tree.leaves(P.init(SPECS, KEY)))


def test_flatten_names_leaves_by_path_and_unflatten_inverts_it():
    leaves = P.flatten(SPECS)
    assert set(leaves) == {"table", "block/kernel", "block/bias", "block/scale", "number"}
    assert leaves["block/kernel"] is SPECS["block"]["kernel"]
    params = P.init({name: part for name, part in SPECS.items() if name != "nothing"}, KEY)
    assert same(P.unflatten(P.flatten(params)), params)
    assert P.flatten({}) == {}


def test_map_paths_keeps_structure_and_empty_dicts():
    paths = P.map_paths(lambda path, spec: path, SPECS)
    assert paths == {"table": "table", "nothing": {}, "number": "number",
                     "block": {name: f"block/{name}" for name in ("kernel", "bias", "scale")}}
    params = P.init(SPECS, KEY)
    doubled = P.map_paths(lambda path, x, y: x + y if path == "table" else x, params, params)
    assert np.array_equal(doubled["table"], 2 * params["table"])
    assert doubled["block"]["kernel"] is params["block"]["kernel"]
    assert P.map_paths(lambda path, x: x, {}) == {}


def test_split_of_no_key_gives_none():
    assert prng.split(None, 3) == (None,) * 3
    keys = prng.split(KEY, 3)
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == 3
    assert all(jnp.issubdtype(key.dtype, jax.dtypes.prng_key) for key in keys)
