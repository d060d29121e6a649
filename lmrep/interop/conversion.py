"""Converts a published directory to a workdir that every command takes, and a workdir to a published directory.

A converted workdir has, beside a checkpoint of step 0 and its tokenizer,

    interop/published.json             family, config.json, metadata, and the name and dtype of every tensor in order
    interop/extra_tensors.safetensors  tensors without a counterpart among our parameters
    certificate.json                   the largest differences from the reference

so that converting it back gives the tensors that were read, byte for byte. Both directions write to a temporary
directory and rename it.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import jax
import numpy as np

from lmrep.config import json_files
from lmrep.core import hub
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import write_json
from lmrep.core.params import flatten, unflatten
from lmrep.data import tokenizers
from lmrep.data.tokenizers import library
from lmrep.experiment import config as experiments
from lmrep.experiment import frozen
from lmrep.experiment.config import Experiment, ResolvedStage
from lmrep.inference.load import load
from lmrep.inference.run import Run
from lmrep.interop import certificate, sentence_transformers, tensor_files
from lmrep.interop.certificate import Certificate
from lmrep.interop.heads import HEADS, PublishedTask, head_of
from lmrep.interop.huggingface import FAMILIES, Family
from lmrep.interop.huggingface.head_classes import label_remarks, read_task
from lmrep.interop.huggingface.read import Published, read
from lmrep.interop.huggingface.write import choose_family, from_network, tensors, write
from lmrep.models.base import Context
from lmrep.storage import remote_workdir, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.tasks import TASKS, networks
from lmrep.training.state import trainable

# Fields of a task's config that describe its head and the network below it.
HEAD_FIELDS = ({*networks.TextConfig.__dataclass_fields__} - {"teacher", "auxiliary"}) | {"labels", "end", "beams"}
FOLDER, RECORD, EXTRA = "interop", "published.json", "extra_tensors.safetensors"
CERTIFICATE = "certificate.json"
RESTORE = "restore it, or remove it to write the parameters under the library's names"


class PublishedRecord(TypedDict):
    """The contents of RECORD: the names and dtypes under which a published checkpoint is written again."""

    family: str
    config_json: dict[str, Any]
    metadata: dict[str, str]
    dtypes: dict[str, str]


class Converted(NamedTuple):
    """The result of a conversion."""

    checkpoint: Published
    certificate: Certificate
    remarks: list[str]  # for people: what was kept beside the parameters, left out or added


def is_workdir(directory: Path) -> bool:
    """Returns whether a directory is a workdir; otherwise it is a published one. Raises UserError if it has no
    config.json."""
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}; give a workdir or a published checkpoint's directory")
    config = tensor_files.read_json(directory / workdir.CONFIG)
    return "config" in config and "model_type" not in config


def to_workdir(source: Path, target: Path) -> Converted:
    """Makes `target` a workdir, at step 0, from the published checkpoint in `source`.

    A head that the checkpoint lacks is not initialized: the workdir lacks it too, and a run that starts from it
    (`init=`) initializes and logs it.

    Raises:
      UserError: `source` is refused, as by `read`, or `target` is not empty; nothing is written.
      RunFault: the certificate fails, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    checkpoint = read(source)
    tokenizer = tokenizers.load(source)
    experiment = equivalent_experiment(checkpoint, tokenizer, target.name)
    certified = certificate.certify(checkpoint, source)
    before = library.start_of_text(source)
    start = None if before is None or not {*before} <= tokenizer.ids.keys() else _start(
        [tokenizer.ids[token] for token in before], checkpoint.config_json, tokenizer.size)
    with new_workdir(source, target, experiment, tokenizer, checkpoint.params, start=start) as temporary:
        (temporary / FOLDER).mkdir()
        tensor_files.write(temporary / FOLDER / EXTRA, checkpoint.extra_tensors, {})
        write_json(temporary / FOLDER / RECORD, {
            "family": checkpoint.family.name, "config_json": checkpoint.config_json, "metadata": checkpoint.metadata,
            "dtypes": checkpoint.dtypes})
        write_json(temporary / CERTIFICATE, dataclasses.asdict(certified))
    remarks = [f"kept beside the parameters, since our network has no such tensor: {name} "
               f"{tensor_files.dtype_and_shape(value)}" for name, value in checkpoint.extra_tensors.items()]
    if spare := checkpoint.config.vocab - tokenizer.size:
        remarks.append(f"the last {spare:,} of the token table's {checkpoint.config.vocab:,} rows have no token in the "
                       "tokenizer's files: check that these files are complete")
    remarks += label_remarks(checkpoint.config_json, checkpoint.task)
    if not checkpoint.task and not _language_model(checkpoint.heads):
        remarks.append(checkpoint.family.pretraining.without_head)
    return Converted(checkpoint, certified, remarks)


