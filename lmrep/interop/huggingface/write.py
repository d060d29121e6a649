"""Writes a network as a published checkpoint, a directory as Hugging Face lays them out."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmrep import models
from lmrep.core.errors import UserError
from lmrep.core.files import write_json
from lmrep.interop import tensor_files
from lmrep.interop.heads import HEADS, PublishedTask
from lmrep.interop.huggingface import FAMILIES, Family, head_classes
from lmrep.interop.huggingface.base import numbered
from lmrep.interop.huggingface.read import CONFIG, INDEX, MODEL, Published, specs
from lmrep.interop.huggingface.tensors import POOLER, POSITION, TABLE_DELTA, TOKEN, TOKEN_TYPE, TRANSFORMS, Params
from lmrep.interop.tensor_files import DTYPES, dtype_and_shape
from lmrep.models import transformer


def tensors(checkpoint: Published) -> dict[str, np.ndarray]:
    """Returns the tensors of a checkpoint's files by name, in their dtypes; float32 ones may be views of parameters."""
    shapes = {path: value.shape for path, value in checkpoint.params.items()}
    locations = checkpoint.family.locate(checkpoint.dtypes, checkpoint.config, shapes)
    return {name: checkpoint.extra_tensors[name] if name in checkpoint.extra_tensors
            else locations[name].read(checkpoint.params).astype(DTYPES[dtype], copy=False)
            for name, dtype in checkpoint.dtypes.items()}


def write(checkpoint: Published, directory: Path, max_shard_bytes: int) -> list[str]:
    """Writes config.json and the tensors, in files of at most `max_shard_bytes` unless one tensor is larger, and
    returns the names of the tensors' files. Raises OSError."""
    write_json(directory / CONFIG, checkpoint.config_json)
    all_tensors = tensors(checkpoint)
    shards: list[dict[str, np.ndarray]] = [{}]
    free = max_shard_bytes
    for name, value in all_tensors.items():
        if value.nbytes > free and shards[-1]:
            shards.append({})
            free = max_shard_bytes
        shards[-1][name] = value
        free -= value.nbytes
    if len(shards) == 1:
        tensor_files.write(directory / MODEL, all_tensors, checkpoint.metadata)
        return [MODEL]
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        tensor_files.write(directory / file, shard, checkpoint.metadata)
    write_json(directory / INDEX, {
        "metadata": {"total_size": sum(value.nbytes for value in all_tensors.values())},
        "weight_map": {name: file for file, shard in zip(files, shards, strict=True) for name in shard}})
    return files


def from_network(
    config: Any, params: Params, specials: Mapping[str, int], objective: str = "", task: PublishedTask | None = None,
    published_heads: Collection[str] | None = None,
) -> tuple[Published, list[str]]:
    """Makes (a published checkpoint of our network, remarks for people on what was left out or added). Its family is
    that of `choose_family`.

    Args:
      config: the network's config.
      params: float32 arrays by path.
      specials: the tokenizer's ids of special tokens, by role.
      objective: the objective that it was trained with; "" if that does not matter.
      task: the task that it was fine-tuned for, if any.
      published_heads: the names in `HEADS` that the objective trains; None for all that have parameters. A head is left
        out if the family or the network has only some of its parameters, or the network has a mask decoder.

    Raises:
      UserError: no family can hold the network.
    """
    if getattr(config, "embedding_delta", False):
        config, params = dataclasses.replace(config, embedding_delta=False), dict(params)
        params[TOKEN] = params[TOKEN] + params.pop(TABLE_DELTA)
    if getattr(config, "mask_decoder", 0):
        config, published_heads = dataclasses.replace(config, mask_decoder=0), ()
    family = choose_family(config, params, specials.get("pad"), objective, task)
    all_specs = specs(config, task)
    family.check_tensors(all_specs, task.name if task else "")
    known = family.paths(task.name if task else "")
    lacking = {path for path in known - params.keys() if path.startswith("objective/") and path in all_specs
               and not path.startswith(POOLER)}
    partial = {path.split("/")[1] for path in (*params, *lacking) if path.startswith("objective/")
               and (path in lacking or numbered(path) not in known)}
    remarks: list[str] = []
    if POSITION in params:
        params, config, remarks = _move_positions(params, config, family.position_offset(specials.get("pad")))
    remarks += [f"left out, since {family.model_type} has no such tensor: {path} {dtype_and_shape(value)}"
                for path, value in params.items() if numbered(path) not in known]
    params = {path: value for path, value in params.items() if numbered(path) in known}
    if TOKEN_TYPE in known and not config.token_types:
        remarks.append("added: one token type with a vector of zeros, since the published network always adds one")
        config = dataclasses.replace(config, token_types=1)
        params[TOKEN_TYPE] = np.zeros((1, config.table_width), np.float32)
    heads = tuple(name for name in family.heads_of(params)
                  if task or (name not in partial and (published_heads is None or name in published_heads)))
    dropped = tuple(f"objective/{name}/" for name in HEADS if not task and name not in (*heads, "pair"))
    optional = set() if heads else family.optional
    without = [path for path in params if path.startswith(dropped) or path in optional]
    remarks += [f"left out with the head: {path}" for path in without]
    params = {path: value for path, value in params.items() if path not in without}
    head_class = family.class_of(heads)
    config_json = {"architectures": [head_class.name],
                   **family.config_json(family.base_network(config, task), specials)}
    if task:
        config_json = head_classes.config_json(task, head_class) | config_json
        remarks += head_classes.head_remarks(task, head_class, config_json)
        if family.causal:
            config_json["pad_token_id"], more = _padding(task, head_class.name, specials)
            remarks += more
    prefix = f"{family.prefix}." if family.prefix and heads and head_class.prefixed else ""
    bias, shapes = family.output_bias, {path: value.shape for path, value in params.items()}
    dtypes = {name: "F32" for _, names in family.locations(prefix, config, shapes)
              for name in ((names[0], bias) if config.tied is False and bias in names else names[:1])}
    return Published(family, config_json, config, params, dtypes, {}, {"format": "pt"}, task, heads), remarks


