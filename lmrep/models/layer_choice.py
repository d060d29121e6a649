"""Choices of a network's layers, and how their outputs are combined."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import Array, abstract
from lmrep.models.base import MAX_CHARACTERS, Encoded, Inputs, Model


@dataclass(frozen=True)
class Layers:
    """Which layers' outputs to return, and how to combine them."""

    numbers: tuple[int, ...]  # 0 is the embedding output, l the last layer's, after the final norm where there is one
    # "stack" and "mix" (whose weights are learned) keep each [n, t, d]; "sum" gives [1, t, d]; "concat" gives [1, t, n
    # * d]
    join: str = "stack"


def parse_layers(
    layers: str | int | Sequence[int], last: int, joins: Sequence[str] = ("sum", "concat")
) -> Layers:
    """Parses a choice of layers of a model with `last` layers: "last", "all" (the embedding output and every layer), or
    numbers such as 4, (3, 4) or "3,4", where negative ones count from the last; one of `joins` and a colon may precede.

    Raises UserError where it cannot be parsed, or there is no such layer.
    """
    text = layers if isinstance(layers, str) else ",".join(map(str, np.atleast_1d(layers).tolist()))
    join, colon, names = text.rpartition(":")
    before = " or ".join(f"{name}:" for name in joins)
    if colon and join not in joins:
        raise UserError(f"layers is {text!r}; expected all, last, or numbers such as 3,4; {before} may precede")
    if names in ("all", "last"):
        return Layers(tuple(range(last + 1)) if names == "all" else (last,), join or "stack")
    try:
        numbers = [int(name) for name in names.split(",")]
    except ValueError:
        raise UserError(f"layers is {text!r}; expected all, last, or numbers such as 3,4, after {before} to "
                        "combine them") from None
    for number in numbers:
        if not -last - 1 <= number <= last:
            raise UserError(f"layers is {text!r}, and there is no layer {number}: this model has 0 (the embeddings) to "
                            f"{last}, or {-last - 1} to -1; choose among them")
    return Layers(tuple(number % (last + 1) for number in numbers), join or "stack")


def num_layers(model: Model) -> int:
    """Returns l, the number of layers of a model."""
    return len(widths(model)) - 1


def widths(model: Model) -> tuple[int, ...]:
    """Returns the width of each of `outputs`."""
    inputs = Inputs(tokens=jax.ShapeDtypeStruct((1, 1), jnp.int32))
    if "characters" in model.inputs:
        inputs = inputs._replace(characters=jax.ShapeDtypeStruct((1, 1, MAX_CHARACTERS), jnp.int32))
    shapes = jax.eval_shape(lambda params, inputs: outputs(model.encode(params, inputs, layers=True)),
                           abstract(model.specs), inputs)
    return tuple(x.shape[-1] for x in shapes)


def outputs(encoded: Encoded) -> list[Array]:
    """Returns the outputs of the embedding and of every layer, float32 [b, t, width of the layer], from what
    `Model.encode` returned with `layers=True`. The last is after the final norm, where there is one."""
    return [x.astype(jnp.float32) for x in (*encoded.layers[:-1], encoded.hidden)]


def combine(layer_outputs: Sequence[Array], layers: Layers) -> Array:
    """Selects and joins layers of `outputs`, float32 [n, b, t, d]; n is 1 for a sum or a concatenation. Raises
    UserError if layers of different widths cannot be stacked or summed."""
    selected = [layer_outputs[number] for number in layers.numbers]
    if layers.join != "concat" and len({x.shape[-1] for x in selected}) > 1:
        widths = ", ".join(f"{number}: {x.shape[-1]}" for number, x in zip(layers.numbers, selected, strict=True))
        together = ",".join(map(str, layers.numbers))
        raise UserError(f"the chosen layers have different widths ({widths}); choose one at a time, or join them: "
                        f"concat:{together}")
    return {"stack": jnp.stack, "mix": jnp.stack, "sum": lambda arrays: sum(arrays)[None],
            "concat": lambda arrays: jnp.concatenate(arrays, -1)[None]}[layers.join](selected)
