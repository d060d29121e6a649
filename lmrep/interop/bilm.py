"""Reads and writes ELMo's published files (Peters et al., 2018), a JSON file of options and an HDF5 file of weights in
the layout of https://github.com/allenai/bilm-tf, and converts them to a workdir and back.

Neither file holds the softmax, so a published checkpoint lacks it. Both conversions write to a temporary directory and
rename it.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.config import record
from lmrep.core.errors import RunFault, UserError, published_names
from lmrep.core.messages import install_hint
from lmrep.core.params import flatten, unflatten
from lmrep.data.tokenizers import elmo
from lmrep.experiment import config as experiments
from lmrep.inference.load import load
from lmrep.interop.conversion import new_workdir
from lmrep.interop.tensor_files import read_json
from lmrep.models import bilstm
from lmrep.storage import workdir
from lmrep.training.state import trainable

NAME = "ELMo"
OPTIONS, WEIGHTS, VOCABULARY = "options.json", "lm_weights.hdf5", "vocab.txt"
FIELDS = {  # option -> field of our config
    "lstm.use_skip_connections": "residual", "lstm.projection_dim": "width", "lstm.cell_clip": "clip_cell",
    "lstm.proj_clip": "clip_output", "lstm.dim": "cell", "lstm.n_layers": "layers", "char_cnn.activation": "activation",
    "char_cnn.filters": "filters", "char_cnn.n_highway": "highways", "char_cnn.embedding.dim": "character_width"}
ABSENT = {"lstm.cell_clip": 0.0, "lstm.proj_clip": 0.0, "lstm.n_layers": 1, "char_cnn.n_highway": 0}  # or null
SIZES = {"char_cnn.n_characters": (bilstm.CHARACTERS, bilstm.CHARACTERS - 1),  # the first is written
         "char_cnn.max_characters_per_token": (bilstm.MAX_CHARACTERS,)}
FORGET_BIAS = 1.0  # TensorFlow's cell adds it to the bias of the file
TOLERANCE = 1e-6  # for values written and read again: FORGET_BIAS is subtracted and added


# Tensors


class Layout(NamedTuple):
    """The layout of a tensor in the file."""

    shape: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: shape  # our shape -> the shape in the file
    write: Callable[[np.ndarray], np.ndarray] = lambda tensor: tensor  # our values -> the values in the file
    read: Callable[[np.ndarray], np.ndarray] = lambda tensor: tensor  # the values in the file -> our values


def from_gates(tensor: np.ndarray) -> np.ndarray:
    """Reorders the four gates on the last axis: i, g, f, o in the file, and i, f, g, o here."""
    i, g, f, o = np.split(tensor, 4, axis=-1)
    return np.concatenate([i, f + FORGET_BIAS if tensor.ndim == 1 else f, g, o], axis=-1)


def to_gates(tensor: np.ndarray) -> np.ndarray:
    """Inverts `from_gates`."""
    i, f, g, o = np.split(tensor, 4, axis=-1)
    return np.concatenate([i, g, f - FORGET_BIAS if tensor.ndim == 1 else f, o], axis=-1)


PLAIN = Layout()
GATES = Layout(write=to_gates, read=from_gates)
CHARACTERS = Layout(  # the file lacks the row of the padding after a word
    lambda shape: (shape[0] - 1, *shape[1:]), lambda tensor: tensor[1:],
    lambda tensor: np.concatenate([np.zeros_like(tensor[:1]), tensor]))
FILTER = Layout(lambda shape: (1, *shape), lambda tensor: tensor[None], lambda tensor: tensor[0])


def tensors(c: bilstm.Config) -> dict[str, tuple[Layout, tuple[str, ...]]]:
    """Maps names in the file to (layout, paths of our parameters, which are concatenated along the first axis)."""
    names = {"char_embed": (CHARACTERS, "embedding/embedding")}
    for i in range(len(c.filters)):
        names[f"CNN/W_cnn_{i}"] = FILTER, f"embedding/convolutions/{i + 1}/kernel"
        names[f"CNN/b_cnn_{i}"] = PLAIN, f"embedding/convolutions/{i + 1}/bias"
    for i in range(c.highways):
        for name, part in (("carry", "gate"), ("transform", "transform")):
            names[f"CNN_high_{i}/W_{name}"] = PLAIN, f"embedding/highways/{i}/{part}/kernel"
            names[f"CNN_high_{i}/b_{name}"] = PLAIN, f"embedding/highways/{i}/{part}/bias"
    if sum(c.filters) != c.width:
        names["CNN_proj/W_proj"] = PLAIN, "embedding/projection/kernel"
        names["CNN_proj/b_proj"] = PLAIN, "embedding/projection/bias"
    for number, direction in enumerate(c.names):
        for i in range(c.layers):
            cell, layer = f"RNN_{number}/RNN/MultiRNNCell/Cell{i}/LSTMCell", f"layers/{i}/{direction}"
            names[f"{cell}/W_0"] = GATES, f"{layer}/input/kernel", f"{layer}/recurrent/kernel"
            names[f"{cell}/B"] = GATES, f"{layer}/input/bias"
            names[f"{cell}/W_P_0"] = PLAIN, f"{layer}/projection/kernel"
    return {name: (layout, tuple(f"encoder/{path}" for path in paths)) for name, (layout, *paths) in names.items()}


# Files


def find(directory: Path) -> tuple[Path, Path] | None:
    """Finds (the file of options, the file of weights) in a directory: OPTIONS and WEIGHTS, or files whose names end in
    `options.json` and `weights.hdf5`, as published ones do. None if it has neither.

    Raises:
      UserError: it has several candidates for a file, or only one of the two files.
    """
    paths = []
    for name, pattern in ((OPTIONS, "*options.json"), (WEIGHTS, "*weights.hdf5")):
        files = sorted(directory.glob(pattern))
        if len(files) > 1 and directory / name not in files:
            raise UserError(f"{directory} has {' and '.join(file.name for file in files)}; leave one of them, or name "
                            f"it {name}")
        paths += [directory / name] if directory / name in files else files
    if len(paths) == 1:
        missing = WEIGHTS if paths[0].suffix == ".json" else OPTIONS
        raise UserError(f"{directory} has {paths[0].name} and no {missing}; ELMo's files are one of each: put both "
                        "there")
    return (paths[0], paths[1]) if paths else None


def read(options: Path, weights: Path) -> tuple[bilstm.Config, dict[str, np.ndarray]]:
    """Reads (the network's config, without a vocabulary; its float32 parameters by path).

    Raises:
      UserError: a file cannot be read, or the options describe another kind of network.
    """
    config = read_options(options)
    shapes = {f"encoder/{path}": spec.shape for path, spec in flatten(bilstm.specs(config)).items()}
    params = {}
    with _opened(weights, "r") as file:
        for name, (layout, paths) in tensors(config).items():
            rows = [shapes[path][0] for path in paths]
            expected = layout.shape((sum(rows), *shapes[paths[0]][1:]))
            tensor = layout.read(_read(file, name, expected, weights, options))
            params |= zip(paths, np.split(tensor, np.cumsum(rows)[:-1]), strict=True)
    return config, params


def write(directory: Path, config: bilstm.Config, params: Mapping[str, np.ndarray]) -> None:
    """Writes both files to a directory; `params` are as `read` returns them.

    Raises:
      UserError: the files cannot hold the network.
    """
    check(config)
    (directory / OPTIONS).write_text(json.dumps(options_of(config), indent=2) + "\n", encoding="utf8")
    with _opened(directory / WEIGHTS, "w") as file:
        for name, (layout, paths) in tensors(config).items():
            value = np.concatenate([np.asarray(params[path], np.float32) for path in paths])
            file.create_dataset(name, data=layout.write(value))


def read_options(path: Path) -> bilstm.Config:
    """Reads the network's config from a file of options. Raises UserError if the file cannot be read, or describes a
    network that is not supported."""
    def value(option: str) -> Any:
        keys = option.split(".")
        return reduce(lambda part, key: part.get(key) if isinstance(part, dict) else None, keys, content)

    content = read_json(path)
    options = ABSENT | {option: value(option) for option in (*FIELDS, *SIZES) if value(option) is not None}
    if missing := [option for option in (*FIELDS, *SIZES) if option not in options]:
        raise UserError(f"{path} has no {missing[0]}; expected the options of a network that reads characters")
    filters = record.convert(list[tuple[int, int]], options["char_cnn.filters"], f"{path}: char_cnn.filters")
    if [width for width, _ in filters] != [*range(1, len(filters) + 1)]:
        raise UserError(f"{path}: char_cnn.filters have widths {str([width for width, _ in filters])[:60]}; expected "
                        "1, 2, ...")
    for option, expected in SIZES.items():
        if options[option] not in expected:
            raise UserError(f"{path}: {option} is {str(options[option])[:60]}; expected "
                            f"{' or '.join(map(str, expected))}")
    with published_names(path, {field: option for option, field in FIELDS.items()}):
        config = record.read(bilstm.Config, {field: options[option] for option, field in FIELDS.items()} | {
            "filters": [number for _, number in filters]}, "model")
        check(config)
    return config


def check(config: bilstm.Config) -> None:
    """Raises UserError if ELMo's files cannot hold a network."""
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
    """Makes the contents of the file of options for a network."""
    options = {option: getattr(config, field) for option, field in FIELDS.items()} | {
        option: sizes[0] for option, sizes in SIZES.items()}
    options["char_cnn.filters"] = [*map(list, enumerate(config.filters, 1))]
    for option in ("lstm.cell_clip", "lstm.proj_clip"):
        options[option] = options[option] or None
    return unflatten({option.replace(".", "/"): value for option, value in options.items()})


def _read(file: Any, name: str, expected: tuple[int, ...], weights: Path, options: Path) -> np.ndarray:
    """Reads a tensor of an HDF5 file as float32. Refuses links and external data, since HDF5 reads any path that a file
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
    """Opens an HDF5 file."""
    try:
        import h5py  # an extra: nothing else needs it
    except ImportError:
        raise UserError(f"ELMo's weights are an HDF5 file, which needs h5py: {install_hint('elmo')}") from None
    try:
        return h5py.File(path, mode)
    except OSError as error:
        raise UserError(f"{path} cannot be opened as an HDF5 file: {error}; download it again") from error


# Conversion


def is_published(directory: Path) -> bool:
    """Returns whether a directory has a file of options and one of weights. Raises UserError as `find`."""
    return directory.is_dir() and not (directory / workdir.CONFIG).exists() and find(directory) is not None


def to_workdir(source: Path, target: Path) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """Makes `target` a workdir, at step 0, from the files in `source`. The vocabulary is read from its file
    `vocab*.txt`. Without this file it has only <S>, </S> and <UNK>, which is enough for vectors: words are read by
    their characters.

    The output layer, which the files lack, is not initialized. A run that starts from the workdir (`init=`)
    initializes it.

    Returns:
      The parameters of the network by path, and remarks for people.

    Raises:
      UserError: a file cannot be read, the network is not ELMo's, or `target` is not empty; nothing is written.
      RunFault: the disk is full; nothing is written.
    """
    workdir.check_free(target)
    if (files := find(source)) is None:
        raise UserError(f"{source} has no {OPTIONS} with {WEIGHTS}; give the directory of a published ELMo")
    config, params = read(*files)
    if wrong := [path for path, value in params.items() if not np.isfinite(value).all()]:
        raise UserError(f"{files[1]} has values that are not finite, for {', '.join(wrong[:3])}; download it again")
    vocabularies = sorted(source.glob("vocab*.txt"))
    if len(vocabularies) > 1:
        raise UserError(f"{source} has {' and '.join(file.name for file in vocabularies)}; leave one of them")
    tokenizer = (elmo.load_vocabulary(elmo.Elmo, vocabularies[0], needs_unknown=False) if vocabularies else
                 elmo.Elmo([*elmo.SPECIALS.values()]))
    # An experiment that would train this network, as far as its training is known.
    chosen = experiments.default_config("bilstm", "bidirectional", "sentence_stream", "elmo")
    chosen.name, chosen.length = target.name, 20
    chosen.model.update(dataclasses.asdict(config))
    chosen.tokenizer.update(name=tokenizer.name, vocab_size=max(tokenizer.size, 64))
    with new_workdir(source, target, experiments.parse(chosen), tokenizer, params):
        pass
    words = (f"{vocabularies[0].name}: {tokenizer.size:,} words" if vocabularies else
             f"{source} has no vocabulary file (vocab*.txt), which only the prediction of words needs")
    return params, [words, "the files have no softmax, so it predicts no words; train one with "
                    f":init={target}, or use vectors with lmrep embed"]


def to_published(
    source: str | Path, target: Path, step: int | None = None
) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """Makes `target` a directory with `options.json`, `lm_weights.hdf5` and `vocab.txt` from the workdir `source`.

    Returns:
      The parameters of the network by path, and remarks for people.

    Raises:
      UserError: there is no run, the files cannot hold its network, or `target` is not empty; nothing is written.
      RunFault: the checkpoint is damaged, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    run = load(source, step)
    config = experiments.model_config(run.experiment.model, run.tokenizer.size)
    if not isinstance(config, bilstm.Config):
        raise UserError(f"the network is {run.experiment.model['name']}; ELMo's files hold networks of "
                        "model.name=bilstm. For a Transformer, use --to=huggingface")
    check(config)
    trained = {path: np.asarray(value) for path, value in flatten(jax.device_get(trainable(run.params))).items()}
    params = {path: value for path, value in trained.items() if path.startswith("encoder/")}
    with workdir.new_directory(target) as temporary:
        write(temporary, config, params)
        if run.tokenizer.size > len(elmo.SPECIALS):
            (temporary / VOCABULARY).write_text("".join(f"{word}\n" for word in run.tokenizer.tokens), encoding="utf8")
        _, again = read(temporary / OPTIONS, temporary / WEIGHTS)
        if changed := [path for path, value in params.items() if path not in again
                       or not np.allclose(value, again[path], rtol=TOLERANCE, atol=TOLERANCE)]:
            raise RunFault(f"{', '.join(changed[:3])} of {source} changed in {target}; nothing is written")
    left_out = ", ".join(sorted(trained.keys() - params.keys()))
    return params, [f"left out, since the files hold the network alone: {left_out}"] if left_out else []
