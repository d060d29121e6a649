"""A stack of layers: scanned or unrolled, with or without rematerialisation and shared parameters."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

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
    """Returns the parameters of a stack of layers with the spec tree `layer`, or of a list of trees where their shapes
    differ. The result is the same tree, in which parameters have a leading axis `layers`, but for those under the
    top-level names `shared`, which all layers share (Lan et al., 2019). For a list, a tree a layer under its number:
    "0", "1", ..."""
    if isinstance(layer, list):
        return {str(i): tree for i, tree in enumerate(layer)}
    return {name: part if name in shared else P.stacked(part, layers) for name, part in layer.items()}


Layer = Callable[[Tree, Array, Any], tuple[Array, Any]]  # (parameters, x, slice of `inputs`) -> (x, collected)


def apply(
    layers: Sequence[Layer],
    params: Tree,
    layer_specs: Tree | list[Tree],
    x: Array,
    inputs: Tree,
    shared: tuple[str, ...] = (),
    execution: Execution = Execution(),
    last: Layer | None = None,
) -> tuple[Array, Any]:
    """Runs x through the stack.

    Args:
      layers: l functions: `[f] * l`, or several, for layers that differ in more than their parameters, as local and
        global attention do. Functions that repeat with a period, as in `[f, g, g, f, g, g]`, are scanned by periods.
      params: as `specs` of the same `layer_specs`, number of layers and `shared`.
      layer_specs: as in `specs`; their axes say which parameters are gathered before use.
      x: the first layer's input.
      inputs: a tree of arrays [l, ...], whose slice i is passed to layer i, such as random keys from
        `jax.random.split(key, l)`; or None; or a list of one tree a layer, whose layers are then unrolled.
      shared: as in `specs`.
      execution: scan or unroll, remat. Layers whose parameters have other shapes are unrolled.
      last: runs in place of the last of `layers`. What it collects is dropped.

    Returns:
      (the last layer's output; the collected trees, stacked on a leading axis of size l, or l - 1 with `last`, None
      where that is 0; a list of them where `inputs` is a list).
    """
    differ, listed = isinstance(layer_specs, list), isinstance(inputs, list)
    common = {name: params[name] for name in shared}
    stacked = {name: part for name, part in params.items() if name not in shared}
    count = len(layers) if last is None else len(layers) - 1
    scan = execution.scan if execution.scan is not None else len(layers) >= SCANNED and platform() != "cpu"
    period = next(p for p in range(1, len(layers) + 1) if all(a is b for a, b in zip(layers[p:], layers, strict=False)))
    scan &= not differ and not listed and (period == 1 or count >= 2 * period)

    def at(index: int | slice) -> tuple[Tree, Tree]:
        part = params[str(index)] if differ else jax.tree.map(lambda leaf: leaf[index], stacked)
        return part, inputs[index] if listed else jax.tree.map(lambda leaf: leaf[index], inputs)

    @functools.cache
    def body(layer: Layer, index: int = 0) -> Callable[[Array, tuple[Tree, Tree]], tuple[Array, Any]]:
        specs = layer_specs[index] if differ else layer_specs

        def run(x: Array, slices: tuple[Tree, Tree]) -> tuple[Array, Any]:
            part, layer_inputs = slices
            return layer(gather_vectors(part | common, specs), x, layer_inputs)

        return run if execution.remat == "none" else jax.checkpoint(
            run, policy=REMAT[execution.remat], prevent_cse=not scan)

    outputs = []
    if scan and period == 1:
        x, collected = jax.lax.scan(body(layers[0]), x, at(slice(count)), length=count)
    else:
        if scan:
            slices = at(slice(count - count % period))
            x, outputs = _scan_periods([body(layer) for layer in layers[:period]], x, slices, count // period)
        for i in range(len(outputs), count):
            x, output = body(layers[i], i * differ)(x, at(i))
            outputs.append(output)
        collected = outputs or None
        if outputs and not listed:
            collected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
    if last is not None:
        x, _ = body(last, count * differ)(x, at(count))
    return x, collected


def _scan_periods(period: Sequence[Callable], x: Array, slices: Tree, periods: int) -> tuple[Array, list[Any]]:
    """Scans `periods` repetitions of these layers -> (the last one's output, what each layer collects)."""
    def run(x: Array, slices: Tree) -> tuple[Array, list[Any]]:
        outputs = []
        for i, layer in enumerate(period):
            x, output = layer(x, jax.tree.map(lambda leaf: leaf[i], slices))  # noqa: B023
            outputs.append(output)
        return x, outputs

    x, outputs = jax.lax.scan(
        run, x, jax.tree.map(lambda leaf: leaf.reshape(periods, len(period), *leaf.shape[1:]), slices), length=periods)
    return x, [jax.tree.map(lambda leaf: leaf[i], output) for i in range(periods) for output in outputs]  # noqa: B023
