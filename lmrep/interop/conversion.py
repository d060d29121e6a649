"""From a published directory to a workdir that every command takes, and back.

A workdir that came from outside has, beside a checkpoint of step 0 and its tokenizer,

    interop/published.json         the config.json it came with, and name and dtype of every tensor, in their order
    interop/carried.safetensors    the tensors that have no place among our parameters
    certificate.json               how far it is from the reference

so that writing it gives the tensors that were read, byte for byte. Both directions write beside the target and rename.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import flatten, unflatten
from lmrep.data import tokenizers
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.inference.load import Run, load
from lmrep.interop import certificate, published, tensor_files
from lmrep.interop.certificate import Certificate
from lmrep.interop.published import Published
from lmrep.models import transformer
from lmrep.objectives import replaced_token
from lmrep.objectives.masked import RULES
from lmrep.storage import averaging, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training import optimizers

FOLDER, NOTE, CARRIED, CERTIFICATE = "interop", "published.json", "carried.safetensors", "certificate.json"
PARTS = ("discriminator", "generator")  # of a run of replaced-token detection: two networks
GENERATOR = "objective/generator"  # begins the paths of its own parameters and of its head
# What a workdir says whose checkpoint lacks a head.
LACKING = {
    "masked": "it has no masked-LM head: `lmrep predict` cannot ask it, and a run with init= starts one fresh",
    "replaced_token": "it is a discriminator without its generator: `lmrep predict` tells replaced words, but fills no "
                      "masks, and it cannot be evaluated; a run with init= starts a generator fresh",
}  # fmt: skip


class Converted(NamedTuple):
    """What a conversion came to."""

    checkpoint: Published
    certificate: Certificate
    remarks: list[str]  # for people: what was carried along, left out or put in


def is_workdir(directory: Path) -> bool:
    """Whether a directory is a run's, and not a published one. Raises UserError where it has no config.json."""
    settings = tensor_files.read_json(directory / workdir.CONFIG)
    return "config" in settings and "model_type" not in settings


def to_workdir(source: Path, target: Path) -> Converted:
    """Makes `target` a workdir of the published checkpoint in `source`, at step 0.

    A head that the checkpoint lacks is not made up: the workdir has none, and a run that starts from it (`init=`) says
    which parameters start fresh.

    Raises:
      UserError: `source` is refused, as by `published.read`, or `target` is not empty; nothing is written.
      RunFault: the certificate fails, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    checkpoint = published.read(source)
    tokenizer = tokenizers.load(source)
    record = experiment(checkpoint, tokenizer, target.name)
    proof = certificate.certify(checkpoint, source)
    with workdir.new_directory(target) as draft:
        tokenizer.save(draft / "tokenizer")
        with contextlib.closing(Checkpoints(draft / "checkpoints")) as checkpoints:
            checkpoints.save(0, {"params": unflatten(dict(checkpoint.params))}, {"stage": 0})
        (draft / FOLDER).mkdir()
        tensor_files.write(draft / FOLDER / CARRIED, checkpoint.carried, {})
        workdir.write_json(draft / FOLDER / NOTE, {
            "kind": checkpoint.kind, "settings": checkpoint.settings, "metadata": checkpoint.metadata,
            "tensors": checkpoint.tensors})
        workdir.write_json(draft / CERTIFICATE, dataclasses.asdict(proof))
        workdir.write_json(draft / workdir.CONFIG, {
            "config": dataclasses.asdict(record), "data": {"tokenizer": tokenizer.fingerprint},
            "source": str(source.absolute())})
    remarks = [f"carried along, having no place in the network: {name} {tensor_files.kind(value)}"
               for name, value in checkpoint.carried.items()]
    if spare := checkpoint.config.vocab - tokenizer.size:
        remarks.append(f"the last {spare:,} of the token table's {checkpoint.config.vocab:,} rows have no piece in the "
                       "tokenizer's files: see that these are whole")
    if not {"masked", "causal"} & {*checkpoint.heads}:
        remarks.append(LACKING[record.objective["name"]])
    return Converted(checkpoint, proof, remarks)


def to_published(
    source: Path, target: Path, step: int | None = None, most: int = 5 * 10**9, part: str = ""
) -> Converted:
    """Makes `target` a directory as Hugging Face lays them out, of the workdir `source`.

    Args:
      source: the workdir.
      target: what to make.
      step: of the checkpoint; None for the newest.
      most: bytes of a file of tensors; a larger checkpoint becomes several.
      part: which network of a run of replaced-token detection, of `PARTS`; by default the discriminator.

    Raises:
      UserError: there is no run, its network is of no published kind, it has no such part, or `target` is not empty.
      RunFault: the checkpoint is damaged, the certificate fails, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    run = load(source, step)
    params = {path: np.asarray(value) for path, value in flatten(jax.device_get(run.params)).items()}
    checkpoint, remarks = _outgoing(run, params, part)
    with workdir.new_directory(target) as draft:
        published.write(checkpoint, draft, most)
        run.tokenizer.save(draft)
        try:
            again = published.read(draft)
        except UserError as error:
            told = str(error).replace(str(draft), str(target))
            raise RunFault(f"what {source / FOLDER} says cannot be written: {told}; nothing is written. Restore it, or "
                           "remove it to write the parameters under the reference's names") from None
        if changed := [path for path, value in checkpoint.params.items()
                       if path not in again.params or not np.array_equal(value, again.params[path], equal_nan=True)]:
            raise RunFault(f"{', '.join(changed[:3])} of {source} did not come back from {target}; nothing is written")
        proof = certificate.certify(checkpoint, draft)
        workdir.write_json(draft / CERTIFICATE, dataclasses.asdict(proof))
    return Converted(checkpoint, proof, remarks)


