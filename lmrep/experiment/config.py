"""The config of an experiment, parsed and checked. Nothing here reads data or compiles.

This module knows every table of choices (`MODELS`, `OBJECTIVES`, `FORMATS`, ...), and so checks what fits together.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections

from lmrep import optimizers
from lmrep.config.record import choose, read
from lmrep.core.components import check_built, described, faults_of
from lmrep.core.errors import UserError
from lmrep.core.messages import byte_size
from lmrep.core.params import count, flatten
from lmrep.core.sharding import RULES
from lmrep.data import tokenizers
from lmrep.data.formats.base import VARIES
from lmrep.experiment import contracts, network_contracts, unfreezing
from lmrep.experiment.record import (
    ALL_FORMATS,
    ALL_OBJECTIVES,
    UNKNOWN_STEPS,
    Experiment,
    ResolvedStage,
    StageConfig,
    formats_for,
    parse_mesh,
    record_of,
)
from lmrep.layers.attention_backends import AUTO, EVERYWHERE, Choice, Needs
from lmrep.layers.attention_backends import resolve as choose_attention
from lmrep.metrics import COMMON
from lmrep.models import MODELS, PRESETS
from lmrep.models.base import Context, Model, ModelDef, check_context
from lmrep.storage.workdir import CONFIG, RunRecord, read_config
from lmrep.tasks import TASKS
from lmrep.training import stages as training_stages
from lmrep.training.faults import check as check_faults
from lmrep.training.stages import locate_stage


def host_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


BEYOND = 1000  # sizes above this multiple of the machine's memory are mistakes


def default_config(
    preset: str, objective: str, format: str, optimizer: str = optimizers.DEFAULT_RECIPE, layout: str = "data",
) -> ml_collections.ConfigDict:
    """Makes a config with all fields, which config files change and flags override.

    Args:
      preset: a name in `lmrep.models.PRESETS`, or a network of `MODELS` with its defaults.
      objective: a name in `lmrep.objectives.OBJECTIVES`.
      format: a name in `lmrep.data.formats.FORMATS`.
      optimizer: a recipe of a row of `lmrep.optimizers.OPTIMIZERS`.
      layout: of the mesh, as `parse_mesh` takes it.
    """
    def defaults(kind: str, name: str, config: type) -> Any:
        with faults_of(described(kind, name, config), config):
            return config()

    if preset in MODELS:
        name, network = preset, defaults("network", preset, MODELS[preset].config)
    else:
        name, network = choose(PRESETS, preset, "model").model, PRESETS[preset].config
    sections = {"model": (name, network),
                "objective": (objective, defaults(
                    "objective", objective, choose(ALL_OBJECTIVES, objective, "objective").config)),
                "format": (format, defaults("format", format, choose(ALL_FORMATS, format, "format").config))}
    fields = dataclasses.asdict(record_of({"objective": {"name": objective}})()) | {
        section: {"name": name, **dataclasses.asdict(record)} for section, (name, record) in sections.items()
    } | {"optimizer": dataclasses.asdict(optimizers.recipe(optimizer)), "mesh": parse_mesh(layout)}
    model = fields["model"]
    carried, form = MODELS[model["name"]].carried_field, ALL_FORMATS[format]
    if carried and form.contiguous(form.config()):
        model[carried] = 0 if form.advance(form.config(), 2) == 2 else -1
    if objective in TASKS:
        fields["checkpoint"]["best"] = contracts.checked_task(objective, TASKS[objective]).best
    return ml_collections.ConfigDict(fields)


def parse(config: Mapping[str, Any]) -> Experiment:
    """Parses an experiment's config (an ml_collections ConfigDict or any mapping) to a checked record.

    Raises:
      UserError: a field is unknown, of the wrong type or out of range, or fields do not fit each other.
    """
    mapping = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    if "optimizer" in mapping:
        where = "config.optimizer"
        mapping["optimizer"] = optimizers.read_config(optimizers.completed(mapping["optimizer"], where), where)
    experiment = read(record_of(mapping), mapping, "config")
    network = build_model(experiment)
    if experiment.size_cap and not experiment.temperature:
        raise UserError(f"config.size_cap is {experiment.size_cap:,}, and config.temperature is 0, by which the sizes "
                        "of sources do not count; set temperature=1 (or T), or remove size_cap")
    for name, default in (("init_mapping", {}), ("init_vocabulary", "same")):
        if not experiment.init and (value := getattr(experiment, name)) != default:
            raise UserError(f"config.{name} is {value!r}, and config.init is empty; give init, or remove {name}")
    check_faults(experiment.faults)
    stages = resolve_stages(experiment)  # with the types of all fields
    experiment.check()
    # On lengths that fail this check, auto never means xla.
    check_memory(network, stages, network.heads.attention and experiment.execution.attention == "xla")
    for i, stage in enumerate(stages):
        if experiment.sources and ALL_FORMATS[stage.format_name].contiguous(stage.format):
            raise UserError(f"format {stage.format_name!r} is configured so that examples continue those of the "
                            "previous batch, and the examples of a mixture alternate between its sources; choose "
                            "another format or format.order=shuffled, or train on one corpus: --config.sources='()'")
        optimizers.check(stage.optimizer, schedule_steps(stages, i), last=i == len(stages) - 1)
        _check_stage(experiment, stage, network)
        attention_choice(experiment, stage)
    return experiment


def model_def(fields: Mapping[str, Any]) -> ModelDef:
    """Looks up the row of `MODELS` for the fields of `config.model`. Raises UserError if it has none."""
    return choose(MODELS, fields.get("name"), "config.model.name")


def model_config(model: Mapping[str, Any], vocab_size: int = 0) -> Any:
    """Returns the config of the network of `config.model`. A `vocab` of 0 becomes the tokenizer's size, once that is
    known."""
    fields = {name: value for name, value in model.items() if name != "name"}
    config = read(model_def(model).config, fields, "config.model")
    return dataclasses.replace(config, vocab=vocab_size) if vocab_size and not config.vocab else config


def build_model(
    experiment: Experiment, vocab_size: int = 0, stage: ResolvedStage | None = None, platform: str = ""
) -> Model:
    """Builds the network, without arrays.

    Args:
      vocab_size: the number of ids of the tokenizer; 0 before it is known.
      stage: that trains the network on `platform` ("cpu", "gpu" or "tpu"), for the implementation of attention that it
        needs there. Without a stage: the config's, or the best for each input if that does not run everywhere.

    Raises:
      UserError: fields do not fit each other, the table has too few rows for the tokenizer, or `execution.attention`
        does not honour what the stage needs on the platform.
    """
    config, execution = model_config(experiment.model, vocab_size), experiment.execution
    if vocab_size > config.vocab:
        raise UserError(f"the tokenizer has {vocab_size:,} ids, and the model's table {config.vocab:,} rows; "
                        f"set model.vocab to {vocab_size} (or to 0, which takes the tokenizer's size)")
    attention = execution.attention if execution.attention in EVERYWHERE else AUTO
    if stage and (choice := attention_choice(experiment, stage, platform)):
        attention = choice.name
    execution = dataclasses.replace(execution, attention=attention)
    return network_contracts.build_network(experiment.model["name"], config, execution, experiment.name)


def attention_choice(experiment: Experiment, stage: ResolvedStage, platform: str | None = None) -> Choice | None:
    """Chooses the implementation of attention for a stage; None for a network without attention. Without a platform,
    none is checked, and `auto` is xla.

    Raises:
      UserError: `execution.attention` names one that does not honour what the stage needs, or the row of the network
        does not say what its attention must honour.
    """
    row, execution = model_def(experiment.model), experiment.execution
    what = described("network", experiment.model["name"], row.config)
    with faults_of(what, row.config):
        needs = row.attention(model_config(experiment.model))
    if needs is None:
        if execution.attention != AUTO:
            raise UserError(f"execution.attention is {execution.attention}, and the network has no choice of "
                            f"attention; set it to {AUTO}")
        return None
    check_built(what, needs, Needs, "attention")
    conditions_on = ALL_OBJECTIVES[stage.objective_name].conditions_on(stage.objective)
    return choose_attention(execution.attention, needs._replace(
        dtype=execution.dtype, length=stage.length, sharded=experiment.mesh.sequence > 1,
        packed=ALL_FORMATS[stage.format_name].packed(stage.format), causal=conditions_on == Context.LEFT,
        mask=needs.mask or conditions_on == Context.MASKED), platform)


def check_memory(network: Model, stages: Sequence[ResolvedStage], probabilities: bool) -> None:
    """Refuses sizes far beyond any memory, by shapes alone; `probabilities` says whether all attention probabilities
    are computed at once. Raises UserError."""
    limit = BEYOND * host_memory()
    sizes = [("the network's parameters", 4 * count(network.specs), "model.vocab, width, layers and max_length")]
    for stage in stages:
        sequences, length = -(-stage.batch_size // stage.microbatches), stage.length
        sizes.append((f"one array of hidden states, {sequences:,} x {length:,} x {network.width:,},",
                      4 * sequences * length * network.width, "batch_size, length and model.width"))
        if probabilities:
            sizes.append((f"the attention probabilities of one sequence of {length:,} tokens", 4 * length**2,
                          "length, or set execution.attention=chunked"))
    for what, size, fields in sizes:
        if size > limit:
            raise UserError(f"{what} would take {byte_size(size)}, more than {BEYOND:,} times the memory of this "
                            f"machine ({byte_size(limit / BEYOND)}); check {fields}")


def resolve_stages(experiment: Experiment) -> list[ResolvedStage]:
    """Resolves the fields of all stages. Their steps add up to the experiment's, which are UNKNOWN_STEPS for a task
    whose data have not been read."""
    stages, steps = experiment.stages or (StageConfig(),), experiment.steps or UNKNOWN_STEPS
    if getattr(experiment, "unfreezing", "full") != "full":
        stages = unfreezing.stages(experiment, build_model(experiment).specs)
    ends = [round(steps * sum(s.fraction for s in stages[: i + 1])) for i in range(len(stages))]
    if len(stages) > 1 and not math.isclose(sum(s.fraction for s in stages), 1, abs_tol=1e-6):
        raise UserError(f"config.stages have fractions {', '.join(f'{s.fraction:g}' for s in stages)}; "
                        "they must add to 1")
    ends[-1] = steps
    begins = [0, *ends[:-1]]
    if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
        raise UserError(f"config.steps is {experiment.steps}, too few for {len(stages)} stages of fractions "
                        f"{', '.join(f'{s.fraction:g}' for s in stages)}; each needs at least one step")
    resolved = []
    for i, (stage, begin, end) in enumerate(zip(stages, begins, ends, strict=True)):
        where = f"config.stages.{i}" if experiment.stages else "config"
        objective_name, objective = _choice(ALL_OBJECTIVES, experiment.objective, stage.objective, f"{where}.objective")
        format_name, form = _choice(formats_for(objective_name), experiment.format, stage.format, f"{where}.format")
        resolved.append(ResolvedStage(
            name=stage.name, steps=end - begin,
            length=stage.length or experiment.length,
            batch_size=stage.batch_size or experiment.batch_size,
            microbatches=stage.microbatches or experiment.microbatches,
            format_name=format_name, format=form, objective_name=objective_name, objective=objective,
            optimizer=optimizers.read_changes(experiment.optimizer, stage.optimizer, f"{where}.optimizer"),
            start=stage.start))
    return resolved


def best_direction(experiment: Experiment) -> str:
    """Returns "max" or "min": which value of the metric `checkpoint.best` is the best.

    Raises:
      UserError: no objective of the stages has this metric.
    """
    best, metrics = experiment.checkpoint.best, {"loss": COMMON["loss"]}
    if not best:
        return "max"  # the examples of a task decide it: one of TASK_METRICS, of which more is better
    for stage in resolve_stages(experiment):
        metrics |= experiment.metrics(stage.objective_name)
    return training_stages.best_direction(metrics, best)


def schedule_steps(stages: Sequence[ResolvedStage], i: int) -> int:
    """Updates of the optimizer's schedule in stage `i`: consecutive stages that continue each other share one."""
    first, last = i, i + 1
    while first and stages[first].start is None:
        first -= 1
    while last < len(stages) and stages[last].start is None:
        last += 1
    return sum(stage.steps for stage in stages[first:last])


