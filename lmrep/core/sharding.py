"""Where arrays live: a mesh of named axes, and rules from logical axes to mesh axes.

A parameter's spec names the logical axis of each of its dimensions; `shard` names those of an
activation. The rules below say which mesh axis cuts a logical axis. They are the whole of the layout:
a new mesh is a new table, not a change in any model.
"""

import contextlib
import contextvars
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lmrep.core.params import Array, Tree, is_spec

Rules = Mapping[str, Any]  # logical axis -> mesh axis, several mesh axes, or None

AXES = ("data", "fsdp", "tensor")

# Logical axes that no rule names are replicated.
RULES: Rules = {
    "batch": ("data", "fsdp"),  # each row of a batch lives on one cell of data x fsdp
    "vocab": "tensor",  # rows of the token table, and the scores over the vocabulary
    "heads": "tensor",  # attention heads
    "mlp": "tensor",  # the feed-forward width
    "embed": "fsdp",  # the model width of a parameter: gathered just before it is used
}

_active: contextvars.ContextVar[tuple[Mesh, Rules] | None] = contextvars.ContextVar("layout", default=None)


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, devices: list | None = None) -> Mesh:
    """A mesh of data * fsdp * tensor devices, the first ones unless `devices` are given.

    Neighbouring devices share the `tensor` axis, then `fsdp`: the axes that talk most lie closest.
    """
    devices = devices or jax.devices()[: data * fsdp * tensor]
    return jax.make_mesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


@contextlib.contextmanager
def use_mesh(mesh: Mesh, rules: Rules = RULES) -> Iterator[Mesh]:
    """Runs a block on `mesh`, with `rules` deciding what `shard` means."""
    token = _active.set((mesh, rules))
    try:
        with jax.set_mesh(mesh):
            yield mesh
    finally:
        _active.reset(token)


def partition_spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh, rules: Rules = RULES) -> PartitionSpec:
    """The partition of an array of this shape whose dimensions have these logical axes.

    A dimension that its mesh axes do not divide stays whole: BERT's 30,522 rows on a `tensor` axis of 4, say.
    """
    cuts = (rules.get(axis) if axis else None for axis in axes)
    return PartitionSpec(*(cut if divides(mesh, cut, size) else None for cut, size in zip(cuts, shape, strict=True)))


def divides(mesh: Mesh, cut: str | tuple[str, ...] | None, size: int) -> bool:
    """Whether the mesh axes `cut` share out `size` evenly."""
    names = (cut,) if isinstance(cut, str) else cut or ()
    return size % math.prod(mesh.shape[name] for name in names) == 0


def shard(x: Array, *axes: str | None) -> Array:
    """Constrains an activation to the layout of its logical `axes`; the identity outside of `use_mesh`."""
    if (active := _active.get()) is None:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, *active))


def gather_params(params: Tree, specs: Tree) -> Tree:
    """Parameters as they are used: whole along `embed`, cut as before along all else.

    Said out loud so that the partitioner gathers a weight just before its product, and never moves the
    (larger) activation instead. The identity outside of `use_mesh`.
    """
    return jax.tree.map(
        lambda spec, x: shard(x, *(None if axis == "embed" else axis for axis in spec.axes)),
        specs, params, is_leaf=is_spec)


def shardings(specs: Tree, mesh: Mesh, rules: Rules = RULES) -> Tree:
    """The layout of each parameter, read off its logical axes."""
    return jax.tree.map(
        lambda s: NamedSharding(mesh, partition_spec(s.axes, s.shape, mesh, rules)), specs, is_leaf=is_spec)


def batch_sharding(mesh: Mesh, rules: Rules = RULES) -> NamedSharding:
    """The layout of anything whose leading axis is the batch."""
    return NamedSharding(mesh, PartitionSpec(rules["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())
