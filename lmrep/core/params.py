"""Parameters: a model declares a tree of `ParamSpec`s, from which everything else is derived.

A spec tree is a nested dict of `ParamSpec`; a parameter tree is the same nested dict with arrays as leaves.
Initialization, shapes, counts and shardings are read from the spec tree, so that they agree. A parameter's *path* is
its keys joined by slashes: `encoder/layers/attention/query/kernel`.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

Array = jax.Array
Tree = Any  # a nested dict; the types of its leaves are documented where it is used
Initializer = Callable[[Array, tuple[int, ...]], Array]


def normal(stddev: float = 0.02) -> Initializer:
    """Returns an initializer that draws from a Gaussian with mean 0."""
    return lambda key, shape: stddev * jax.random.normal(key, shape)


def truncated_normal(stddev: float = 0.02) -> Initializer:
    """Returns an initializer that draws from a Gaussian with mean 0, truncated at two standard deviations, as
    TensorFlow's `truncated_normal` does."""
    return lambda key, shape: stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape)


glorot_uniform = jax.nn.initializers.glorot_uniform()  # TensorFlow's default for matrices (Glorot and Bengio, 2010)
zeros, ones = jax.nn.initializers.zeros, jax.nn.initializers.ones


class ParamSpec(NamedTuple):
    """The shape, logical axes and initializer of one parameter."""

    shape: tuple[int, ...]  # the size of each dimension
    axes: tuple[str | None, ...]  # the logical axis of each dimension
    init: Initializer = normal()  # the initializer
    # for each dimension, the smallest block that a mesh axis may shard, such as an attention head's width; () if all
    # are 1
    blocks: tuple[int, ...] = ()


def is_spec(x: Any) -> bool:
    """Returns whether `x` is a leaf of a spec tree."""
    return isinstance(x, ParamSpec)


def init(specs: Tree, key: Array) -> Tree:
    """Draws float32 parameters. A parameter's key depends only on its path, so that adding a parameter does not change
    the initial values of the others."""

    def draw(path: str, spec: ParamSpec) -> Array:
        return spec.init(jax.random.fold_in(key, zlib.crc32(path.encode())), spec.shape)

    return map_paths(draw, specs)


def abstract(specs: Tree) -> Tree:
    """Returns the parameters as `jax.ShapeDtypeStruct`, without allocating memory."""
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float32), specs, is_leaf=is_spec)


def count(specs: Tree) -> int:
    """Returns the number of scalar parameters."""
    return sum(math.prod(s.shape) for s in jax.tree.leaves(specs, is_leaf=is_spec))


def stacked(specs: Tree, layers: int) -> Tree:
    """Specs of the same parameters for `layers` layers, stacked along a new leading axis `layers`."""

    def stack(spec: ParamSpec) -> ParamSpec:
        def draw(key, shape):
            return jax.vmap(lambda k: spec.init(k, spec.shape))(jax.random.split(key, layers))

        blocks = (1, *spec.blocks) if spec.blocks else ()
        return ParamSpec((layers, *spec.shape), ("layers", *spec.axes), draw, blocks)

    return jax.tree.map(stack, specs, is_leaf=is_spec)


def flatten(tree: Tree) -> dict[str, Any]:
    """Returns {path: leaf} of a spec tree or a parameter tree. Empty dicts are dropped."""
    return traverse_util.flatten_dict(tree, is_leaf=lambda _, x: is_spec(x), sep="/")


def unflatten(leaves: dict[str, Any]) -> Tree:
    """Returns the tree whose `flatten` is `leaves`."""
    return traverse_util.unflatten_dict(leaves, sep="/")


def is_under(path: str, prefix: str) -> bool:
    """Returns whether a path is `prefix` or below it; all paths are under ""."""
    return not prefix or path == prefix or path.startswith(prefix + "/")


def map_paths(f: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Applies `f(path, leaf, *rest_leaves)` to every leaf of a spec or parameter tree. Empty dicts are kept."""
    return jax.tree_util.tree_map_with_path(
        lambda keys, *leaves: f(jax.tree_util.keystr(keys, simple=True, separator="/"), *leaves),
        tree, *rest, is_leaf=is_spec)