def _padding(task: PublishedTask, name: str, specials: Mapping[str, int]) -> tuple[int | None, list[str]]:
    """Chooses (the id of padding for a left-to-right class, remarks). A class that reads one vector takes the last
    token with another id, so no text may end with the id of padding."""
    end, pad = specials.get("sep", specials.get("eos")), specials.get("pad")
    if not HEADS[task.name].pooled:
        return end if pad is None else pad, []
    ends = task.head.end_of_text or "sep" in specials
    if pad is None or (ends and pad == end):
        pad = None if ends else end
    if not task.head.end_of_text or "sep" in specials:
        return pad, []
    one_by_one = ", one text at a time, since the tokenizer has no other token for padding" if pad is None else ""
    return pad, [f"each text was read with an end-of-text token, id {end}, at its end; give {name} the same"
                 + one_by_one]


def _move_positions(
    params: Params, config: transformer.Config, offset: int
) -> tuple[dict[str, np.ndarray], transformer.Config, list[str]]:
    """Returns (parameters and config with `offset` rows of the position table before position 0, remarks). These rows
    are never looked up."""
    if config.position_offset == offset:
        return dict(params), config, []
    table, remarks = params[POSITION][config.position_offset :], []
    if config.position_offset:
        remarks.append(f"left out: the first {config.position_offset} rows of {POSITION}, which are never looked up")
    if offset:
        remarks.append(f"added: {offset} row(s) of zeros at the start of {POSITION}, which are never looked up")
        table = np.concatenate([np.zeros((offset, table.shape[1]), table.dtype), table])
    return {**params, POSITION: table}, dataclasses.replace(config, position_offset=offset), remarks


def choose_family(
    config: Any, params: Params, pad: int | None, objective: str, task: PublishedTask | None = None
) -> Family:
    """Chooses the family that a network is written as. Among those that can hold it, prefers one with the same
    objective, then one whose positions start at the same row of the table, then the one with names for most of the
    parameters, then one without token types if the network has none, then the first in `FAMILIES`.

    Raises:
      UserError: no family can hold the network.
    """
    name = models.name_of(config)
    families = [family for family in FAMILIES.values() if family.config_to and family.network_name == name]
    if not families:
        known = ", ".join(dict.fromkeys(family.network_name for family in FAMILIES.values()))
        raise UserError(f"networks of model.name={name} cannot be written as published checkpoints, only those of "
                        f"{known}; for another one, add a family (docs/extend/family.md)")
    if getattr(config, "pruned_heads", ""):
        raise UserError(f"heads were removed from the network (model.pruned_heads is {config.pruned_heads}), and "
                        "published layouts have the same heads in every layer; convert the run that it was made from")
    transformed = any(path in params for path in TRANSFORMS)
    mismatches = {family: family.mismatches(config, transformed, task) for family in families}
    fitting = [family for family, wrong in mismatches.items() if not wrong]
    if not fitting:
        described = sorted((len(wrong), f"{family.name} ({', '.join(wrong)})") for family, wrong in mismatches.items()
                           if family.name == family.model_type)
        reasons = "; ".join(reason for _, reason in described[:5])
        what = "network with this head" if task else "network"
        raise UserError(f"no published family can hold this {what}. What does not fit the nearest: {reasons}")

    def rank(family: Family) -> tuple:
        paths = family.paths()
        return (family.pretraining.objective == objective,
                family.specials.shifts_positions and family.position_offset(pad) == config.position_offset,
                sum(numbered(path) in paths for path in params), TOKEN_TYPE not in paths or config.token_types > 0)

    return max(fitting, key=rank)
