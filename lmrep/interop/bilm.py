"""ELMo's published files (Peters et al., 2018): a JSON file of options and an HDF5 file of weights, in the layout of
https://github.com/allenai/bilm-tf.

The softmax is in neither file; in the published form it is lost.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrep.config import record
from lmrep.core.errors import UserError, published_names
from lmrep.core.messages import install_hint
from lmrep.core.params import flatten
from lmrep.interop.tensor_files import read_json
from lmrep.models import bilstm

OPTIONS, WEIGHTS = "options.json", "lm_weights.hdf5"
NAMES = {  # of fields of our config, in the options
    "layers": "lstm.n_layers", "cell": "lstm.dim", "width": "lstm.projection_dim",
    "residual": "lstm.use_skip_connections", "clip_cell": "lstm.cell_clip", "clip_output": "lstm.proj_clip",
    "character_width": "char_cnn.embedding.dim", "filters": "char_cnn.filters", "highways": "char_cnn.n_highway",
    "activation": "char_cnn.activation"}
FORGET_BIAS = 1.0  # which TensorFlow's cell adds to the bias of the file


class Location(NamedTuple):
    """A tensor of the file.

    Attributes:
      name: in the file.
      paths: of our parameters; side by side along the first axis where there are several.
      gates: whether the last axis holds the four gates: i, g, f, o in the file, and i, f, g, o here.
    """

    name: str
    paths: tuple[str, ...]
    gates: bool = False


def find(directory: Path) -> tuple[Path, Path] | None:
    """The files of options and of weights in a directory, by these names or by names that end in `options.json` and
    `weights.hdf5`, as the published ones; None if it has neither.

    Raises:
      UserError: it has several of one, or lacks one of the two.
    """
    found = []
    for name, pattern in ((OPTIONS, "*options.json"), (WEIGHTS, "*weights.hdf5")):
        files = sorted(directory.glob(pattern))
        if len(files) > 1 and directory / name not in files:
            raise UserError(f"{directory} has {' and '.join(file.name for file in files)}; leave one of them, or name "
                            f"it {name}")
        found += [directory / name] if directory / name in files else files
    if len(found) == 1:
        missing = WEIGHTS if found[0].suffix == ".json" else OPTIONS
        raise UserError(f"{directory} has {found[0].name} and no {missing}; ELMo's files are one of each: put both "
                        "there")
    return (found[0], found[1]) if found else None


def read(options: Path, weights: Path) -> tuple[bilstm.Config, dict[str, np.ndarray]]:
    """(the network's config, without a vocabulary; its parameters by path under `encoder/`, float32).

    Raises:
      UserError: a file cannot be read, or does not hold such a network.
    """
    config = read_options(options)
    shapes = {path: spec.shape for path, spec in flatten(bilstm.specs(config)).items()}
    params = {}
    with _opened(weights, "r") as file:
        for location in locations(config):
            expected = _file_shape(location, shapes)
            _assign(_read(file, location.name, expected, weights, options), location, shapes, params)
    return config, {f"encoder/{path}": value for path, value in params.items()}


def write(directory: Path, config: bilstm.Config, params: Mapping[str, np.ndarray]) -> None:
    """Writes both files; `params` as `read` gives them.

    Raises:
      UserError: the layout cannot hold the network.
    """
    check(config)
    (directory / OPTIONS).write_text(json.dumps(options_of(config), indent=2) + "\n", encoding="utf8")
    with _opened(directory / WEIGHTS, "w") as file:
        for location in locations(config):
            file.create_dataset(location.name, data=_tensor(location, params))


def read_options(path: Path) -> bilstm.Config:
    """The network of a file of options. Raises UserError where there is none, or one that this code does not know."""
    try:
        found = read_json(path)
        lstm, characters = found["lstm"], found["char_cnn"]
        if type(lstm.get("use_skip_connections")) is not bool:
            raise ValueError("use_skip_connections is not true or false")
        widths = [width for width, _ in characters["filters"]]
        fields = {
            "layers": lstm.get("n_layers", 1), "cell": lstm["dim"], "width": lstm["projection_dim"],
            "residual": lstm["use_skip_connections"], "clip_cell": float(lstm.get("cell_clip") or 0),
            "clip_output": float(lstm.get("proj_clip") or 0), "character_width": characters["embedding"]["dim"],
            "filters": [number for _, number in characters["filters"]],
            "highways": characters.get("n_highway") or 0, "activation": characters["activation"]}
        size = characters["n_characters"], characters["max_characters_per_token"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"{path} is no file of ELMo's options ({repr(error)[:200]}); expected `lstm` and `char_cnn`, "
                        "as of the published networks with character inputs") from None
    if widths != [*range(1, len(widths) + 1)] or size[0] not in (261, 262) or size[1] != bilstm.MAX_CHARACTERS:
        raise UserError(f"{path}: filters of widths {str(widths)[:60]}, {str(size[0])[:60]} characters, "
                        f"{str(size[1])[:60]} of a word; expected "
                        f"widths 1, 2, ..., 261 or 262 characters, and {bilstm.MAX_CHARACTERS} of a word")
    with published_names(path, NAMES):
        config = record.read(bilstm.Config, fields, "model")
        check(config)
    return config


def check(config: bilstm.Config) -> None:
    """Raises UserError where the layout cannot hold a network."""
    bilstm.check(config)
    if config.reads != "characters" or config.directions != "both":
        raise UserError(f"the network has model.reads={config.reads} and model.directions={config.directions}; ELMo's "
                        "files hold networks of both directions that read characters")
    if not config.shared:
        raise UserError("the network has model.shared=False; in ELMo's files both directions read the same vectors of "
                        "words")
    if config.width >= config.cell:
        raise UserError(f"the network has a cell of width {config.cell} and an output of width {config.width}; ELMo's "
                        "files have a projection only where the output is narrower")
    if config.highways and sum(config.filters) < config.width:
        raise UserError(f"the network has {sum(config.filters)} filters and an output of width {config.width}; ELMo's "
                        "code expects at least as many filters")


def options_of(config: bilstm.Config) -> dict[str, Any]:
    """The file of options."""
    return {
        "lstm": {"use_skip_connections": config.residual, "projection_dim": config.width,
                 "cell_clip": config.clip_cell or None, "proj_clip": config.clip_output or None, "dim": config.cell,
                 "n_layers": config.layers},
        "char_cnn": {"activation": config.activation, "filters": [*map(list, enumerate(config.filters, 1))],
                     "n_highway": config.highways, "embedding": {"dim": config.character_width},
                     "n_characters": bilstm.CHARACTERS, "max_characters_per_token": bilstm.MAX_CHARACTERS},
    }


def locations(config: bilstm.Config) -> Iterator[Location]:
    """The tensors of a network."""
    yield Location("char_embed", ("embedding/embedding",))
    for i in range(len(config.filters)):
        for name, own in (("W", "kernel"), ("b", "bias")):
            yield Location(f"CNN/{name}_cnn_{i}", (f"embedding/convolutions/{i + 1}/{own}",))
    for i in range(config.highways):
        for gate, part in (("carry", "gate"), ("transform", "transform")):
            for name, own in (("W", "kernel"), ("b", "bias")):
                yield Location(f"CNN_high_{i}/{name}_{gate}", (f"embedding/highways/{i}/{part}/{own}",))
    if sum(config.filters) != config.width:
        for name, own in (("W", "kernel"), ("b", "bias")):
            yield Location(f"CNN_proj/{name}_proj", (f"embedding/projection/{own}",))
    for number, direction in enumerate(config.names):
        for i in range(config.layers):
            cell, layer = f"RNN_{number}/RNN/MultiRNNCell/Cell{i}/LSTMCell", f"layers/{i}/{direction}"
            yield Location(f"{cell}/W_0", (f"{layer}/input/kernel", f"{layer}/recurrent/kernel"), gates=True)
            yield Location(f"{cell}/B", (f"{layer}/input/bias",), gates=True)
            yield Location(f"{cell}/W_P_0", (f"{layer}/projection/kernel",))


def _file_shape(location: Location, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    first, *more = (shapes[path] for path in location.paths)
    if location.name == "char_embed":
        return (first[0] - 1, *first[1:])  # without the padding after a word
    if location.name.startswith("CNN/W"):
        return (1, *first)
    return (first[0] + sum(shape[0] for shape in more), *first[1:])


def _assign(tensor: np.ndarray, location: Location, shapes: Mapping[str, tuple[int, ...]],
            params: dict[str, np.ndarray]) -> None:
    """Sets our parameters from a tensor of the file."""
    if location.name == "char_embed":
        tensor = np.concatenate([np.zeros_like(tensor[:1]), tensor])
    if location.gates:
        i, g, f, o = np.split(tensor, 4, axis=-1)
        tensor = np.concatenate([i, f + FORGET_BIAS if tensor.ndim == 1 else f, g, o], axis=-1)
    start = 0
    for path in location.paths:
        size = shapes[path][0] if len(location.paths) > 1 else len(tensor)
        params[path] = tensor[start : start + size].reshape(shapes[path])
        start += size


def _tensor(location: Location, params: Mapping[str, np.ndarray]) -> np.ndarray:
    """The inverse of `_assign`."""
    tensor = np.concatenate([np.asarray(params[f"encoder/{path}"], np.float32) for path in location.paths])
    if location.name == "char_embed":
        return tensor[1:]
    if location.name.startswith("CNN/W"):
        return tensor[None]
    if location.gates:
        i, f, g, o = np.split(tensor, 4, axis=-1)
        return np.concatenate([i, g, f - FORGET_BIAS if tensor.ndim == 1 else f, o], axis=-1)
    return tensor


def _read(file: Any, name: str, expected: tuple[int, ...], weights: Path, options: Path) -> np.ndarray:
    """A tensor of an HDF5 file, float32. One whose values are elsewhere is refused: HDF5 reads any path that a file
    names."""
    import h5py

    try:
        for part in accumulate(name.split("/"), "{}/{}".format):
            link = file.get(part, getlink=True)
            if link is None:
                raise UserError(f"{weights} has no {name}, which a network of {options} has; download both files again")
            if not isinstance(link, h5py.HardLink):
                raise UserError(f"{weights}: {part} is a link to other data; expected the tensor itself")
        tensor = file[name]
        if not isinstance(tensor, h5py.Dataset) or tensor.dtype.kind != "f":
            raise UserError(f"{weights}: {name} is no tensor of floating-point numbers; download both files again")
        if tensor.external or tensor.is_virtual:
            raise UserError(f"{weights}: the values of {name} are in other files; expected them in this one")
        if tensor.shape != expected:
            raise UserError(f"{weights}: {name} is {str(tensor.shape)[:60]}, and by {options} {expected}; the files "
                            "are of different networks: download both again")
        if not tensor.id.get_storage_size():
            raise UserError(f"{weights}: {name} has a shape and no values; download it again")
        return np.asarray(tensor, np.float32)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise UserError(f"{weights}: {name} cannot be read: {str(error)[:200]}; download it again") from None


def _opened(path: Path, mode: str) -> Any:
    """An HDF5 file."""
    try:
        import h5py  # an extra: nothing else needs it
    except ImportError:
        raise UserError(f"ELMo's weights are an HDF5 file, which needs h5py: {install_hint('elmo')}") from None
    try:
        return h5py.File(path, mode)
    except OSError as error:
        raise UserError(f"{path} cannot be opened as an HDF5 file: {error}; download it again") from error
