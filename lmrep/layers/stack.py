"""A stack of layers of one shape: scanned or unrolled, rematerialised or not, with shared parameters or not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import params as P
from lmrep.core.params import Array, Tree
from lmrep.core.sharding import gather_params

# What the backward pass keeps of a layer instead of computing it again.
REMAT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclass(frozen=True)
class Execution:
    """How a stack is run. No field changes what is computed, beyond rounding."""

    dtype: str = setting("float32", "compute dtype; parameters are float32 always", choices=("float32", "bfloat16"))
    remat: str = setting("none", "what the backward pass recomputes: nothing; all but matrix products; all",
                         choices=tuple(REMAT))
    scan: bool = setting(False, "run layers as one scanned body, which compiles once, or unrolled, which runs faster")


def specs(layer: Tree, layers: int, shared: tuple[str, ...] = ()) -> Tree:
    """The parameters of a stack.

    Args:
      layer: spec tree of one layer.
      layers: l.
      shared: top-level parts of `layer` of which all layers use one copy (Lan et al., 2019).

    Returns:
      The same tree; parts that are not shared have a leading axis `layers`.
    """
    return {name: part if name in shared else P.stacked(part, layers) for name, part in layer.items()}


def apply(
    layer: Callable[[Tree, Array, Array | None], tuple[Array, Any]],
    params: Tree,
    layer_specs: Tree,
    x: Array,
    keys: Array | None,
    layers: int,
    shared: tuple[str, ...] = (),
    execution: Execution = Execution(),
    last: Callable[[Tree, Array, Array | None], tuple[Array, Any]] | None = None,
) -> tuple[Array, Any]:
    """Runs x through the stack.

    Args:
      layer: (one layer's parameters, x, key) -> (x, whatever is to be collected).
      params: as `specs` of the same `layer_specs`, `layers` and `shared`.
      layer_specs: spec tree of one layer; says which of its parameters to gather before use.
      x: the first layer's input.
      keys: one random key a layer, or anything else [l, ...] of which each layer is given its part, or None.
      layers: l.
      shared: as in `specs`.
      execution: scan or unroll, remat.
      last: runs in place of `layer` as the last one. What it collects is dropped.

    Returns:
      (the last layer's output, what was collected, stacked on a leading axis of size l, or l - 1 where `last` runs).
    """
    common = {name: params[name] for name in shared}
    own = {name: part for name, part in params.items() if name not in shared}
    several = layers if last is None else layers - 1

    def at(index: int | slice) -> tuple[Tree, Array | None]:
        return jax.tree.map(lambda leaf: leaf[index], (own, keys))

    def body(layer: Callable) -> Callable:
        def run(x: Array, slices: tuple[Tree, Array | None]) -> tuple[Array, Any]:
            part, key = slices
            return layer(gather_params(part | common, layer_specs), x, key)

        if execution.remat == "none":
            return run
        return jax.checkpoint(run, policy=REMAT[execution.remat], prevent_cse=not execution.scan)

    if execution.scan:
        x, collected = jax.lax.scan(body(layer), x, at(slice(several)), length=several)
    else:
        run, kept = body(layer), []
        for i in range(several):
            x, of_layer = run(x, at(i))
            kept.append(of_layer)
        collected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept) if kept else None
    if last is not None:
        x, _ = body(last)(x, at(layers - 1))
    return x, collected
