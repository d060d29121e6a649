"""Compares two checkpoints, parameter by parameter."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lmrep.interop.tensor_files import dtype_and_shape


class Difference(NamedTuple):
    """The difference of one parameter."""

    path: str
    dtype: str  # dtype and shape; of both checkpoints if the dtypes differ
    largest: float  # the largest absolute difference; NaN if one value is NaN and the other is not
    relative: float  # norm of the difference over norm of the first array
    layer: int | None  # the layer with the largest difference, if the parameter is stacked


class Comparison(NamedTuple):
    """The result of comparing two checkpoints."""

    differing: list[Difference]  # the largest first
    other_shapes: list[str]  # parameters whose shapes differ, for people
    only: tuple[list[str], list[str]]  # paths that only the first, or only the second checkpoint has
    equal: int  # the number of equal parameters


def compare(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> Comparison:
    """Compares arrays by path. Arrays are equal if they have one shape and equal values, or NaN in both; dtypes may
    differ."""
    differing, other_shapes, equal = [], [], 0
    for path in sorted(a.keys() & b.keys()):
        x, y = a[path], b[path]
        if x.shape != y.shape:
            other_shapes.append(f"{path}: {dtype_and_shape(x)} and {dtype_and_shape(y)}")
        elif (difference := _difference(path, x, y)) is None:
            equal += 1
        else:
            differing.append(difference)
    differing.sort(key=lambda d: -np.inf if np.isnan(d.largest) else -d.largest)
    return Comparison(differing, other_shapes, (sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())), equal)


def _difference(path: str, x: np.ndarray, y: np.ndarray) -> Difference | None:
    """Compares two arrays; returns None if they are equal. Converts one layer at a time to float64, to save memory."""
    stacked = "/layers/" in path and x.ndim == (3 if path.endswith("/kernel") else 2)  # or shared by all layers
    largest, largest_layer, squared_difference, squared_norm = 0.0, None, 0.0, 0.0
    for layer, (p, q) in enumerate(zip(x, y, strict=True) if stacked else ((x, y),)):
        p, q = p.astype(np.float64), q.astype(np.float64)
        squared_norm += float(np.square(p).sum())
        same = (p == q) | (np.isnan(p) & np.isnan(q))
        if same.all():
            continue
        gap = np.abs(np.subtract(p, q, where=~same, out=np.zeros_like(p)))
        squared_difference += float(np.square(gap).sum())
        top = float(gap.max())
        if largest_layer is None or np.isnan(top) or top > largest:
            largest, largest_layer = top, layer
    if largest_layer is None:
        return None
    relative = float(np.sqrt(squared_difference / squared_norm)) if squared_norm else float("inf")
    dtype = dtype_and_shape(x) if x.dtype == y.dtype else f"{dtype_and_shape(x)} and {dtype_and_shape(y)}"
    return Difference(path, dtype, largest, relative, largest_layer if stacked else None)


def describe(comparison: Comparison, a: str, b: str) -> str:
    """Lists every difference for people, the largest first; `a` and `b` are the names of the checkpoints."""
    lines = []
    if comparison.differing:
        width = max(len(d.path) for d in comparison.differing)
        lines.append(f"{'parameter':{width}}  {'largest':>9}  {'relative':>9}  layer  dtype and shape")
        lines += [f"{d.path:{width}}  {d.largest:9.3g}  {d.relative:9.3g}  {'' if d.layer is None else d.layer!s:>5}  "
                  f"{d.dtype}" for d in comparison.differing]
    lines += [f"other shape: {line}" for line in comparison.other_shapes]
    lines += [f"only in {name}: {path}" for name, paths in zip((a, b), comparison.only, strict=True) for path in paths]
    total = comparison.equal + len(comparison.differing) + len(comparison.other_shapes)
    if not lines:
        return f"equal: all {total} parameters"
    return "\n".join([*lines, f"{comparison.equal} of {total} common parameters are equal"])