def _choice(table: Mapping[str, Any], base: dict, changed: dict, where: str) -> tuple[str, Any]:
    """Reads a section of the config that names a row of a table: (name, record)."""
    fields = base | changed if changed.get("name", base.get("name")) == base.get("name") else dict(changed)
    name = fields.pop("name", None)
    return name, read(choose(table, name, f"{where}.name").config, fields, where)


def _check_decoder(model: Mapping[str, Any], objective: str, init: str) -> None:
    """Refuses to generate with an encoder-decoder, `config.model`, that reads one text alone, for example that of
    `init`."""
    definition, given = model_def(model), f" of init={init}" if init else ""
    defaults = {name: getattr(definition.config(), name) for name in definition.encoder}
    fields = {name: model.get(name, value) for name, value in defaults.items()}
    if fields == defaults:
        return
    flags = " ".join(f"--config.model.{name}={value}" for name, value in defaults.items())
    if fields != dict(definition.encoder):
        raise UserError(f"objective {objective!r} reads one text and generates another, and the network{given} reads "
                        f"the same text in both stacks; set {flags}")
    raise UserError(f"objective {objective!r} generates texts with a decoder, and the network{given} is an encoder "
                    f"alone; set {flags} for a decoder that starts with random parameters"
                    + ", or start from a checkpoint that has one" * bool(given))


