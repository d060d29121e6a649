"""Converts ELMo's published files (`lmrep.interop.bilm`) to a workdir that every command takes, and a workdir to such
files. Both directions write to a temporary directory and rename it."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from lmrep.core.errors import RunFault, UserError
from lmrep.core.params import flatten, unflatten
from lmrep.data import tokenizers
from lmrep.data.tokenizers import elmo
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.inference.load import load
from lmrep.interop import bilm
from lmrep.models import bilstm
from lmrep.storage import workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.state import trainable

VOCABULARY = "vocab.txt"
ENCODER = "encoder/"  # of the paths of the network's parameters
TOLERANCE = 1e-6  # 1 is subtracted from the forget gate's bias in the file, and added again


class Converted(NamedTuple):
    """The result of a conversion."""

    params: Mapping[str, np.ndarray]  # of the network, by path
    remarks: list[str]  # for people


def is_published(directory: Path) -> bool:
    """Whether a directory has a file of options and one of weights. Raises UserError as `bilm.find`."""
    return directory.is_dir() and not (directory / workdir.CONFIG).exists() and bilm.find(directory) is not None


def to_workdir(source: Path, target: Path) -> Converted:
    """Makes `target` a workdir, at step 0, of the files in `source` that `bilm.find` finds. The vocabulary is that of
    its file `vocab*.txt`. Without one it has <S>, </S> and <UNK> alone, which is enough for vectors: words are read by
    their characters.

    The output layer, which the files lack, is not initialized: a run that starts from the workdir (`init=`) does that.

    Raises:
      UserError: a file cannot be read, the network is not ELMo's, or `target` is not empty; nothing is written.
      RunFault: the disk is full; nothing is written.
    """
    workdir.check_free(target)
    if (files := bilm.find(source)) is None:
        raise UserError(f"{source} has no {bilm.OPTIONS} with {bilm.WEIGHTS}; give the directory of a published ELMo")
    config, params = bilm.read(*files)
    if wrong := [path for path, value in params.items() if not np.isfinite(value).all()]:
        raise UserError(f"{files[1]} has values that are not finite, for {', '.join(wrong[:3])}; download it again")
    vocabulary = _vocabulary_file(source)
    tokenizer = (elmo.load_vocabulary(elmo.Elmo, vocabulary, needs_unknown=False) if vocabulary else
                 elmo.Elmo([*elmo.SPECIALS.values()]))
    record = experiment(config, tokenizer, target.name)
    with workdir.new_directory(target) as temporary:
        tokenizer.save(temporary / "tokenizer")
        with contextlib.closing(Checkpoints(temporary / "checkpoints")) as checkpoints:
            checkpoints.save(0, {"params": unflatten(params)}, {"stage": 0})
        workdir.write_config(temporary, {
            "config": dataclasses.asdict(record), "data": {"tokenizer": tokenizer.fingerprint},
            "source": str(source.absolute())})
    read_by = (f"{vocabulary.name}: {tokenizer.size:,} words" if vocabulary else
               f"{source} has no vocabulary file (vocab*.txt), which only the prediction of words needs")
    return Converted(params, [read_by, "the files have no softmax, so it predicts no words; train one with "
                              f":init={target}, or use vectors with lmrep embed"])


def to_published(source: Path, target: Path, step: int | None = None) -> Converted:
    """Makes `target` a directory of `options.json`, `lm_weights.hdf5` and `vocab.txt` of the workdir `source`.

    Args:
      source: the workdir.
      target: the directory to make.
      step: of the checkpoint; None for the newest.

    Raises:
      UserError: there is no run, the files cannot hold its network, or `target` is not empty; nothing is written.
      RunFault: the checkpoint is damaged, or the disk is full; nothing is written.
    """
    workdir.check_free(target)
    run = load(source, step)
    config = experiments.model_config(run.experiment, run.tokenizer.size)
    if not isinstance(config, bilstm.Config):
        raise UserError(f"the network is {run.model.name}; ELMo's files hold networks of model.name=bilstm. For a "
                        "Transformer, use --to=huggingface")
    bilm.check(config)
    every = {path: np.asarray(value) for path, value in flatten(jax.device_get(trainable(run.params))).items()}
    params = {path: value for path, value in every.items() if path.startswith(ENCODER)}
    with workdir.new_directory(target) as temporary:
        bilm.write(temporary, config, params)
        if run.tokenizer.size > len(elmo.SPECIALS):
            (temporary / VOCABULARY).write_text("".join(f"{word}\n" for word in run.tokenizer.tokens), encoding="utf8")
        _, again = bilm.read(temporary / bilm.OPTIONS, temporary / bilm.WEIGHTS)
        if changed := [path for path, value in params.items() if path not in again
                       or not np.allclose(value, again[path], rtol=TOLERANCE, atol=TOLERANCE)]:
            raise RunFault(f"{', '.join(changed[:3])} of {source} changed in {target}; nothing is written")
    left_out = ", ".join(sorted(every.keys() - params.keys()))
    return Converted(params, [f"left out, since the files hold the network alone: {left_out}"] if left_out else [])


def experiment(config: bilstm.Config, tokenizer: tokenizers.Tokenizer, name: str) -> Experiment:
    """The experiment of a run that would have trained this network, as far as it is known."""
    chosen = experiments.default_config("bilstm", "bidirectional", "sentence_stream", "elmo")
    chosen.name, chosen.length = name, 20
    chosen.model.update(dataclasses.asdict(config))
    chosen.tokenizer.update(name=tokenizer.name, vocab_size=max(tokenizer.size, 64))
    return experiments.parse(chosen)


def _vocabulary_file(directory: Path) -> Path | None:
    """Raises UserError where there are several."""
    files = sorted(directory.glob("vocab*.txt"))
    if len(files) > 1:
        raise UserError(f"{directory} has {' and '.join(file.name for file in files)}; leave one of them")
    return files[0] if files else None
