"""What becomes of checkpoints with every kind of damage, on a disk and in stores: a row for each kind.

Locks, leases and clocks are in `test_lease.py` and `test_workdir.py`, processes that are killed or lack space on a disk
in `test_checkpoint_processes.py` and `test_full_disk.py`."""

import contextlib
import errno
import json
import os
import uuid
from pathlib import Path

import jax
import numpy as np
import pytest

from lmrep.core import files, remote
from lmrep.core.errors import RunFault, UserError
from lmrep.experiment import config as experiments
from lmrep.experiment import frozen
from lmrep.storage import lease, remote_workdir
from lmrep.storage.checkpoints import Checkpoints, DamagedCheckpoint
from tests import small
from tests.storage import emulators

WHOLE, BEFORE, REFUSED = "checkpoint 2 is used", "checkpoint 1 is used", "the run is refused"


def state(step: int) -> dict:
    draw = np.random.default_rng(step)
    return {"params": {"kernel": draw.random((8, 16), np.float32), "bias": draw.random(16, np.float32)},
            "opt_state": {"moment": draw.random((8, 16), np.float32)}}


TARGET = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state(0))


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """Starts an emulator of a kind once, and stops it after the last test."""
    running = {}

    def get(kind):
        if kind not in running:
            running[kind] = emulators.started(kind, tmp_path_factory.mktemp("emulator"))
        return running[kind]

    yield get
    for each in running.values():
        each.stop()


@pytest.fixture(scope="module")
def saved():
    """Gives, for each kind of place, the files of a run with two checkpoints."""
    known = {}

    def get(kind, place):
        if kind not in known:
            with place.training() as checkpoints:
                for step in (1, 2):
                    checkpoints.save(step, state(step), {"at": step})
                checkpoints.wait()
            place.files.write("config.json", b"{}")
            known[kind] = {name: place.files.read(name) for name in place.files.names()}
        return known[kind]

    return get


class Place:
    """A run at `path`, a folder or an address, whose files are those of the store `files`."""

    def __init__(self, path: str):
        self.path, self.files = path, remote_workdir.open_store(path)

    @contextlib.contextmanager
    def training(self):
        """The checkpoints of a run that trains there."""
        if not remote.as_url(self.path):
            with contextlib.closing(Checkpoints(Path(self.path) / "checkpoints")) as checkpoints:
                yield checkpoints
            return
        with remote_workdir.training(self.path) as run, contextlib.closing(
                run.checkpoints(run.directory / "checkpoints")) as checkpoints:
            yield checkpoints

    def resume(self) -> int:
        """The step from which a run continues, whose state is checked."""
        with self.training() as checkpoints:
            checkpoints.clean()
            while True:
                step = checkpoints.newest()
                with contextlib.suppress(DamagedCheckpoint):
                    restored, meta = checkpoints.restore(step, TARGET)
                    assert meta == {"at": step}
                    jax.tree.map(np.testing.assert_array_equal, restored, state(step))
                    return step

    def load(self, experiment, step: int | None = None) -> int:
        """The step that other commands read, whose parameters are checked."""
        step, params, _ = frozen.read_params(self.path, experiment, step)
        jax.tree.map(np.testing.assert_array_equal, params, state(step)["params"])
        return step

    def arrays(self, of: str) -> list[str]:
        """The files of checkpoint 2 that hold arrays: those whose path has `of`, of a format that has a file each."""
        names = self.files.names("checkpoints/2")
        return [name for name in names if f"/{of}/" in name] or [
            name for name in names if "/d/" in name and self.files.read(name)]


PLACES = ["disk", "memory"]
EMULATED = [pytest.param("s3", marks=pytest.mark.slow), pytest.param("gs", marks=pytest.mark.slow)]


@pytest.fixture(params=PLACES)
def place(request, saved, emulator, tmp_path, monkeypatch):
    """A place with the two checkpoints."""
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path / "machine"))
    for module, name, value in ((lease, "SETTLE", 0.0), (remote, "PAUSE", 0.01), (remote, "PATIENCE", 0.05),
                                (remote_workdir, "LAST_PATIENCE", 0.05)):
        monkeypatch.setattr(module, name, value)
    path = f"memory://{uuid.uuid4().hex}/run" if request.param == "memory" else str(tmp_path / "run")
    if request.param in ("s3", "gs"):
        kind = emulators.S3 if request.param == "s3" else emulators.GoogleCloudStorage
        path = f"{kind.url}/{uuid.uuid4().hex}"
        for name, value in emulator(kind).environment.items():
            monkeypatch.setenv(name, value)
    place = Place(path)
    for name, content in saved(request.param, place).items():
        place.files.write(name, content)
    return place