def _check_stage(experiment: Experiment, stage: ResolvedStage, network: Model) -> None:
    if 0 < network.max_length < stage.length:
        raise UserError(f"length is {stage.length}, and the model has positions for {network.max_length}; "
                        f"set length to that at most, or model.max_length to {stage.length}")
    if stage.batch_size % stage.microbatches:
        raise UserError(f"batch_size is {stage.batch_size}, which {stage.microbatches} microbatches do not divide")
    objective = ALL_OBJECTIVES[stage.objective_name]
    if objective.compares and stage.microbatches > 1:
        raise UserError(f"microbatches is {stage.microbatches}, and objective {stage.objective_name!r} compares the "
                        "examples of a batch with each other, which microbatches keep apart; set it to 1")
    with faults_of(described("objective", stage.objective_name, objective.config), objective.config):
        objective.check(stage.objective)
    conditions_on = objective.conditions_on(stage.objective)
    if conditions_on == Context.SOURCE:
        _check_decoder(experiment.model, stage.objective_name, experiment.init)
    check_context(network, conditions_on, f"objective {stage.objective_name!r}")
    contracts.check_format(stage.format_name, stage.format)  # before a field that it misspells is missed
    form, masks = ALL_FORMATS[stage.format_name], "attention_mask" in network.inputs
    needed = set(objective.batch_fields(stage.objective))
    fitting = ", ".join(
        name for name, other in formats_for(stage.objective_name).items()
        if needed <= set(other.fields(other.config())) and (masks or not other.packed(other.config()))) or "none"
    if missing := needed - set(form.fields(stage.format)):
        raise UserError(f"objective {stage.objective_name!r} as configured needs {', '.join(sorted(missing))}, which "
                        f"format {stage.format_name!r} does not give; formats that do: {fitting}")
    if form.packed(stage.format) and not masks:
        raise UserError(f"format {stage.format_name!r} puts several texts in an example, and network {network.name!r} "
                        f"takes no attention mask to keep them apart; formats that fit: {fitting}")
    known, start = network.state.carried(stage.length), form.advance(stage.format, stage.length)
    if start == VARIES and (network.max_length or network.heads.attention):
        raise UserError(f"format {stage.format_name!r} is configured so that batches may be longer than length, and "
                        f"network {network.name!r} is not recurrent, or model.max_length limits its sequences; set "
                        "format.lengths=fixed")
    if network.state.carry and form.contiguous(stage.format) and start not in (known, VARIES):
        effect = "would know what it predicts" if known > start else "would lack the text between"
        raise UserError(f"examples of format {stage.format_name!r} continue those of the previous batch after {start} "
                        f"of {stage.length} tokens, and network {network.name!r} remembers {known}, and {effect}: set "
                        f"model.reuse, if it has this field, to {start if start < stage.length else 0}, or "
                        "format.order=shuffled")
    if "characters" not in network.inputs:
        return
    has_characters = [name for name, row in tokenizers.TOKENIZERS.items() if row.characters]
    tokenizer = experiment.tokenizer
    if not tokenizer.vocab_file and tokenizer.name not in has_characters:
        raise UserError(f"network {network.name!r} reads the characters of words, which tokenizer {tokenizer.name!r} "
                        f"does not give; set --config.tokenizer.name={has_characters[0]}, or "
                        "--config.model.reads=words")
    if stage.objective_name not in TASKS and conditions_on == Context.BOTH:
        raise UserError(f"objective {stage.objective_name!r} replaces words, and network {network.name!r} reads their "
                        "characters; choose objective bidirectional, or set --config.model.reads=words")


