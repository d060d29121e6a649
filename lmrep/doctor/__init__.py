"""Checks before a run that it will have what it needs: `lmrep doctor`.

Each check uses the functions that the run itself will use, and gives one finding. A check that depends on a failed one
is skipped and names it; all others run. Nothing is trained, built or written; estimates are marked as such.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax

from lmrep import api
from lmrep.core import remote
from lmrep.core.errors import RunFault, UserError
from lmrep.doctor import machine, run, text
from lmrep.doctor.findings import FAILED, OK, SKIPPED, WARNING, Finding, Seen
from lmrep.storage import mirror

__all__ = ["FAILED", "OK", "SKIPPED", "WARNING", "Finding", "examine", "report"]


def examine(
    config: Mapping[str, Any], workdir: str | os.PathLike | None = None, data_dir: str | os.PathLike | None = None,
    files: str = "", devices: int | None = None, processes: int = 1,
) -> list[Finding]:
    """Checks everything that `api.train` with the same arguments will need.

    Args:
      config: an experiment's config.
      workdir: the workdir; without one, its checks are skipped.
      data_dir: the directory of token stores.
      files: a glob that `api.evaluate` will take.
      devices: number of devices in all processes; by default those of this machine.
      processes: number of processes.
    """
    data_dir = Path(data_dir or api.default_data_dir())
    url = None if workdir is None else remote.as_url(workdir)
    if url:
        workdir = mirror.training_dir(url)  # where this machine will train it
    visit = _Visit({} if workdir is None else {"--workdir": Path(workdir)})
    visit("address space", machine.address_space)
    if visit.findings[-1].mark == FAILED:
        return visit.findings  # JAX, which the other checks use, would hang or abort
    visit("config", partial(run.config, config))
    visit("mesh", partial(machine.mesh, devices or jax.device_count(), processes), "config")
    samples = []
    for name, data in text.sources(visit.values.get("config")):
        samples.append(f"corpus{name}")
        visit(samples[-1], lambda e, data=data: text.corpus(data), "config")
        visit(f"splits{name}", partial(text.splits, data), "config", samples[-1])
    if files:
        visit("evaluation", lambda e: text.corpus(api.other_corpus(e.data, files)), "config")
    visit("store", partial(text.stores, data_dir), "config", *samples)
    visit("tokenizer", text.tokenizer, "config", "store?")
    visit("network", machine.network, "config", "tokenizer", "mesh?")
    visit("examples", text.examples, "config", "tokenizer", "network", *samples)
    visit("memory", machine.memory, "network", "mesh")
    visit("workdir", run.writable, "--workdir")
    if url:
        visit("remote", partial(run.store, url, processes))
        visit("resuming", partial(run.resuming_remote, url), "remote", "config", "store?")
    else:
        visit("resuming", run.resuming, "--workdir", "config", "store?")
    visit("init", run.init, "config", "tokenizer", "network", "resuming?")
    visit("checkpoints", machine.checkpoints, "--workdir", "config", "network")
    visit("data", partial(text.disk_space_for, data_dir), "config", "tokenizer", "store?", "checkpoints?", *samples)
    visit("dashboards", run.dashboards, "config", "--workdir")
    return visit.findings


class _Visit:
    """Runs checks and keeps their findings; the value of a check is available to later ones by its name."""

    def __init__(self, values: Mapping[str, Any]):
        self.findings: list[Finding] = []
        self.values = dict(values)

    def __call__(self, check: str, look: Callable[..., Seen], *needs: str) -> None:
        """`needs` names the arguments of `look`; those that end in ? may be missing, and are None then."""
        if lacking := [name for name in needs if name not in self.values and not name.endswith("?")]:
            self.findings.append(Finding(SKIPPED, check, f"needs {', '.join(lacking)}"))
            return
        try:
            seen = look(*(self.values.get(name.removesuffix("?")) for name in needs))
        except (UserError, RunFault) as error:
            self.findings.append(Finding(FAILED, check, one_line(str(error))))
        except OSError as error:
            path = f"{error.filename}: " if error.filename else ""
            self.findings.append(Finding(FAILED, check, f"{path}{error.strerror or error}; fix that"))
        else:
            self.values[check] = seen.value
            self.findings.append(Finding(seen.mark, check, one_line(seen.text)))


def one_line(text: str) -> str:
    """A message of several lines as one."""
    return re.sub(r"\s*\n\s*", "; ", re.sub(r":\s*\n\s*", ": ", text.strip()))


def report(findings: Iterable[Finding]) -> str:
    """A line for each check, and a summary."""
    findings = list(findings)
    width = max(len(finding.check) for finding in findings)
    lines = [f"{mark:8}{check:{width}}  {text}" for mark, check, text in findings]
    marks = [finding.mark for finding in findings]
    counts = [f"{marks.count(mark)} {word}" for mark, word in (
        (FAILED, "failed"), (WARNING, "with a warning"), (SKIPPED, "skipped"), (OK, "ok")) if mark in marks]
    end = "fix what FAILED before the run" if FAILED in marks else "the run has what it needs"
    return "\n".join(itertools.chain(lines, [f"\n{len(marks)} checks: {', '.join(counts)}; {end}."]))
