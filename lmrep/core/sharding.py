"""Sharding: a mesh of named axes, and rules that map logical axes to mesh axes.

A parameter's spec names the logical axis of each dimension; `shard` names the axes of an activation. The rules give the
mesh axes over which a logical axis is sharded. They define the layout completely: no model depends on the mesh.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, is_spec

Rules = Mapping[str, Any]  # logical axis -> mesh axis, several mesh axes, or None

AXES = ("data", "fsdp", "tensor")
SEQUENCE = "sequence"  # a fourth axis, of meshes that shard sequences

# A logical axis is replicated if its rule is None or names an axis that the mesh does not have.
RULES: Rules = {
    "batch": ("data", "fsdp"),  # each example is on one (data, fsdp) position
    "length": SEQUENCE,  # the positions of a sequence; attention gathers its keys and values
    "tokens": ("data", "fsdp", SEQUENCE),  # examples and positions as one dimension
    "vocab": "tensor",  # the token embedding and the logits
    "heads": "tensor",  # attention heads
    "mlp": "tensor",  # the feed-forward width
    "layers": None,  # the layers of a stack
    "embed": "fsdp",  # the model width of a parameter, which is gathered just before use
}

ROW_MAJOR = Layout(major_to_minor=(0, 1))
TILES = 1024  # a dimension that is a multiple of this has tiles for any number of chips of a TPU slice

_active: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


def axis_names(sizes: Sequence[int]) -> tuple[str, ...]:
    """Returns the names of the axes of a mesh with these sizes: three, or four with `sequence`."""
    return (*AXES, SEQUENCE)[: len(sizes)]


def describe_sizes(sizes: Sequence[int]) -> str:
    """Describes the sizes of a mesh for messages: "data x fsdp x tensor = 2 x 2 x 2"."""
    return f"{' x '.join(axis_names(sizes))} = {' x '.join(map(str, sizes))}"


def make_mesh(data: int = 1, fsdp: int = 1, tensor: int = 1, sequence: int = 1, devices: list | None = None) -> Mesh:
    """Makes a mesh of data * fsdp * tensor * sequence devices, by default the first ones. It has an axis `sequence`
    only if that size is above 1.

    Neighboring devices are along the `tensor` axis, then along `sequence` and `fsdp`: these axes communicate most.
    TPU slices, between which the network is slow, are along `data`.

    Raises:
      UserError: the devices belong to several slices, whose number does not divide `data`.
    """
    devices = devices or jax.devices()[: data * fsdp * tensor * sequence]
    slices = sorted({slice_of(device) for device in devices})
    if data % len(slices):
        raise UserError(f"mesh.data is {data}, and the devices are in {len(slices)} slices; make it a multiple of "
                        f"{len(slices)}, so that only gradients are sent between slices")
    slice_devices = [
        jax.make_mesh((data // len(slices), fsdp, sequence, tensor), ("data", "fsdp", SEQUENCE, "tensor"),
                      devices=[device for device in devices if slice_of(device) == index]).devices
        for index in slices]
    sizes = (data, fsdp, tensor) if sequence == 1 else (data, fsdp, tensor, sequence)
    return Mesh(np.concatenate(slice_devices).swapaxes(2, 3).reshape(sizes), axis_names(sizes),
                axis_types=(AxisType.Auto,) * len(sizes))


def abstract_mesh(sizes: Sequence[int]) -> AbstractMesh:
    """Makes a mesh of these sizes without devices."""
    return AbstractMesh(tuple(sizes), axis_names(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def slice_of(device: jax.Device) -> int:
    """Returns the number of the TPU slice of a device; 0 for other devices."""
    # On GPUs the attribute numbers hosts, over which parameters may be sharded.
    return 0 if getattr(device, "platform", "") == "gpu" else getattr(device, "slice_index", 0) or 0


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[Mesh]:
    """Makes `mesh` the active mesh within the context: `shard` constrains arrays to it by RULES."""
    token = _active.set(mesh)
    try:
        with jax.set_mesh(mesh):
            yield mesh
    finally:
        _active.reset(token)


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Removes the active mesh within the context: programs are traced as for one device, also inside `use_mesh`."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def platform(mesh: Mesh | AbstractMesh | None = None) -> str:
    """Returns the platform of a mesh's devices, by default of the active mesh: "cpu", "gpu" or "tpu". For a mesh
    without devices, and without a mesh, returns JAX's default."""
    mesh = _active.get() if mesh is None else mesh
    return mesh.devices.flat[0].platform if isinstance(mesh, Mesh) else jax.default_backend()