@contextlib.contextmanager
def new_workdir(
    source: Path | None, target: Path, experiment: Experiment, tokenizer: tokenizers.Tokenizer,
    params: Mapping[str, np.ndarray], step: int = 0, start: workdir.Start | None = None,
) -> Iterator[Path]:
    """Yields a temporary directory that becomes the workdir `target`, with a checkpoint of `params` at `step`. The
    `source` that was converted is recorded in its config.json; None for parameters of another training loop. So is
    `start`, None if it is not known."""
    with workdir.new_directory(target) as temporary:
        tokenizer.save(temporary / "tokenizer")
        with contextlib.closing(Checkpoints(temporary / "checkpoints")) as checkpoints:
            checkpoints.save(step, {"params": unflatten(dict(params))}, {"stage": 0})
        workdir.write_config(temporary, {
            "config": dataclasses.asdict(experiment), "data": {"tokenizer": tokenizer.fingerprint},
            **({"source": hub.origin(source)} if source else {"saved": True}),
            **({} if start is None else {"start": start})})
        yield temporary


def _start(before: list[int], config_json: Mapping[str, Any], size: int) -> workdir.Start:
    """Returns the record of a tokenizer that puts the ids `before` before a text. If there are none, the end of another
    document was there in training where config.json has it as the token that begins a text too, as in GPT-2."""
    bos, eos = (config_json.get(f"{role}_token_id") for role in ("bos", "eos"))
    return {"before": before, "document": before[0] if before else bos if bos == eos and bos in range(size) else None}


def to_published(
    source: str | Path, target: Path, step: int | None = None, max_shard_bytes: int = 5 * 10**9, part: str = "",
    pooling: str = "",
) -> Converted:
    """Makes `target` a published directory from the workdir `source`, which may be remote.

    Args:
      step: the step of the checkpoint; None for the default one (`load`).
      max_shard_bytes: the size of a file of tensors; a larger checkpoint becomes several files.
      part: the network to convert, of a run that trains several; "" for the main one.
      pooling: "mean", "max" or "cls", for the sentence-transformers library; "" writes nothing for it.

    Raises:
      UserError: there is no run, no published family can hold its network, it has no such part, or `target` is not
        empty.
      RunFault: the checkpoint is damaged, the certificate fails, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    run = load(source, step)
    params = {path: np.asarray(value) for path, value in flatten(jax.device_get(trainable(run.params))).items()}
    checkpoint, remarks = _checkpoint(run, params, part)
    if not run.tokenizer.published:
        raise UserError(f"no other library reads the tokenizer {run.tokenizer.name} of {source} with the same ids; a "
                        f"directory of {checkpoint.family.model_type} can hold {tokenizers.PUBLISHED}")
    with workdir.new_directory(target) as temporary:
        write(checkpoint, temporary, max_shard_bytes)
        run.tokenizer.save(temporary)
        known = not run.converted or run.recorded_start is not None
        if run.conditions_on == Context.LEFT and known and not (checkpoint.task or pooling):
            library.remove_end_of_text(temporary, [run.tokenizer.tokens[i] for i in run.special_tokens[0]])
        if pooling:
            remarks += sentence_transformers.write(run, pooling, temporary)
        try:
            again = read(temporary)
        except UserError as error:
            message = str(error).replace(str(temporary), str(target))
            raise RunFault(f"{run.directory / FOLDER} cannot be written: {message}; nothing is written. Restore it, or "
                           "remove it to write the parameters under the library's names") from None
        if changed := [path for path, value in checkpoint.params.items()
                       if path not in again.params or not np.array_equal(value, again.params[path], equal_nan=True)]:
            raise RunFault(f"{', '.join(changed[:3])} of {source} changed in {target}; nothing is written")
        certified = certificate.certify(checkpoint, temporary)
        write_json(temporary / CERTIFICATE, dataclasses.asdict(certified))
    return Converted(checkpoint, certified, remarks)


def _checkpoint(run: Run, params: dict[str, np.ndarray], part: str) -> tuple[Published, list[str]]:
    """Makes (the published checkpoint of a run, remarks). Its tensors have the names of the files that the run was
    converted from, or else the library's."""
    config = experiments.model_config(run.experiment.model, run.tokenizer.size)
    stage = experiments.stage_at(run.experiment, run.step)
    networks = {}
    for family in FAMILIES.values():
        if family.pretraining.objective == stage.objective_name:
            networks = networks or family.pretraining.networks(config, params, stage.objective)
    if part and not networks:
        raise UserError(f"--part is {part!r}, and {run.directory} has a single network; leave it out")
    if part and part not in networks:
        raise UserError(f"--part is {part!r}; expected {' or '.join(networks)}")
    if (run.directory / FOLDER / RECORD).exists():
        return _recorded(run.directory / FOLDER, config, params), []
    if networks:
        config, params = networks[part or next(iter(networks))]()
    task, specials, name = _published_task(stage, params), run.tokenizer.vocabulary.specials, stage.objective_name
    if task:
        return from_network(config, params, specials, name, task)
    if run.conditions_on == Context.LEFT and run.start_token is not None:
        specials = {**specials, "bos": run.start_token}  # as GPT-2's, which is the end of another document
    heads, lacking = run.objective.uses.published_heads, sorted(flatten(run.objective.specs).keys() - params)
    # The parameters of published heads are under the heads' names in `HEADS`. Other heads of the run have no published
    # counterpart, even under such a name.
    published = {f"objective/{name_here}/": f"objective/{head}/" for head, name_here in heads.items()}
    renamed, left_out = {}, []
    for path, value in params.items():
        start = next((start for start in published if path.startswith(start)), "")
        if start or not path.startswith("objective/"):
            renamed[published.get(start, "") + path.removeprefix(start)] = value
        else:
            left_out.append(path)
    checkpoint, remarks = from_network(config, renamed, specials, name, published_heads=heads)
    remarks += [f"left out, since no published class has it: {path}" for path in left_out]
    if not checkpoint.heads:
        why = (f"the run has no {lacking[0]}, which the objective {name!r} needs" if lacking else
               f"no class of {checkpoint.family.model_type} has a head like that of the objective {name!r}")
        remarks.append(f"{checkpoint.class_name} is the network alone: {why}")
    if run.conditions_on == Context.LEFT and not checkpoint.family.causal:
        remarks.append(f"it was trained to predict from left to right, and {checkpoint.class_name} sees both sides")
    elif checkpoint.family.causal and run.conditions_on != Context.LEFT:
        remarks.append(f"it was trained to see both sides, and {checkpoint.class_name} reads from left to right")
    return checkpoint, remarks


