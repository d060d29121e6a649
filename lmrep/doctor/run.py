"""Checks of the config, the workdir, the run that is resumed, the initial parameters, and dashboards."""

import contextlib
import netrc
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.files import Damaged
from lmrep.data import tokenizers
from lmrep.doctor.findings import MAX_EPOCHS, OK, WARNING, Result
from lmrep.experiment import checks
from lmrep.experiment import config as experiments
from lmrep.experiment.config import Experiment
from lmrep.experiment.record import Data
from lmrep.experiment.shapes import StageShapes
from lmrep.interop import init_from
from lmrep.storage import lease, remote_workdir, workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.remote_checkpoints import CHECKPOINTS, complete_steps
from lmrep.training import metrics_log as logs


def config(config_dict: Mapping[str, Any]) -> Result:
    """Checks that the config is valid. The value is the experiment."""
    experiment = experiments.parse(config_dict)

    def duration(steps: int) -> str:
        if steps < experiments.UNKNOWN_STEPS:
            return f"{steps:,} steps"
        if experiment.budget:
            return f"as many steps as {experiment.budget} allow"
        return f"{experiment.epochs:g} epochs" if experiment.epochs else "epochs by the number of examples"

    stages = ", then ".join(f"{stage.objective_name} on {stage.format_name} sequences of {stage.length} tokens, batch "
                          f"size {stage.batch_size}, {duration(stage.steps)}"
                          for stage in experiments.resolve_stages(experiment))
    if getattr(experiment, "epochs", 0) > MAX_EPOCHS:
        return Result(f"{experiment.name}: {stages}; a network learns the examples by heart: lower epochs", experiment,
                      WARNING)
    return Result(f"{experiment.name}: {stages}", experiment)


def writable(directory: Path) -> Result:
    """Checks that the workdir can be created and written to, and that no other run holds it."""
    checks.check_writable(directory)
    if holder := workdir.holder(directory):
        raise UserError(f"the workdir {directory} is in use by {holder}; wait for that run, stop it, or give another "
                        "--workdir")
    text = "can be written to" if directory.exists() else "will be created"
    return Result(f"{directory} {text}, and no run holds it")


def store(url: str) -> Result:
    """Checks that the remote workdir can be reached, and no run holds it. The value is the steps of its checkpoints."""
    with remote.user_errors(url):
        remote_store = remote_workdir.open_store(url)
        content = lease.read(remote_store)
        if lease.alive(content):
            raise lease.in_use(url, content)
        steps = complete_steps(remote_store.names(CHECKPOINTS))
    state = f"{url} can be listed, has {len(steps)} checkpoints"
    if content and lease.alive(content) is None:
        return Result(f"{state}, and {lease.LEASE} of {lease.holder(content)}; a run will wait for up to "
                      f"{lease.SILENT:g} s to see whether that one still runs", steps, WARNING)
    return Result(f"{state}, and no other run holds it; write access is checked when the run starts", steps)


def resuming_remote(url: str, steps: list[int], experiment: Experiment, data: Data | None) -> Result:
    """Checks like `resuming`, without downloading checkpoints. The value is the step; None for a new run."""
    if not steps:
        return Result("a new run", None)
    copy = remote_workdir.local_copy(url)
    try:
        _check_same(copy, steps, experiment, data)
    except UserError as error:
        raise UserError(str(error).replace(str(copy), url)) from error
    return Result(f"resumes from step {steps[-1]:,} of {experiment.steps:,}, if that checkpoint is whole, which shows "
                  "when it is read", steps[-1])