def partition_spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Returns the PartitionSpec of an array with this shape and these logical axes.

    If the mesh axes of a dimension do not divide its size, it is sharded along as many of the first ones as do, or
    along none, for example BERT's vocabulary of 30,522 on a `tensor` axis of 4.
    """
    return _spec(axes, shape, mesh, mesh.axis_names)


def _spec(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh, among: Sequence[str]) -> PartitionSpec:
    """Returns `partition_spec` restricted to the mesh axes `among`."""
    def dividing(rule: str | tuple[str, ...] | None, size: int) -> str | tuple[str, ...] | None:
        names = tuple(name for name in _names(rule) if name in among)
        while names and not divides(mesh, names, size):
            names = names[:-1]
        return names[0] if names and isinstance(rule, str) else names or None

    return PartitionSpec(*(dividing(RULES.get(axis), size) for axis, size in zip(axes, shape, strict=True)))


def divides(mesh: Mesh, mesh_axes: str | tuple[str, ...] | None, size: int) -> bool:
    """Returns whether the number of devices along the mesh axes divides `size`."""
    return size % math.prod(mesh.shape[name] for name in _names(mesh_axes)) == 0


def _names(*mesh_axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the names of the mesh axes in entries of a PartitionSpec."""
    return tuple(name for axes in mesh_axes for name in ((axes,) if isinstance(axes, str) else axes or ()))


def shard(x: Array, *axes: str | None) -> Array:
    """Constrains an activation to the layout of its logical `axes`; the identity outside `use_mesh`. Inside
    `map_examples`, constrains it along the axes that the partitioner splits."""
    if (mesh := _active.get()) is None:
        return x
    manual = jax.sharding.get_abstract_mesh().manual_axes
    spec = _spec(axes, x.shape, mesh, [name for name in mesh.axis_names if name not in manual])
    return x if manual and not any(spec) else jax.lax.with_sharding_constraint(x, spec)


def axis_size(name: str) -> int:
    """Returns the size of an axis of the active mesh; 1 if the mesh does not have it, and outside `use_mesh`."""
    mesh = _active.get()
    return 1 if mesh is None else mesh.shape.get(name, 1)


def gather(x: Array, axes: tuple[str | None, ...], name: str) -> Array:
    """Gathers an array of these logical axes along the axis `name`, and keeps it sharded along the others; the identity
    outside `use_mesh`."""
    return x if _active.get() is None else _gather(x, axes, name)


def _gathered(x: Array, axes: tuple[str | None, ...], name: str) -> Array:
    return shard(x, *(None if axis == name else axis for axis in axes))


_gather = jax.custom_vjp(_gathered, nondiff_argnums=(1, 2))
_gather.defvjp(lambda x, axes, name: (_gathered(x, axes, name), None),
               lambda axes, name, _, g: (shard(_gathered(g, axes, name), *axes),))


def gather_kernel(kernel: Array, axes: tuple[str | None, ...]) -> Array:
    """Gathers a kernel along `embed` by an all-gather that the partitioner cannot replace, unlike `gather`. The caller
    computes the gradient: see `sum_kernel_gradient`."""
    if (layout := _kernel_layout(axes, kernel.shape)) is None:
        return kernel
    mesh, manual, spec, at = layout
    return jax.shard_map(
        lambda shard: _all_gather(shard, spec[at], at), mesh=mesh, in_specs=spec,
        out_specs=PartitionSpec(*(None if i == at else names for i, names in enumerate(spec))),
        axis_names=manual, check_vma=False)(kernel)


def sum_kernel_gradient(
    product: Callable[[Array, Array], Array], x: Array, g: Array, axes: tuple[str | None, ...]
) -> Array:
    """Returns product(x, g), the gradient of a kernel of these logical axes, a sum over examples and positions. If the
    kernel is sharded along `embed`, each device sums over its examples, and one reduce-scatter adds these sums.

    The partitioner would emit an all-reduce of the complete gradient and a slice. XLA's GPU and TPU backends turn these
    into a reduce-scatter in some cases only (libtpu 0.0.42: on 4 chips of a v5e, not on 16).

    Args:
      product: (x, g) -> the gradient, summed over their leading axes.
      x: [b, ..., i], the input of the layer.
      g: [b, ..., o], the gradient of its output.
      axes: the logical axes of the kernel [i, o].
    """
    layout = _kernel_layout(axes, (x.shape[-1], g.shape[-1]))
    if layout is None or x.ndim not in (2, 3):
        return product(x, g)
    mesh, manual, spec, at = layout
    leading = _spec(("batch", "length")[: x.ndim - 1], x.shape[:-1], mesh, tuple(manual))
    summed = _names(*leading)
    if spec[at] not in summed:  # examples that the mesh does not divide
        return product(x, g)
    others = tuple(name for name in summed if name != spec[at])

    def of_shard(x: Array, g: Array) -> Array:
        scattered = _sum_scatter(product(x, g), spec[at], at)
        return jax.lax.psum(scattered, others) if others else scattered

    return jax.shard_map(of_shard, mesh=mesh, in_specs=(PartitionSpec(*leading, None),) * 2, out_specs=spec,
                         axis_names=manual, check_vma=False)(x, g)


