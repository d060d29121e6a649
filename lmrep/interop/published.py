"""Published checkpoints: directories as Hugging Face lays them out, of BERT and RoBERTa, read and written.

    config.json          the network's sizes; activation and epsilon are as it says
    model.safetensors    or several files and model.safetensors.index.json
    vocab.txt ...        the tokenizer's files

`Published` holds all that such a directory says: what has a place among our parameters, and in `carried` what has none
(buffers of positions, say), so that what is read and written again has the same names, dtypes and bytes. No file is
unpickled and no code is run that a directory holds or names.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep.config.record import read as read_record
from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import ParamSpec, flatten
from lmrep.interop import names, tensor_files
from lmrep.interop.names import ARCHITECTURES, CLASSIFIER, MASKED, POOLER, Architecture, Place
from lmrep.layers import vocabulary as head
from lmrep.models import transformer
from lmrep.objectives import sentence_pair
from lmrep.training import workdir

CONFIG, MODEL, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack", ".npz")
CODE = ("auto_map", "custom_pipelines", "trust_remote_code")  # keys that name code to be run
FLOATS = ("F32", "F16", "BF16")
MOST = 2**24  # of any size in a config

# Their names of activations and ours; the first of ours is written.
ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
               "gelu_fast": "gelu_tanh", "relu": "relu", "tanh": "tanh"}


@dataclass(frozen=True)
class Settings:
    """What we read of a published config.json. The defaults are what the reference takes for a key that is missing."""

    vocab_size: int = setting(30522, "rows of the token table", at_least=1, at_most=MOST)
    hidden_size: int = setting(768, "d", at_least=1, at_most=MOST)
    num_hidden_layers: int = setting(12, "l", at_least=1, at_most=MOST)
    num_attention_heads: int = setting(12, "h", at_least=1, at_most=MOST)
    intermediate_size: int = setting(3072, "f", at_least=1, at_most=MOST)
    max_position_embeddings: int = setting(512, "rows of the position table", at_least=1, at_most=MOST)
    type_vocab_size: int = setting(2, "rows of the token-type table", at_least=1, at_most=MOST)
    hidden_act: str = setting("gelu", "activation", choices=tuple(ACTIVATIONS))
    layer_norm_eps: float = setting(1e-12, "epsilon of layer norm", above=0)
    hidden_dropout_prob: float = setting(0.1, "dropout", at_least=0, below=1)
    attention_probs_dropout_prob: float = setting(0.1, "dropout of attention", at_least=0, below=1)
    initializer_range: float = setting(0.02, "standard deviation of initial weights", above=0)
    pad_token_id: int | None = setting(None, "padding's id", at_least=0, at_most=MOST)
    position_embedding_type: str = setting("absolute", "of positions", choices=("absolute",))
    is_decoder: bool = setting(False, "causal", choices=(False,))
    add_cross_attention: bool = setting(False, "with a second input", choices=(False,))


# What has the same meaning there and here: their key, our field.
FIELDS = {
    "vocab_size": "vocab", "hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "intermediate_size": "mlp", "type_vocab_size": "token_types", "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "init_stddev",
}  # fmt: skip


class Published(NamedTuple):
    """A published checkpoint.

    Attributes:
      kind: "bert" or "roberta".
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
    def name(self) -> str:
        """The class of the reference that has just its heads."""
        return self.architecture.of_class(self.params)


# Reading


def read(directory: Path) -> Published:
    """The checkpoint in a directory. Arrays of `carried` are views into its files.

    Raises:
      UserError: there is none, or of another kind; its weights are pickled, its config names code; a file is malformed;
        a tensor is missing or of another shape or dtype than its config says.
    """
    settings, architecture = _described(directory)
    config = network(architecture, settings, str(directory / CONFIG))
    tensors, metadata = _tensors(directory)
    params, carried = place(tensors, architecture, config, directory)
    if f"{MASKED}bias" in params and architecture.kind == "roberta" and config.activation != "gelu":
        raise UserError(f"{directory / CONFIG} has hidden_act {settings['hidden_act']!r}, and RoBERTa's masked-LM head "
                        "always has gelu; our heads have their network's. Save it without the head: RobertaModel")
    if settings.get("tie_word_embeddings") is False and f"{MASKED}bias" in params and \
            names.TIED[architecture.kind] not in tensors:
        raise UserError(f"{directory / CONFIG} has tie_word_embeddings false, and there is no "
                        f"{names.TIED[architecture.kind]}: by that its output layer is missing. Where it is the token "
                        "table, as in every published checkpoint, set the key to true")
    kinds = {name: tensor_files.NAMES[value.dtype] for name, value in tensors.items()}
    return Published(architecture.kind, settings, config, params, kinds, carried, metadata)


