"""A small experiment for end-to-end tests: text files of a few words, a Transformer that trains in a second, and
functions that run commands on them."""

import contextlib
import hashlib
import io
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from lmrep.cli.main import main
from lmrep.experiment.config import default_config

NOUNS = ("cat", "dog", "bird", "fish", "horse", "mouse")
VERBS = ("sees", "eats", "finds", "likes")
ADJECTIVES = ("red", "blue", "old", "small")
SAMPLE = "The [MASK] cat sees the old dog."
SECONDS = 120  # that a process may take; a loaded machine is slow


def corpus(directory: Path, documents: int = 60, seed: int = 0) -> Path:
    """Writes `documents` text files of a few sentences each, and returns their folder."""
    directory.mkdir(parents=True)
    draw = random.Random(seed)
    for number in range(documents):
        sentences = [f"The {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.choice(VERBS)} "
                     f"the {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)}." for _ in range(draw.randint(3, 12))]
        (directory / f"{number:02}.txt").write_text("\n".join(sentences) + "\n")
    return directory


def config(texts: Path, objective: str = "masked", format: str = "packed", layout: str = "1x1x1") -> ConfigDict:
    """A BERT of 2 layers of width 32 that trains for 12 steps on 16 sequences of 32 tokens, without dropout."""
    c = default_config("bert_tiny", objective, format, "bert", layout)
    c.name = "small"
    c.steps, c.batch_size, c.length = 12, 16, 32
    c.model.update({"vocab": 0, "width": 32, "heads": 4, "mlp": 64, "max_length": 32, "dropout": 0.0,
                    "attention_dropout": 0.0})
    c.tokenizer.vocab_size = 200
    c.data.update({"corpus": "text_files", "files": f"{texts}/*.txt", "validation": 0.1, "test": 0.1})
    c.optimizer.learning_rate = 1e-3
    c.checkpoint.every, c.checkpoint.keep_best = 4, 0  # steps with checkpoints do not depend on losses
    c.evaluation.every = 6
    c.log.update({"every": 1, "tensorboard": False, "report": False})
    c.format.duplicates = 1
    return c


EXPERIMENT = '''"""The small experiment, as a file."""

from pathlib import Path

from lmrep.config.loading import parse_argument
from tests.small import config


def get_config(argument=""):
    chosen = parse_argument(argument, format=("packed", ("packed", "segment_pair")), mesh="1x1x1")
    return config(Path({texts!r}), format=chosen.format, layout=chosen.mesh)
'''


def experiment_file(directory: Path, texts: Path) -> Path:
    """Writes a config file of `config(texts)`, whose choices are `format` and `mesh`."""
    path = directory / "small.py"
    path.write_text(EXPERIMENT.format(texts=str(texts)))
    return path


def lines(workdir: Path, split: str | None = None) -> list[dict]:
    """The lines of a run's metrics.jsonl, or those of one split."""
    entries = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [entry for entry in entries if split in (None, entry["split"])]


def losses(workdir: Path, split: str = "train") -> list[float]:
    """The losses that a run's metrics.jsonl holds."""
    return [line["loss"] for line in lines(workdir, split)]


def interrupted(workdir: Path, copy: Path) -> Path:
    """A copy of a run as a kill before its last checkpoint leaves it: metrics.jsonl has lines of later steps."""
    shutil.copytree(workdir, copy, ignore=shutil.ignore_patterns(".lock", "results.json", "predictions"))
    checkpoints = sorted((copy / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    assert len(checkpoints) > 1
    shutil.rmtree(checkpoints[-1])
    return copy


def contents(directory: Path) -> dict[str, str]:
    """{path: SHA-256} of every file under a directory except the lock, to check that nothing changed."""
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock"}


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def command(*words, stdin: str = "") -> Result:
    """Runs `lmrep WORDS` in this process."""
    out, err, package, previous = io.StringIO(), io.StringIO(), logging.getLogger("lmrep"), sys.stdin
    state = package.handlers[:], package.level, package.propagate
    sys.stdin = io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in words])
    finally:
        sys.stdin = previous
        package.handlers[:], package.level, package.propagate = state
    return Result(code, out.getvalue(), err.getvalue())


SHELL = "import sys; from lmrep.cli.main import main; sys.exit(main())"


def start(*words, code: str = SHELL, flags: str = "") -> subprocess.Popen:
    """Starts `lmrep WORDS` as a process in a session of its own, with its output piped.

    Args:
      code: another program to run on the words.
      flags: added to XLA_FLAGS.
    """
    environment = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}"}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environment, text=True,
                            cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            start_new_session=True)


def finish(process: subprocess.Popen) -> Result:
    """Waits for a process of `start`."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Result(process.returncode, out, err)


def until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Returns as soon as `condition()` holds; fails if the process ends before."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"it ended too early: {finish(process)}")
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            raise AssertionError("it took too long")
        time.sleep(0.002)


def session(leader: int) -> list[int]:
    """The processes of the session that process `leader` began: itself and all that descend from it."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                processes.append(int(stat.parent.name))
    return processes
