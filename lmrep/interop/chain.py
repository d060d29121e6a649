"""Chains of runs: a config file that defines `get_chain` names several runs, which are trained in order and may start
from earlier ones, such as pretraining, adaptation to a domain, and fine-tuning."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lmrep.config import loading
from lmrep.core import remote
from lmrep.core.errors import UserError
from lmrep.core.paths import as_path
from lmrep.experiment import config as experiments
from lmrep.experiment import page_files
from lmrep.experiment.record import Experiment
from lmrep.interop.checkpoint_config import load_config
from lmrep.storage.workdir import CONFIG

log = logging.getLogger(__name__)


class ChainRun(NamedTuple):
    """A run of a chain."""

    name: str
    file: str  # its config file
    argument: str  # the choices after the colon
    overrides: tuple[tuple[str, Any], ...]  # (path, value) of fields of its config
    directory: str  # its workdir, WORKDIR/NAME
    experiment: Experiment  # what its config is now, before runs that it starts from are trained

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """Returns the overrides as the command line takes them."""
        return _texts(self.overrides)


def _texts(overrides: Sequence[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((path, value if isinstance(value, str) else repr(value)) for path, value in overrides)


def runs(config: str | os.PathLike, overrides: Mapping[str, Any], workdir: str | os.PathLike) -> list[ChainRun]:
    """Returns the runs of a chain, in order; [] for a config file that defines no `get_chain`.

    The config of each is resolved, as far as that can be done before the runs that it starts from are trained.

    Args:
      config: a config file, or the name of one of the package, with choices after a colon.
      overrides: NAME.FIELD -> the value of the field in the config of the run NAME.
      workdir: the folder of their workdirs.

    Raises:
      UserError: a config is invalid, or an override names no run.
    """
    file, _, argument = as_path(config).partition(":")
    path = page_files.find(file)
    if not path.is_file() or page_files.CHAIN not in path.read_text(encoding="utf8"):
        return []
    return resolve(loading.load_chain(path, argument), overrides, workdir, path)


def resolve(
    pages: Mapping[str, tuple[str, Mapping[str, Any]]], overrides: Mapping[str, Any], workdir: str | os.PathLike,
    file: str | os.PathLike,
) -> list[ChainRun]:
    """Returns the runs that `get_chain` of a file described as `pages`; the other arguments are as for `runs`."""
    for field in overrides:
        if field.partition(".")[0] not in pages or "." not in field:
            raise UserError(f"config.{field} belongs to no run of {file}; set a field of one run, as "
                            f"--config.{next(iter(pages))}.{field.rpartition('.')[2]}=..., of {', '.join(pages)}")
    parent = str(workdir).rstrip("/")
    parent = remote.as_url(parent) or str(Path(as_path(parent)).absolute())
    directories = {name: f"{parent}/{name}" for name in pages}
    chain: list[ChainRun] = []
    for name, (text, changes) in pages.items():
        earlier = {run.name: run.directory for run in chain}
        try:
            page, _, choices = text.format_map(earlier).partition(":")
            changes = {path: value.format_map(earlier) if isinstance(value, str) else value
                       for path, value in changes.items()}
        except (KeyError, ValueError, IndexError) as error:
            raise UserError(f"{file}: the run {name} is {text!r} with {dict(changes)}; expected FILE.py:CHOICES and "
                            "fields, with {NAME} only for the workdir of an earlier run "
                            f"({', '.join(earlier) or 'there is none'}): {error}") from None
        given = {path.partition(".")[2]: value for path, value in overrides.items() if path.partition(".")[0] == name}
        fields = tuple((changes | given).items())
        try:
            experiment = experiments.parse(load_config(page, choices, _texts(fields), directories[name], {
                run.directory: run.experiment for run in chain}))
        except UserError as error:
            raise UserError(f"run {name} of {Path(file).name}: {error}") from None
        chain.append(ChainRun(name, page, choices, fields, directories[name], experiment))
    return chain


def check_files(chain: Sequence[ChainRun]) -> None:
    """Checks before the first run that the files of all runs that have not begun are there. Raises UserError with the
    run and the files if they are not."""
    for run in chain:
        if not (Path(run.directory) / CONFIG).is_file():
            try:
                run.experiment.check_files(f"config.{run.name}")
            except UserError as error:
                raise UserError(f"run {run.name}: {error}") from None


def in_order(chain: Sequence[ChainRun]) -> Iterator[ChainRun]:
    """Yields the runs, each to be trained before the next. Warns if a run that later ones started from was trained
    further. Raises UserError as `check_files`."""
    check_files(chain)
    for number, run in enumerate(chain, 1):
        before = _newest(run)
        yield run
        later = [other.name for other in chain[number:] if _newest(other)]
        if 0 < before < _newest(run) and later:
            log.warning("%s was trained further, and %s started from an earlier checkpoint; remove %s to train anew "
                        "from the new one", run.name, " and ".join(later), " and ".join(
                            other.directory for other in chain[number:] if other.name in later))


def _newest(run: ChainRun) -> int:
    """Returns the step of a run's newest checkpoint on this machine; 0 if there is none."""
    return max((int(path.name) for path in Path(run.directory, "checkpoints").glob("[0-9]*")), default=0)