@pytest.fixture(scope="module")
def experiment():
    return experiments.parse(small.config(Path("texts")))


# The damage: what it does with a file of checkpoint 2

DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "last byte missing": lambda content: content[:-1],
    "empty": lambda content: b"",
    "first bit flipped": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "bit flipped": lambda content: content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 16])
    + content[len(content) // 2 + 1 :],
    "last bit flipped": lambda content: content[:-1] + bytes([content[-1] ^ 128]),
    "zeros": lambda content: bytes(len(content)),
    "of another program": lambda content: b"<html>502 Bad Gateway</html>",
    "missing": None,
}


def damage(files_, name: str, change) -> None:
    content = files_.read(name)
    files_.remove(name)
    if change is not None:
        files_.write(name, change(content))


@pytest.mark.parametrize("place", [*PLACES, *EMULATED], indirect=True)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_parameters(place, experiment, kind, caplog):
    (name, *_) = place.arrays("params")
    damage(place.files, name, DAMAGE[kind])
    assert place.load(experiment) == place.resume() == 1
    assert "checkpoint 2 in" in caplog.text and "is damaged and skipped" in caplog.text
    with pytest.raises(RunFault, match=r"checkpoint 2 in .* cannot be used: "):
        place.load(experiment, 2)
    place.files.remove("checkpoints/1")
    for action in (place.resume, lambda: place.load(experiment)):
        with pytest.raises(RunFault, match=r"none of the checkpoints in .* is intact \(2: .*will not start over"):
            action()


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_state_of_the_optimizer(place, kind):
    damage(place.files, place.arrays("opt_state")[-1], DAMAGE[kind])
    assert place.resume() == 1


ON_A_DISK = {  # what is in place of a file, or of the directory of checkpoint 2
    "a directory": Path.mkdir,
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,  # which nobody writes to
    "a device": lambda path: path.symlink_to("/dev/full"),
}


@pytest.mark.parametrize("place", ["disk"], indirect=True)
@pytest.mark.parametrize("kind", ON_A_DISK)
@pytest.mark.parametrize("of", ["params", "manifest", "checkpoint"])
def test_something_else_in_place_of_a_file(place, experiment, kind, of):
    folder = Path(place.path) / "checkpoints/2"
    path = {"params": Path(place.path) / place.arrays("params")[0], "manifest": folder / "manifest.json",
            "checkpoint": folder}[of]
    files.remove(path)
    ON_A_DISK[kind](path)
    assert place.load(experiment) == place.resume() == 1


@pytest.mark.parametrize("place", ["disk"], indirect=True)
def test_renamed_checkpoints(place, experiment):
    folder = Path(place.path) / "checkpoints"
    (folder / "2").rename(folder / "5")
    assert place.load(experiment) == place.resume() == 1
    (folder / "5").rename(folder / "2")
    Path(place.path).rename(f"{place.path}[2]")
    moved = Place(f"{place.path}[2]")
    assert moved.load(experiment) == moved.resume() == 2


def signed(change):
    """A change of the content of a manifest that is signed again, as another version might have written it."""
    def apply(content):
        record = json.loads(content)
        del record["sha256"]
        change(record)
        return json.dumps(files.signed(record)).encode()

    return apply


def more(record):
    record["arrays"]["params/more"] = "float32[2]"
    if "zarr3" in record:
        record["zarr3"]["grids"]["params/more"] = [[2], [2]]


