"""Which networks, objectives and formats go together: every triple, found by trying it on shapes alone.

A triple works where its config is accepted and one training step can be traced with it. Neither sizes nor rates nor
initial values nor the activation decide anything about that, so presets that differ in these alone are traced once, in
little; and formats that give a step all that it reads are traced once.
"""

import dataclasses
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS, batch_struct
from lmrep.experiment import config as experiments
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS
from lmrep.objectives import OBJECTIVES
from lmrep.training import optimizers
from lmrep.training.state import create
from lmrep.training.step import train_step

ROLES = ("pad", "unk", "cls", "sep", "mask", "eos")
ROWS, LENGTH = 2, 32
LITTLE = {
    "vocab": 64, "width": 32, "layers": 1, "heads": 4, "mlp": 64, "max_length": 64,
    "dropout": 0.0, "attention_dropout": 0.0, "mlp_dropout": 0.0,
    "init": "normal", "init_stddev": 0.02, "position_stddev": 0.0, "project_init": "same", "residual_init": "same",
    "activation": "gelu", "norm_eps": 1e-12,
}


class Pairing(NamedTuple):
    """A triple; `refused` says why it does not work, and is "" where it does."""

    preset: str
    objective: str  # a name, and the switch that is on in it, if any: "masked sentence_pair"
    format: str
    refused: str = ""


def pairings() -> Iterator[Pairing]:
    """Every triple."""
    for preset in PRESETS:
        for objective in objectives():
            for form in FORMATS:
                yield Pairing(preset, objective, form, refusal(preset, objective, form))


@cache
def objectives() -> tuple[str, ...]:
    """Every objective as it is, and with each of its switches that has it need more of a format."""
    found = []
    for name, kind in OBJECTIVES.items():
        plain = kind.config()
        switches = [field.name for field in dataclasses.fields(plain) if getattr(plain, field.name) is False]
        found += [name, *(f"{name} {switch}" for switch in switches
                          if set(kind.batch_fields(dataclasses.replace(plain, **{switch: True}))) > set(kind.batch_fields(plain)))]
    return tuple(found)


def settings(objective: str) -> tuple[str, dict[str, Any]]:
    """(name, fields) of one of `objectives()`."""
    name, *switches = objective.split()
    return name, dict.fromkeys(switches, True)


def refusal(preset: str, objective: str, form: str) -> str:
    """Why a triple is refused; "" where it works."""
    name, fields = settings(objective)
    try:
        config = experiments.default_config(preset, name, form)
        config.length = LENGTH
        config.objective.update(fields)
        experiments.parse(config)
        chosen = PRESETS[preset]
        network, given = smallest(chosen.config), default_fields(form)
        if not reads(chosen.model, network, objective, _any_field()) <= set(given):
            reads(chosen.model, network, objective, given)
    except UserError as error:
        return str(error)
    return ""


def smallest(config: Any) -> Any:
    """The same network, small, without dropout, and with plain initial values."""
    narrow = {"embedding": 16} if getattr(config, "embedding", 0) else {}
    known = {field.name for field in dataclasses.fields(config)}
    return dataclasses.replace(config, **{name: value for name, value in LITTLE.items() if name in known}, **narrow)


def default_fields(form: str) -> tuple[str, ...]:
    """The batch fields of a format with its default settings."""
    return FORMATS[form].fields(FORMATS[form].config())


def _any_field() -> tuple[str, ...]:
    return tuple(sorted({name for form in FORMATS for name in default_fields(form)}))


@cache
def reads(model: str, network: Any, objective: str, given: tuple[str, ...]) -> frozenset[str]:
    """The fields, of those given, that a training step reads; it is traced, and nothing compiled. Raises UserError as
    the parts do."""
    name, fields = settings(objective)
    kind, size = OBJECTIVES[name], network.vocab
    vocabulary = Vocabulary(size, {role: i for i, role in enumerate(ROLES)}, np.ones(size, bool), np.ones(size, int))
    asked = kind.build(kind.config(**fields), MODELS[model].build(network, Execution(), model), vocabulary)
    optimizer = optimizers.build(optimizers.Config(), asked.specs, 10)
    batch = batch_struct(given, b=ROWS, t=LENGTH)
    state = jax.eval_shape(partial(create, asked, optimizer, ROWS), 0)
    program = jax.make_jaxpr(partial(train_step, objective=asked, optimizer=optimizer, seed=0))(state, batch).jaxpr
    used = {id(x) for operation in program.eqns for x in operation.invars} | {id(x) for x in program.outvars}
    places = program.invars[len(program.invars) - len(batch):]  # the batch stands last, sorted by name
    return frozenset(field for field, place in zip(sorted(batch), places, strict=True) if id(place) in used)


def table(found: list[Pairing]) -> str:
    """For people: a line a preset and objective with the formats it takes; then why others are refused, each reason
    once."""
    formats, reasons, lines = list(FORMATS), {}, []
    width = max(len(f"{p.preset} {p.objective}") for p in found)
    for preset, objective in dict.fromkeys((p.preset, p.objective) for p in found):
        marks = []
        for p in found:
            if (p.preset, p.objective) == (preset, objective):
                marks.append(f"[{reasons.setdefault(reason(p), len(reasons) + 1)}]" if p.refused else "works")
        lines.append(f"{f'{preset} {objective}':{width}}  " + "  ".join(
            f"{mark:{len(form)}}" for mark, form in zip(marks, formats, strict=True)))
    head = f"{'':{width}}  " + "  ".join(formats)
    return "\n".join([head, *lines, *(f"[{number}] {why}" for why, number in reasons.items())])


def reason(p: Pairing) -> str:
    """Why a triple is refused, without the names of its parts: what the lines and columns of a table say already."""
    name, _ = settings(p.objective)
    return p.refused.replace(f"objective {name!r}", "the objective").replace(f"format {p.format!r}", "the format")
