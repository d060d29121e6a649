"""Checks everything that a run will need before it starts: `lmrep doctor`.

A check calls the functions that the run itself will call, and gives one finding. A check that depends on a failed one
is skipped and names it; all others run. Nothing is trained, built or written; estimates are marked as such.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from lmrep import api
from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.core.remote_cache import local_data_dir
from lmrep.doctor import machine, run, text
from lmrep.doctor.findings import FAILED, OK, SKIPPED, WARNING, Finding, Result
from lmrep.experiment import build
from lmrep.storage import remote_workdir

__all__ = ["FAILED", "OK", "SKIPPED", "WARNING", "Finding", "examine", "report"]


def examine(
    config: Mapping[str, Any], workdir: str | os.PathLike | None = None, data_dir: str | os.PathLike | None = None,
    files: str = "", devices: int | None = None, processes: int = 1, compiling: bool = False,
    topology: str = "",
) -> list[Finding]:
    """Checks everything that `api.train` with the same arguments will need.

    Args:
      config: an experiment's config.
      workdir: the workdir; None skips its checks.
      data_dir: the directory of token stores.
      files: a glob that `api.evaluate` will take.
      devices: number of devices in all processes; by default of this machine.
      processes: number of processes.
      compiling: compile the training step to measure its memory; otherwise only the training state is counted.
      topology: hardware that need not be here, as for `lmrep plan`; the step must fit its memory, and `devices` are all
        of it.
    """
    data_dir = Path(data_dir or api.default_data_dir())
    url = None if workdir is None else remote.as_url(workdir)
    if url:
        workdir = remote_workdir.copy_dir(url)  # where this machine will train it
    checks = _Checks({} if workdir is None else {"--workdir": Path(workdir)})
    # JAX, which the other checks use, may hang or abort without address space, and starts after the topology, which may
    # be as many devices of the CPU.
    for name, check in (("address space", machine.address_space),
                        *([("topology", partial(machine.topology, topology))] if topology else []),
                        ("devices", machine.platform)):
        checks(name, check)
        if checks.findings[-1].mark == FAILED:
            return checks.findings
    if topology:
        devices = len(checks.values["topology"].devices)
    checks("config", partial(run.config, config))
    checks("mesh", partial(machine.mesh, devices or jax.device_count(), processes), "config", "topology?")
    experiment = checks.values.get("config")
    if is_labelled := experiment is not None and experiment.labelled:
        _check_labelled(checks, files)
    else:
        samples = _check_text(checks, data_dir, files)
    checks("memory", partial(machine.memory, compiling), "config", "network", "mesh", "tokenizer?", "topology?")
    checks("workdir", run.writable, "--workdir")
    if url:
        checks("remote", partial(run.store, url))
        checks("resuming", partial(run.resuming_remote, url), "remote", "config", "store?")
    else:
        checks("resuming", run.resuming, "--workdir", "config", "store?")
    checks("init", run.init, "config", "tokenizer", "network", "resuming?")
    checks("checkpoints", machine.checkpoints, "--workdir", "config", "network")
    if not is_labelled:
        checks("data", partial(text.disk_space_for, local_data_dir(data_dir)), "config", "tokenizer", "store?",
               "checkpoints?", *samples)
    checks("dashboards", run.dashboards, "config", "--workdir")
    return checks.findings


def _check_text(checks: "_Checks", data_dir: Path, files: str) -> list[str]:
    """Checks corpus, tokenizer and network of pretraining. Returns the names of the checks of its sources."""
    samples = []
    for name, data in text.sources(checks.values.get("config")):
        samples.append(f"corpus{name}")
        checks(samples[-1], lambda e, data=data: text.corpus(data), "config")
        checks(f"splits{name}", partial(text.splits, data), "config", samples[-1])
    if files:
        checks("evaluation", lambda e: text.corpus(build.other_corpus(e.data, files)), "config")
    checks("store", partial(text.stores, data_dir), "config", *samples)
    checks("epochs", text.epochs, "config", "store?", *samples)
    checks("tokenizer", text.tokenizer, "config", "store?")
    checks("network", machine.network, "config", "tokenizer", "mesh?")
    checks("examples", text.examples, "config", "tokenizer", "network", *samples)
    return samples


def _check_labelled(checks: "_Checks", files: str) -> None:
    """Checks labelled examples, tokenizer and network of a task."""
    checks("examples", text.labelled_examples, "config")
    if prepared := checks.values.get("examples"):  # its experiment has what the training data decides
        checks.values |= {"config": prepared.experiment, "store": prepared}
    if files:
        checks("evaluation", partial(text.evaluation_files, files), "config", "examples")
    checks("tokenizer", text.tokenizer, "config", "store")
    checks("network", machine.network, "config", "tokenizer", "mesh?")


class _Checks:
    """Runs checks and collects their findings. The value of a check is passed to later checks that need it by name."""

    def __init__(self, values: Mapping[str, Any]):
        self.findings: list[Finding] = []
        self.values = dict(values)

    def __call__(self, name: str, check: Callable[..., Result], *needs: str) -> None:
        """Runs a check and adds its finding.

        Args:
          name: name of the check.
          check: called with the values of `needs`. It fails by UserError, RunFault or OSError.
          needs: names of earlier values. The check is skipped where one is missing, unless its name ends with "?";
            then the argument is None.
        """
        if missing := [need for need in needs if need not in self.values and not need.endswith("?")]:
            self.findings.append(Finding(SKIPPED, name, f"needs {', '.join(missing)}"))
            return
        try:
            result = check(*(self.values.get(need.removesuffix("?")) for need in needs))
        except (UserError, RunFault, OSError) as error:
            text = str(error)
            if isinstance(error, OSError):
                text = f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}; fix that"
            self.findings.append(Finding(FAILED, name, one_line(text)))
        else:
            self.values[name] = result.value
            self.findings.append(Finding(result.mark, name, one_line(result.text)))


def one_line(text: str) -> str:
    """Joins the lines of a message."""
    return re.sub(r"\s*\n\s*", "; ", re.sub(r":\s*\n\s*", ": ", text.strip()))


def report(findings: Sequence[Finding]) -> str:
    """Formats findings: a line for each check, and a summary."""
    width = max(len(finding.check) for finding in findings)
    lines = [f"{mark:8}{check:{width}}  {text}" for mark, check, text in findings]
    marks = [finding.mark for finding in findings]
    counts = [f"{marks.count(mark)} {word}" for mark, word in (
        (FAILED, "failed"), (WARNING, "with a warning"), (SKIPPED, "skipped"), (OK, "ok")) if mark in marks]
    end = "fix what FAILED before the run" if FAILED in marks else "the run has what it needs"
    return "\n".join([*lines, f"\n{len(marks)} checks: {', '.join(counts)}; {end}."])
