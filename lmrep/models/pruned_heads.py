"""Attention heads that were removed from a network, as text: "1:2,5;3:0" for heads 2 and 5 of layer 1 and head 0 of
layer 3. Layers and heads are numbered from 0, as before any was removed."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, flatten
from lmrep.models.base import Encoded, Inputs

LAYER = re.compile(r"\s*([0-9]{1,9})\s*:\s*([0-9]{1,9}\s*(?:,\s*[0-9]{1,9}\s*)*)")


def parse(text: str, layers: int, heads: int, name: str = "model.pruned_heads") -> dict[int, tuple[int, ...]]:
    """Returns {layer: its removed heads, ascending}, without layers that keep all, of a `text` as above, "" for none.
    `heads` are those of a layer before any was removed; messages call the field `name`.

    Raises UserError where the text has another form, or names a layer or head that there is not, or all heads of a
    layer.
    """
    pruned: dict[int, tuple[int, ...]] = {}
    for part in filter(str.strip, text.split(";")):
        match = LAYER.fullmatch(part)
        if not match:
            raise UserError(f"{name} has {part!r}; expected a layer and its heads, from 0: 1:2,5;3:0")
        layer, removed = int(match[1]), tuple(sorted({int(head) for head in match[2].split(",")}))
        if layer in pruned:
            raise UserError(f"{name} names layer {layer} twice; name each once: {layer}:0,1")
        if layer >= layers or removed[-1] >= heads:
            raise UserError(f"{name} has {part!r}, and the network has layers 0 to {layers - 1} with heads 0 to "
                            f"{heads - 1}")
        if len(removed) == heads:
            raise UserError(f"{name} removes all {heads} heads of layer {layer}; leave at least one")
        pruned[layer] = removed
    return pruned


def write(pruned: Mapping[int, Iterable[int]]) -> str:
    """Formats removed heads as the text that `parse` reads."""
    return ";".join(f"{layer}:{','.join(map(str, sorted(heads)))}" for layer, heads in sorted(pruned.items()) if heads)


def kept(text: str, layers: int, heads: int) -> tuple[tuple[int, ...], ...]:
    """Returns the heads that each layer keeps. Raises UserError like `parse`."""
    pruned = parse(text, layers, heads)
    return tuple(tuple(head for head in range(heads) if head not in pruned.get(layer, ())) for layer in range(layers))


def counts(text: str, layers: int, heads: int) -> Counter[int]:
    """Returns {number of heads: number of layers that keep as many}, without a list of layers. Raises like `parse`."""
    pruned = parse(text, layers, heads)
    return +Counter({heads: layers - len(pruned)}) + Counter(heads - len(removed) for removed in pruned.values())


def check(text: str, layers: int, heads: int, share: str) -> None:
    """Raises UserError like `parse`, and where layers that share parameters (`model.share`) lack different heads."""
    pruned = parse(text, layers, heads)
    if share != "none" and pruned and (len(pruned) < layers or len({*pruned.values()}) > 1):
        raise UserError(f"model.pruned_heads is {text}, and layers share parameters (model.share={share}); remove the "
                        "same heads from every layer")


def by_number(
    encode: Callable[..., Encoded], kept: Sequence[Sequence[int]], heads: int
) -> Callable[..., Encoded]:
    """Wraps `Model.encode` of a pruned network so that heads keep their original numbers.

    Args:
      encode: takes gates and returns attention probabilities with the kept heads of a layer first.
      kept: the numbers of the kept heads of each layer.
      heads: h, the heads of a layer before any was removed. The wrapped function has gates and probabilities of all h
        heads; probabilities of removed heads are 0."""
    if all(len(numbers) == heads for numbers in kept):
        return encode
    order = np.array([[*numbers, *[heads - 1] * (heads - len(numbers))] for numbers in kept], np.int32)

    def run(params: Tree, inputs: Inputs, key: Array | None = None, **options: Any) -> Encoded:
        if (gates := inputs.gates) is not None:
            at = order.reshape(len(kept), *[1] * (gates.ndim - 2), heads)
            inputs = inputs._replace(gates=jnp.take_along_axis(gates, jnp.asarray(at), axis=-1))
        encoded = encode(params, inputs, key, **options)
        if encoded.attention is None:
            return encoded
        return encoded._replace(attention=jnp.stack([
            jnp.zeros_like(x).at[:, list(numbers)].set(x[:, : len(numbers)])
            for x, numbers in zip(encoded.attention, kept, strict=True)]))

    return run


def remove(
    params: Tree, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], head_width: int,
    shared: Sequence[str] = (),
) -> Tree:
    """Returns the layers of a Transformer, NumPy arrays as `lmrep.layers.stack.specs` lays them out, without some of
    their heads: `before` and `after` are the numbers of the heads that each layer has, ascending."""
    def layer(i: int) -> Tree:
        if "0" in params:
            return params[str(i)]
        return {name: part if name in shared else jax.tree.map(lambda x: x[i], part) for name, part in params.items()}

    def smaller(i: int) -> Tree:
        tree, at = layer(i), [list(before[i]).index(head) for head in after[i]]
        columns = (np.array(at)[:, None] * head_width + np.arange(head_width)).reshape(-1)
        attention = {name: part | {key: part[key][..., columns] for key in ("kernel", "bias") if key in part}
                     for name, part in tree["attention"].items() if name != "output"}
        output = tree["attention"]["output"]
        return tree | {"attention": attention | {"output": output | {"kernel": output["kernel"][columns]}}}

    layers = [smaller(i) for i in range(len(after))]
    shapes = {tuple((path, x.shape) for path, x in flatten(tree).items()) for tree in layers}
    if len(shapes) > 1 or ("0" in params and len(layers) == 1):
        return {str(i): tree for i, tree in enumerate(layers)}
    return {name: part if name in shared else jax.tree.map(lambda *xs: np.stack(xs), *(tree[name] for tree in layers))
            for name, part in layers[0].items()}
