"""Which networks, objectives and formats fit together: every triple is tried by shapes alone.

A triple fits if its config is accepted and the loss of a training step can be traced with it. Presets that differ in
sizes and dropout alone are traced once, at the tiny sizes of their network's row, and so are formats that give a step
all the fields that it reads. A component whose code fails is refused, with what it raised.
"""

import dataclasses
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
from lmrep.experiment import contracts
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
    """A triple; `refused` says why it does not fit, and is "" if it does."""

    preset: str  # or the name of a network that has none
    objective: str  # a name, and a field that is True in it, if any: "masked sentence_pair"
    format: str
    refused: str = ""


def pairings(beginnings: Sequence[str] = ("",)) -> Iterator[Pairing]:
    """Every triple with a preset whose name begins in one of these ways."""
    for preset in filter(lambda name: name.startswith(tuple(beginnings)), networks()):
        for objective in objectives():
            for form in FORMATS:
                yield Pairing(preset, objective, form, refusal(preset, objective, form))


def networks() -> tuple[str, ...]:
    """Every preset, and the networks that have none."""
    with_presets = {preset.model for preset in PRESETS.values()}
    return (*PRESETS, *(name for name in pretrained_models() if name not in with_presets))


@cache
def objectives() -> tuple[str, ...]:
    """Every objective with its defaults, and with each flag that makes it need more fields of a format."""
    variants = []
    for name, definition in OBJECTIVES.items():
        plain = definition.config()
        switches = [field.name for field in dataclasses.fields(plain) if getattr(plain, field.name) is False]
        fields = set(definition.batch_fields(plain))
        variants += [name, *(f"{name} {switch}" for switch in switches
                          if set(definition.batch_fields(dataclasses.replace(plain, **{switch: True}))) > fields)]
    return tuple(variants)


def settings(objective: str) -> tuple[str, dict[str, Any]]:
    """(name, fields) of one of `objectives()`."""
    name, *switches = objective.split()
    return name, dict.fromkeys(switches, True)


def refusal(preset: str, objective: str, form: str) -> str:
    """Why a triple is refused; "" if it fits."""
    name, fields = settings(objective)
    try:
        config = experiments.default_config(preset, name, form)
        config.name, config.length = preset, LENGTH
        config.objective.update(fields)
        if preset in PRESETS:
            config.tokenizer.name = PRESETS[preset].tokenizer
        experiments.parse(config)
        model = preset if preset in MODELS else PRESETS[preset].model
        network = smallest(MODELS[model], MODELS[model].config() if preset in MODELS else PRESETS[preset].config)
        given = default_fields(form)
        every = tuple(sorted({name for other in FORMATS for name in default_fields(other)}))
        if not reads(model, network, objective, every) <= set(given):
            reads(model, network, objective, given)
    except UserError as error:
        return str(error)
    except Exception as error:  # of a component that is not lmrep's
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    return ""


def smallest(row: ModelDef, config: Any) -> Any:
    """The same network at the sizes of its row's `tiny`, without dropout, and with a vocabulary of `VOCAB` where it can
    have that. What `tiny` has beside numbers may be another network."""
    sizes = {name: value for name, value in row.tiny.items() if type(value) in (int, float) and name != "vocab"}
    rates = {name: 0.0 for name in row.dropout_fields if type(getattr(config, name)) is float}
    tiny = dataclasses.replace(config, **{**sizes, **rates, "vocab": VOCAB})
    try:
        row.check(tiny)
    except UserError:
        return dataclasses.replace(tiny, vocab=config.vocab or VOCAB)
    return tiny


def default_fields(form: str) -> tuple[str, ...]:
    """The batch fields of a format with its default settings."""
    return FORMATS[form].fields(FORMATS[form].config())


@cache
def reads(model: str, network: Any, objective: str, given: tuple[str, ...]) -> frozenset[str]:
    """The batch fields, of those `given`, that the loss of a training step reads. It is traced and not compiled.

    Raises:
      UserError: network and objective do not fit.
    """
    name, fields = settings(objective)
    definition, size = OBJECTIVES[name], network.vocab
    vocabulary = Vocabulary(size, {role: i for i, role in enumerate(ROLES)}, np.ones(size, bool), np.ones(size, int),
                            sentinels=tuple(range(size - 1, size - 1 - min(SENTINELS, size // 2), -1)))
    built_network = contracts.build_network(model, network, Execution(scan=True), model)
    encoder = contracts.checked_network(built_network, model, MODELS[model])
    with faults_of(described("objective", name, definition.config), definition.config):
        built = definition.build(definition.config(**fields), encoder, vocabulary)
        batch = batch_struct(given, "characters" in encoder.inputs, b=BATCH_SIZE, t=LENGTH)

        def loss(params: Tree, batch: Batch):
            prepared = built.prepare(prepare_keys(built, batch, 0, 0), batch)
            return built.loss(params, prepared, jax.random.key(0), built.carry(BATCH_SIZE))

        program = jax.make_jaxpr(loss)(abstract(specs_of(built)), batch).jaxpr
    used = {id(x) for operation in program.eqns for x in operation.invars} | {id(x) for x in program.outvars}
    names = sorted(flatten(batch))
    inputs = program.invars[-len(names):]  # the batch comes last, sorted by name
    return frozenset(name for name, variable in zip(names, inputs, strict=True) if id(variable) in used)


def table(triples: list[Pairing]) -> str:
    """As text: for each preset and objective the formats that it takes, then the reasons why others are refused."""
    formats, reasons, lines = list(FORMATS), {}, []
    width = max(len(f"{p.preset} {p.objective}") for p in triples)
    for preset, objective in dict.fromkeys((p.preset, p.objective) for p in triples):
        marks = []
        for p in triples:
            if (p.preset, p.objective) == (preset, objective):
                marks.append(f"[{reasons.setdefault(reason(p), len(reasons) + 1)}]" if p.refused else "fits")
        lines.append(f"{f'{preset} {objective}':{width}}  " + "  ".join(
            f"{mark:{len(form)}}" for mark, form in zip(marks, formats, strict=True)))
    head = f"{'':{width}}  " + "  ".join(formats)
    return "\n".join([head, *lines, *(f"[{number}] {why}" for why, number in reasons.items())])


def reason(p: Pairing) -> str:
    """Why a triple is refused, without the names that the lines and columns of the table show."""
    (name, _), refused = settings(p.objective), p.refused
    for named, short in ((f"objective {name!r}", "the objective"), (f"format {p.format!r}", "the format"),
                         (f"the network {p.preset!r}", "the network"), (f"network {p.preset!r}", "the network")):
        refused = refused.replace(named, short)
    return refused