def config(directory: Path) -> transformer.Config:
    """The network of the checkpoint in a directory, by its config.json alone. Raises UserError as `read`."""
    settings, architecture = _described(directory)
    return network(architecture, settings, str(directory / CONFIG))


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
                            "checkpoints of BERT and RoBERTa need none: delete the key if this is one")
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
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise UserError(f"{path} is of model_type {str(kind)[:80]!r}; supported are {', '.join(ARCHITECTURES)}")
    if any(name not in ARCHITECTURES[kind].classes.values() for name in classes):
        raise UserError(f"{path} is of model_type {kind!r} and of architecture {', '.join(classes)}; they differ")
    return ARCHITECTURES[kind]


def network(architecture: Architecture, settings: Mapping[str, Any], where: str = CONFIG) -> transformer.Config:
    """Our config of the network that a config.json describes.

    Raises:
      UserError: a value is out of range, or of a network that ours cannot be.
    """
    fields = [field.name for field in dataclasses.fields(Settings)]
    known = {key: settings[key] for key in fields if settings.get(key) is not None}
    if endless := [key for key, value in known.items() if len(str(value)) > 100]:
        raise UserError(f"{where} has a value of more than 100 characters at {endless[0]}; fetch it again")
    theirs = read_record(Settings, known, where)
    pad = architecture.pad if theirs.pad_token_id is None else theirs.pad_token_id
    # RoBERTa counts positions from the row after padding's.
    offset = pad + 1 if architecture.kind == "roberta" else 0
    if theirs.max_position_embeddings <= offset:
        raise UserError(f"{where} has {theirs.max_position_embeddings} position rows, of which padding takes {offset}")
    config = transformer.Config(
        **{ours: getattr(theirs, key) for key, ours in FIELDS.items()},
        activation=ACTIVATIONS[theirs.hidden_act], position_offset=offset,
        length=theirs.max_position_embeddings - offset,
        init="truncated_normal" if architecture.kind == "bert" else "normal")
    if theirs.hidden_size % theirs.num_attention_heads:
        raise UserError(f"{where} has hidden_size {theirs.hidden_size}, which its {theirs.num_attention_heads} heads "
                        "do not divide")
    return config


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
    model = transformer.build(config)
    return flatten({"encoder": model.specs, "objective": {
        "masked": head.specs(model.width, model.width, model.vocabulary),
        "pair": sentence_pair.specs(model)}})


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
    places = names.found(architecture, tensors, config.layers)
    wanted = specs(config)
    _check_all_there(places, architecture, tensors, config, directory)
    filled: dict[Place, str] = {}
    for name, where in places.items():
        value, spec = tensors[name], wanted[where.path]
        shape = spec.shape if where.layer is None else spec.shape[1:]
        shape = shape[::-1] if where.path.endswith("/kernel") else shape
        if value.shape != shape or tensor_files.NAMES[value.dtype] not in FLOATS:
            raise UserError(f"{directory}: {name} is {tensor_files.kind(value)}; by its {CONFIG} it should be "
                            f"{list(shape)}, of {', '.join(FLOATS)}")
        first = filled.setdefault(where, name)
        if first != name and not np.array_equal(tensors[first], value, equal_nan=True):
            raise UserError(f"{directory}: {first} and {name} differ; here the output layer is tied to the token "
                            "table, so that they are one. A checkpoint in which they are two cannot be read")
    params: dict[str, np.ndarray] = {}
    for where, name in filled.items():
        if where.path not in params:
            params[where.path] = np.empty(wanted[where.path].shape, np.float32)
        where.of(params[where.path])[...] = tensors[name]
    return params, {name: value for name, value in tensors.items() if name not in places}


