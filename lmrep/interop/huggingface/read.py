"""Reads a published checkpoint, a directory as Hugging Face lays them out.

    config.json          the network
    model.safetensors    or several files and model.safetensors.index.json
    vocab.txt ...        the tokenizer's files

`Published` holds everything in such a directory but the tokenizer: tensors with a counterpart among our parameters,
and the others (for example buffers of positions) in `extra_tensors`, so that writing it gives the same names, dtypes
and bytes. Nothing is unpickled, and no code from a directory is run.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep import models
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, flatten
from lmrep.interop import tensor_files
from lmrep.interop.heads import HEADS, PublishedTask
from lmrep.interop.huggingface import FAMILIES, Family
from lmrep.interop.huggingface.base import CONFIG
from lmrep.interop.huggingface.head_classes import read_task
from lmrep.interop.huggingface.nearest import nearest
from lmrep.interop.huggingface.tensors import POOLER, TRANSFORMS, TensorLocation
from lmrep.interop.tensor_files import DTYPE_NAMES, dtype_and_shape

MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".npz")
CODE = ("auto_map", "custom_pipelines", "trust_remote_code")  # keys that name code to run
FLOATS = ("F32", "F16", "BF16")


class Published(NamedTuple):
    """A published checkpoint."""

    family: Family
    config_json: dict[str, Any]  # the contents of config.json
    config: Any  # the config of our network
    params: Mapping[str, np.ndarray] = {}  # float32 arrays by path. Heads that the checkpoint lacks are absent.
    dtypes: Mapping[str, str] = {}  # {name: dtype} of every tensor, in the order of the files
    extra_tensors: Mapping[str, np.ndarray] = {}  # tensors without a counterpart in `params`, by name
    metadata: Mapping[str, str] = {}  # the metadata of the safetensors files
    task: PublishedTask | None = None  # the task that it was fine-tuned for; None for a pretrained one
    # its outputs besides hidden states: names in `HEADS`
    heads: tuple[str, ...] = ()

    @property
    def class_name(self) -> str:
        """The class of the transformers library with these heads."""
        return self.family.class_of(self.heads).name


def read(directory: Path) -> Published:
    """Reads the checkpoint in a directory.

    Raises:
      UserError: there is no checkpoint; its family is unknown; its weights are pickled; its config names code to run; a
        file is malformed; a tensor is missing, or its shape or dtype contradicts config.json.
    """
    describe(directory)  # refuses a config.json before the tensors are read
    tensors, metadata = _tensors(directory)
    checkpoint = describe(directory, tensors)
    config_json, family, config, task = (checkpoint.config_json, checkpoint.family, checkpoint.config, checkpoint.task)
    path, output = directory / CONFIG, family.output
    if config.tied is False and output not in tensors:  # a class without an output layer
        config = dataclasses.replace(config, tied=True)
    params, extra = assign(tensors, family, config, directory, task)
    head_class = family.class_of(family.heads_of(params))
    for key, activation in head_class.always.items():
        if config.activation != activation and any(path in params for path in TRANSFORMS):
            raise UserError(f"{path} has {key} {config_json[key]!r}, and the head of {head_class.name} always uses "
                            f"{activation}; our heads use the network's activation. Save the checkpoint without its "
                            f"head: {family.class_of(()).name}")
    heads = family.heads_of(params, config_json.get("architectures") or ())
    predicts_tokens = any(HEADS[name].objective for name in heads)
    if config_json.get("tie_word_embeddings") is False and predicts_tokens and output not in tensors:
        raise UserError(f"{path} has tie_word_embeddings false, but there is no {output}, the output layer. If the "
                        "output layer is the token table, as in every published checkpoint, set the key to true")
    dtypes = {name: DTYPE_NAMES[value.dtype] for name, value in tensors.items()}
    return Published(family, config_json, config, params, dtypes, extra, metadata, task, heads)


def describe(directory: Path, tensors: Mapping[str, np.ndarray] | None = None) -> Published:
    """Reads the description of the checkpoint in a directory, without its parameters, from config.json and, where that
    is ambiguous, from `tensors`. Raises UserError as `read`."""
    config_json, path = _config_json(directory), str(directory / CONFIG)
    family = _family(path, config_json)
    config, task = family.network(config_json, path, tensors), read_task(family.tasks, config_json, path)
    if task:
        config = dataclasses.replace(config, **family.tasks[task.name].network)
    return Published(family, config_json, config, task=task)


def read_network(directory: Path) -> dict[str, Any]:
    """Converts the config.json in a directory to the fields of `config.model`. Raises UserError as `read`."""
    config = describe(directory).config
    return {"name": models.name_of(config), **dataclasses.asdict(config)}


def _config_json(directory: Path) -> dict[str, Any]:
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}; give the directory of a published checkpoint")
    config_json = tensor_files.read_json(directory / CONFIG)
    configs = {directory / CONFIG: config_json}
    if (other := directory / "tokenizer_config.json").exists():
        configs[other] = tensor_files.read_json(other)
    for path, content in configs.items():
        if named := [key for key in CODE if content.get(key)]:
            raise UserError(f"{path} names code to run ({', '.join(named)}), which lmrep never runs; published "
                            f"checkpoints of {_types()} need none: delete the key if this is one")
    if config_json.get("quantization_config"):
        raise UserError(f"{directory / CONFIG} describes quantised weights; give the checkpoint that they were made "
                        "from")
    if config_json.get("pruned_heads"):
        raise UserError(f"{directory / CONFIG} has pruned_heads: some layers lack heads, which no class loads since "
                        "version 5 of the library; give the checkpoint before, and remove heads with lmrep prune")
    return config_json


def _family(path: str, config_json: Mapping[str, Any]) -> Family:
    """Finds the family of a config.json by its model_type, architectures and is_decoder."""
    name, classes = config_json.get("model_type"), config_json.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(class_name, str) for class_name in classes):
        raise UserError(f"{path} has architectures {str(classes)[:80]}; expected a list of one class, such as "
                        '["BertForMaskedLM"]')
    if name is None and not classes:
        raise UserError(f"{path} has neither model_type nor architectures, so the family is unknown; add one, for "
                        f'example "model_type": "bert"; supported are {_types()}')
    families = [family for family in FAMILIES.values() if name in (None, family.model_type)]
    if not families or not {head.name for family in FAMILIES.values() for head in family.heads}.issuperset(classes):
        kind = f"model_type {str(name)[:60]!r}" if name is not None else "no model_type"
        listed = ", ".join(class_name[:60] for class_name in classes[:3]) or "none"
        raise UserError(f"{path} has {kind} and architectures {listed}, which lmrep does not have; "
                        f"{nearest(str(name)[:60], config_json)}. Families: {_types()}")
    if name is None:
        name = next(family.model_type for family in families if classes[0] in [head.name for head in family.heads])
        families = [family for family in families if family.model_type == name]
    if not {head.name for family in families for head in family.heads}.issuperset(classes):
        raise UserError(f"{path} has model_type {name!r} and architectures {', '.join(classes)}, which differ; "
                        "correct one of them")
    causal = bool(config_json.get("is_decoder"))
    family = families[-1 if causal else 0]
    known = [head.name for head in family.heads]
    if not set(known).issuperset(classes):
        raise UserError(f"{path} has is_decoder {causal} and architectures {', '.join(classes)}; of classes that read "
                        f"{'from left to right' if causal else 'both sides'} lmrep has {', '.join(known)}; correct the "
                        "key that is wrong")
    return family


def _types() -> str:
    return ", ".join(dict.fromkeys(family.model_type for family in FAMILIES.values()))


def _tensors(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads (all tensors, metadata) from the safetensors files of a directory."""
    if (directory / MODEL).exists():
        return tensor_files.read(directory / MODEL)
    if not (directory / INDEX).exists():
        _refuse_pickled(directory)
        raise UserError(f"{directory} has neither {MODEL} nor {INDEX}; give the directory of a published checkpoint")
    index = tensor_files.read_json(directory / INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise UserError(f"{directory / INDEX} has no weight_map of files; download it again")
    tensors: dict[str, np.ndarray] = {}
    metadata: Mapping[str, str] = {}
    for name in sorted(set(index.values())):
        if "/" in name or "\0" in name or not name.endswith(".safetensors") or len(name) > 200:
            raise UserError(f"{directory / INDEX} names {name[:80]!r}; expected safetensors files in the directory")
        shard, metadata = tensor_files.read(directory / name)
        if wrong := [tensor for tensor in shard if index.get(tensor) != name]:
            raise UserError(f"{directory / name} holds {wrong[0][:80]!r}, which {INDEX} does not place there")
        tensors |= shard
    if missing := [name for name in index if name not in tensors]:
        raise UserError(f"{directory} lacks {len(missing)} tensors that {INDEX} names, such as {missing[0][:80]!r}")
    return tensors, metadata


def _refuse_pickled(directory: Path) -> None:
    """Raises UserError if a directory has pickled weights, with code that converts them to safetensors."""
    pickled = sorted(path.name for path in directory.iterdir() if path.name.endswith(PICKLED))
    if not pickled:
        return
    torch = [name for name in pickled if name.endswith((".bin", ".pt", ".pth"))]
    source, target = str(directory / (torch or pickled)[0]), str(directory / MODEL)
    raise UserError(
        f"{directory} has only pickled weights ({', '.join(pickled[:3])}), which may run code when they are loaded. "
        + (f"""Download its {MODEL} if there is one, or make it in Python:
  import torch; from safetensors.torch import save_file; weights = torch.load({source!r}, weights_only=True)
  save_file({{k: w.clone().contiguous() for k, w in weights.items()}}, {target!r}, {{"format": "pt"}})"""
           if torch else f"Download its {MODEL}, or save the model as safetensors with the library that wrote it"))


def specs(config: Any, task: PublishedTask | None = None) -> dict[str, ParamSpec]:
    """Returns the specs, by path, of all parameters that a checkpoint of this network may have: those of the encoder,
    and of the task's head, or without a task of all heads for pretraining."""
    model = models.build(config)
    heads = {task.task: task.specs(model)} if task else {
        name: head.specs(model) for name, head in HEADS.items() if not head.task}
    return flatten({"encoder": model.specs, "objective": heads})


def assign(
    tensors: Mapping[str, np.ndarray], family: Family, config: Any, directory: Path,
    task: PublishedTask | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Converts tensors to (float32 parameters by path, the tensors without a counterpart among them). `directory` is
    for messages.

    Raises:
      UserError: a tensor that the network or a head needs is missing, or has another shape or dtype; tensors that
        should be equal differ.
    """
    if config.layers > len(tensors):
        raise UserError(f"{directory / CONFIG} has {config.layers:,} layers, and there are {len(tensors)} tensors")
    shapes = {path: spec.shape for path, spec in specs(config, task).items()}
    family.check_tensors(shapes, task.name if task else "")
    locations = family.locate(tensors, config, shapes)
    _check_complete(locations, family, tensors, config, shapes, directory, task)
    bias = family.output_bias
    names: dict[TensorLocation, str] = {}
    unused: set[str] = set()
    for name, location in locations.items():
        value, shape = tensors[name], location.shape(shapes)
        if value.shape != shape or DTYPE_NAMES[value.dtype] not in FLOATS:
            raise UserError(f"{directory}: {name} is {dtype_and_shape(value)}; by its {CONFIG} it should be "
                            f"{list(shape)}, of {', '.join(FLOATS)}")
        first = names.setdefault(location, name)
        if first != name and not np.array_equal(tensors[first], value, equal_nan=True):
            if config.tied is not False or bias not in (first, name):
                raise UserError(f"{directory}: {first} and {name} differ, and tie_word_embeddings of its {CONFIG}, "
                                "true by default, says that they are one; set it to false if the output layer has "
                                "weights of its own")
            unused.add(name if first == bias else first)
            names[location] = bias
    params: Mapping[str, np.ndarray] = {}
    for location, name in names.items():
        for path in location.tensor.paths:
            if path not in params:
                params[path] = np.empty(shapes[path], np.float32)
        location.assign(tensors[name], params)
    return params, {name: value for name, value in tensors.items() if name not in locations or name in unused}


def _check_complete(
    locations: Mapping[str, TensorLocation], family: Family, tensors: Mapping[str, np.ndarray], config: Any,
    shapes: Mapping[str, tuple[int, ...]], directory: Path, task: PublishedTask | None,
) -> None:
    """Raises UserError if the network, or a head that is present, lacks a tensor."""
    present = set(locations.values())
    paths = {path for location in present for path in location.tensor.paths}
    heads = (task.task,) if task else family.heads_of(paths)
    needed = ("encoder/", *(f"objective/{head}/" for head in heads),
              *([POOLER] if any(path.startswith(POOLER) for path in paths) else []))
    complete = task or not paths.isdisjoint(family.optional)
    missing = [names[0] for location, names in family.locations(family.prefix_in(tensors), config, shapes)
               if location not in present and location.tensor.paths[0].startswith(needed)
               and (complete or not location.tensor.optional)]
    if missing:
        more = f" and {len(missing) - 4:,} more" if len(missing) > 4 else ""
        raise UserError(f"{directory} lacks {', '.join(missing[:4])}{more}; by its {CONFIG} they should be there")
