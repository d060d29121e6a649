"""A run of two processes in an object store, which an emulator stands for: killed, refused, continued elsewhere."""

import time

import jax
import numpy as np
import pytest

import lmrep
from lmrep import api
from lmrep.core import remote
from lmrep.core.params import flatten
from lmrep.distributed import process_group
from lmrep.storage import lease, remote_workdir
from lmrep.storage.checkpoints import Checkpoints
from lmrep.storage.remote_checkpoints import RemoteCheckpoints, complete_steps
from tests import forked, small
from tests.storage import emulators

pytestmark = pytest.mark.slow
STEPS, EVERY, HANGS_AT = 6, 2, 4


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the corpus in `texts`, a config file, and a run of two processes on its disk in `run`."""
    home = tmp_path_factory.mktemp("remote")
    small.experiment_file(home, small.corpus(home / "texts"))
    for answer in map(small.finish, pair(home, home / "run")):
        assert answer.code == 0, answer
    return home


def train(home, workdir, hangs):
    """Trains as one of two processes, each with half of the network. If it `hangs`, process 1 uploads nothing but one
    file of the second checkpoint."""
    process_group.start()
    remote.PAUSE, lease.SETTLE, lease.EVERY = 0.2, 0.2, 0.2
    upload = RemoteCheckpoints._upload

    def upload_one(self, local, step, names):
        if step < HANGS_AT:
            return upload(self, local, step, names)
        upload(self, local, step, sorted(names)[-1:])
        return time.sleep(10 * small.SECONDS)

    if hangs and jax.process_index() == 1:
        RemoteCheckpoints._upload = upload_one
    config = small.config(home / "texts")
    config.steps, config.checkpoint.every, config.evaluation.every = STEPS, EVERY, STEPS
    config.model.layers, config.mesh.tensor = 1, 2
    api.train(config, workdir, data_dir=home / "data")


def pair(home, workdir, hangs=False, **environment):
    return [forked.Child(train, home, workdir, hangs, environment={**own, **environment})
            for own in forked.addresses(2)]


@pytest.fixture
def emulator(tmp_path, monkeypatch):
    """An emulator that runs, whose variables are set. `test_emulated_stores.py` compares stores."""
    emulator = emulators.started(emulators.S3, tmp_path / "emulator")
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "here"))
    for name, value in emulator.environment.items():
        monkeypatch.setenv(name, value)
    yield emulator
    emulator.stop()


def test_killed_in_an_upload_and_continued_on_another_machine(emulator, home, tmp_path):
    url = f"{emulator.url}/one"
    store = remote_workdir.open_store(url)

    processes = pair(home, url, True, HOME=str(tmp_path / "one"), **emulator.environment)
    small.until(lambda: f"checkpoints/{HANGS_AT}/ocdbt.process_1" in " ".join(store.names("checkpoints")), processes[0])
    second = small.command("train", f"--config={home}/small.py", f"--workdir={url}", f"--data_dir={home}/data")
    assert second.code == 2 and f"the workdir {url} is in use by process {processes[0].pid} on" in second.err
    for process in processes:
        process.kill()
        small.finish(process)
    assert complete_steps(store.names()) == [EVERY] and lmrep.load(url).step == EVERY  # not the half of step 4

    processes = pair(home, url, HOME=str(tmp_path / "two"), **emulator.environment)
    small.until(lambda: HANGS_AT in complete_steps(store.names()), processes[0])
    emulator.stop()
    time.sleep(1)
    emulator.start()
    for answer in map(small.finish, processes):
        assert answer.code == 0 and "Traceback" not in answer.err, answer
    assert complete_steps(store.names()) == [2, 4, 6]
    assert not [name for name in store.names() if ".unfinished" in name or name == lease.LEASE]
    assert store.read("metrics.jsonl") == (home / "run/metrics.jsonl").read_bytes()
    run = lmrep.load(url)
    state, expected = (flatten(Checkpoints(directory / "checkpoints").read(STEPS)[0])
                       for directory in (run.directory, home / "run"))
    assert state.keys() == expected.keys()
    for path in state:
        np.testing.assert_array_equal(state[path], expected[path], err_msg=path)