def _check_all_there(
    places: Mapping[str, Place], architecture: Architecture, tensors: Mapping[str, np.ndarray],
    config: transformer.Config, directory: Path,
) -> None:
    """Refuses a network, or a head of which something is there, that lacks a tensor."""
    present = set(places.values())
    begun = {group for group in (MASKED, POOLER, CLASSIFIER) if any(p.path.startswith(group) for p in present)}
    if CLASSIFIER in begun:
        begun.add(POOLER)
    missing = [of[0] for where, of in architecture.places(architecture.prefix(tensors), config.layers)
               if where not in present and where.path.startswith(("encoder/", *begun))]
    if missing:
        more = f" and {len(missing) - 4:,} more" if len(missing) > 4 else ""
        raise UserError(f"{directory} lacks {', '.join(missing[:4])}{more}; by its {CONFIG} they should be there")


# Writing


def tensors(checkpoint: Published) -> dict[str, np.ndarray]:
    """Its tensors as they were, or are to be, in files: views where the dtype is float32."""
    places = names.found(checkpoint.architecture, checkpoint.tensors, checkpoint.config.layers)
    found = {}
    for name, dtype in checkpoint.tensors.items():
        if name in checkpoint.carried:
            found[name] = checkpoint.carried[name]
        else:
            where = places[name]
            found[name] = where.of(checkpoint.params[where.path]).astype(tensor_files.DTYPES[dtype], copy=False)
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
    config: transformer.Config, params: Mapping[str, np.ndarray], specials: Mapping[str, int]
) -> tuple[Published, list[str]]:
    """(our network as a published checkpoint, remarks on what had to be left out or put in).

    A network whose positions begin after padding's row, as RoBERTa's, and whose heads have its gelu, is a RoBERTa. Any
    other is a BERT; rows of the position table that it never looks up are left out then.

    Args:
      config: of the network.
      params: float32 arrays by path.
      specials: the tokenizer's, by role.

    Raises:
      UserError: it is a network that neither can be.
    """
    _check_expressible(config)
    params, remarks = dict(params), []
    offset, pad = config.position_offset, specials.get("pad", 0)
    kind = "roberta" if offset and offset == pad + 1 and config.activation == "gelu" else "bert"
    architecture = ARCHITECTURES[kind]
    if kind == "bert" and offset:
        remarks.append(f"left out: the first {offset} rows of encoder/embedding/position, which are never looked up")
        params["encoder/embedding/position"] = params["encoder/embedding/position"][offset:]
        config = dataclasses.replace(config, position_offset=0)
    tables = {**architecture.base, **architecture.heads}
    remarks += [f"left out, for {kind} has no place for it: {path} {tensor_files.kind(value)}"
                for path, value in params.items() if path not in tables]
    params = {path: value for path, value in params.items() if path in tables}
    if not config.token_types:
        remarks.append("put in: a token-type row of zeros, for theirs always adds one")
        config = dataclasses.replace(config, token_types=1)
        params["encoder/embedding/token_type"] = np.zeros((1, config.width), np.float32)
    ids = {f"{role}_token_id": specials[ours] for role, ours in (("bos", "cls"), ("eos", "sep"))
           if kind == "roberta" and ours in specials}
    settings = {
        "architectures": [architecture.of_class(params)], "model_type": kind,
        **{theirs: getattr(config, ours) for theirs, ours in FIELDS.items()},
        "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation),
        "max_position_embeddings": config.length + config.position_offset,
        "position_embedding_type": "absolute", "pad_token_id": pad, **ids,
        "tie_word_embeddings": True, "dtype": "float32",
    }  # fmt: skip
    written = dict.fromkeys(names.written(architecture, params, config.layers), "F32")
    return Published(kind, settings, config, params, written, {}, {"format": "pt"}), remarks


def _check_expressible(config: transformer.Config) -> None:
    """Refuses a network that is neither a BERT nor a RoBERTa."""
    needed = {"positions": "learned", "norm": "post", "share": "none", "embedding_norm": True}
    found = [f"{field}={getattr(config, field)}" for field, value in needed.items() if getattr(config, field) != value]
    if config.table_width != config.width:
        found.append(f"embedding={config.embedding}")
    if found:
        raise UserError(f"the network has {', '.join(found)}, which neither {' nor '.join(ARCHITECTURES)} has; it "
                        "cannot be written as one")
