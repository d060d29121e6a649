"""Two checkpoints, parameter by parameter."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lmrep.interop.tensor_files import kind


class Difference(NamedTuple):
    """How one parameter differs."""

    path: str
    kind: str  # dtype and shape; of both where they differ
    largest: float  # absolute; NaN where one is not a number and the other is
    relative: float  # norm of the difference over the norm of the first
    layer: int | None  # the one of a stacked parameter in which the largest is


class Comparison(NamedTuple):
    """What comes of comparing two."""

    differing: list[Difference]  # the largest first
    unlike: list[str]  # of another shape
    only: tuple[list[str], list[str]]  # in the first, in the second alone
    equal: int


def compare(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> Comparison:
    """Compares arrays by path. Equal is: of one shape, and equal numbers or both NaN; dtypes may differ."""
    differing, unlike, equal = [], [], 0
    for path in sorted(a.keys() & b.keys()):
        x, y = a[path], b[path]
        if x.shape != y.shape:
            unlike.append(f"{path}: {kind(x)} and {kind(y)}")
        elif (found := _difference(path, x, y)) is None:
            equal += 1
        else:
            differing.append(found)
    differing.sort(key=lambda d: -np.inf if np.isnan(d.largest) else -d.largest)
    return Comparison(differing, unlike, (sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())), equal)


def _difference(path: str, x: np.ndarray, y: np.ndarray) -> Difference | None:
    """None where they are equal. Layers are taken one at a time, so that memory is that of one."""
    stacked = "/layers/" in path and x.ndim == (3 if path.endswith("/kernel") else 2)  # or shared by all layers
    largest, at, squares, whole = 0.0, None, 0.0, 0.0
    for layer, (p, q) in enumerate(zip(x, y, strict=True) if stacked else ((x, y),)):
        p, q = p.astype(np.float64), q.astype(np.float64)
        whole += float(np.square(p).sum())
        same = (p == q) | (np.isnan(p) & np.isnan(q))
        if same.all():
            continue
        gap = np.abs(np.subtract(p, q, where=~same, out=np.zeros_like(p)))
        squares += float(np.square(gap).sum())
        top = float(gap.max())
        if at is None or np.isnan(top) or top > largest:
            largest, at = top, layer
    if at is None:
        return None
    relative = float(np.sqrt(squares / whole)) if whole else float("inf")
    return Difference(path, kind(x) if x.dtype == y.dtype else f"{kind(x)} and {kind(y)}", largest, relative,
                      at if stacked else None)


def describe(found: Comparison, a: str, b: str) -> str:
    """For people: every difference, the largest first."""
    lines = []
    if found.differing:
        width = max(len(d.path) for d in found.differing)
        lines.append(f"{'parameter':{width}}  {'largest':>9}  {'relative':>9}  layer  dtype and shape")
        lines += [f"{d.path:{width}}  {d.largest:9.3g}  {d.relative:9.3g}  {'' if d.layer is None else d.layer!s:>5}  "
                  f"{d.kind}" for d in found.differing]
    lines += [f"of another shape: {each}" for each in found.unlike]
    lines += [f"only in {place}: {path}" for place, paths in zip((a, b), found.only, strict=True) for path in paths]
    total = found.equal + len(found.differing) + len(found.unlike)
    end = f"{found.equal} of {total} common parameters are equal"
    same = not lines
    return "\n".join([*lines, f"equal: all {total} parameters" if same else end])
