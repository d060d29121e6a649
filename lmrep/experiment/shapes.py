"""The stages of an experiment as shapes alone, before there are data: for checks, and for plans of hardware that is not
here."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from lmrep import optimizers
from lmrep.core.errors import UserError
from lmrep.core.sharding import batch_sharding, platform
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import tokenizers
from lmrep.data.characters import WordCharacters
from lmrep.data.formats import batch_struct
from lmrep.experiment import build, contracts, frozen, network_contracts
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import ALL_FORMATS, ALL_OBJECTIVES
from lmrep.tasks import TASKS, word_features
from lmrep.training.stages import Stage
from lmrep.training.stages import check as check_stages
from lmrep.training.state import TrainState, abstract

CHOICES = 4  # or candidates, of an example of a task that chooses, before there are data


class StageShapes(NamedTuple):
    """A stage without its data."""

    fields: experiments.ResolvedStage
    stage: Stage  # as the trainer takes it
    state: TrainState  # `jax.ShapeDtypeStruct`s of the training state, with their shardings on the mesh
    characters: bool  # whether batches have the characters of words


def without_data(experiment: Experiment, vocabulary: Vocabulary | None, mesh: Mesh | AbstractMesh) -> list[StageShapes]:
    """Builds the stages of an experiment on a mesh.

    Args:
      experiment: of any kind.
      vocabulary: of its tokenizer; None for what is known of one before it is trained.
      mesh: of devices that may not be here.

    Raises:
      UserError: a network, objective or optimizer cannot be built, or stages cannot follow each other.
    """
    vocabulary = vocabulary or untrained_vocabulary(experiment.tokenizer, experiment.model)
    resolved, stages, parts = experiments.resolve_stages(experiment), [], frozen.load(experiment, values=False)
    for i, fields in enumerate(resolved):
        network = experiments.build_model(experiment, vocabulary.size, fields, platform(mesh))
        objective = build.without_frozen(build.objective(fields, network, vocabulary, parts), fields.optimizer)
        optimizer = optimizers.build(fields.optimizer, objective.specs, experiments.schedule_steps(resolved, i))
        stage = Stage(fields.name, fields.steps, objective, optimizer, lambda *_: iter(()), fields.batch_size,
                      fields.microbatches, start=fields.start)
        state = abstract(objective, optimizer, fields.batch_size, mesh)
        stages.append(StageShapes(fields, stage, state, vocabulary.characters is not None))
    check_stages([one.stage for one in stages])
    return stages


def check_contracts(experiment: Experiment) -> None:
    """Checks that the components of an experiment, as it was parsed, keep their contracts, and that frozen parts exist.
    The components of a task are checked in `build.stages` instead, with the labels that its data decide.

    Raises:
      UserError: one does not; a frozen part is missing; `checkpoint.best` is a metric that the objective as configured
        does not measure.
    """
    if experiment.labelled:
        for name, path in frozen.part_paths(experiment.frozen, experiments.resolve_stages(experiment)).items():
            frozen.locate(name, path)
        return
    parts = frozen.load(experiment, values=False)
    # That of a teacher is the run's own, which is compared once there is a tokenizer.
    shared = 0 if experiment.tokenizer.vocab_file else max(
        (part.model.vocab_size for part in parts.values() if part.model), default=0)
    vocabulary, best = untrained_vocabulary(experiment.tokenizer, experiment.model, shared), experiment.checkpoint.best
    row = experiment.model["name"], experiments.model_def(experiment.model)
    layers = getattr(experiments.model_config(experiment.model), "layers", None)
    network = network_contracts.checked_network(experiments.build_model(experiment, vocabulary.size), *row)
    stages = experiments.resolve_stages(experiment)  # those that differ in length alone are traced once
    for stage in {repr((x.objective, x.format_name, x.format)): x for x in stages}.values():
        struct = ALL_FORMATS[stage.format_name].shapes(
            stage.format, vocabulary.characters is not None, b=2, t=stage.length)
        network_contracts.check_states(network, *row, struct, layers)
        metrics = ALL_OBJECTIVES[stage.objective_name].metrics
        measured = contracts.check_objective(
            stage.objective_name, lambda stage=stage: build.objective(stage, network, vocabulary, parts), struct,
            metrics)
        if best in metrics and best not in measured:
            raise UserError(f"checkpoint.best is {best!r}, which objective {stage.objective_name!r} as configured "
                            f"does not measure; it measures {', '.join(sorted(measured))}")
    for i, stage in enumerate(stages):
        specs = build.objective(stage, network, vocabulary, parts).specs
        optimizers.build(stage.optimizer, specs, experiments.schedule_steps(stages, i))


def batch(one: StageShapes, mesh: Mesh) -> dict[str, Any]:
    """Returns the shapes of a stage's global batch, laid out on the mesh. The batch of a task has as many texts of the
    full length as its format allows, one in each sequence, or `CHOICES` in each example. Source and target each have
    their own length, unless they are packed."""
    fields, form, columns = one.fields, ALL_FORMATS[one.fields.format_name], {}
    length = source_length = fields.length
    task = TASKS.get(fields.objective_name)
    if task and (pairs := one.stage.objective.uses.text_pairs):
        length, source_length = pairs.lengths(fields.length, form.packed(fields.format))
    rows, shards = fields.batch_size, fields.batch_size // batch_sharding(mesh).shard_shape((fields.batch_size,))[0]
    if limit := getattr(fields.format, "batch_tokens", 0):
        multiple = shards * fields.microbatches
        rows = -(-min(rows, limit // max(length, source_length)) // multiple) * multiple
    sizes = {"b": rows, "t": length, "s": source_length, "n": 1, "k": CHOICES,
             "l": max(1, len(getattr(fields.objective, "labels", ())))}
    if word_bytes := getattr(fields.objective, "characters", None):
        sizes["y"] = word_bytes.max_length
    if task:
        columns = task.columns(fields.objective) | word_features.fields(fields.objective)
        if task.reads.grouped:
            sizes |= {"t": (CHOICES, length), "n": CHOICES}
    return batch_struct(form.fields(fields.format), one.characters, columns, batch_sharding(mesh), **sizes)


def untrained_vocabulary(tokenizer: tokenizers.Config, model: Mapping[str, Any], size: int = 0) -> Vocabulary:
    """Makes a vocabulary that has not been trained: its special tokens, and its `size`, by default the largest that it
    may have with the network of `config.model`."""
    if not size:
        size = tokenizers.size(tokenizer)
        size = min(size, experiments.model_config(model, size).vocab)
    definition = tokenizers.TOKENIZERS[tokenizer.name]
    characters = WordCharacters([], {}, 0) if definition.characters else None
    return Vocabulary(size, {role: i for i, role in enumerate(definition.trained.specials)}, np.ones(size, bool),
                      np.zeros(size, np.int64), characters=characters,
                      sentinels=tuple(range(size - 1, size - 1 - definition.trained.sentinels, -1)))
