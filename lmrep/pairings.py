"""Which networks, objectives and formats go together: every triple, found by trying it on shapes alone.

A triple works where its config is accepted and one training step can be traced with it. Sizes decide nothing about
that, so presets that differ in sizes alone are traced once, in little.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

import jax
import numpy as np

from lmrep import experiment as experiments
from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FIELDS, FORMATS
from lmrep.models import PRESETS, transformer
from lmrep.objectives import OBJECTIVES
from lmrep.training import optimizers
from lmrep.training.state import create
from lmrep.training.step import train_step

ROLES = ("pad", "unk", "cls", "sep", "mask", "eos")
ROWS, LENGTH = 2, 32
SMALL = {"vocab": 64, "width": 32, "layers": 1, "heads": 4, "mlp": 64, "length": 64}


class Pairing(NamedTuple):
    """A triple; `refused` says why it does not work, and is "" where it does."""

    preset: str
    objective: str
    format: str
    refused: str = ""


def pairings() -> Iterator[Pairing]:
    """Every triple."""
    for preset in PRESETS:
        for objective in OBJECTIVES:
            for form in FORMATS:
                yield Pairing(preset, objective, form, refusal(preset, objective, form))


def refusal(preset: str, objective: str, form: str) -> str:
    """Why a triple is refused; "" where it works."""
    try:
        config = experiments.base(preset, objective, form)
        config.length = LENGTH
        experiments.parse(config)
        trace(in_little(PRESETS[preset].config), objective, FORMATS[form].fields)
    except UserError as error:
        return str(error)
    return ""


def in_little(config: transformer.Config) -> transformer.Config:
    """The same network, small."""
    narrow = {"embedding": 16} if config.embedding else {}
    return dataclasses.replace(config, **SMALL, **narrow)


@cache
def trace(config: transformer.Config, objective: str, fields: tuple[str, ...]) -> None:
    """Traces a training step; nothing is compiled. Raises UserError as the parts do."""
    kind, size = OBJECTIVES[objective], config.vocab
    vocabulary = Vocabulary(size, {role: i for i, role in enumerate(ROLES)}, np.ones(size, bool), np.ones(size, int))
    asked = kind.build(kind.config(), transformer.build(config), vocabulary)
    optimizer = optimizers.build(optimizers.Config(), asked.specs, 10)
    shapes = {"b": ROWS, "t": LENGTH}
    batch = {name: jax.ShapeDtypeStruct([shapes[axis] for axis in FIELDS[name].axes], FIELDS[name].dtype)
             for name in fields}
    state = jax.eval_shape(partial(create, asked, optimizer, ROWS), 0)
    jax.eval_shape(partial(train_step, objective=asked, optimizer=optimizer, seed=0), state, batch)


def table(found: list[Pairing]) -> str:
    """For people: a line a preset and objective with the formats it takes; then why others are refused."""
    formats, reasons, lines = list(FORMATS), {}, []
    width = max(len(f"{p.preset} {p.objective}") for p in found)
    for preset, objective in dict.fromkeys((p.preset, p.objective) for p in found):
        marks = []
        for p in found:
            if (p.preset, p.objective) == (preset, objective):
                number = reasons.setdefault(p.refused, len(reasons) + 1) if p.refused else 0
                marks.append(f"[{number}]" if number else "works")
        lines.append(f"{f'{preset} {objective}':{width}}  " + "  ".join(
            f"{mark:{len(form)}}" for mark, form in zip(marks, formats, strict=True)))
    head = f"{'':{width}}  " + "  ".join(formats)
    return "\n".join([head, *lines, *(f"[{number}] {reason}" for reason, number in reasons.items())])
