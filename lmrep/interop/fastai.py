"""Reads and writes the language models of fastai (Howard and Ruder, 2018): the tensors of an AWD-LSTM as safetensors,
with the names of fastai 0.7 or 1.0 and later, and the list of tokens, itos.json; and converts them to a workdir and
back.

fastai publishes both as pickles, which can run any code when they are read; they are refused, with the lines of Python
that convert them. `itos.json` beside a tokenizer_config.json with {"direction": "backward"} is of a model that reads
documents from their end. Both conversions write to a temporary directory and rename it.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import jax
import numpy as np

from lmrep.config import json_files
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import write_json
from lmrep.core.params import flatten
from lmrep.data import tokenizers
from lmrep.data.tokenizers import fastai as vocabularies
from lmrep.experiment import config as experiments
from lmrep.inference.load import load
from lmrep.interop import tensor_files
from lmrep.interop.conversion import EXTRA, FOLDER, new_workdir
from lmrep.models import awd_lstm
from lmrep.storage import workdir
from lmrep.training.state import trainable

NAME = "fastai's AWD-LSTM"
WEIGHTS, RECORD = "model.safetensors", "fastai.json"
PICKLES = (".pth", ".pt", ".h5", ".pkl")  # fastai 0.7 names files of torch.save *.h5
TABLE = "encoder/embedding/token"
BIAS = "objective/causal/bias"
TENSORS = {"module.weight_ih_l0": "input/kernel", "weight_hh_l0_raw": "recurrent/kernel",
           "module.bias_ih_l0": "input/bias", "module.bias_hh_l0": "recurrent/bias"}  # of a layer, here in fastai 1.0


class Record(TypedDict):
    """The contents of RECORD: the names under which tensors are written again."""

    names: list[str]


def names(config: awd_lstm.Config, version: str, bias: bool) -> dict[str, str]:
    """Maps the names of the tensors of "0.7" or "1.0" to paths of our parameters; several are copies of the table."""
    copy = "encoder_dp.emb" if version == "1.0" else "encoder_with_dropout.embed"
    found = {"0.encoder.weight": TABLE, f"0.{copy}.weight": TABLE, "1.decoder.weight": TABLE,
             **({"1.decoder.bias": BIAS} if bias else {})}
    for i in range(config.layers):
        for name, path in TENSORS.items():
            name = f"module.{name}" if version == "0.7" and not name.startswith("module.") else name
            found[f"0.rnns.{i}.{name}"] = f"encoder/layers/{i}/{path}"
    return found


def is_published(directory: Path) -> bool:
    """Returns whether a directory has a model of fastai. Raises UserError if it has one as a pickle alone."""
    if not directory.is_dir() or (directory / workdir.CONFIG).exists():
        return False
    if any(directory.glob("*.safetensors")):
        return (directory / vocabularies.FILE).exists()
    for file in sorted(directory.iterdir()):
        check_no_pickle(file)
    return False


def check_no_pickle(file: Path) -> None:
    """Raises UserError, which says how to convert it, if a file is named as a pickle."""
    if file.suffix == ".pkl":
        vocabularies.read_tokens(file)
    if file.suffix in PICKLES:
        raise UserError(
            f"{file} is a pickle, which can run any code when it is read; if it is a model of fastai, write it as "
            "safetensors in Python, and put it into a directory with its itos.json:\n"
            "  import torch; from safetensors.torch import save_file\n"
            f"  state = torch.load({file.name!r}, map_location='cpu', weights_only=True)\n"
            f"  save_file({{name: x.clone() for name, x in state.get('model', state).items()}}, {WEIGHTS!r})")


def read(file: Path) -> tuple[awd_lstm.Config, dict[str, np.ndarray], list[str], dict[str, np.ndarray]]:
    """Reads a file of tensors.

    Returns:
      The network's config, with the vocabulary of the table; float32 parameters by path; the names in the file; and the
      tensors that are only kept, the hidden-to-hidden weights after dropout, which fastai saves too.

    Raises:
      UserError: the file cannot be read, or is of another network.
    """
    tensors, _ = tensor_files.read(file)
    for name, value in tensors.items():
        if value.dtype.kind != "f":
            raise UserError(f"{file}: {name[:80]!r} has dtype {value.dtype}; expected floating-point numbers")
        if not np.isfinite(value).all():
            raise UserError(f"{file}: {name[:80]!r} has values that are not finite; convert the file again")
    kept = {name: value for name, value in tensors.items() if name.endswith(".module.weight_hh_l0")}
    config = network(file, tensors)
    known = names(config, "0.7", True) | names(config, "1.0", True)
    if unknown := sorted(tensors.keys() - kept.keys() - known.keys()):
        raise UserError(f"{file} has {unknown[0][:80]!r}, which a language model of fastai with LSTMs lacks; expected "
                        "the file of a language model, not of a classifier or with QRNNs")
    shapes = {path: spec.shape for path, spec in flatten({"encoder": awd_lstm.specs(config)}).items()}
    shapes[BIAS] = (config.vocab,)
    params: dict[str, np.ndarray] = {}
    for name in (name for name in tensors if name not in kept):
        path, value = known[name], tensors[name].astype(np.float32).T
        value = value.T if path == TABLE else value
        if value.shape != shapes[path]:
            raise UserError(f"{file}: {name} is {tensors[name].shape}, and {shapes[path]} is expected for {path}; "
                            "convert the file again")
        if path in params and not np.array_equal(params[path], value):
            raise UserError(f"{file}: {name} differs from 0.encoder.weight, of which it is a copy in fastai; the "
                            "output layer must be tied")
        params[path] = np.ascontiguousarray(value)
    if missing := sorted(shapes.keys() - params.keys() - {BIAS}):
        raise UserError(f"{file} lacks {next(name for name in known if known[name] == missing[0])}; expected all "
                        "tensors of a language model of fastai")
    return config, params, [name for name in tensors if name not in kept], kept


def network(file: Path, tensors: Mapping[str, np.ndarray]) -> awd_lstm.Config:
    """Reads the sizes of the network from the shapes of its tensors; dropout is that of ULMFiT's language model."""
    table = tensors.get("0.encoder.weight", np.zeros(0))
    layers = 0
    while f"0.rnns.{layers}.module.weight_ih_l0" in tensors:
        layers += 1
    if table.ndim != 2 or not layers:
        raise UserError(f"{file} has no {'0.rnns.0.module.weight_ih_l0' if table.ndim == 2 else '0.encoder.weight'}; "
                        "expected the tensors of a language model of fastai")
    width = len(tensors["0.rnns.0.module.weight_ih_l0"]) // 4
    return awd_lstm.Config(
        vocab=len(table), width=width, layers=layers, embedding=table.shape[1], dropout=0.1, hidden_dropout=0.15,
        input_dropout=0.25, embedding_dropout=0.02, weight_dropout=0.2, ar_of="raw")


