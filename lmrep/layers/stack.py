"""A stack of identical layers: scanned or unrolled, with or without rematerialisation and shared parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import gather_vectors, platform
from lmrep.layers.attention_backends import ATTENTION, AUTO

SCANNED = 24  # layers from which GPUs and TPUs scan: unrolled, BERT-large is compiled for minutes

# What the backward pass saves of a layer; the rest is recomputed.
REMAT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclass(frozen=True)
class Execution:
    """How a stack is run. Fields change results by rounding only."""

    dtype: str = setting("float32", "compute dtype; parameters are float32 always", choices=("float32", "bfloat16"))
    remat: str = setting("none", "what the backward pass recomputes: nothing; all but matrix products; all",
                         choices=tuple(REMAT))
    scan: bool | None = setting(None, "scan over layers, which compiles one layer, instead of unrolling them, "
                                "which may run faster; by default GPUs and TPUs scan from 24 layers on")
    attention: str = setting(AUTO, "implementation of attention: all probabilities at once; in chunks, with less "
                             "memory; cuDNN's; TPU's splash; auto: the one that is expected to be the "
                             "fastest of those that honour dropout, packing and dtype",
                             choices=(AUTO, *ATTENTION))


def specs(layer: Tree | list[Tree], layers: int, shared: tuple[str, ...] = ()) -> Tree:
    """The parameters of a stack.

    Args:
      layer: spec tree of one layer; or those of all layers, where their shapes differ.
      layers: l.
      shared: top-level names in `layer` whose parameters all layers share (Lan et al., 2019).

    Returns:
      The same tree; parameters that are not shared have a leading axis `layers`. Of layers that differ, the tree of
      each under its number, "0", "1", ...
    """
    if isinstance(layer, list):
        return {str(i): own for i, own in enumerate(layer)}
    return {name: part if name in shared else P.stacked(part, layers) for name, part in layer.items()}


def unstacked(params: Tree, layers: int) -> Tree:
    """The parameters of a stack of equal layers, none of them shared, as those of one whose layers differ."""
    return {str(i): jax.tree.map(lambda leaf: leaf[i], params) for i in range(layers)}  # noqa: B023


def apply(
    layer: Callable[[Tree, Array, Array | None], tuple[Array, Any]],
    params: Tree,
    layer_specs: Tree | list[Tree],
    x: Array,
    keys: Array | None,
    layers: int,
    shared: tuple[str, ...] = (),
    execution: Execution = Execution(),
    last: Callable[[Tree, Array, Array | None], tuple[Array, Any]] | None = None,
) -> tuple[Array, Any]:
    """Runs x through the stack.

    Args:
      layer: (one layer's parameters, x, key) -> (x, any tree to be collected).
      params: as `specs` of the same `layer_specs`, `layers` and `shared`.
      layer_specs: as in `specs`; their axes say which parameters are gathered before use.
      x: the first layer's input.
      keys: a random key per layer, or any tree of [l, ...] of which each layer is given its slice, or None; or a list
        of a tree for each layer, which are then unrolled, and whose Python values stay static (a layer's window).
      layers: l.
      shared: as in `specs`.
      execution: scan or unroll, remat. Layers that differ are unrolled.
      last: runs in place of `layer` as the last layer. What it collects is dropped.

    Returns:
      (the last layer's output; the collected trees, stacked on a leading axis of size l, or l - 1 with `last`; a list
      of them where `keys` is a list).
    """
    differ, listed = isinstance(layer_specs, list), isinstance(keys, list)
    common = {name: params[name] for name in shared}
    stacked = {name: part for name, part in params.items() if name not in shared}
    count = layers if last is None else layers - 1
    scan = execution.scan if execution.scan is not None else layers >= SCANNED and platform() != "cpu"
    scan &= not differ and not listed

    def at(index: int | slice) -> tuple[Tree, Array | None]:
        part = params[str(index)] if differ else jax.tree.map(lambda leaf: leaf[index], stacked)
        return part, keys[index] if listed else jax.tree.map(lambda leaf: leaf[index], keys)

    def body(layer: Callable) -> Callable:
        def run(x: Array, slices: tuple[Tree, Array | None]) -> tuple[Array, Any]:
            part, key = slices
            return layer(gather_vectors(part | common, layer_specs[0] if differ else layer_specs), x, key)

        return run if execution.remat == "none" else jax.checkpoint(
            run, policy=REMAT[execution.remat], prevent_cse=not scan)

    def unrolled(run: Callable, layer: Callable, i: int, x: Array) -> tuple[Array, Any]:
        """Layer i, by its `body`. Values in its tree that are no arrays stay what they are, which rematerialisation
        would trace."""
        part, key = at(i)
        leaves, structure = jax.tree.flatten(key)
        if all(map(_is_array, leaves)):
            return run(x, (part, key))

        def with_values(part: Tree, x: Array, arrays: list[Array]) -> tuple[Array, Any]:
            given = iter(arrays)
            return layer(part, x, structure.unflatten(next(given) if _is_array(leaf) else leaf for leaf in leaves))

        return body(with_values)(x, (part, list(filter(_is_array, leaves))))

    if scan:
        x, collected = jax.lax.scan(body(layer), x, at(slice(count)), length=count)
    else:
        run, outputs = body(layer), []
        for i in range(count):
            x, output = unrolled(run, layer, i, x)
            outputs.append(output)
        collected = outputs or None
        if outputs and not listed:
            collected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
    if last is not None:
        x, _ = unrolled(body(last), last, layers - 1, x)
    return x, collected


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)
