"""A run of several processes in an object store, which an emulator stands for: killed, refused, continued elsewhere."""

import json
import resource
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import lmrep
from lmrep import api
from lmrep.core import object_store, remote
from lmrep.core.params import flatten
from lmrep.distributed import process_group
from lmrep.storage import lease, remote_workdir
from lmrep.storage.checkpoints import DamagedCheckpoint
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
    """Trains as one of two processes, each with half of the network. If it `hangs`, process 1 writes nothing but one
    file of the second checkpoint, and process 0 waits for it. They then write the local files `hangs` and `waits`."""
    process_group.start()
    remote.PAUSE, lease.SETTLE, lease.EVERY = 0.2, 0.2, 0.2
    write, wait_for = RemoteCheckpoints._write, RemoteCheckpoints._wait_for

    def write_one(self, step, manifest, pieces):
        if step < HANGS_AT:
            return write(self, step, manifest, pieces)
        self._arrays(step, manifest).write(pieces[0])
        (home / "hangs").touch()
        return time.sleep(10 * small.SECONDS)

    def wait_for_the_other(self, process, step):
        if step == HANGS_AT:
            (home / "waits").touch()
        return wait_for(self, process, step)

    if hangs and jax.process_index() == 1:
        RemoteCheckpoints._write = write_one
    elif hangs:
        RemoteCheckpoints._wait_for = wait_for_the_other
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
    small.until(lambda: (home / "hangs").exists() and (home / "waits").exists(), processes[0])
    second = small.command("train", f"--config={home}/small.py", f"--workdir={url}", f"--data_dir={home}/data")
    assert second.code == 2 and f"the workdir {url} is in use by process {processes[0].pid} on" in second.err
    for process in processes:
        process.kill()
        small.finish(process)
    assert [name for name in store.names() if f"checkpoints/{HANGS_AT}/" in name]
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
    with remote_workdir.opened(url) as there, remote_workdir.opened(home / "run") as local:
        state, expected = (flatten(checkpoints.read(STEPS)[0]) for checkpoints in (there, local))
    assert state.keys() == expected.keys()
    for path in state:
        np.testing.assert_array_equal(state[path], expected[path], err_msg=path)


# The shards of each process

SHAPE = (512, 4096)  # 8 MB, of which the mesh cuts both axes


