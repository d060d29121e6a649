"""Records what produced the results of a run: command, config, versions, code and machine."""

import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import jax

from lmrep.config.json_files import Count
from lmrep.config.record import Bounds, flatten_config
from lmrep.core.host import cores

FILE = "provenance.jsonl"
PACKAGES = ("lmrep", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "grain", "tokenizers",
            "tensorflow-datasets", "array-record")
DIFF_LIMIT = 1_000_000  # bytes; longer outputs of git are truncated
MAX_LINES = 40  # differences between configs that are listed


class Devices(TypedDict):
    """The devices of a run."""

    platform: str
    kind: str
    count: Annotated[Count, Bounds(at_least=1)]
    processes: int


class Code(TypedDict):
    """The state of a repository, as `git` returns it."""

    commit: str
    status: str | None
    diff: str | None


class Start(TypedDict):
    """A line of provenance.jsonl: one start of a run."""

    time: str
    command: NotRequired[str]
    directory: NotRequired[str]
    host: NotRequired[str]
    cores: NotRequired[Count]
    devices: NotRequired[Devices]
    versions: NotRequired[dict[str, str | None]]
    code: NotRequired[Code | None]
    config: NotRequired[dict[str, Any]]


def record(command: Sequence[str], config: Mapping[str, Any]) -> dict:
    """Returns a `Start`: local time with its zone, command line, config, host, devices, package versions, and the
    commit of the code with its uncommitted changes.

    Args:
      command: the arguments of the command line.
      config: the experiment's config; JSON.
    """
    devices = jax.devices()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(command),
        "directory": os.getcwd(),
        "host": socket.gethostname(),
        "cores": cores(),
        "devices": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
            "processes": jax.process_count(),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "code": git(Path(__file__).parents[2]),
        "config": dict(config),
    }


def git(root: Path) -> dict | None:
    """Returns the commit of the repository at `root`, the output of `git status --short`, and the diff of tracked
    files, each truncated after 1 MB; None without git, a repository or a commit."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()) != root.resolve():  # an installed copy may be inside another repository
        return None
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    status, diff = _git(root, "status", "--short"), _git(root, "diff", "--no-ext-diff", "--no-textconv", "HEAD")
    return {"commit": commit.strip(), "status": status, "diff": diff}


def differences(old: Any, new: Any, free: Sequence[str] = ()) -> list[str]:
    """Returns one line for each field that differs between two nested configs, such as
    "optimizer.learning_rate: 0.0001 -> 0.0003". Items of lists are named by index; a tuple equals a list. After
    `MAX_LINES` lines, a last line gives the number of the others.

    Args:
      free: `fnmatch` patterns of dotted paths that may differ: "mesh.*", "steps".
    """
    before, after = flatten_config(old, list_items=True), flatten_config(new, list_items=True)
    paths = [
        path for path in {**before, **after}
        if (path not in before or path not in after or before[path] != after[path])
        and not any(fnmatchcase(path, pattern) for pattern in free)
    ]
    lines = [f"{path}: " + " -> ".join(repr(fields[path]) if path in fields else "absent" for fields in (before, after))
             for path in paths[:MAX_LINES]]
    return lines + [f"and {len(paths) - MAX_LINES:,} other fields or items"] * (len(paths) > MAX_LINES)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    """Returns the output of a git command, truncated after `DIFF_LIMIT` bytes; None if it fails. Takes no lock."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        with subprocess.Popen(
            ["git", "-C", str(root), *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            printed = process.stdout.read(DIFF_LIMIT + 1)
            if len(printed) > DIFF_LIMIT:
                process.kill()
                return printed[:DIFF_LIMIT].decode(errors="replace") + "\n[truncated]\n"
    except OSError:
        return None
    return printed.decode(errors="replace") if process.returncode == 0 else None
