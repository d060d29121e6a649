"""The experiment that a workdir records."""

import os
from pathlib import Path

from lmrep.core.errors import UserError
from lmrep.experiment import config
from lmrep.experiment.config import Experiment
from lmrep.storage.workdir import CONFIG, RunRecord, read_config


def read(directory: str | os.PathLike) -> tuple[Experiment, RunRecord]:
    """(the experiment of the run in a workdir, its config.json). Raises UserError, with the file, where there is none,
    or where its config is not valid in this version."""
    record = read_config(directory)
    try:
        return config.parse(record["config"]), record
    except UserError as error:
        raise UserError(f"{Path(directory) / CONFIG} has a config that this version of lmrep does not read: {error}"
                        ) from None
