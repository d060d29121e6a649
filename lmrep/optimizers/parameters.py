"""Parameters chosen by patterns on their paths, and by their depth in the network.

A pattern is a glob on a path, in which `*` matches any text, including slashes. It can address one layer of a stack, or
a range of layers: `encoder/layers/11/*`, `*/layers/0-5/attention/*`.
"""

import fnmatch
import itertools
import re
from collections.abc import Iterable

import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, Tree, flatten


def matches(
    patterns: Iterable[str], specs: Tree, where: str = "patterns", optional: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Returns {path: whether a pattern matches the parameter, bool[]; bool[l] over the layers of a stacked parameter}.

    Raises UserError if a pattern that is not `optional` matches none; `where` is the config field that holds it.
    """
    addresses = {path: _addresses(path, spec) for path, spec in flatten(specs).items()}
    matched = {path: np.zeros(len(names) or (), bool) for path, names in addresses.items()}
    for pattern in itertools.chain.from_iterable(map(_expand, patterns)):
        glob = re.compile(fnmatch.translate(pattern))
        new = {path: np.array([bool(glob.match(n)) for n in names] or False) | bool(glob.match(path))
               for path, names in addresses.items()}
        if pattern not in optional and not any(mask.any() for mask in new.values()):
            known = [name for path, names in addresses.items() for name in (path, *names)]
            some = ", ".join(list(addresses)[:: max(1, len(addresses) // 4)][:4])
            raise UserError(f"{where}: {pattern!r} matches no parameter; there are, for example, "
                            f"{some} (* matches any text){suggestion(pattern, known)}")
        matched = {path: matched[path] | new[path] for path in matched}
    return matched


def multipliers(factors: dict[str, float], specs: Tree) -> dict[str, np.ndarray]:
    """Returns {path: the product of the factors of all patterns that match it, f32[]; f32[l] if it is stacked}."""
    product = {path: np.ones_like(mask, np.float32) for path, mask in matches((), specs).items()}
    for pattern, factor in factors.items():
        for path, mask in matches((pattern,), specs, "optimizer.multipliers").items():
            product[path] = np.where(mask, np.float32(factor) * product[path], product[path])
    return product


def layer_factors(decay: float, specs: Tree, top: int = 2) -> dict[str, np.ndarray]:
    """Returns {path: the factor of `optimizer.layer_decay`, f32[]; f32[l] if the parameter is stacked}.

    Depths are counted as in ELECTRA's code: 0 for embeddings, i + 1 for layer i, n + 2 for the head. What follows the
    encoder's layers, such as a final norm, has n + 1. The factor is 1 from depth n + `top` on; 1 as in ULMFiT.
    """
    n, depths = _depths(specs)
    return {path: np.float32(decay) ** np.maximum(n + top - depth, 0).astype(np.float32)
            for path, depth in depths.items()}


def gradient_factors(decay: float, specs: Tree) -> dict[str, np.ndarray]:
    """Returns the factors of `optimizer.layer_decay` for `layer_decay_of="gradient"`, laid out as in `layer_factors`:
    1 for the last layer, and for parameters outside of layers.

    The released code keeps the biases of attention and the vectors of segments outside of layers, and does not scale
    their gradients; here they are in the layers.
    """
    n, depths = _depths(specs)
    return {path: np.float32(decay) ** np.where((depth > 0) & (depth <= n), n - depth, 0).astype(np.float32)
            for path, depth in depths.items()}


def _depths(specs: Tree) -> tuple[int, dict[str, np.ndarray]]:
    """Returns (n, the number of the encoder's layers; {path: its depth in `layer_factors`, i32[] or i32[l]})."""
    flat = flatten(specs)
    stacked = [spec.shape[0] for path, spec in flat.items() if path.startswith("encoder/") and is_stacked(spec)]
    numbers = {path: int(match[1]) for path in flat if (match := re.match(r"encoder/layers/(\d+)/", path))}
    n = max([*stacked, *(number + 1 for number in numbers.values())], default=0)

    def depth(path: str, spec: ParamSpec) -> np.ndarray:
        if not path.startswith("encoder/"):
            return np.array(n + 2)
        if is_stacked(spec):
            return np.arange(spec.shape[0]) + 1
        if path in numbers:
            return np.array(numbers[path] + 1)
        return np.array(n + 1 if path.startswith("encoder/final") else 0)

    return n, {path: depth(path, spec) for path, spec in flat.items()}


def is_stacked(spec: ParamSpec) -> bool:
    """Tells whether the first dimension of a parameter is a stack of layers."""
    return spec.axes[:1] == ("layers",)


def _addresses(path: str, spec: ParamSpec) -> list[str]:
    """Returns the paths that a parameter's layers would have without stacking; [] if it is not stacked."""
    head, stack, tail = f"/{path}".partition("/layers/")
    layers = spec.shape[0] if stack and is_stacked(spec) else 0
    return [f"{head}{stack}{i}/{tail}"[1:] for i in range(layers)]


def _expand(pattern: str) -> list[str]:
    """Expands `layers/0-5/*` to `layers/0/*`, ..., `layers/5/*`."""
    span = re.search(r"(?<![^/])(\d+)-(\d+)(?![^/])", pattern)
    if not span:
        return [pattern]
    numbers = range(int(span[1]), int(span[2]) + 1)
    return [f"{pattern[:span.start()]}{i}{pattern[span.end():]}" for i in numbers] or [pattern]
