"""Stand-ins for the programs of clusters: each records how it was called, and some imitate what the program does."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"

# Records its name, arguments, standard input and some of the environment.
RECORDER = """#!{python}
import json, os, sys
from pathlib import Path
line = {{"words": [Path(sys.argv[0]).name, *sys.argv[1:]], "stdin": "" if sys.stdin.isatty() else sys.stdin.read(),
        "environment": dict(os.environ)}}
with open({calls!r}, "a") as file:
    file.write(json.dumps(line) + "\\n")
sys.exit(int(os.environ.get("STUB_CODE", "0")))
"""

# Records its call, and makes programs in place of those that it would install.
UV = RECORDER.replace("sys.exit(", """\
if sys.argv[1] == "venv":
    Path("venv/bin").mkdir(parents=True)
    for name in ("python", "lmrep"):
        Path("venv/bin", name).write_text(Path(sys.argv[0]).read_text())
        Path("venv/bin", name).chmod(0o755)
sys.exit(sys.argv[1] == os.environ.get("FAILS") or """)

# The command of this checkout, by this interpreter.
LMREP = """#!/bin/bash
PYTHONPATH={root} exec {python} -m lmrep.cli.main "$@"
"""

# Starts two tasks on one node and forwards signals, as srun does.
SRUN = """#!{python}
import os, signal, subprocess, sys
words = sys.argv[1:]
command = words[next(i for i, word in enumerate(words) if not word.startswith("-")):]
step = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NTASKS": "2"}}
tasks = []
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
for i in range(2):
    own = {{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)}}
    with open({calls!r} + f".task{{i}}", "a") as output:
        tasks.append(subprocess.Popen(command, env=os.environ | step | own, stdout=output, stderr=output))
sys.exit(max(task.wait() for task in tasks))
"""

# Runs a shell command on two hosts with separate home directories, as ssh does. A request for a slice has the states of
# the file `states`, one for each look; after the last it stays as it is. Without the request, there are no hosts.
GCLOUD = """#!{python}
import os, shutil, subprocess, sys
from pathlib import Path
folder, verb = Path({calls!r}).parent, sys.argv[4]
if sys.argv[3] == "queued-resources":
    with open(folder / "requests", "a") as file:
        file.write(" ".join(sys.argv[4:]) + "\\n")
    if verb == "create":
        (folder / "requested").touch()
    elif verb == "delete":
        (folder / "requested").unlink()
        for host in folder.glob("host*"):
            shutil.rmtree(host)
    elif not (folder / "requested").exists():
        sys.exit("ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: Resource was not found")
    else:
        state, *later = (folder / "states").read_text().split()
        (folder / "states").write_text("\\n".join(later or [state]))
        print(state)
    sys.exit()
line = next((word.partition("=")[2] for word in sys.argv if word.startswith("--command=")), None)
worker = next(word.partition("=")[2] for word in sys.argv if word.startswith("--worker="))
for host in ("0", "1") if worker == "all" else (worker,):
    home = Path({calls!r}).parent / f"host{{host}}"
    home.mkdir(exist_ok=True)
    if line is None:
        source, target = (word for word in sys.argv[5:] if not word.startswith("--"))
        (home / target.partition(":")[2]).write_bytes(Path(source).read_bytes())
    else:
        code = subprocess.run(["bash", "-c", line], cwd=home, env=os.environ | {{"HOME": str(home)}}).returncode
        if code:
            sys.exit(code)
"""


class Stubs:
    """A folder of stub commands, first in the PATH of the scripts that `start` runs."""

    def __init__(self, folder: Path):
        self.folder, self.calls = folder / "bin", folder / "calls"
        self.folder.mkdir(parents=True)

    def add(self, name: str, source: str = RECORDER) -> None:
        """Adds a program."""
        path = self.folder / name
        path.write_text(source.format(python=sys.executable, calls=str(self.calls), root=ROOT))
        path.chmod(0o755)

    def start(self, script: str, *words, cwd: Path = ROOT, **environment) -> subprocess.Popen:
        """Starts a launch script, its output piped."""
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.Popen(["bash", LAUNCH / script, *map(str, words)], text=True, cwd=cwd,
                                env=os.environ | {"PATH": path} | environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def called(self) -> list[dict]:
        """The recorded calls, in order."""
        return [json.loads(line) for line in self.calls.read_text().splitlines()] if self.calls.exists() else []
