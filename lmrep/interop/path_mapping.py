"""Applies `config.init_mapping`, which maps paths of a run to the paths of a source checkpoint that they start from:

    {"encoder/layers": "encoder/layers[0,2,4,7,9,11]"}      layers by number, as of DistilBERT; slices: [0:6], [::2]
    {"encoder": "objective/generator"}                      another subtree
    {"objective/masked/transform": ""}                      random values

A path stands for all parameters under it; if several match a parameter, the longest one applies. Other parameters
start from those of the same path. Numbers in brackets index the leading axis of stacked layers, or subtrees that are
named by number, as in an LSTM.
"""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from lmrep.config.record import suggestion
from lmrep.core.errors import UserError
from lmrep.core.params import is_under

_INDEX = re.compile(r"(?P<path>[^\[\]]*)(?:\[(?P<index>[^\[\]]*)\])?")


class Origin(NamedTuple):
    """The part of a source checkpoint that a parameter starts from."""

    path: str  # in the source checkpoint
    index: tuple[int, ...] | None = None  # entries of its leading axis; None for all

    def __str__(self) -> str:
        return self.path if self.index is None else f"{self.path}[{','.join(map(str, self.index))}]"


def origins(paths: Collection[str], source: Mapping[str, np.ndarray], mapping: Mapping[str, str]) -> dict[str, Origin]:
    """Maps the `paths` of a run to their origins; paths without an origin in the source are left out.

    Args:
      source: the arrays of the source checkpoint by path.
      mapping: `config.init_mapping`.

    Raises:
      UserError: a path of `mapping` has no parameters, or an index is malformed or out of range.
    """
    rules = {target.strip("/"): _parse(target, text) for target, text in mapping.items()}
    starts, used = {}, set()
    for path in paths:
        target = max((target for target in rules if is_under(path, target)), key=len, default=None)
        if target is not None and rules[target] is None:
            used.add(target)
            continue
        origin = Origin(path) if target is None else _origin(path, target, *rules[target], source)
        if origin and origin.path in source:
            starts[path] = origin
            used.add(target)
    for target, rule in rules.items():
        if not any(is_under(path, target) for path in paths):
            raise UserError(f"config.init_mapping has {target!r}, and this run has no parameters under it"
                            f"{_nearest(target, paths)}")
        if target not in used:
            raise UserError(f"config.init_mapping starts {target!r} from {rule[0]!r}, and the checkpoint has no "
                            f"parameters there that go under {target!r}{_nearest(rule[0], source)}")
    return starts


def take(value: np.ndarray, origin: Origin, path: str) -> np.ndarray:
    """Returns the part of a source array that parameter `path` starts from. Raises UserError if the index is out of
    range."""
    if origin.index is None:
        return value
    if value.ndim == 0 or max(origin.index) >= len(value):
        raise UserError(f"config.init_mapping starts {path} from {origin}, and that has "
                        f"{len(value) if value.ndim else 'no'} layers; numbers begin at 0")
    return value[list(origin.index)]


def _parse(target: str, text: str) -> tuple[str, str | None] | None:
    """Parses the source of a rule to (path, index or None); None for random values."""
    if not text:
        return None
    match = _INDEX.fullmatch(text)
    if match is None:
        raise UserError(f"config.init_mapping starts {target!r} from {text!r}; expected a path such as "
                        "'encoder/layers[0,2,4]' or 'encoder/layers[0:6]'")
    return match["path"].strip("/"), match["index"]


def _origin(path: str, target: str, prefix: str, index: str | None, source: Mapping[str, np.ndarray]) -> Origin | None:
    """Finds the origin of a path under `target`; None if the source has none."""
    rest, where = path.removeprefix(target).strip("/"), f"{prefix}[{index}]"
    layers = [name for name in _children(prefix, source) if name.isdecimal()] if index is not None else []
    if layers:
        layer, _, rest = rest.partition("/")
        chosen = _numbers(index, len(layers), where)
        if not layer.isdecimal() or int(layer) >= len(chosen):
            return None
        return Origin("/".join(filter(None, (prefix, str(chosen[int(layer)]), rest))))
    name = "/".join(filter(None, (prefix, rest)))
    if index is None or name not in source:
        return Origin(name) if index is None else None
    return Origin(name, _numbers(index, len(source[name]) if source[name].ndim else 0, where))


def _children(prefix: str, paths: Collection[str]) -> set[str]:
    return {path.removeprefix(prefix).strip("/").partition("/")[0] for path in paths if is_under(path, prefix)}


def _numbers(index: str, count: int, where: str) -> tuple[int, ...]:
    """Lists the numbers that "0,2,4", "0:6" or "::2" mean among `count` layers."""
    chosen: list[int] = []
    for item in index.split(","):
        bounds = item.strip().split(":")
        if (not item.strip() or len(bounds) > 3 or not all(re.fullmatch(r"(-?\d+)?", bound.strip()) for bound in bounds)
                or re.fullmatch(r"-?0+", "".join(bounds[2:]).strip())):  # a step of 0
            raise UserError(f"config.init_mapping has {where!r}; expected numbers such as [0,2,4], or a slice such as "
                            "[0:6]")
        numbers = [int(bound) if bound.strip() else None for bound in bounds]
        if len(numbers) == 1 and not -count <= numbers[0] < count:
            raise UserError(f"config.init_mapping has {where!r}, and there are {count} layers there, numbered from 0")
        chosen += range(count)[slice(*numbers)] if len(numbers) > 1 else [numbers[0] % count]
    if not chosen:
        raise UserError(f"config.init_mapping has {where!r}, which takes none of the {count} layers there")
    return tuple(chosen)


def _nearest(path: str, paths: Collection[str]) -> str:
    """Suggests existing paths for one that does not exist."""
    subtrees = {"/".join(parts[:n]) for parts in (other.split("/") for other in paths)
                for n in range(1, len(parts) + 1)}
    if near := suggestion(path, {subtree for subtree in subtrees if not is_under(path, subtree)}):
        return near
    parent = path
    while parent and not any(is_under(other, parent) for other in paths):
        parent = parent.rpartition("/")[0]
    return f"; under {parent or 'the top'} there are {', '.join(sorted(_children(parent, paths))[:12])}"
