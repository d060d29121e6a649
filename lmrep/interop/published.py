"""Published checkpoints: directories as Hugging Face lays them out, read and written.

    config.json          what the network is (settings.py)
    model.safetensors    or several files and model.safetensors.index.json
    vocab.txt ...        the tokenizer's files

One of ELECTRA holds its generator or its discriminator: the encoder of what is read is the network that is there.

`Published` holds all that such a directory says: what has a place among our parameters, and in `carried` what has none
(buffers of positions, say), so that what is read and written again has the same names, dtypes and bytes. No file is
unpickled and no code is run that a directory holds or names.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, flatten
from lmrep.interop import names, tensor_files
from lmrep.interop import settings as families
from lmrep.interop.names import ARCHITECTURES, CLASSIFIER, DISCRIMINATOR, MASKED, POOLER, Architecture, Place
from lmrep.interop.settings import FAMILIES
from lmrep.layers import linear, lm_head
from lmrep.models import transformer
from lmrep.objectives import sentence_pair
from lmrep.storage import workdir

CONFIG, MODEL, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".npz")
CODE = ("auto_map", "custom_pipelines", "trust_remote_code")  # keys that name code to be run
FLOATS = ("F32", "F16", "BF16")


class Published(NamedTuple):
    """A published checkpoint.

    Attributes:
      kind: of `ARCHITECTURES`.
      settings: its config.json, whole.
      config: of our network.
      params: float32 arrays by path. Heads that the checkpoint lacks are absent.
      tensors: {name: dtype} of every tensor, in the order of the files.
      carried: those of the tensors that have no place in `params`.
      metadata: of the safetensors files.
    """

    kind: str
    settings: dict[str, Any]
    config: transformer.Config
    params: dict[str, np.ndarray]
    tensors: dict[str, str]
    carried: dict[str, np.ndarray]
    metadata: dict[str, str]

    @property
    def architecture(self) -> Architecture:
        """Its name table."""
        return ARCHITECTURES[self.kind]

    @property
    def heads(self) -> tuple[str, ...]:
        """What it answers beside hidden states: "masked", "pair", "discriminator", "causal"."""
        return self.architecture.heads_of(self.params)

    @property
    def name(self) -> str:
        """The class of the reference that has just its heads. GPT's and GPT-2's have one, with or without."""
        return self.architecture.of_class(self.params)


# Reading


def read(directory: Path) -> Published:
    """The checkpoint in a directory. Arrays of `carried` are views into its files.

    Raises:
      UserError: there is none, or of another kind; its weights are pickled, its config names code; a file is malformed;
        a tensor is missing or of another shape or dtype than its config says.
    """
    settings, architecture = _described(directory)
    config = families.network(architecture.kind, settings, str(directory / CONFIG))
    tensors, metadata = _tensors(directory)
    params, carried = place(tensors, architecture, config, directory)
    masked, always = f"{MASKED}bias" in params, FAMILIES[architecture.kind].head_activation
    if masked and always not in ("", config.activation):
        raise UserError(f"{directory / CONFIG} has hidden_act {settings['hidden_act']!r}, and {architecture.kind}'s "
                        f"masked-LM head always has {always}; our heads have their network's. Save it without the "
                        f"head: {architecture.classes[()]}")
    if settings.get("tie_word_embeddings") is False and (masked or architecture.causal) and \
            architecture.tied not in tensors:
        raise UserError(f"{directory / CONFIG} has tie_word_embeddings false, and there is no {architecture.tied}: by "
                        "that its output layer is missing. Where it is the token table, as in every published "
                        "checkpoint, set the key to true")
    kinds = {name: tensor_files.NAMES[value.dtype] for name, value in tensors.items()}
    return Published(architecture.kind, settings, config, params, kinds, carried, metadata)


def config(directory: Path) -> transformer.Config:
    """The network of the checkpoint in a directory, by its config.json alone. Raises UserError as `read`."""
    settings, architecture = _described(directory)
    return families.network(architecture.kind, settings, str(directory / CONFIG))


def _described(directory: Path) -> tuple[dict[str, Any], Architecture]:
    """A directory's config.json, and the table to read its tensors by."""
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}; give that of a published checkpoint")
    settings = tensor_files.read_json(directory / CONFIG)
    _refuse_code(directory, settings)
    return settings, _architecture(directory / CONFIG, settings)


def _refuse_code(directory: Path, settings: Mapping[str, Any]) -> None:
    """Refuses configs, of the model and of the tokenizer, that name code."""
    configs = {directory / CONFIG: settings}
    if (other := directory / "tokenizer_config.json").exists():
        configs[other] = tensor_files.read_json(other)
    for path, found in configs.items():
        if named := [key for key in CODE if found.get(key)]:
            raise UserError(f"{path} names code to be run ({', '.join(named)}), and none is run here; published "
                            f"checkpoints of {', '.join(ARCHITECTURES)} need none: delete the key if this is one")
    if settings.get("quantization_config"):
        raise UserError(f"{directory / CONFIG} is of quantised weights; give the checkpoint that they were made from")