def state_of(mesh, step):
    """A state whose shards are computed, so that every process can check its own."""
    def layout(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    def value(shape, index):
        rows, columns = (np.arange(n)[i] for n, i in zip(shape, index, strict=True))
        return (step + rows[:, None] * 4096 + columns).astype(np.float32)

    arrays = {"kernel": (SHAPE, layout("data", "tensor")), "moment": (SHAPE, layout(None, ("data", "tensor"))),
              "table": ((1024, 512), layout())}
    return {path: jax.make_array_from_callback(shape, sharding, lambda index, shape=shape: value(shape, index))
            for path, (shape, sharding) in arrays.items()}


def transferred(direction):
    """Returns the number of bytes that TensorStore has "read" or "written"."""
    time.sleep(0.5)  # they are counted after the result is there
    metrics = ts.experimental_collect_matching_metrics(f"/tensorstore/kvstore/s3/bytes_{direction}")
    return sum(value["value"] for metric in metrics for value in metric["values"])


def of_several(action, url, sizes):
    """Calls `action` as one of several processes with their mesh and checkpoints. No file can be written that could
    hold a shard."""
    process_group.start()
    remote.PAUSE, lease.SETTLE, lease.EVERY = 0.2, 0.2, 0.2
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    mesh = jax.make_mesh(sizes, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with remote_workdir.training(url) as run:
        checkpoints = run.checkpoints(run.directory / "checkpoints")
        checkpoints.clean()
        action(checkpoints, mesh)
        checkpoints.close()
        assert not checkpoints.directory.exists()


def save_three(checkpoints, mesh):
    for step in (1, 2, 3):
        before, state = transferred("written"), state_of(mesh, step)
        own = sum(shard.data.nbytes for x in state.values() for shard in x.addressable_shards if shard.replica_id == 0)
        checkpoints.save(step, state, {})
        jax.block_until_ready(jax.jit(lambda x: jax.tree.map(jnp.negative, x), donate_argnums=0)(state))
        checkpoints.wait()
        assert own <= transferred("written") - before < 1.01 * own


def restore_the_first(checkpoints, mesh):
    """After a bit of the third was changed, and a file of the second removed."""
    expected = state_of(mesh, 1)
    target = {path: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for path, x in expected.items()}
    for step in (3, 2):
        assert checkpoints.newest() == step
        with pytest.raises(DamagedCheckpoint, match=f"checkpoint {step} .* cannot be used: .*moment"):
            checkpoints.restore(step, target)
    assert checkpoints.newest() == 1
    before = transferred("read")
    state, _ = checkpoints.restore(1, target)
    read = transferred("read") - before
    own = sum(shard.data.nbytes for x in state.values() for shard in x.addressable_shards)  # each has one device
    assert own <= read < 1.01 * own
    for path, x in state.items():
        for shard, other in zip(x.addressable_shards, expected[path].addressable_shards, strict=True):
            assert np.asarray(shard.data).tobytes() == np.asarray(other.data).tobytes(), path


def several(number, action, url, sizes, emulator, tmp_path):
    children = [forked.Child(of_several, action, url, sizes, environment={
        **own, **emulator.environment, "LMREP_DATA_DIR": str(tmp_path / f"machines/{i}")})
        for i, own in enumerate(forked.addresses(number))]
    for answer in map(small.finish, children):
        assert answer.code == 0 and "fsspec" not in answer.err, answer


def test_each_process_writes_and_reads_its_shards_alone(emulator, tmp_path):
    url = f"{emulator.url}/two"
    several(2, save_three, url, (1, 2), emulator, tmp_path)
    store = remote_workdir.open_store(url)
    name = next(name for name in store.names("checkpoints/3") if "moment" in name)
    content = store.read(name)
    store.write(name, content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    store.remove(next(name for name in store.names("checkpoints/2") if "moment" in name))
    several(4, restore_the_first, url, (2, 2), emulator, tmp_path)


# The tokens of each process

LINES, STEPS_READ, BATCH_READ = 1000, 3, 8  # lines of a text; the steps and the batch size of a run


def train_and_record(home, workdir, data_dir, here):
    """Trains as one of two processes, each with its half of every batch, and writes the ranges that it has read."""
    process_group.start()
    ranges, read = [], object_store.RangeReader.read

    def record(self, requested):
        ranges.extend(requested)
        return read(self, requested)

    object_store.RangeReader.read = record
    config = small.config(home / "long")
    config.steps, config.batch_size, config.mesh.data = STEPS_READ, BATCH_READ, 2
    config.data.validation, config.data.test = 0.0, 0.0
    api.train(config, workdir, data_dir=data_dir)
    (here / f"{jax.process_index()}.json").write_text(json.dumps(ranges))


def test_each_process_reads_the_tokens_of_its_examples_alone(emulator, tmp_path):
    """And trains to the losses of a run that has the store on its disk."""
    texts = small.corpus(tmp_path / "long")
    for number, path in enumerate(sorted(texts.iterdir())):
        path.write_text("".join(f"The {number} cats see dog {line % 97}.\n" for line in range(LINES)))
    places, here = {"disk": str(tmp_path / "data"), "store": "s3://bucket/data"}, {}
    for name, data_dir in places.items():
        here[name] = tmp_path / name
        here[name].mkdir()
        children = [forked.Child(train_and_record, tmp_path, here[name] / "run", data_dir, here[name], environment={
            **own, **emulator.environment, "LMREP_DATA_DIR": str(here[name] / f"machine {i}")})
            for i, own in enumerate(forked.addresses(2))]
        for answer in map(small.finish, children):
            assert answer.code == 0, answer
        if name == "disk":
            store = remote.Store(places["store"], "", "")
            files = {str(path.relative_to(data_dir)): path for path in Path(data_dir).rglob("*") if path.is_file()}
            for file, path in files.items():
                store.upload(path, file)
    losses = {name: small.losses(folder / "run") for name, folder in here.items()}
    assert losses["store"] == losses["disk"] and len(losses["disk"]) == STEPS_READ
    [(file, size)] = [(file, path.stat().st_size) for file, path in files.items() if ".array_record" in file]
    assert not [path for path in here["store"].glob("machine */**/*") if ".array_record" in path.name]
    own = []
    for process in range(2):
        ranges = json.loads((here["store"] / f"{process}.json").read_text())
        assert {name for name, *_ in ranges} == {Path(file).name}
        own.append({(start, stop) for _, start, stop in ranges if stop < size})
        assert len(own[process]) == len(ranges) - 1  # the end of the file, which says where records are; each once
    count = STEPS_READ * BATCH_READ // 2  # examples of a process, each in one or two records
    assert count // 2 < len(own[1]) <= 2 * count < len(own[0])  # process 0 also tries the network on sentences