def _outgoing(run: Run, params: dict[str, np.ndarray], part: str) -> tuple[Published, list[str]]:
    """A run's checkpoint under the names that it came with, or else under the reference's; and remarks."""
    config = experiments.model_config(run.experiment, run.tokenizer.size)
    joint = any(path.startswith(GENERATOR) for path in params)
    if part and not joint:
        raise UserError(f"--part is {part!r}, and {run.directory} has one network alone; leave it out")
    if not (run.directory / FOLDER / NOTE).exists():
        if joint:
            config, params = _part(run, config, params, part or PARTS[0])
        found, remarks = published.of_network(
            config, params, run.tokenizer.vocabulary.specials, "electra" if joint else "")
        if run.objective.context == "left" and not found.architecture.causal:
            remarks.append(f"it was trained to read from left to right, and {found.name} sees both sides")
        elif found.architecture.causal and run.objective.context != "left":
            remarks.append(f"it was trained to see both sides, and {found.name} reads from left to right")
        elif found.architecture.causal and any(path.startswith("objective/") for path in params):
            remarks.append(f"without the head that it was trained with, {found.name} foresees other words than it")
        return found, remarks
    note = tensor_files.read_json(run.directory / FOLDER / NOTE)
    carried, _ = tensor_files.read(run.directory / FOLDER / CARRIED)
    try:
        found = Published(note["kind"], note["settings"], config, params, note["tensors"], carried, note["metadata"])
        published.tensors(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunFault(f"{run.directory / FOLDER} does not fit the checkpoint ({error!r}); restore it, or remove it to "
                       "write the parameters under the reference's names") from None
    return found, []


def _part(
    run: Run, config: transformer.Config, params: dict[str, np.ndarray], part: str
) -> tuple[transformer.Config, dict[str, np.ndarray]]:
    """(network, parameters) of one network of a run of replaced-token detection, as if it were alone."""
    if part not in PARTS:
        raise UserError(f"--part is {part!r}; expected {' or '.join(PARTS)}")
    if part == "discriminator":
        return config, {path: value for path, value in params.items() if not path.startswith(GENERATOR)}
    asked = experiments.stage_at(run.experiment, run.step).objective
    return (transformer.narrowed(config, asked.generator, asked.generator_layers),
            flatten(replaced_token.generator_alone(unflatten(params), asked)))


def experiment(checkpoint: Published, tokenizer: tokenizers.Tokenizer, name: str) -> Experiment:
    """The record of a run that would have trained this checkpoint, as far as the checkpoint says."""
    if tokenizer.size > checkpoint.config.vocab:
        raise UserError(f"the tokenizer's files have {tokenizer.size:,} ids, and the token table "
                        f"{checkpoint.config.vocab:,} rows (vocab_size): they are of two checkpoints; fetch both again")
    heads, kind = checkpoint.heads, checkpoint.kind
    recipe = {"albert": "lamb"}.get(kind, kind)
    objective = "causal" if "causal" in heads else "masked"
    if kind == "electra" and "masked" not in heads:
        objective = "replaced_token"
    config = experiments.default_config(objective=objective, format="segment_pair" if "pair" in heads else "packed",
                              optimizer=recipe if recipe in optimizers.RECIPES else "bert")
    config.name = name
    config.length = min(512, checkpoint.config.max_length)
    config.model.update(dataclasses.asdict(checkpoint.config))
    if objective == "masked":
        config.objective.update(RULES.get(kind, RULES["bert"]), sentence_pair="pair" in heads)
    if objective == "masked" and kind == "electra":  # a generator
        config.objective.update(mask=0.85, keep=0.15, random=0.0)
    if "pair" in heads and kind == "albert":
        config.format.pairs = "sop"
    config.tokenizer.update(name=tokenizer.name, vocab_size=max(tokenizer.size, 64),
                            lowercase=tokenizer.lowercase)
    if "masked" in heads:
        config.samples = ("Paris is the [MASK] of France.",)
    elif "discriminator" in heads:
        config.samples = ("Paris is the capital of France.", "Paris is the Friday of France.")
    return experiments.parse(config)


def arrays(place: Path, raw: bool = False) -> tuple[dict[str, np.ndarray], str]:
    """Every array of a workdir's newest checkpoint, or of a published directory, by our path (what was carried along by
    its own name); and which they are, for people.

    Of a run that keeps averages they are these, as wherever it is loaded, unless its `evaluation.averaged` says
    otherwise, or `raw`: the parameters as the optimizer left them.

    Raises:
      UserError: there is neither.
      RunFault: no checkpoint verifies.
    """
    if not is_workdir(place):
        checkpoint = published.read(place)
        return checkpoint.params | checkpoint.carried, "as published"
    used = workdir.read_config(place)["config"].get("evaluation", {}).get("averaged", True)
    with contextlib.closing(Checkpoints(place / "checkpoints")) as checkpoints:
        step = checkpoints.newest()
        if step is None:
            raise UserError(f"{place} holds no checkpoint yet")
        averaged = used and not raw and checkpoints.holds(step, averaging.AVERAGE)
        params = averaging.parameters(checkpoints, step, averaged)
    carried = place / FOLDER / CARRIED
    return (flatten(params) | (tensor_files.read(carried)[0] if carried.exists() else {}),
            f"step {step:,}" + (", averages (optimizer.ema)" if averaged else ""))