def _published_task(stage: ResolvedStage, params: Mapping[str, np.ndarray]) -> PublishedTask | None:
    """Returns the task and head that a run was fine-tuned for; None if no published class has such a head, as for a
    pretrained run.

    Raises:
      UserError: the run reads long texts, or has layers below the head, as no published class for this task does.
    """
    task = stage.objective_name
    name = head_of(task, stage.objective)
    if name is None:
        return None
    if stage.format.long == "windows" and not HEADS[name].windows:
        raise UserError(f"this run of {task} averages over windows of long texts (format.long is windows), and "
                        "published classes read a text at once; fine-tune with --config.format.long=truncate")
    if not networks.is_head_alone(stage.objective):
        raise UserError(f"this run of {task} has a network between encoder and head or reads frozen parts, which no "
                        "published class does; train one with --config.objective.network=linear and "
                        "--config.objective.pooling=position")
    fields = {key: value for key, value in dataclasses.asdict(stage.objective).items()
              if key in (*HEAD_FIELDS, *HEADS[name].specific_params)}
    head = f"objective/{task}"
    form = {"dense": f"{head}/dense/kernel" in params,
            "bias": f"{head}/out/bias" in params or f"{head}/out/kernel" not in params}
    return PublishedTask(name, fields | form)


def family_of(directory: Path, experiment: Experiment, pad: int | None) -> Family | None:
    """Finds the family of published checkpoints that a workdir was converted from, or that its network would be
    written as; None if no family can hold it. `pad` is the tokenizer's id of padding."""
    if (directory / FOLDER / RECORD).exists():
        return FAMILIES.get(_published_record(directory / FOLDER)["family"])
    objective = experiments.resolve_stages(experiment)[-1].objective_name
    network = experiments.model_config(experiment.model)
    if getattr(network, "pruned_heads", ""):  # a pruned network cannot be written, but belongs to the same family
        network = dataclasses.replace(network, pruned_heads="")
    try:
        return choose_family(network, {}, pad, objective)
    except UserError:
        return None


