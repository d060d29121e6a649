"""`lmrep embed`, `inspect` and `report` as functions."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.core.host import default_data_dir
from lmrep.core.paths import as_path
from lmrep.experiment import config as experiments
from lmrep.experiment import inspection
from lmrep.inference import export
from lmrep.inference.load import load
from lmrep.inference.run import Run
from lmrep.interop.checkpoint_config import config_of
from lmrep.storage import remote_workdir, workdir


def embed(
    run: Run | str | os.PathLike, source: str | os.PathLike, target: str | os.PathLike, *, layers: str = "last",
    pool: str = "", words: str = "", long: str = "refuse", pretokenized: bool = False, streams: int = 0,
    step: int | None = None, progress: Callable[[int, int, int], None] = lambda lines, tokens, total: None,
) -> list[Path]:
    """Writes the vectors of each line of a text file in bounded memory, as `lmrep embed` does. `Run.embed` and
    `Run.encode` return those of texts in memory.

    Args:
      run: a loaded run, or its workdir.
      source: a UTF-8 text file.
      target: the .safetensors file to write; with `pool`, the .npy file. It must not exist.
      layers: as in `Run.encode`.
      pool: "mean", "max" or "cls" for one vector per line: an array float32 [lines, d], whose row i is of line i.
      words: "mean", "first" or "last" for one vector per word; "" for one per token.
      long: "refuse" or "windows", for lines longer than the model.
      pretokenized: whether lines are words separated by spaces.
      streams: as in `Run.encode`.
      step: the step of the checkpoint of a workdir; None for the default one.
      progress: called with (1, number of tokens, lines in all) after each line.

    Returns:
      The files written.

    Raises:
      UserError: an argument is invalid, or a line is too long; nothing is written.
      RunFault: writing failed.
    """
    target = Path(as_path(target))
    export.check(target, words, long, pool)
    run = run if isinstance(run, Run) else load(run, step)
    return export.embed(run, as_path(source), target, layers=layers, words=words, pool=pool, long=long,
                        pretokenized=pretokenized, streams=streams, progress=progress)


def inspect(
    source: Mapping[str, Any] | str | os.PathLike, *, split: str = "train", examples: int = 5, step: int | None = None,
    data_dir: str | os.PathLike | None = None, **overrides: Any,
) -> str:
    """Describes the data that a model is trained on, with examples as the model gets them, as `lmrep inspect` does.

    Args:
      source: the workdir of a run, or a config as `train` takes it.
      split: of the examples: "train", "validation" or "test".
      examples: how many.
      step: whose examples are shown in place of the first ones; None for these.
      data_dir: the directory of token stores; by default $LMREP_DATA_DIR or ~/.cache/lmrep.
      **overrides: fields of a config.

    Raises:
      UserError: there is no such split or step, or the config is invalid; a workdir was converted, or is given with
        overrides.
    """
    directory = as_path(source) if isinstance(source, str | os.PathLike) else ""
    if directory and (remote.as_url(directory) or Path(directory).is_dir()):
        if overrides:
            raise UserError(f"{', '.join(overrides)} is given, and the config of the run in {directory} is used "
                            "unchanged; leave it out, or give a config")
        path = remote_workdir.local_copy(directory)
        recorded = workdir.read_config(path)
        if "train" not in recorded["data"] and "saved" not in recorded:
            raise UserError(f"{directory} was converted, not trained, and has no data to inspect")
        experiment = experiments.parse(recorded["config"])
        experiment = dataclasses.replace(experiment, tokenizer=experiments.own_tokenizer(path, experiment))
    else:
        experiment = experiments.parse(config_of(source, overrides))
    return inspection.report(experiment, Path(as_path(data_dir or default_data_dir())), split, examples, step)


def report(
    directories: str | os.PathLike | Sequence[str | os.PathLike], output: str | os.PathLike | None = None, *,
    data_dir: str | os.PathLike | None = None,
) -> Path:
    """Writes an offline HTML page of one or several runs, as `lmrep report` does.

    Args:
      directories: a workdir, or several to compare.
      output: the file; by default report.html in the workdir, or in the current directory for several.
      data_dir: the directory of token stores, of which none is built; by default $LMREP_DATA_DIR or ~/.cache/lmrep.

    Returns:
      The file.

    Raises:
      UserError: there is no run in a directory, or there are too many for a page.
      RunFault: a config.json is damaged.
    """
    from lmrep.analysis import report as reports  # slow to import

    directories = [directories] if isinstance(directories, str | os.PathLike) else [*directories]
    local = [remote_workdir.local_copy(directory) for directory in directories]
    path = reports.write(local, output and as_path(output), data_dir=data_dir or default_data_dir())
    if len(local) == 1 and not output and (url := remote.as_url(as_path(directories[0]))):
        remote_workdir.upload(url, path)
    return path