def _all_gather(x: Array, name: str, at: int) -> Array:
    """Concatenates the shards x along the mesh axis `name` in the dimension `at`, inside a shard_map."""
    return jax.lax.all_gather(x, name, axis=at, tiled=True)


_all_gather = jax.custom_vjp(_all_gather, nondiff_argnums=(1, 2))
_all_gather.defvjp(lambda x, name, at: (_all_gather(x, name, at), None),
                   lambda name, at, _, g: (_sum_scatter(g, name, at),))


def _sum_scatter(x: Array, name: str, at: int) -> Array:
    """Sums x [i, o] over the mesh axis `name` inside a shard_map, and returns a shard along the dimension `at`.

    libtpu replaces a reduce-scatter by an all-reduce, which sends twice as much, if the tiles of the other dimension
    cannot be divided: for a table of BERT's 30,522 rows on 16 chips, but not of 30,720.
    """
    if platform() != "tpu":
        return jax.lax.psum_scatter(x, name, scatter_dimension=at, tiled=True)
    x = x if at == 0 else x.T
    size = x.shape[1]
    x = jnp.pad(x, ((0, 0), (0, -size % TILES if size > TILES else 0)))
    x = jax.lax.psum_scatter(with_layout_constraint(x, ROW_MAJOR), name, tiled=True)[:, :size]
    return x if at == 0 else x.T


def _kernel_layout(
    axes: tuple[str | None, ...], shape: tuple[int, ...]
) -> tuple[Mesh, set[str], PartitionSpec, int] | None:
    """Returns (the mesh, its axes without `tensor`, the kernel's layout along these, the dimension that is sharded
    along `embed`); None if no dimension is. The partitioner splits products along `tensor`."""
    mesh = _active.get()
    if mesh is None or "embed" not in axes or jax.sharding.get_abstract_mesh().manual_axes:
        return None
    manual = {name for name in mesh.axis_names if name != "tensor" or mesh.shape[name] == 1}
    spec, at = _spec(axes, shape, mesh, tuple(manual)), axes.index("embed")
    return None if spec[at] is None or mesh.shape[spec[at]] == 1 else (mesh, manual, spec, at)


def look_up(table: Array, ids: Array) -> Array:
    """Returns table[ids], [b, t, d], of a parameter [v, d] with the logical axes `vocab` and `embed`, and ids
    i32[b, t].

    If an fsdp axis shards the width, each device looks up its columns for the ids of all devices along the axis, and an
    all-to-all exchanges columns for examples. The table and its gradient, which are larger, are not sent.
    """
    mesh, axes = _active.get(), ("vocab", "embed")
    rows, columns = (None, None) if mesh is None else partition_spec(axes, table.shape, mesh)
    ids_spec = None if mesh is None else partition_spec(("batch", "length"), ids.shape, mesh)
    if columns is None or axis_size(columns) == 1 or columns not in (ids_spec[0] or ()):
        return jnp.take(gather(table, axes, "embed"), ids, axis=0)

    def of_shard(table: Array, ids: Array) -> Array:
        ids = jax.lax.all_gather(ids, columns, tiled=True)
        if rows is not None:
            ids -= jax.lax.axis_index(rows) * len(table)
            in_shard = (ids >= 0) & (ids < len(table))
        x = jnp.take(table, ids, axis=0, mode=None if rows is None else "clip")
        x = jax.lax.all_to_all(x if rows is None else jnp.where(in_shard[..., None], x, 0), columns, 0, 2, tiled=True)
        return x if rows is None else jax.lax.psum(x, rows)

    return jax.shard_map(of_shard, mesh=mesh, in_specs=(PartitionSpec(rows, columns), ids_spec),
                         out_specs=PartitionSpec(*ids_spec, None), check_vma=False)(table, ids)


