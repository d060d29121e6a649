"""Publishes a run on the Hugging Face Hub: the transformers layout with a model card."""

import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

from lmrep.analysis import model_card
from lmrep.analysis.report import run_data
from lmrep.core import hub
from lmrep.core.errors import UserError
from lmrep.core.files import write_text
from lmrep.core.host import default_data_dir
from lmrep.core.paths import as_path
from lmrep.interop import conversion, convert
from lmrep.storage import remote_workdir

REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

log = logging.getLogger(__name__)


def push(
    directory: str | os.PathLike, repo: str, *, private: bool = False, message: str = "", license_name: str = "",
    language: str = "", step: int | None = None, part: str = "", dry_run: bool = False,
    data_dir: str | os.PathLike | None = None, checkpoints: str = "",
) -> str:
    """Publishes a run on the Hugging Face Hub: creates the repository, if it does not exist, and uploads the run in the
    layout of transformers with a model card. The token is that of huggingface_hub ($HF_TOKEN, or `hf auth login`).

    Args:
      directory: the workdir.
      repo: OWNER/NAME.
      private: whether a new repository is private.
      message: of the commit.
      license_name: the Hub's identifier of a license, for the model card; "" for none.
      language: ISO 639 code, for the model card; "" for none.
      step, part: as for `conversion.to_published`.
      dry_run: whether to write the files to a temporary directory and upload nothing.
      data_dir: the directory of token stores, for the unigram baseline of pretraining.
      checkpoints: "all" also uploads each checkpoint to a branch of its name (`lmrep.interop.convert.revisions`),
        without a model card; a dry run leaves them out. "" for one checkpoint.

    Returns:
      The address of the commit to the main branch, the last one; with `dry_run`, the directory of its files.

    Raises:
      UserError: the run cannot be converted, or the Hub refuses the upload.
      RunFault: the checkpoint is damaged, or the disk is full.
    """
    if not REPO.fullmatch(repo):
        raise UserError(f"--repo is {repo!r}; expected OWNER/NAME")
    if checkpoints not in ("", "all") or (checkpoints and step is not None):
        raise UserError(f"--checkpoints is {checkpoints!r}, with --step={step}; expected --checkpoints=all, without "
                        "--step")
    hub.check_installed()
    workdir = remote_workdir.local_copy(directory)
    if not conversion.is_workdir(workdir):
        raise UserError(f"{directory} is a published directory already; upload it with hf upload {repo} {directory}")
    temporary, kept = Path(tempfile.mkdtemp(prefix="lmrep-push-")), False
    try:
        for name, at in (convert.revisions(directory) if checkpoints and not dry_run else {}).items():
            conversion.to_published(directory, temporary / name, at, part=part)
            address = hub.upload(temporary / name, repo, private, message or f"Upload step {at:,}", name)
            shutil.rmtree(temporary / name)
            log.info("%s: %s", name, address)
        folder = temporary / repo.rpartition("/")[2]
        converted = conversion.to_published(directory, folder, step, part=part)
        for remark in converted.remarks:
            log.info("%s", remark)
        run = run_data.read(workdir, workdir.name, Path(as_path(data_dir)) if data_dir else default_data_dir())
        write_text(folder / "README.md", model_card.card(run, converted.checkpoint, repo, license_name, language))
        kept = dry_run
        return str(folder) if dry_run else hub.upload(
            folder, repo, private, message or f"Upload {run.experiment.name} at step {run.step:,}")
    finally:
        if not kept:
            shutil.rmtree(temporary)