def to_workdir(source: Path, target: Path) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """Makes `target` a workdir, at step 0, from the directory `source` with a file of tensors and itos.json.

    Returns:
      The parameters by path, and remarks for people.

    Raises:
      UserError: a file cannot be read, the network is another one, or `target` is not empty; nothing is written.
      RunFault: the disk is full; nothing is written.
    """
    workdir.check_free(target)
    files = sorted(source.glob("*.safetensors"))
    if len(files) > 1:
        raise UserError(f"{source} has {' and '.join(file.name for file in files)}; leave one of them")
    config, params, stored, kept = read(files[0])
    tokenizer = tokenizers.load(source)
    if tokenizer.size > config.vocab:
        raise UserError(f"{source / vocabularies.FILE} has {tokenizer.size:,} tokens, and the table of {files[0]} "
                        f"{config.vocab:,} rows; they are of different models")
    chosen = experiments.default_config("awd_lstm_ulmfit", "causal", "stream", "adamw")
    chosen.name, chosen.length = target.name, 70
    chosen.model.update(dataclasses.asdict(config))
    chosen.objective.bias = BIAS in params
    chosen.tokenizer.update(name=tokenizer.name, vocab_size=max(tokenizer.size, 64), lowercase=tokenizer.lowercase,
                            direction="backward" if tokenizer.backward else "forward")
    with new_workdir(source, target, experiments.parse(chosen), tokenizer, params) as temporary:
        (temporary / FOLDER).mkdir()
        tensor_files.write(temporary / FOLDER / EXTRA, kept, {})
        write_json(temporary / FOLDER / RECORD, {"names": stored})
    remarks = [f"{tokenizer.size:,} tokens of {tokenizer.name}, read {chosen.tokenizer.direction}"]
    if kept:
        remarks.append(f"kept beside the parameters: {', '.join(kept)}")
    return params, remarks


def to_published(
    source: str | Path, target: Path, step: int | None = None
) -> tuple[Mapping[str, np.ndarray], list[str]]:
    """Makes `target` a directory with `model.safetensors` and `itos.json` from the workdir `source`. Names are those of
    the file that the workdir was converted from; otherwise of fastai 0.7 for the tokenizer `fastai_paper`, and of 1.0
    for `fastai_v1`.

    Returns:
      The parameters by path, and remarks for people.

    Raises:
      UserError: there is no run, fastai cannot hold it, or `target` is not empty; nothing is written.
      RunFault: the checkpoint is damaged, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    run = load(source, step)
    config = experiments.model_config(run.experiment.model, run.tokenizer.size)
    if not isinstance(config, awd_lstm.Config) or config.biases != 2:
        raise UserError(f"the network is {run.experiment.model['name']}; fastai's files hold networks of "
                        "model.name=awd_lstm with model.biases=2")
    if not isinstance(run.tokenizer, vocabularies.FastaiV1):
        raise UserError(f"the tokenizer is {run.tokenizer.name}, which fastai lacks; expected fastai_v1 or "
                        "fastai_paper")
    trained = {path: np.asarray(value) for path, value in flatten(jax.device_get(trainable(run.params))).items()}
    version = "0.7" if isinstance(run.tokenizer, vocabularies.FastaiPaper) else "1.0"
    # fastai 1.0 loads no file without the weights after dropout, though it computes them again.
    known, kept = names(config, version, BIAS in trained), {
        f"0.rnns.{i}.module.weight_hh_l0": trained[f"encoder/layers/{i}/{TENSORS['weight_hh_l0_raw']}"].T
        for i in range(config.layers if version == "1.0" else 0)}
    if (run.directory / FOLDER / RECORD).exists():
        record = json_files.read(Record, run.directory / FOLDER / RECORD) or {"names": []}
        both = names(config, "0.7", True) | names(config, "1.0", True)
        known = {name: both[name] for name in record["names"]}
        kept, _ = tensor_files.read(run.directory / FOLDER / EXTRA)
    params = {path: trained[path] for path in known.values()}
    with workdir.new_directory(target) as temporary:
        tensor_files.write(temporary / WEIGHTS, {
            name: params[path] if path == TABLE else params[path].T for name, path in known.items()} | kept, {})
        run.tokenizer.save(temporary)
        _, again, *_ = read(temporary / WEIGHTS)
        if changed := [path for path, value in params.items() if not np.array_equal(value, again[path])]:
            raise RunFault(f"{', '.join(changed[:3])} of {source} changed in {target}; nothing is written")
    left_out = ", ".join(sorted(trained.keys() - params.keys()))
    return params, [f"left out, since the files hold the language model alone: {left_out}"] if left_out else []