def check_mesh(experiment: Experiment, devices: int) -> tuple[int, ...]:
    """Checks the mesh on a number of devices, and returns its sizes as `MeshConfig.sizes` does.

    Raises:
      UserError: the mesh does not fit the devices, the batch or the network.
    """
    data, fsdp, tensor, sequence, *_ = (*(sizes := experiment.mesh.sizes(devices)), 1)
    network = build_model(experiment)
    if sequence > 1 and model_def(experiment.model).attention(model_config(experiment.model)) is None:
        raise UserError(f"mesh.sequence is {sequence}, and the network {experiment.model['name']!r} does not shard "
                        "sequences, as model.name=transformer does; set mesh.sequence=1")
    for stage in resolve_stages(experiment):
        if stage.length % sequence:
            raise UserError(f"length is {stage.length}, which mesh.sequence={sequence} does not divide; make it a "
                            f"multiple of {sequence}")
        size, shards = stage.batch_size // stage.microbatches, data * fsdp
        if size % shards:
            raise UserError(
                f"batch_size is {stage.batch_size} in {stage.microbatches} microbatch(es) of {size} examples, which "
                f"data x fsdp = {shards} does not divide; make batch_size a multiple of {shards * stage.microbatches}")
    for path, spec in flatten(network.specs).items():
        for axis, size, block in zip(spec.axes, spec.shape, spec.blocks or (1,) * len(spec.shape), strict=True):
            # Tables over the vocabulary are replicated if they do not divide.
            if axis != "vocab" and RULES.get(axis) == "tensor" and (size // block) % tensor:
                divisors = [str(i) for i in range(1, tensor) if size // block % i == 0]
                raise UserError(f"{path} has {size // block} {axis}, which mesh.tensor={tensor} does not divide; a "
                                f"tensor axis that does: {', '.join(divisors)}")
    return sizes


def stage_at(experiment: Experiment, step: int) -> ResolvedStage:
    """Returns the stage that made checkpoint `step`."""
    stages = resolve_stages(experiment)
    return stages[locate_stage(stages, max(step - 1, 0))[0]]


def own_tokenizer(directory: str | os.PathLike, experiment: Experiment) -> tokenizers.Config:
    """Returns the config of a run's tokenizer. A vocabulary that was loaded is read from the copy in `directory`."""
    if not experiment.tokenizer.vocab_file:
        return experiment.tokenizer
    return dataclasses.replace(experiment.tokenizer, vocab_file=str(Path(directory) / "tokenizer"))


def read_run(directory: str | os.PathLike) -> tuple[Experiment, RunRecord]:
    """Reads the experiment of the run in a workdir, and its config.json. Raises UserError, with the file, if there is
    none or its config is not valid in this version."""
    record = read_config(directory)
    try:
        return parse(record["config"]), record
    except UserError as error:
        raise UserError(f"{Path(directory) / CONFIG} has a config that this version of lmrep does not read: {error}"
                        ) from None