MANIFESTS = {  # change -> which checkpoint is used, by a run that continues and by other commands
    **{kind: (change, BEFORE) for kind, change in DAMAGE.items()},
    "last byte missing": (lambda content: content.rstrip()[:-1], BEFORE),  # on a disk, a line feed ends the file
    "a list": (lambda content: b"[]", BEFORE),
    "deep": (lambda content: b"[" * 100_000, BEFORE),
    "of another step": (signed(lambda record: record.update(step=7)), BEFORE),
    "without arrays": (signed(lambda record: record.pop("arrays")), BEFORE),
    "without a step": (signed(lambda record: record.pop("step")), BEFORE),
    "no type": (signed(lambda record: record["arrays"].update({"params/bias": "float33[16]"})), BEFORE),
    "no shape": (signed(lambda record: record["arrays"].update({"params/bias": "float32[-1]"})), BEFORE),
    "more fields": (signed(lambda record: record.update(version=9)), WHOLE),
    "another shape": (signed(lambda record: record["arrays"].update({"params/bias": "float32[17]"})), REFUSED),
    "another dtype": (signed(lambda record: record["arrays"].update({"params/bias": "int32[16]"})), REFUSED),
    "an array less": (signed(lambda record: record["arrays"].pop("params/bias")), REFUSED),
    "an array more": (signed(lambda record: more(record)), REFUSED),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_damaged_manifest(place, experiment, kind):
    change, expected = MANIFESTS[kind]
    damage(place.files, "checkpoints/2/manifest.json", change)
    if expected is REFUSED:
        with pytest.raises(UserError, match=r"checkpoint 2 in .* does not fit this run:\n"):
            place.resume()
        return
    assert place.load(experiment) == place.resume() == (2 if expected is WHOLE else 1)


GRIDS = {
    "no grid": lambda zarr3: zarr3["grids"].pop("params/bias"),
    "of another rank": lambda zarr3: zarr3["grids"].update({"params/bias": [[4, 4], [4, 4]]}),
    "no chunk": lambda zarr3: zarr3["grids"].update({"params/bias": [[16]]}),
    "of zeros": lambda zarr3: zarr3["grids"].update({"params/bias": [[0], [0]]}),
    "chunks that do not fit": lambda zarr3: zarr3["grids"].update({"params/bias": [[16], [5]]}),
    "smaller files": lambda zarr3: zarr3["grids"].update({"params/bias": [[8], [8]]}),
    "another folder": lambda zarr3: zarr3.update(folder="other"),
    "a folder above": lambda zarr3: zarr3.update(folder="../1/x"),
    "no folder": lambda zarr3: zarr3.pop("folder"),
}


@pytest.mark.parametrize("place", ["memory"], indirect=True)  # a checkpoint on a disk has none
@pytest.mark.parametrize("kind", GRIDS)
def test_damaged_grid(place, experiment, kind):
    damage(place.files, "checkpoints/2/manifest.json", signed(lambda record: GRIDS[kind](record["zarr3"])))
    assert place.load(experiment) == place.resume() == 1


FURTHER = {  # files beside the checkpoints -> the checkpoint that is used
    "a checkpoint without a manifest": ({"checkpoints/3/params/0": b"-"}, WHOLE),
    "a copy of another checkpoint": ({"checkpoints/3/": "checkpoints/1/"}, WHOLE),
    "a save that was killed": ({"checkpoints/.unfinished-3/0": b"-"}, WHOLE),
    "a deletion that was killed": ({"checkpoints/.removed-2/0": b"-"}, WHOLE),
    "a file in place of a checkpoint": ({"checkpoints/3": b"-"}, WHOLE),
    "a number of another form": ({"checkpoints/007/": "checkpoints/1/", "checkpoints/-3/": "checkpoints/1/"}, WHOLE),
    "a folder of another program": ({"checkpoints/notes/manifest.json": b"{}"}, WHOLE),
    "a file in a checkpoint": ({"checkpoints/2/notes.txt": b"-"}, WHOLE),
    "a file beside the checkpoints": ({"notes.txt": b"-", "checkpoints/notes.txt": b"-"}, WHOLE),
    "a file of lmrep's beside an array": ({"checkpoints/2/.x.lock": b"-"}, WHOLE),
}


@pytest.mark.parametrize("kind", FURTHER)
def test_files_beside_checkpoints(place, experiment, kind):
    further, expected = FURTHER[kind]
    for name, content in further.items():
        if isinstance(content, str):
            for source in place.files.names(content.rstrip("/")):
                place.files.write(name + source.removeprefix(content), place.files.read(source))
        else:
            place.files.write(name, content)
    assert place.load(experiment) == place.resume() == (2 if expected is WHOLE else 1)


# Stores that refuse

REFUSALS = {  # (method of the store, files, error) -> what is refused
    "listing": ("names", "checkpoints", OSError(errno.EIO, "no route")),
    "reading a manifest": ("read", "2/manifest.json", OSError(errno.EIO, "no route")),
    "reading an array": ("read", "/params/", OSError(errno.EIO, "no route")),
    "access to an array": ("read", "/params/", PermissionError(errno.EACCES, "no route")),
    "a timeout": ("read", "/params/", TimeoutError("no route")),
}
SAVES = {
    "writing an array": ("write", "/params/", OSError(errno.EIO, "no route")),
    "writing a manifest": ("write", "3/manifest.json", OSError(errno.EIO, "no route")),
    "access": ("write", "/params/", PermissionError(errno.EACCES, "no route")),
    "space": ("write", "/params/", OSError(errno.ENOSPC, "no route")),
    "the lease": ("read", "lease.json", OSError(errno.EIO, "no route")),
}


def refuse(monkeypatch, method: str, part: str, error: Exception) -> None:
    """Lets a method of the store raise an error, for names that contain `part`."""
    usual = getattr(remote.Store, method)

    def refusing(self, *arguments):
        if any(part in str(argument) for argument in arguments):
            raise error
        return usual(self, *arguments)

    monkeypatch.setattr(remote.Store, method, refusing)


in_memory = pytest.mark.parametrize("place", ["memory"], indirect=True)  # all files are transferred by `Store`


@in_memory
@pytest.mark.parametrize("kind", REFUSALS)
def test_store_that_refuses_to_be_read(place, experiment, kind, monkeypatch):
    """It is no damage: no earlier checkpoint is used."""
    with monkeypatch.context() as patch:
        refuse(patch, *REFUSALS[kind])
        for action in (place.resume, lambda: place.load(experiment)):
            with pytest.raises((RunFault, UserError), match="no route"):
                action()
    assert place.load(experiment) == place.resume() == 2


@in_memory
@pytest.mark.parametrize("kind", SAVES)
def test_store_that_refuses_to_be_written(place, kind, monkeypatch):
    with monkeypatch.context() as patch, contextlib.suppress(RunFault), place.training() as checkpoints:
        refuse(patch, *SAVES[kind])
        checkpoints.save(3, state(3), {"at": 3})
        with pytest.raises(RunFault, match=r"checkpoint 3 could not be saved in .*no route.*Earlier checkpoints are"):
            checkpoints.wait()
    place.files.remove(lease.LEASE)
    assert place.resume() == 2
    assert {name.split("/")[1] for name in place.files.names("checkpoints")} == {"1", "2"}


class Killed(BaseException):
    """Ends a run in the middle of an operation."""


@in_memory
@pytest.mark.parametrize("when", ["before", "after", "amid"])
def test_run_killed_at_any_operation_of_its_store(place, when, monkeypatch):
    """Before an operation, after it, or amid the removal of a folder. All checkpoints that count are then whole."""
    methods = {name: getattr(remote.Store, name) for name in ("names", "read", "write", "create", "remove")}

    def killed_at(number) -> int:
        """Saves a checkpoint in place of two, and is killed at an operation; returns the number of all."""
        count = 0
        with monkeypatch.context() as patch, contextlib.suppress(Killed, RunFault), place.training() as checkpoints:
            def counted(method):
                def call(self, *arguments):
                    nonlocal count
                    count += 1
                    if count > number + 1 or (count > number and when == "before"):
                        raise Killed
                    if count > number and when == "amid" and method == "remove":
                        methods["remove"](self, methods["names"](self, *arguments)[0])
                    elif count <= number or when == "after":
                        return methods[method](self, *arguments)
                    raise Killed
                return call

            for name in methods:
                patch.setattr(remote.Store, name, counted(name))
            checkpoints._keep, checkpoints._keep_best = 1, 0
            checkpoints.save(3, state(3), {"at": 3})
            checkpoints.wait()
        return count

    contents, seen = {name: place.files.read(name) for name in place.files.names()}, []
    total = killed_at(10**6)
    assert total > 8
    for number in range(total):
        for name in place.files.names():
            place.files.remove(name)
        for name, content in contents.items():
            place.files.write(name, content)
        killed_at(number)
        place.files.remove(lease.LEASE)
        lease._held.clear()
        with remote_workdir.opened(place.path) as checkpoints:
            for step in checkpoints.steps():
                assert checkpoints.read(step)[1] == {"at": step}
        seen.append(place.resume())
        assert {name.split("/")[1] for name in place.files.names("checkpoints")} <= {"1", "2", "3"}
    assert seen == sorted(seen) and {*seen} == {2, 3}