def map_shards(f: Callable[..., Array], axes: Sequence[tuple[str | None, ...]], *arrays: Array) -> Array:
    """Returns f(*arrays), computed on each device with its shards, for kernels that the partitioner cannot split.

    Args:
      f: shards -> a shard of the result, which has the shape and the layout of the first array.
      axes: the logical axes of each array, as in `shard`. f must be independent along those that are sharded, or use
        `shard_start` and `gather_length`.
      *arrays: the arguments of f; None for an absent one.
    """
    if (mesh := _active.get()) is None or mesh.size == 1:
        return f(*arrays)
    specs = tuple(None if x is None else partition_spec(names, x.shape, mesh)
                  for names, x in zip(axes, arrays, strict=True))
    return jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=False)(*arrays)


def map_examples(
    f: Callable[..., Any], axes: Sequence[tuple[str | None, ...]], out: Any, *arrays: Array | None
) -> Any:
    """Returns f(*arrays), computed on each device with its examples and positions. The partitioner splits f along
    `tensor`.

    Parameters, which have an axis `embed`, are gathered along it before f. Their gradients are summed by one
    reduce-scatter after the backward pass of f, even if f has loops.

    Args:
      f: shards -> shards of the results. It must be independent for each example and position, or use `sum_shards`.
      axes: the logical axes of each array, as in `shard`.
      out: (i, n) for each result: its axes are the first n axes of the array number i.
      *arrays: the arguments of f; None for an absent one.
    """
    mesh = _active.get()
    if mesh is None or mesh.size == mesh.shape["tensor"]:
        return f(*arrays)
    manual = [name for name in mesh.axis_names if name != "tensor" or mesh.shape[name] == 1]
    specs = [None if x is None else _spec(names, x.shape, mesh, manual) for names, x in zip(axes, arrays, strict=True)]

    def run(*shards: Array | None) -> Any:
        return f(*(x if x is None or "embed" not in names or spec[(at := names.index("embed"))] is None
                   else _all_gather(x, spec[at], at)
                   for x, names, spec in zip(shards, axes, specs, strict=True)))

    return jax.shard_map(run, mesh=mesh, in_specs=tuple(specs), axis_names=set(manual), check_vma=False,
                         out_specs=tuple(PartitionSpec(*specs[i][:number]) for i, number in out))(*arrays)


def sum_shards(x: Array, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> Array:
    """Sums x over the devices that shard an array of these axes and this shape, inside `map_examples`."""
    mesh = _active.get()
    if mesh is None or mesh.size == mesh.shape["tensor"]:
        return x
    return jax.lax.psum(x, _names(*partition_spec(axes, shape, mesh)))


def shard_start(axes: tuple[str | None, ...], shape: tuple[int, ...]) -> tuple[int | Array, ...]:
    """Returns the index of a shard's first element in the array of this shape, inside `map_shards`."""
    if (mesh := _active.get()) is None or mesh.size == 1:
        return (0,) * len(shape)

    def start(size: int, names: str | tuple[str, ...] | None) -> int | Array:
        if names is None:
            return 0
        shards = math.prod(mesh.shape[name] for name in _names(names))
        return jax.lax.axis_index(names) * (size // shards)

    return tuple(start(size, names) for size, names in zip(shape, partition_spec(axes, shape, mesh), strict=True))


def gather_length(x: Array, length: int) -> Array:
    """Gathers all `length` positions of a shard [b, t, ...] inside `map_shards`. The gradient is scattered."""
    return x if x.shape[1] == length else jax.lax.all_gather(x, SEQUENCE, axis=1, tiled=True)


def gather_params(params: Tree, specs: Tree) -> Tree:
    """Gathers parameters along `embed` by `gather`.

    With this constraint the partitioner gathers a weight just before its product, and never the larger activation.
    """
    return jax.tree.map(lambda spec, x: gather(x, spec.axes, "embed"), specs, params, is_leaf=is_spec)


def gather_vectors(params: Tree, specs: Tree) -> Tree:
    """Gathers biases and scales as `gather_params`; `layers.linear` gathers kernels for each product."""
    return jax.tree.map(lambda spec, x: gather(x, spec.axes, "embed") if len(spec.shape) == 1 else x, specs, params,
                        is_leaf=is_spec)


def shardings(specs: Tree, mesh: Mesh) -> Tree:
    """Returns the sharding of each parameter."""
    return jax.tree.map(
        lambda s: NamedSharding(mesh, partition_spec(s.axes, s.shape, mesh)), specs, is_leaf=is_spec)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays whose leading axis is the batch."""
    return NamedSharding(mesh, PartitionSpec(RULES["batch"]))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device holds completely."""
    return NamedSharding(mesh, PartitionSpec())
