"""A run whose disk fills up: a tmpfs of 2 MB."""

import shutil
import subprocess

import pytest

from lmrep.storage.checkpoints import Checkpoints
from tests import small

pytestmark = pytest.mark.slow
SIZE = 2 * 2**20


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A directory with a capacity of 2 MB, simulated if mounting is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        usage = shutil.disk_usage

        def disk_usage(path):
            used = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
            return usage(path)._replace(free=max(SIZE - used, 0))

        monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    yield folder
    if not mounted.returncode:
        subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_is_reported_and_the_run_resumes_when_space_is_freed(small_home, tmp_path, disk):
    def train() -> small.Result:
        return small.command("train", f"--config={small_home}/small.py", f"--data_dir={small_home}/data",
                             f"--workdir={disk}/run", "--config.checkpoint.every=1", "--config.checkpoint.keep=99")

    answer = train()
    assert answer.code == 3 and "Traceback" not in answer.err, answer
    checkpoints = Checkpoints(disk / "run/checkpoints")
    last = checkpoints.newest()
    message = answer.err[answer.err.index("lmrep: error: ") :]
    assert f"checkpoint {last + 1} could not be saved" in message and "No space left on device" in message
    assert "(it needs " in message and "B are free). " in message and f"Checkpoint {last} is untouched" in message
    assert checkpoints.steps() == list(range(1, last + 1)) and 2 < last < 12

    shutil.move(disk / "run/checkpoints", tmp_path / "checkpoints")  # a larger disk
    (disk / "run/checkpoints").symlink_to(tmp_path / "checkpoints")
    assert train().code == 0
    assert (disk / "run/metrics.jsonl").read_text() == (small_home / "run/metrics.jsonl").read_text()