def _architecture(path: Path, settings: Mapping[str, Any]) -> Architecture:
    """The table to read a checkpoint by."""
    kind, classes = settings.get("model_type"), settings.get("architectures") or []
    supported = [name for each in ARCHITECTURES.values() for name in each.classes.values()]
    if not isinstance(classes, list) or any(name not in supported for name in classes):
        raise UserError(f"{path} is of architecture {str(classes)[:80]}; supported are {', '.join(supported)}")
    if kind is None and classes:
        kind = next(kind for kind, each in ARCHITECTURES.items() if classes[0] in each.classes.values())
    if kind is None:
        raise UserError(f"{path} has neither model_type nor architectures, so that nothing says what it is of; add "
                        f'one, "model_type": "bert" say; supported are {", ".join(ARCHITECTURES)}')
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UserError(f"{path} is of model_type {str(kind)[:80]!r}; supported are {', '.join(ARCHITECTURES)}")
    if any(name not in ARCHITECTURES[kind].classes.values() for name in classes):
        raise UserError(f"{path} is of model_type {kind!r} and of architecture {', '.join(classes)}; they differ")
    return ARCHITECTURES[kind]


def _tensors(directory: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(all tensors, the files' metadata) of a directory, of one file or of several."""
    if (directory / MODEL).exists():
        return tensor_files.read(directory / MODEL)
    if not (directory / INDEX).exists():
        files = sorted(path.name for path in directory.iterdir())
        if pickled := [name for name in files if name.endswith(PICKLED)]:
            raise UserError(f"{directory} holds weights that are read by unpickling ({', '.join(pickled[:3])}), which "
                            f"may run code; fetch its {MODEL}, or make one with the safetensors library")
        raise UserError(f"{directory} holds neither {MODEL} nor {INDEX}; give the directory of a published checkpoint")
    index = tensor_files.read_json(directory / INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise UserError(f"{directory / INDEX} has no weight_map of files; fetch it again")
    tensors: dict[str, np.ndarray] = {}
    metadata: dict[str, str] = {}
    for name in sorted(set(index.values())):
        if "/" in name or "\0" in name or not name.endswith(".safetensors") or len(name) > 200:
            raise UserError(f"{directory / INDEX} names {name[:80]!r}; expected safetensors files beside it")
        found, metadata = tensor_files.read(directory / name)
        if wrong := [tensor for tensor in found if index.get(tensor) != name]:
            raise UserError(f"{directory / name} holds {wrong[0][:80]!r}, which {INDEX} does not have there")
        tensors |= found
    if missing := [name for name in index if name not in tensors]:
        raise UserError(f"{directory} lacks {len(missing)} tensors that {INDEX} names, as {missing[0][:80]!r}")
    return tensors, metadata


def specs(config: transformer.Config) -> dict[str, ParamSpec]:
    """By path, every parameter that a checkpoint of this network may have: of the encoder, and of all heads."""
    model, d = transformer.build(config), config.width
    return flatten({"encoder": model.specs, "objective": {
        "masked": lm_head.specs(d, config.table_width, model.vocab_size),
        "pair": sentence_pair.specs(model),
        "discriminator": {"transform": linear.specs(d, d, (None, None)), "out": linear.specs(d, 1, (None, None))}}})


def place(
    tensors: Mapping[str, np.ndarray], architecture: Architecture, config: transformer.Config, directory: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(float32 parameters by path, the tensors that have no place among them).

    Raises:
      UserError: a tensor that the network or a head needs is missing, or is of another shape or dtype; two that should
        be one differ.
    """
    if config.layers > len(tensors):
        raise UserError(f"{directory / CONFIG} is of {config.layers:,} layers, and there are {len(tensors)} tensors")
    wanted = {path: spec.shape for path, spec in specs(config).items()}
    places = names.found(architecture, tensors, config.layers, wanted)
    _check_all_there(places, architecture, tensors, config, directory)
    filled: dict[Place, str] = {}
    for name, where in places.items():
        value, shape = tensors[name], where.shape(wanted)
        if value.shape != shape or tensor_files.NAMES[value.dtype] not in FLOATS:
            raise UserError(f"{directory}: {name} is {tensor_files.kind(value)}; by its {CONFIG} it should be "
                            f"{list(shape)}, of {', '.join(FLOATS)}")
        first = filled.setdefault(where, name)
        if first != name and not np.array_equal(tensors[first], value, equal_nan=True):
            raise UserError(f"{directory}: {first} and {name} differ; here the output layer is tied to the token "
                            "table, so that they are one. A checkpoint in which they are two cannot be read")
    params: dict[str, np.ndarray] = {}
    for where, name in filled.items():
        for path in where.paths:
            if path not in params:
                params[path] = np.empty(wanted[path], np.float32)
        where.put(tensors[name], params)
    return params, {name: value for name, value in tensors.items() if name not in places}


def _check_all_there(
    places: Mapping[str, Place], architecture: Architecture, tensors: Mapping[str, np.ndarray],
    config: transformer.Config, directory: Path,
) -> None:
    """Refuses a network, or a head of which something is there, that lacks a tensor."""
    present = set(places.values())
    begun = {group for group in (MASKED, POOLER, CLASSIFIER, DISCRIMINATOR)
             if any(p.paths[0].startswith(group) for p in present)}
    if CLASSIFIER in begun:
        begun.add(POOLER)
    all_places = architecture.places(architecture.prefix(tensors), config.layers, specs(config))
    missing = [of[0] for where, of in all_places
               if where not in present and where.paths[0].startswith(("encoder/", *begun))]
    if missing:
        more = f" and {len(missing) - 4:,} more" if len(missing) > 4 else ""
        raise UserError(f"{directory} lacks {', '.join(missing[:4])}{more}; by its {CONFIG} they should be there")


# Writing


def tensors(checkpoint: Published) -> dict[str, np.ndarray]:
    """Its tensors as they were, or are to be, in files: views where the dtype is float32."""
    places = names.found(checkpoint.architecture, checkpoint.tensors, checkpoint.config.layers, checkpoint.params)
    found = {}
    for name, dtype in checkpoint.tensors.items():
        if name in checkpoint.carried:
            found[name] = checkpoint.carried[name]
        else:
            found[name] = places[name].of(checkpoint.params).astype(tensor_files.DTYPES[dtype], copy=False)
    return found


def write(checkpoint: Published, directory: Path, most: int) -> list[str]:
    """Writes config.json and the tensors, in files of at most `most` bytes where a tensor is no larger itself, and
    returns the files' names. Raises OSError."""
    workdir.write_json(directory / CONFIG, checkpoint.settings)
    whole = tensors(checkpoint)
    shards: list[dict[str, np.ndarray]] = [{}]
    room = most
    for name, value in whole.items():
        if value.nbytes > room and shards[-1]:
            shards.append({})
            room = most
        shards[-1][name] = value
        room -= value.nbytes
    if len(shards) == 1:
        tensor_files.write(directory / MODEL, whole, checkpoint.metadata)
        return [MODEL]
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        tensor_files.write(directory / file, shard, checkpoint.metadata)
    workdir.write_json(directory / INDEX, {
        "metadata": {"total_size": sum(value.nbytes for value in whole.values())},
        "weight_map": {name: file for file, shard in zip(files, shards, strict=True) for name in shard}})
    return files


def of_network(
    config: transformer.Config, params: Mapping[str, np.ndarray], specials: Mapping[str, int], preferred: str = ""
) -> tuple[Published, list[str]]:
    """(our network as a published checkpoint, remarks on what had to be left out or put in).

    Of the families that it may be one of it becomes the preferred one, or else the one that has a place for the most of
    its parameters, the first of the table among equals; but a RoBERTa where it may be, since a BERT's table has no rows
    before position 0: these, which are never looked up, are left out of all others.

    Args:
      config: of the network.
      params: float32 arrays by path.
      specials: the tokenizer's, by role.
      preferred: of `ARCHITECTURES`.

    Raises:
      UserError: it is a network that none can be.
    """
    params, remarks = dict(params), []
    kind = _family(config, params, specials.get("pad"), preferred)
    architecture = ARCHITECTURES[kind]
    offset = config.position_offset
    if offset and not FAMILIES[kind].after_padding:
        remarks.append(f"left out: the first {offset} rows of encoder/embedding/position, which are never looked up")
        params["encoder/embedding/position"] = params["encoder/embedding/position"][offset:]
        config = dataclasses.replace(config, position_offset=0)
    known = architecture.all_paths()
    remarks += [f"left out, for {kind} has no place for it: {path} {tensor_files.kind(value)}"
                for path, value in params.items() if path not in known]
    params = {path: value for path, value in params.items() if path in known}
    if not config.token_types and "encoder/embedding/token_type" in known:
        remarks.append("put in: a token-type row of zeros, for theirs always adds one")
        config = dataclasses.replace(config, token_types=1)
        params["encoder/embedding/token_type"] = np.zeros((1, config.table_width), np.float32)
    settings = {"architectures": [architecture.of_class(params)], **families.described(kind, config, specials)}
    written = dict.fromkeys(names.written(architecture, params, config.layers), "F32")
    return Published(kind, settings, config, params, written, {}, {"format": "pt"}), remarks


def _family(config: transformer.Config, params: Mapping[str, np.ndarray], pad: int | None, preferred: str) -> str:
    """What a network is written as; refuses one that has no family."""
    misfits = {kind: families.misfits(kind, config, pad, f"{MASKED}bias" in params) for kind in ARCHITECTURES}
    if fitting := [kind for kind, wrong in misfits.items() if not wrong]:
        return max(fitting, key=lambda kind: (
            kind == preferred, FAMILIES[kind].after_padding, len(params.keys() & ARCHITECTURES[kind].all_paths())))
    each = ", ".join(f"no {kind} ({', '.join(wrong)})" for kind, wrong in misfits.items())
    raise UserError(f"the network is {each}; it cannot be written as one")
