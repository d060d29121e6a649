"""Vectors of a frozen encoder as features of a task (Peters et al., 2017, 2018; Devlin et al., 2019, section 5.3).

The encoder is `config.frozen["features"]`: it gets no gradient, is no part of checkpoints, and its dropout is off.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.layers import dropout, scalar_mix
from lmrep.models.base import model_inputs
from lmrep.models.layer_choice import Layers, combine, outputs, parse_layers, widths
from lmrep.objectives.base import Batch, FrozenPart, FrozenParts

NAME = "features"  # the name in config.frozen, and of the field of a batch that has computed features
JOINS = ("sum", "concat", "mix")
POSITIONS = {"input": ("input",), "between": ("between",), "output": ("output",), "both": ("input", "output")}


@dataclass(frozen=True)
class Config:
    """The vectors of the frozen encoder `config.frozen.features` that a task reads, and where it reads them."""

    layers: str = setting("", "none: the task has no frozen encoder; last, or the number of a layer (0: the "
                          "embeddings); sum:9,10 or concat:9,10 or mix:9,10, or :all; mix is a learned weighted sum "
                          "(ELMo: mix:all)")
    placement: str = setting("input", "beside the input of the task's network, beside its output, or both, each with "
                             "a mix of its own (ELMo); between: beside the output of the first of its LSTM layers, at "
                             "the input of the second (TagLM)", choices=tuple(POSITIONS))
    norm: bool = setting(False, "mix: normalize each layer by its mean and variance over all tokens and dimensions of "
                         "a batch (ELMo's do_layer_norm)")
    l2: float = setting(0.0, "mix: lambda; lambda * sum(s^2) is added to the loss (ELMo: 0.001 to 1)", at_least=0)
    dropout: float = setting(0.5, "dropout rate on the vectors", at_least=0, below=1)


def choice(c: Config, part: FrozenPart) -> Layers:
    """Returns the layers that are read. Raises UserError if there is no such layer, or several are not combined."""
    try:
        layers = parse_layers(c.layers, len(widths(part.model)) - 1, JOINS)
    except UserError as error:
        raise UserError(f"config.objective.features: {error}") from None
    if layers.join == "stack" and len(layers.numbers) > 1:
        raise UserError(f"config.objective.features.layers is {c.layers!r}, several layers; combine them: "
                        + ", ".join(f"{join}:{c.layers}" for join in JOINS))
    return layers


def width(c: Config, part: FrozenPart) -> int:
    """Returns the width d of the features. Raises UserError if layers of different widths are added."""
    layers = choice(c, part)
    layer_widths = [widths(part.model)[number] for number in layers.numbers]
    if layers.join != "concat" and len(set(layer_widths)) > 1:
        raise UserError(f"config.objective.features.layers is {c.layers!r}, and the layers have the widths "
                        f"{', '.join(map(str, layer_widths))}; choose one, or concat:")
    return sum(layer_widths) if layers.join == "concat" else layer_widths[0]


def specs(c: Config, part: FrozenPart) -> Tree:
    """Declares the parameters of the mixes: {position: ...}, of those in `POSITIONS`; {} without a mix."""
    layers = choice(c, part)
    if layers.join != "mix":
        return {}
    return {position: scalar_mix.specs(len(layers.numbers)) for position in POSITIONS[c.placement]}


def encode(c: Config, part: FrozenPart, params: Tree, batch: Batch) -> Array:
    """Computes the features float32 [n, b, t, d]: the n layers of a mix, or the sum or concatenation of layers, n = 1.

    Args:
      c: the choice of layers.
      part: the encoder.
      params: the encoder's.
      batch: `tokens`, `segment_ids` and so on, [b, t]; or `features` [b, t, n, d] that have been computed before.
    """
    if NAME in batch:
        return batch[NAME].transpose(2, 0, 1, 3)
    inputs = model_inputs(part.model, batch, conditions_on=part.objective.uses.conditions_on)
    layers = outputs(part.model.encode(params, inputs, layers=True))
    return jax.lax.stop_gradient(combine(layers, choice(c, part)))


def apply(
    c: Config, mixes: Mapping[str, Tree], position: str, layers: Array, mask: Array, key: Array | None = None
) -> Array:
    """Computes the features [b, t, d] at a position, "input", "between" or "output", from the result of `encode`.
    `mask` bool [b, t] tells where tokens are; `key` is for dropout."""
    x = scalar_mix.apply(mixes[position], list(layers), mask, c.norm) if position in mixes else layers[0]
    return dropout.apply(key, x, c.dropout)


def mixes(params: Tree, c: Any, name: str, frozen: FrozenParts) -> list[dict[str, Any]]:
    """Returns what the mixes of a run of task `name` have learned, for reports: `place`, `layers` (their numbers),
    `weights` softmax(s), `gamma`; [] for a task without mixes. `params` are the run's, `c` is the task's config."""
    learned = params.get("objective", {}).get(name, {}).get("network", {}).get("mix", {})
    return [{"place": position, "layers": list(choice(c.features, frozen[NAME]).numbers), "gamma": float(mix["gamma"]),
             "weights": scalar_mix.weights(mix).tolist()} for position, mix in learned.items()]
