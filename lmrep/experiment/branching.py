"""New runs that continue from a checkpoint of another run under another learning rate, with its optimizer state."""

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

from lmrep.core.errors import UserError
from lmrep.experiment import config as experiments
from lmrep.experiment.checks import completed
from lmrep.experiment.record import Experiment
from lmrep.storage import provenance, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.training.metrics_log import FAULTS, METRICS
from lmrep.training.stages import locate_stage

# Fields that may differ, beside those that a resumed run may change: they act from the checkpoint on.
FREE = ("steps", "optimizer.learning_rate", "optimizer.weight_decay", "optimizer.clip", "optimizer.schedule.*")


def branch(source: Path, target: Path, experiment: Experiment, step: int | None = None) -> int:
    """Writes a workdir with one checkpoint of a run, which `train` resumes with the config `experiment`.

    Parameters, moments, step, random numbers and the position in the data are those of the checkpoint. With the run's
    config, the new run ends with the same bits. Several decays may thus begin at one run with a stable rate (Hu et
    al., 2024).

    Args:
      source: the workdir of the run.
      target: the directory to write.
      experiment: its config, which may differ in `FREE` and in what a resumed run may change.
      step: of the checkpoint; None: the newest.

    Returns:
      The step of the checkpoint.

    Raises:
      UserError: there is no run or checkpoint, `target` is not empty, another field differs, or the run would be over
        or in another stage.
      RunFault: the disk is full; nothing is written.
    """
    before, record = experiments.read_run(source)
    lines = provenance.differences(*(json.loads(json.dumps(completed(e))) for e in (before, experiment)),
                                   (*FREE, *experiment.resumable))
    if lines or "train" not in record["data"]:
        why = "was not trained by lmrep train" if not lines else "differs in:\n  " + "\n  ".join(lines) + "\n"
        raise UserError(f"{source} {why}; a branch may change {', '.join(FREE)}, and what a resumed run may change")
    with contextlib.closing(Checkpoints(source / "checkpoints")) as checkpoints:
        available = checkpoints.steps()
        step = checkpoints.newest() if step is None else step
    if step not in available:
        raise UserError(f"{source} holds no checkpoint {step}; it holds {', '.join(map(str, available)) or 'none'}. "
                        "(checkpoint.steps keeps those of given steps)")
    if experiment.steps <= step:
        raise UserError(f"steps is {experiment.steps:,}, and the checkpoint is of step {step:,}; give more with "
                        "--config.steps")
    if len({locate_stage(experiments.resolve_stages(e), step - 1) for e in (before, experiment)}) > 1:
        raise UserError(f"with steps={experiment.steps:,}, step {step:,} is in another stage than before; stages are "
                        "fractions of all steps")
    with workdir.new_directory(target) as temporary:
        shutil.copytree(source / "tokenizer", temporary / "tokenizer")
        shutil.copytree(source / "checkpoints" / str(step), temporary / "checkpoints" / str(step))
        # Resuming keeps the lines of metrics and faults up to the checkpoint; provenance.jsonl says who wrote them.
        for name in (METRICS, FAULTS, provenance.FILE):
            if (source / name).exists():
                shutil.copy(source / name, temporary)
        workdir.write_config(temporary, {**record, "config": dataclasses.asdict(experiment)})
    return step