def resuming(directory: Path, experiment: Experiment, data: Data | None) -> Result:
    """Checks that the run in the workdir can be resumed: config and data are equal, and a checkpoint verifies. The
    value is the step; None for a new run."""
    with contextlib.closing(Checkpoints(directory / "checkpoints", experiment.checkpoint.keep)) as checkpoints:
        steps = checkpoints.steps()
        if not steps:
            return Result("a new run", None)
        _check_same(directory, steps, experiment, data)
        damaged = {}
        for step in steps:
            try:
                checkpoints.verify(step)
            except Damaged as damage:
                damaged[step] = str(damage)
    intact = [step for step in steps if step not in damaged]
    listed = "; ".join(f"checkpoint {step:,} is damaged: {damage}" for step, damage in damaged.items())
    if not intact:
        raise RunFault(f"{listed}; none verifies: put an intact copy of one in place, or give another --workdir")
    text = f"resumes from step {intact[-1]:,} of {experiment.steps:,}, whose checkpoint verifies"
    if intact[-1] == experiment.steps:
        text = f"all {experiment.steps:,} steps are done, and the last checkpoint verifies"
    return Result(f"{text}; {listed}; damaged checkpoints are skipped" if damaged else text, intact[-1],
                  WARNING if damaged else OK)


def _check_same(directory: Path, steps: list[int], experiment: Experiment, data: Data | None) -> None:
    """Raises UserError if the run in a directory has another config or other data."""
    if data is not None:  # plans follow from what is compared anyway, and may take long to build
        previous = workdir.read_config(directory)["data"]
        data = {**previous, **checks.run_record(data, [])["data"], "plans": previous.get("plans")}
    checks.check_resumable(directory, steps, experiment, data)


def init(
    experiment: Experiment, loaded: tokenizers.Tokenizer | None, stages: list[StageShapes], resumed: int | None
) -> Result:
    """Checks that the initial parameters load, and that their shapes match."""
    if not experiment.init:
        return Result("random initial parameters")
    if resumed is not None:
        return Result("not checked: the run resumes from its own checkpoint")
    source, specs = init_from.source_of(experiment), stages[0].stage.objective.specs
    vocab = experiments.model_config(experiment.model).vocab
    tokens = loaded.tokens if loaded else list(source.tokens)[: vocab or None]
    fit = init_from.match(specs, source, tokens, experiment.init_mapping)
    init_from.check_network(experiments.model_config(experiment.model, len(tokens)), source)
    new = max(fit.extended.values(), default=0)
    text = (f"{source.name}: {len(fit.values)} parameters loaded, {len(fit.missing)} missing and random, "
            f"{len(fit.unused)} unused{f', {new:,} new tokens' if new else ''}")
    return Result(text if loaded else f"{text}; tokens are matched when the tokenizer is trained")


# Logging


def dashboards(experiment: Experiment, directory: Path) -> Result:
    """Checks that the configured logs can be written."""
    names, mark = ["metrics.jsonl"], OK
    if experiment.log.tensorboard:
        if (folder := directory / "tensorboard").exists():  # otherwise the check of the workdir covers it
            checks.check_writable(folder)
        names.append("TensorBoard")
    if experiment.log.wandb:
        logs.writers(directory, experiment.log, {})  # does not start a run yet
        text, mark = weights_and_biases(os.environ)
        names.append(text)
    return Result(", ".join(names), mark=mark)


def weights_and_biases(environment: Mapping[str, str]) -> tuple[str, str]:
    """Checks that Weights & Biases can be reached, without logging in. Returns (message, mark).

    Raises:
      UserError: there are no credentials.
    """
    if (mode := environment.get("WANDB_MODE", "online")) in ("offline", "dryrun", "disabled"):
        return f"Weights & Biases {mode}", OK
    address = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    if not environment.get("WANDB_API_KEY") and address.hostname not in _netrc_hosts(environment):
        raise UserError(f"log.wandb is set, and there are no credentials for {address.hostname}; wandb login, set "
                        "WANDB_API_KEY, or WANDB_MODE=offline")
    try:
        port = address.port or {"http": 80}.get(address.scheme, 443)
        socket.create_connection((address.hostname, port), timeout=3).close()
    except OSError as error:
        return (f"Weights & Biases at {address.hostname} cannot be reached from here ({error}); the run would "
                "continue without it: fix the network, or set WANDB_MODE=offline", WARNING)
    return f"Weights & Biases at {address.hostname}", OK


def _netrc_hosts(environment: Mapping[str, str]) -> Iterable[str]:
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.path.expanduser(environment.get("NETRC") or "~/.netrc")).hosts
    return ()