def _recorded(directory: Path, config, params: dict[str, np.ndarray]) -> Published:
    """Makes a published checkpoint with the names and dtypes of the files that it was converted from."""
    record = _published_record(directory)
    extra, _ = tensor_files.read(directory / EXTRA)
    try:
        family, config_json = FAMILIES[record["family"]], record["config_json"]
        checkpoint = Published(family, config_json, config, params, record["dtypes"], extra, record["metadata"],
                          read_task(family.tasks, config_json, str(directory / RECORD)),
                          family.heads_of(params, config_json.get("architectures") or ()))
        tensors(checkpoint)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFault(f"{directory} does not fit the checkpoint ({error!r}); {RESTORE}") from None
    return checkpoint


def _published_record(directory: Path) -> PublishedRecord:
    return json_files.read(PublishedRecord, directory / RECORD, RESTORE)


def _language_model(heads: Iterable[str]) -> str:
    """Returns the objective of the language model among a checkpoint's heads; "" without one."""
    return next((HEADS[head].objective for head in heads if HEADS[head].objective), "")


def equivalent_experiment(checkpoint: Published, tokenizer: tokenizers.Tokenizer, name: str) -> Experiment:
    """Makes an experiment, called `name`, that would train this checkpoint, as far as its training is known. Raises
    UserError if the tokenizer has more ids than the token table has rows."""
    if tokenizer.size > checkpoint.config.vocab:
        raise UserError(f"the tokenizer's files have {tokenizer.size:,} ids, and the token table has "
                        f"{checkpoint.config.vocab:,} rows (vocab_size), so they are of different checkpoints; "
                        "download both again")
    heads, pretraining, task = checkpoint.heads, checkpoint.family.pretraining, checkpoint.task
    objective = task.task if task else _language_model(heads) or pretraining.objective
    form = "examples" if task else "segment_pair" if "pair" in heads else "packed"
    config = experiments.default_config(checkpoint.family.network_name, objective, form, pretraining.optimizer)
    config.name = name
    config.steps = max(config.steps, config.optimizer.schedule.warmup)
    config.length = min(512, checkpoint.config.max_length or 512)
    config.model.update(dataclasses.asdict(checkpoint.config))
    if task:
        definition = TASKS[task.task]
        known = {name: value for name, value in task.fields.items() if name in config.objective}
        config.objective.update(dataclasses.asdict(definition.resolve(definition.objective.config(**known), ())))
    else:
        fields = {**pretraining.fields, "sentence_pair": "pair" in heads}
        config.objective.update({name: value for name, value in fields.items() if name in config.objective})
    if "pair" in heads and pretraining.pairs:
        config.format.pairs = pretraining.pairs
    config.tokenizer.update(name=tokenizer.name, vocab_size=max(tokenizer.size, 64),
                            lowercase=tokenizer.lowercase)
    config.samples = next((HEADS[head].samples for head in heads if HEADS[head].samples), ())
    return experiments.parse(config)


def read_arrays(path: str | Path, raw: bool = False) -> tuple[dict[str, np.ndarray], str]:
    """Reads (all arrays of a workdir's default checkpoint or of a published directory, a description for people). Both
    may be remote. The arrays are by our path, or by the published name if they have no counterpart in our network.

    A run that keeps averaged parameters gives these, unless its `evaluation.averaged` is false or `raw` is true.

    Raises:
      UserError: the directory is neither a workdir with a checkpoint nor a published checkpoint.
      RunFault: no checkpoint verifies.
    """
    directory = remote_workdir.local_copy(path)
    if not is_workdir(directory):
        checkpoint = read(directory)
        return checkpoint.params | checkpoint.extra_tensors, "as published"
    step, params, averaged = frozen.read_params(path, experiments.read_run(directory)[0], raw=raw)
    extra = directory / FOLDER / EXTRA
    return (flatten(params) | (tensor_files.read(extra)[0] if extra.exists() else {}),
            f"step {step:,}" + (", averages" if averaged else ""))


def frozen_part(directory: Path, name: str, values: bool) -> frozen.Trained:
    """Reads a published directory as a frozen part; `name` is its path, for people. Raises UserError as `read`."""
    checkpoint, tokenizer = read(directory), tokenizers.load(directory)
    return frozen.Trained(name, equivalent_experiment(checkpoint, tokenizer, directory.name), 0, tokenizer,
                          checkpoint.params if values else None)


frozen.READERS["published"] = frozen_part
