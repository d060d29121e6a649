"""The Python face: what the commands do, as functions.

    import lmrep
    outcome = lmrep.train(config, "runs/mine")     # an ml_collections ConfigDict, as experiments/*.py return
    lmrep.evaluate("runs/mine", split="test")
    run = lmrep.load("runs/mine")
    run.encode(["Return the value of the key."], layers="all")[0].hidden    # f32[l + 1, t, d]
    run.fill_masks(["The [MASK] of a list is an integer."])
"""

import contextlib
import dataclasses
import json
import logging
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from lmrep.config.record import choose
from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.host import default_data_dir
from lmrep.core.sharding import make_mesh
from lmrep.data import corpora, tokenizers
from lmrep.data.store.prepare import Prepared
from lmrep.distributed.agreement import by_first_process
from lmrep.distributed.process_group import agreed
from lmrep.distributed.watchdog import Watch
from lmrep.experiment import build
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment, own_tokenizer
from lmrep.inference.evaluate import evaluate, other_corpus
from lmrep.inference.load import load
from lmrep.interop import init_from
from lmrep.metrics import COMMON
from lmrep.objectives import OBJECTIVES
from lmrep.planning import flops
from lmrep.storage import mirror, provenance, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.workdir import CONFIG, read_config
from lmrep.training import metrics_log as logs
from lmrep.training.loop import Trainer
from lmrep.training.profiling import Profile
from lmrep.training.stages import Stage, locate_stage
from lmrep.training.state import specs_of

