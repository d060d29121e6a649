"""What a run will need, looked at before anything compiles or is written: `lmrep doctor`.

Each check looks at one thing with the functions that the run itself will use, and gives one finding. A check whose
premises failed is skipped and says which; all others run, whatever failed before them. Nothing is trained, built or
kept: what is estimated is said to be.
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
      workdir: where it will train; None leaves out what is about it.
      data_dir: where token stores live.
      files: a glob that `api.evaluate` will be given.
      devices: of the run, in all its processes; None for those that JAX finds here.
      processes: of the run.
    """
    data_dir = Path(data_dir or api.default_data_dir())
    url = None if workdir is None else remote.as_url(workdir)
    if url:
        workdir = mirror.training_dir(url)  # where this machine will train it
    visit = _Visit({} if workdir is None else {"--workdir": Path(workdir)})
    visit("config", partial(run.config, config))
    visit("mesh", partial(machine.mesh, devices or jax.device_count(), processes), "config")
    samples = []
    for name, data in text.sources(visit.given.get("config")):
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
    visit("data", partial(text.room_for, data_dir), "config", "tokenizer", "store?", "checkpoints?", *samples)
    visit("dashboards", run.dashboards, "config", "--workdir")
    return visit.findings


class _Visit:
    """Runs checks and keeps what they found; what a check gave is there for the next ones under its name."""

    def __init__(self, given: Mapping[str, Any]):
        self.findings: list[Finding] = []
        self.given = dict(given)

    def __call__(self, check: str, look: Callable[..., Seen], *needs: str) -> None:
        """`needs` are what `look` is given; what ends in ? may be lacking, and is None then."""
        if lacking := [name for name in needs if name not in self.given and not name.endswith("?")]:
            self.findings.append(Finding(SKIPPED, check, f"needs {', '.join(lacking)}"))
            return
        try:
            seen = look(*(self.given.get(name.removesuffix("?")) for name in needs))
        except (UserError, RunFault) as error:
            self.findings.append(Finding(FAILED, check, one_line(str(error))))
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            self.findings.append(Finding(FAILED, check, f"{place}{error.strerror or error}; mend that"))
        else:
            self.given[check] = seen.value
            self.findings.append(Finding(seen.mark, check, one_line(seen.text)))


def one_line(text: str) -> str:
    """A message of several lines as one."""
    return re.sub(r"\s*\n\s*", "; ", re.sub(r":\s*\n\s*", ": ", text.strip()))


def report(findings: Iterable[Finding]) -> str:
    """A line a check, and one that says what they come to."""
    findings = list(findings)
    width = max(len(finding.check) for finding in findings)
    lines = [f"{mark:8}{check:{width}}  {text}" for mark, check, text in findings]
    marks = [finding.mark for finding in findings]
    counts = [f"{marks.count(mark)} {word}" for mark, word in (
        (FAILED, "failed"), (WARNING, "with a warning"), (SKIPPED, "skipped"), (OK, "ok")) if mark in marks]
    end = "mend what FAILED before the run" if FAILED in marks else "the run has what it needs"
    return "\n".join(itertools.chain(lines, [f"\n{len(marks)} checks: {', '.join(counts)}; {end}."]))
