"""Finds which networks, objectives and formats fit together, by shapes alone.

A triple fits if its config is accepted and the loss of a training step can be traced with it. Presets that differ only
in sizes and dropout are traced once, at the `tiny` sizes of their network. Formats that give a step every field that it
reads share one trace. A triple whose code raises an error is refused with that error.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.core.components import described, faults_of
from lmrep.core.errors import UserError
from lmrep.core.params import Tree, abstract, flatten
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import FORMATS, batch_struct
from lmrep.experiment import config as experiments
from lmrep.experiment import network_contracts
from lmrep.layers.stack import Execution
from lmrep.models import MODELS, PRESETS, pretrained_models
from lmrep.models.base import ModelDef
from lmrep.objectives import OBJECTIVES
from lmrep.objectives.base import Batch
from lmrep.training.state import specs_of
from lmrep.training.step import prepare_keys

ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
BATCH_SIZE, LENGTH = 2, 32
VOCAB = 1000
SENTINELS = 100


class Pairing(NamedTuple):
    """A network, an objective and a format, and whether they fit."""

    preset: str  # or the name of a network that has none
    objective: str  # a name, and a field that is True in it, if any: "masked sentence_pair"
    format: str
    refused: str = ""  # the reason why they do not fit; "" if they do


def pairings(prefixes: Sequence[str] = ("",)) -> Iterator[Pairing]:
    """Tries every triple with a preset whose name begins with one of the prefixes."""
    for preset in filter(lambda name: name.startswith(tuple(prefixes)), networks()):
        for objective in objectives():
            for form in FORMATS:
                yield Pairing(preset, objective, form, refusal(preset, objective, form))


def networks() -> tuple[str, ...]:
    """Returns every preset, and every network that has none."""
    with_presets = {preset.model for preset in PRESETS.values()}
    return (*PRESETS, *(name for name in pretrained_models() if name not in with_presets))


@cache
def objectives() -> tuple[str, ...]:
    """Returns the name of every objective, for its defaults, and "NAME FLAG" for each flag that makes the objective
    read more batch fields."""
    variants = []
    for name, definition in OBJECTIVES.items():
        plain = definition.config()
        switches = [field.name for field in dataclasses.fields(plain) if getattr(plain, field.name) is False]
        fields = set(definition.batch_fields(plain))
        variants += [name, *(f"{name} {switch}" for switch in switches
                          if set(definition.batch_fields(dataclasses.replace(plain, **{switch: True}))) > fields)]
    return tuple(variants)


def parse_variant(objective: str) -> tuple[str, dict[str, Any]]:
    """Parses an item of `objectives()` to (name, fields of its config)."""
    name, *switches = objective.split()
    return name, dict.fromkeys(switches, True)


def refusal(preset: str, objective: str, form: str) -> str:
    """Returns why a triple does not fit; "" if it does."""
    name, fields = parse_variant(objective)
    try:
        config = experiments.default_config(preset, name, form)
        config.name, config.length = preset, LENGTH
        config.objective.update(fields)
        if preset in PRESETS:
            config.tokenizer.name = PRESETS[preset].tokenizer
        experiments.parse(config)
        model = preset if preset in MODELS else PRESETS[preset].model
        network = tiny_config(MODELS[model], MODELS[model].config() if preset in MODELS else PRESETS[preset].config)
        batch_fields = default_fields(form)
        all_fields = tuple(sorted({name for other in FORMATS for name in default_fields(other)}))
        if not fields_read(model, network, objective, all_fields) <= set(batch_fields):
            fields_read(model, network, objective, batch_fields)
    except UserError as error:
        return str(error)
    except Exception as error:  # of a component that is not lmrep's
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    return ""


def tiny_config(row: ModelDef, config: Any) -> Any:
    """Returns a network's config at the sizes of its row's `tiny`, without dropout, and with a vocabulary of `VOCAB` if
    the network allows that. Fields of `tiny` that are no numbers are left out, since they may make another network."""
    sizes = {name: value for name, value in row.tiny.items() if type(value) in (int, float) and name != "vocab"}
    rates = {name: 0.0 for name in row.dropout_fields if type(getattr(config, name, None)) is float}
    tiny = dataclasses.replace(config, **{**sizes, **rates, "vocab": VOCAB})
    try:
        row.check(tiny)
    except UserError:
        return dataclasses.replace(tiny, vocab=config.vocab or VOCAB)
    return tiny


def default_fields(form: str) -> tuple[str, ...]:
    """Returns the batch fields of a format with its default settings."""
    return FORMATS[form].fields(FORMATS[form].config())


@cache
def fields_read(model: str, network: Any, objective: str, batch_fields: tuple[str, ...]) -> frozenset[str]:
    """Returns those of `batch_fields` that the loss of a training step reads. The loss is traced and not compiled.

    Raises:
      UserError: network and objective do not fit.
    """
    name, fields = parse_variant(objective)
    definition, size = OBJECTIVES[name], network.vocab
    vocabulary = Vocabulary(size, {role: i for i, role in enumerate(ROLES)}, np.ones(size, bool), np.ones(size, int),
                            sentinels=tuple(range(size - 1, size - 1 - min(SENTINELS, size // 2), -1)))
    encoder = network_contracts.checked_network(
        network_contracts.build_network(model, network, Execution(scan=True), model), model, MODELS[model])
    with faults_of(described("objective", name, definition.config), definition.config):
        built = definition.build(definition.config(**fields), encoder, vocabulary)
        batch = batch_struct(batch_fields, "characters" in encoder.inputs, b=BATCH_SIZE, t=LENGTH)

        def loss(params: Tree, batch: Batch):
            prepared = built.prepare(prepare_keys(built, batch, 0, 0), batch)
            return built.loss(params, prepared, jax.random.key(0), built.carry(BATCH_SIZE))

        program = jax.make_jaxpr(loss)(abstract(specs_of(built)), batch).jaxpr
    used = {id(x) for operation in program.eqns for x in operation.invars} | {id(x) for x in program.outvars}
    names = sorted(flatten(batch))
    inputs = program.invars[-len(names):]  # the batch comes last, sorted by name
    return frozenset(name for name, variable in zip(names, inputs, strict=True) if id(variable) in used)


def table(triples: list[Pairing]) -> str:
    """Formats triples as text: for each preset and objective the formats that fit, then why the others are refused."""
    formats, reasons, lines = list(FORMATS), {}, []
    width = max(len(f"{p.preset} {p.objective}") for p in triples)
    for preset, objective in dict.fromkeys((p.preset, p.objective) for p in triples):
        marks = []
        for p in triples:
            if (p.preset, p.objective) == (preset, objective):
                # Without the names that the lines and columns show.
                reason = re.sub(rf"(the )?(network|objective|format) '({re.escape(preset)}|"
                                rf"{re.escape(objective.split()[0])}|{p.format})'", r"the \2", p.refused)
                marks.append(f"[{reasons.setdefault(reason, len(reasons) + 1)}]" if reason else "fits")
        lines.append(f"{f'{preset} {objective}':{width}}  " + "  ".join(
            f"{mark:{len(form)}}" for mark, form in zip(marks, formats, strict=True)))
    head = f"{'':{width}}  " + "  ".join(formats)
    return "\n".join([head, *lines, *(f"[{number}] {why}" for why, number in reasons.items())])
