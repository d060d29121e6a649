"""Converts a published directory to a workdir, or a workdir to a published directory, of Hugging Face, of ELMo or of
fastai."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lmrep.core.errors import UserError
from lmrep.core.input_files import check_plain
from lmrep.core.paths import as_path
from lmrep.inference import encode
from lmrep.interop import bilm, conversion, fastai
from lmrep.storage import remote_workdir
from lmrep.storage.workdir import check_free, read_config

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
MEGABYTE = 10**6
OTHERS = {"bilm": bilm, "fastai": fastai}  # formats besides Hugging Face's


class Conversion(NamedTuple):
    """The result of `convert`."""

    directory: Path  # the new directory
    name: str  # the class of the published checkpoint, such as BertForMaskedLM; ELMo, or fastai's AWD-LSTM
    parameters: int  # how many
    remarks: list[str]  # what was kept beside the parameters, left out or added; the certificate


def convert(
    source: str | os.PathLike, target: str | os.PathLike, *, to: str = "workdir", part: str = "",
    step: int | None = None, shard_mb: int = 5000, sentence_transformers: str = "",
) -> Conversion:
    """Makes a workdir of a published directory, or a published directory of a workdir, as `lmrep convert` does.

    Args:
      source: the published directory, or the workdir.
      target: the new directory; it must not exist, or be empty.
      to: what `target` becomes: "workdir", "huggingface", "bilm", ELMo's files, or "fastai", those of ULMFiT.
      part: the network to write, of a run that trains two; "" for the main one.
      step: the step of the checkpoint; None for the default one.
      shard_mb: the largest size of a file of tensors, in megabytes.
      sentence_transformers: "mean", "max" or "cls": the pooling by which the sentence-transformers library loads the
        directory too; "" for transformers alone.

    Raises:
      UserError: there is nothing to convert in `source`, nothing published can hold it, or `target` is not empty.
      RunFault: the outputs of both differ, a checkpoint is damaged, or the disk is full; nothing is written.
    """
    for name, value in (("part", part), ("sentence_transformers", sentence_transformers)):
        if value and to != "huggingface":
            raise UserError(f"--{name} is {value!r}; it needs --to=huggingface"
                            + " and a run that has two networks" * (name == "part"))
    if sentence_transformers:
        encode.check_choice("sentence_transformers", sentence_transformers, encode.POOLINGS)
    given, target = as_path(source), Path(as_path(target))
    source = remote_workdir.local_copy(given)
    other = next((module for module in OTHERS.values() if module.is_published(source)), None)
    if other is None:
        _check_source(source, given, to)
    if (other is None and conversion.is_workdir(source)) != (to != "workdir"):
        raise UserError(f"{source} is a workdir already; to write a published directory, add --to=huggingface, "
                        "--to=bilm or --to=fastai" if to == "workdir" else
                        f"{source} is a published directory already; to convert it to a workdir, leave --to out")
    if other or to in OTHERS:
        name = (other or OTHERS[to]).NAME
        params, remarks = (other.to_workdir(source, target) if other else
                           OTHERS[to].to_published(given, target, step))
    else:
        converted = (conversion.to_workdir(source, target) if to == "workdir" else conversion.to_published(
            given, target, step, shard_mb * MEGABYTE, part, sentence_transformers))
        name, params = converted.checkpoint.class_name, converted.checkpoint.params
        remarks = [*converted.remarks, str(converted.certificate)]
    return Conversion(target, name, sum(value.size for value in params.values()), [*remarks])


def convert_checkpoints(
    source: str | os.PathLike, target: str | os.PathLike, *, part: str = "", shard_mb: int = 5000
) -> Iterator[Conversion]:
    """Makes directories of Hugging Face of checkpoints of a workdir, and yields each when it is written, as
    `lmrep convert --checkpoints=all` does.

    Args:
      target: a directory that does not exist, or is empty. In it, `main` is the default checkpoint. Of a run with
        `checkpoint.words`, `chck_1M` is the one after a million words, as the BabyLM challenge names revisions; of
        another, `step_1000` is the one of step 1,000, for all checkpoints.

    Raises:
      UserError, RunFault: as `convert`.
    """
    check_free(Path(as_path(target)))
    _check_source(remote_workdir.local_copy(source), as_path(source), "huggingface")
    for name, step in {"main": None, **revisions(source)}.items():
        yield convert(source, os.path.join(as_path(target), name), to="huggingface", part=part, step=step,
                      shard_mb=shard_mb)


def revisions(directory: str | os.PathLike) -> dict[str, int]:
    """Returns {name of `convert_checkpoints`: step} of the checkpoints that a workdir holds, but for `main`."""
    saved = remote_workdir.saved_steps(directory)
    config = read_config(remote_workdir.local_copy(directory))["config"]
    saving = config.get("checkpoint", {})
    if words := sorted(saving.get("words", ())):
        return {f"chck_{number / 10**6:g}M": step for number, step in zip(words, saving["steps"], strict=False)
                if step in saved}
    return {f"step_{step}": step for step in saved}


def _check_source(source: Path, name: str, to: str) -> None:
    """Raises UserError if `source` is no directory to convert. `name` is the path as the user gave it."""
    if (source / "config.json").is_file():
        return
    if source.is_file():
        fastai.check_no_pickle(source)
        check_plain(source)
    if to != "workdir":
        raise UserError(f"there is no run in {source}: it has no config.json; give the workdir of a run, as "
                        "lmrep train made it" if source.is_dir() else
                        f"there is no run {source}: no such directory; give the workdir of a run")
    if source.is_dir():
        raise UserError(f"{source} has no config.json; give the directory of a published checkpoint")
    if HUB_NAME.fullmatch(name):
        owner = "" if "/" in name else "OWNER/"
        raise UserError(f"there is no directory {name}; if that is a model of the Hugging Face Hub, give its address: "
                        f"lmrep convert hf://{owner}{name} TARGET")
    raise UserError(f"there is no directory {source}; give the directory of a published checkpoint")
