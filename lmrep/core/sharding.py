"""Sharding: a mesh of named axes, and rules that map logical axes to mesh axes.

A parameter's spec names the logical axis of each of its dimensions; `shard` names those of an activation. The rules say
over which mesh axes a logical axis is sharded. They define the layout completely: no model depends on the mesh.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, is_spec

Rules = Mapping[str, Any]  # logical axis -> mesh axis, several mesh axes, or None

AXES = ("data", "fsdp", "tensor")

# Logical axes without a rule are replicated.
RULES: Rules = {
    "batch": ("data", "fsdp"),  # each example is on one (data, fsdp) position
    "vocab": "tensor",  # the token embedding and the logits
    "heads": "tensor",  # attention heads
    "mlp": "tensor",  # the feed-forward width
    "embed": "fsdp",  # the model width of a parameter, which is gathered just before use
}

_active: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, devices: list | None = None) -> Mesh:
    """A mesh of data * fsdp * tensor devices, by default the first ones.

    Neighboring devices are along the `tensor` axis, then along `fsdp`: these axes communicate most. Slices of TPUs,
    between which the network is slow, are along `data`.

    Raises:
      UserError: the devices belong to several slices, whose number does not divide `data`.
    """
    devices = devices or jax.devices()[: data * fsdp * tensor]
    slices = len({slice_of(device) for device in devices})
    if slices == 1:
        return jax.make_mesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)
    if data % slices:
        raise UserError(f"mesh.data is {data}, and the devices are in {slices} slices; make it a multiple of {slices}, "
                        "so that only gradients are sent between slices")
    arranged = mesh_utils.create_hybrid_device_mesh((data // slices, fsdp, tensor), (slices, 1, 1), devices)
    return Mesh(arranged, AXES, axis_types=(AxisType.Auto,) * 3)


def slice_of(device: jax.Device) -> int:
    """The number of the TPU slice of a device; 0 for other devices."""
    return getattr(device, "slice_index", 0) or 0


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[Mesh]:
    """A context in which `shard` constrains arrays to `mesh` by RULES."""
    token = _active.set(mesh)
    try:
        with jax.set_mesh(mesh):
            yield mesh
    finally:
        _active.reset(token)


def platform(mesh: Mesh | AbstractMesh | None = None) -> str:
    """"cpu", "gpu" or "tpu": the devices of a mesh, by default of the active one. Without devices, JAX's default."""
    mesh = _active.get() if mesh is None else mesh
    return mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else jax.default_backend()


def partition_spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The PartitionSpec of an array with this shape and these logical axes.

    A dimension that its mesh axes do not divide is replicated, for example BERT's vocabulary of 30,522 on a `tensor`
    axis of 4.
    """
    mesh_axes = (RULES.get(axis) if axis else None for axis in axes)
    return PartitionSpec(*(names if divides(mesh, names, size) else None
                           for names, size in zip(mesh_axes, shape, strict=True)))


def divides(mesh: Mesh, mesh_axes: str | tuple[str, ...] | None, size: int) -> bool:
    """Whether the number of devices along the mesh axes divides `size`."""
    names = (mesh_axes,) if isinstance(mesh_axes, str) else mesh_axes or ()
    return size % math.prod(mesh.shape[name] for name in names) == 0


def shard(x: Array, *axes: str | None) -> Array:
    """Constrains an activation to the layout of its logical `axes`; the identity outside `use_mesh`."""
    if (mesh := _active.get()) is None:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, mesh))


def map_shards(f: Callable[..., Array], axes: Sequence[tuple[str | None, ...]], *arrays: Array) -> Array:
    """f(*arrays), run on each device with its shards: for kernels that the partitioner cannot split.

    Args:
      f: shards -> a shard of the result, whose shape and layout are those of the first array.
      axes: the logical axes of each array, as in `shard`. f must be independent along those that are sharded.
      *arrays: its arguments.
    """
    if (mesh := _active.get()) is None or mesh.size == 1:
        return f(*arrays)
    specs = tuple(partition_spec(names, x.shape, mesh) for names, x in zip(axes, arrays, strict=True))
    return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)(*arrays)


def gather_params(params: Tree, specs: Tree) -> Tree:
    """Parameters gathered along `embed`, and sharded as before along other axes.

    With this constraint the partitioner gathers a weight just before its product, and never the larger activation. The
    identity outside `use_mesh`.
    """
    return jax.tree.map(
        lambda spec, x: shard(x, *(None if axis == "embed" else axis for axis in spec.axes)),
        specs, params, is_leaf=is_spec)


def shardings(specs: Tree, mesh: Mesh) -> Tree:
    """The sharding of each parameter."""
    return jax.tree.map(
        lambda s: NamedSharding(mesh, partition_spec(s.axes, s.shape, mesh)), specs, is_leaf=is_spec)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose leading axis is the batch."""
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that every device holds completely."""
    return NamedSharding(mesh, PartitionSpec())