__all__ = ["Outcome", "evaluate", "load", "other_corpus", "train"]

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What a training run came to."""

    steps: int
    before: dict[str, float]  # validation metrics of the untrained model; empty without a validation split
    after: dict[str, float]  # of the last step


# Training


def train(
    config: Mapping[str, Any], directory: str | os.PathLike, *, data_dir: str | os.PathLike | None = None,
    command: Sequence[str] = (), profile: int = 0,
) -> Outcome:
    """Trains an experiment in `directory`, or goes on with the run that is there.

    Args:
      config: an experiment's config.
      directory: the workdir: config.json, tokenizer/, metrics.jsonl, timing.jsonl, tensorboard/, checkpoints/,
        report.html. A remote one (gs://bucket/runs/x) is trained on this machine and mirrored there.
      data_dir: where token stores live.
      command: the command line, for the record.
      profile: how many steps to trace, into `directory`/profile; 0: none.

    Raises:
      UserError: something does not fit; nothing was written to `directory`.
      RunFault: the run was stopped by a fault. Where one of several processes hangs or is gone, the others do not
        return: they name it and exit with code 3.
      Stopped: by SIGTERM or Ctrl-C, with everything saved.
    """
    if url := remote.address(directory):
        mirror.check_single_process(url, jax.process_count())
        experiments.check_mesh(experiments.parse(config), jax.device_count())  # before anything is fetched
        with mirror.mirrored(url) as local:
            return train(config, local, data_dir=data_dir, command=command, profile=profile)
    directory, data_dir = Path(directory), Path(data_dir or default_data_dir())
    experiment = experiments.parse(config)
    sizes = experiments.check_mesh(experiment, jax.device_count())
    check_processes(sizes, jax.device_count(), jax.process_count())
    first, keeping = jax.process_index() == 0, experiment.checkpoint
    end = "max" if higher_is_better(experiment) else "min"
    checkpoints = Checkpoints(directory / "checkpoints", keeping.keep, keeping.keep_best, end)
    fresh = not checkpoints.steps()
    if experiment.init and fresh:  # which is read by all processes together, or by none
        agreed(lambda: init_from.directory_of(experiment.init))
    writers, prepared, stages = agreed(lambda: _ready(experiment, directory, data_dir, fresh))
    record = run_record(experiment, prepared, stages)

    with Watch(experiment.faults.patience) as watch, contextlib.ExitStack() as stack:
        by_first_process(lambda: bool(stack.enter_context(workdir.lock(directory))))
        stack.callback(checkpoints.close)
        checkpoints.clean()
        agreed(lambda: check_resumable(directory, checkpoints.steps(), record, experiment))
        resumed = checkpoints.newest()
        by_first_process(lambda: _write_down(directory, record, prepared, command))
        agreed(lambda: check_shared(directory))
        metrics = progress = None
        if first:
            metrics = logs.MetricsLog(directory, [make(resumed) for make in writers])
            metrics.resume(resumed)
            stack.callback(metrics.close)
            progress = stack.enter_context(logs.Progress(experiment.steps))
            if profile:
                progress = stack.enter_context(Profile(progress, directory / "profile", profile, resumed or 0))
        _announce(experiment, stages, sizes, resumed)
        mesh = make_mesh(*sizes)
        peak = flops.peak(mesh.devices.flat[0])
        if peak:
            stages = [dataclasses.replace(stage, flops=flops.of_train_step(
                stage.objective, stage.optimizer, stage.batch_struct, stage.microbatches)) for stage in stages]
        trainer = Trainer(
            stages, mesh, experiment.seed, checkpoints, metrics=metrics, progress=progress,
            checkpoint=experiment.checkpoint, evaluation=experiment.evaluation, faults=experiment.faults,
            log_every=experiment.log.every, watch=watch, peak=peak and peak * mesh.size)
        trainer.run(resumed)
    if experiment.log.report:
        _report(directory, data_dir)
    return outcome(directory, experiment.steps)


def _ready(experiment: Experiment, directory: Path, data_dir: Path, fresh: bool) -> tuple[list, Prepared, list[Stage]]:
    """(makers of dashboards, data, stages) of a run, with nothing written to its directory."""
    vocabulary = experiment.tokenizer.vocab_file
    if not fresh and vocabulary and not os.path.exists(os.path.expanduser(vocabulary)):  # the run has its own copy
        experiment = dataclasses.replace(experiment, tokenizer=own_tokenizer(directory, experiment))
    vocabulary_fits(experiment)
    check_writable(directory)  # before the data, which may take an hour
    writers = _dashboards(experiment, directory) if jax.process_index() == 0 else []
    prepared = build.prepared(experiment, data_dir, log.info)
    stages = build.stages(experiment, prepared, data_dir)
    network = experiments.model_config(experiment)
    for doubt in (corpora.imbalanced({split: facts["tokens"] for split, facts in prepared.statistics.items()},
                                   sum(facts["documents"] for facts in prepared.statistics.values()), experiment.data),
                  build.unused_rows(network, prepared.tokenizer.size)):
        if doubt and fresh and jax.process_index() == 0:
            log.warning("%s", doubt)
    check_samples(experiment, prepared.tokenizer)
    if experiment.init and fresh:
        stages[0] = _started(stages[0], experiment.init, network, prepared)
    return writers, prepared, stages


def check_shared(directory: Path, seconds: float = 60) -> None:
    """Refuses a workdir in which this host does not find, in time, what process 0 has written there.

    Raises:
      UserError: hosts do not share it.
    """
    until = time.monotonic() + seconds  # file systems over the network tell of a new file late
    while not (directory / CONFIG).exists():
        if time.monotonic() > until:
            raise UserError(f"{directory.absolute()} does not hold what process 0 has written to the workdir; give a "
                            "--workdir on a file system that all hosts share")
        time.sleep(0.5)


def _started(stage: Stage, place: str, network: Any, prepared: Prepared) -> Stage:
    """The first stage with the parameters of `place`."""
    origin = init_from.load(place)
    found = init_from.match(specs_of(stage.objective), origin, prepared.tokenizer.tokens)
    log.info("%s", "\n".join([init_from.describe(found, origin), *init_from.check_network(network, origin)]))
    return dataclasses.replace(stage, init_values=found.values)


def _report(directory: Path, data_dir: Path) -> None:
    """Writes report.html. The run is done and saved: nothing that goes wrong here may fail it."""
    from lmrep.analysis import report  # it reads trained runs, so stands above this file

    if jax.process_count() > 1:
        log.info("for a report: lmrep report %s", directory)
        return
    try:
        log.info("report: %s", report.write([directory], data_dir=data_dir))
    except Exception as error:
        log.warning("the report could not be written: %s; lmrep report %s tries again", error, directory)


def outcome(directory: Path, steps: int) -> Outcome:
    """The first and the last validation of the run in `directory`, from its metrics.jsonl."""
    lines = [json.loads(line) for line in (directory / logs.METRICS).read_text().splitlines()]
    found = [{k: v for k, v in line.items() if k not in ("step", "split")}
             for line in lines if line["split"] == "validation"]
    return Outcome(steps, found[0] if found else {}, found[-1] if found else {})


def vocabulary_fits(experiment: Experiment) -> None:
    """Refuses a vocabulary that the model's table cannot hold, before any text is read.

    Raises:
      UserError: it is larger, too small to be trained, or its file does not read.
    """
    size = tokenizers.size(experiment.tokenizer)
    build.check_vocabulary(experiments.model_config(experiment, size), size)


def check_samples(experiment: Experiment, tokenizer: tokenizers.Tokenizer) -> None:
    """Refuses sample texts that the trained model could not be asked. Raises UserError."""
    max_length = experiments.build_model(experiment).max_length
    for text in experiment.samples:
        accepting = [each for each in experiments.capabilities(experiment) if each.accepts(text)]
        if accepting:
            accepting[0].check([text], tokenizer, max_length)


def higher_is_better(experiment: Experiment) -> bool:
    """The direction of `checkpoint.best`, by the metrics of the stages' objectives.

    Raises:
      UserError: none of them has such a metric.
    """
    known = dict(COMMON)
    for stage in experiments.resolve_stages(experiment):
        known |= OBJECTIVES[stage.objective_name].metrics
    return choose(known, experiment.checkpoint.best, "checkpoint.best").higher_is_better


def check_processes(sizes: Sequence[int], devices: int, processes: int) -> None:
    """Refuses a mesh that leaves devices of a run of several processes without work. Raises UserError."""
    if processes > 1 and math.prod(sizes) < devices:
        raise UserError(f"the mesh has {math.prod(sizes)} devices, and this run's {processes} processes {devices}; "
                        "use all of them: mesh.data=-1, say")


def check_writable(directory: Path, flag: str = "workdir") -> None:
    """Refuses a directory, that of `--flag`, which could not be made or written to. Raises UserError."""
    if remote.address(directory):
        raise UserError(f"the {flag} {directory} is a remote store, and this needs a file system with locks; mount it "
                        f"(gcsfuse, say), or give another --{flag}")
    place = next(path for path in (directory, *directory.absolute().parents) if os.path.exists(path))
    if not (os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK)):
        why = "may not be written to" if os.path.isdir(place) else "is not a directory"
        raise UserError(f"the {flag} {directory} cannot be used: {place} {why}; give another --{flag}")


def run_record(experiment: Experiment, prepared: Prepared, stages: Sequence[Stage]) -> dict:
    """config.json: all that decides what the run computes."""
    return {
        "config": dataclasses.asdict(experiment),
        "data": {
            "tokenizer": prepared.tokenizer.fingerprint,
            **{split: store.fingerprint for split, store in prepared.stores.items()},
            "plans": [stage.fingerprint for stage in stages],
        },
    }


def check_resumable(directory: Path, steps: list[int], record: dict, experiment: Experiment) -> None:
    """Refuses to go on with a run, of checkpoints `steps`, whose numbers the new config or data would change."""
    if not steps:
        return  # nothing to go on from: nothing is lost by starting afresh
    former = read_config(directory)
    if "train" not in former["data"] or "mean_of" in former:
        what = "holds the mean of another run's checkpoints" if "mean_of" in former else "was converted"
        raise UserError(f"{directory} {what}, not trained; give another --workdir, and start from this one: "
                        f":init={directory}")
    # A field that came later had its default's effect before.
    former = {**former, "config": dataclasses.asdict(experiments.parse(former["config"]))}
    free = tuple(f"config.{pattern}" for pattern in experiments.FREE)
    if lines := provenance.differences(json.loads(json.dumps(former)), json.loads(json.dumps(record)), free):
        raise UserError(f"{directory} holds a run of another configuration:\n  " + "\n  ".join(lines)
                        + "\nGive these fields their former values to go on, or another --workdir to start anew")
    if steps[-1] > experiment.steps:
        raise UserError(f"{directory} holds a run at step {steps[-1]:,}, and steps is {experiment.steps:,}; "
                        f"set steps to {steps[-1]} or more, or give another --workdir")
    before = experiments.parse(former["config"])
    if experiment.steps < before.steps:
        raise UserError(f"{directory} holds a run of {before.steps:,} steps, and steps is {experiment.steps:,}; a run "
                        "may be made longer, not shorter: its learning rate has counted on them")
    borders = [locate_stage(experiments.resolve_stages(e), steps[-1] - 1) for e in (before, experiment)]
    if borders[0] != borders[1]:
        raise UserError(f"with steps={experiment.steps:,} the stages of {directory} would have changed before its step "
                        f"{steps[-1]:,}; keep steps={before.steps}, or give another --workdir")


def _dashboards(experiment: Experiment, directory: Path) -> list:
    """Makers of the writers beside metrics.jsonl, of the step that is resumed from."""
    makers = []
    if experiment.log.tensorboard:
        makers.append(lambda resumed: logs.tensorboard(directory, resumed))
    if experiment.log.wandb:
        writer = logs.weights_and_biases(directory, experiment.log.wandb, dataclasses.asdict(experiment))
        makers.append(lambda resumed: writer)
    return makers


def _write_down(directory: Path, record: dict, prepared: Prepared, command: Sequence[str]) -> None:
    workdir.write_json(directory / CONFIG, record)
    try:
        prepared.tokenizer.save(directory / "tokenizer")
    except OSError as error:
        raise RunFault(f"{directory} cannot be written: {error.strerror}; mend that and resume") from error
    provenance.append(directory, provenance.record(command or sys.argv, record["config"]))


def _announce(experiment: Experiment, stages: Sequence[Stage], sizes: tuple[int, ...], resumed: int | None) -> None:
    parameters = sum(int(np.prod(s.shape)) for s in jax.tree.leaves(
        stages[0].objective.specs, is_leaf=lambda x: hasattr(x, "axes")))
    names = " then ".join(dict.fromkeys(stage.objective.name for stage in stages))
    log.info("%s: %s parameters, objective %s, mesh data x fsdp x tensor = %s on %s", experiment.name,
             f"{parameters:,}", names, " x ".join(map(str, sizes)), jax.devices()[0].device_kind)
    if resumed == experiment.steps:
        log.info("all %s steps are done", f"{resumed:,}")
    elif resumed is not None:
        log.info("going on from step %s of %s", f"{resumed:,}", f"{experiment.steps:,}")
