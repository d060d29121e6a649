"""Preparing on many cores and through faults: the same bytes on disk, and nothing tokenized twice."""

import contextlib
import errno
import glob
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from lmrep.core.errors import RunFault, UserError
from lmrep.data import tokenizers
from lmrep.data.store import prepare, scan, token_store, tokenize
from tests.data.test_prepare import SETTINGS, texts, write

PART = 5000  # characters: the corpus of these tests has five parts


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(prepare, "PART", PART)
    monkeypatch.setattr(prepare, "BATCH", 700)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A corpus prepared in one go by this process: (what came out, the data config)."""
    top = tmp_path_factory.mktemp("whole")
    config = write(top / "files", texts(180))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "PART", PART)
        return prepare.prepare(config, SETTINGS, top / "data"), config


def on_disk(directory):
    """Every file of a folder, byte for byte."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def characters(ready):
    return sum(facts["characters"] for facts in ready.statistics.values())


@pytest.fixture
def counted(monkeypatch):
    """The characters that this process tokenizes from now on, batch by batch."""
    found, really = [], tokenize.tokenize
    monkeypatch.setattr(tokenize, "tokenize",
                        lambda tokenizer, texts, *options: found.append(sum(map(len, texts)))
                        or really(tokenizer, texts, *options))
    return found


def test_there_are_several_parts(whole):
    ready, _ = whole
    shards = len(list((ready.directory / "train").glob("*array_record*")))
    assert characters(ready) > 4 * PART and shards == 1 + ready.stores["train"].tokens // token_store.RECORD


@pytest.mark.parametrize("processes", [1, 3])
def test_any_number_of_processes_gives_the_same_bytes(whole, tmp_path, monkeypatch, counted, processes):
    ready, config = whole
    monkeypatch.setattr(prepare, "SMALL", 0)
    monkeypatch.setattr(tokenize, "cores", lambda: processes)
    again = prepare.prepare(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory) and not counted


# Sets the parts as above, has two processes tokenize, and dies of `kill -9` at one of several moments.
KILLED = """
import os, signal, sys
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare, scan, token_store, tokenize
if __name__ == "__main__":
    files, data_dir, moment, part = sys.argv[1:]
    prepare.PART, prepare.BATCH, prepare.SMALL = int(part), 700, 0
    tokenize.cores = lambda: 2
    die = lambda: os.kill(os.getpid(), signal.SIGKILL)
    if moment == "training":
        tokenizers.Tokenizer.save = lambda *_: die()
    if moment == "tokenizing":
        add = scan.Report.add
        def counted(report, characters):
            add(report, characters)
            if report.total and report.what == "tokenizing" and report.done > 3.5 * prepare.PART:
                die()
        scan.Report.add = counted
    if moment == "joining":
        offsets = token_store._save_offsets
        token_store._save_offsets = lambda path, parts: (
            die() if path.parent.name == "validation" else offsets(path, parts))
    config = corpora.Config(corpus="text_files", files=files, validation=0.1, test=0.1)
    prepare.prepare(config, tokenizers.Config(vocab_size=200), data_dir)
"""


def serving(directory):
    """Processes that tokenize for a preparation in `directory`."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = pathlib.Path(path).read_bytes()
            found += [path] * (b"serve()" in line and str(directory).encode() in line)
    return found


@pytest.mark.parametrize(("moment", "parts"), [("training", 0), ("tokenizing", 3), ("joining", None)])
def test_killed_it_goes_on_where_it_stopped(whole, tmp_path, monkeypatch, counted, moment, parts):
    ready, config = whole
    killed = subprocess.run([sys.executable, "-c", KILLED, config.files, str(tmp_path), moment, str(PART)], check=False)
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while serving(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not serving(tmp_path)  # no child outlives its parent
    (partial,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert partial.name == f"{ready.directory.name}.partial"
    made = [json.loads((part / "tallies.json").read_text()) for part in partial.glob("parts/*[0-9]")]
    if moment != "training":
        monkeypatch.setattr(tokenizers, "train", None)  # it is trained, and needed no more
    again = prepare.prepare(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [ready.directory.name]
    done = sum(tally.get("characters", 0) for tallies in made for tally in tallies.values())
    assert sum(counted) == characters(ready) - done
    assert len(made) == parts if parts is not None else sum(counted) == 0


def test_what_was_made_by_other_rules_is_made_anew(whole, tmp_path, counted):
    ready, config = whole
    partial = tmp_path / f"{ready.directory.name}.partial"
    (partial / "parts" / "00000").mkdir(parents=True)
    (partial / "key.json").write_text("other rules")
    again = prepare.prepare(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory) and sum(counted) == characters(ready)


@pytest.mark.parametrize("error", [OSError("4096 requested and 0 written"),
                                   OSError(errno.ENOSPC, "No space left on device"),
                                   RuntimeError("write() failed: No space left on device; writing x")])
def test_a_full_disk_is_said_and_loses_nothing(whole, tmp_path, monkeypatch, counted, error):
    ready, config = whole
    really, calls = token_store.Writer.add, []

    def full(self, *arrays):
        calls.append(1)
        if sum(counted) > 2.5 * PART:
            raise error
        really(self, *arrays)

    with monkeypatch.context() as patch:
        patch.setattr(token_store.Writer, "add", full)
        with pytest.raises(RunFault, match=r"disk .* is full: about [\d.]+ MB more are needed, [\d.,]+ MB are free"):
            prepare.prepare(config, SETTINGS, tmp_path)
    counted.clear()
    again = prepare.prepare(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory)
    assert characters(ready) - 3 * PART < sum(counted) < characters(ready) - PART


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MB, where one may be made."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", place], check=False).returncode:
        pytest.skip("making a disk takes the right to mount one")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)  # what was read may still be mapped until it is collected


def test_a_disk_that_is_really_full(whole, small_disk, tmp_path, counted):
    ready, config = whole
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_400_000))
    with pytest.raises(RunFault, match=r"disk .* is full"):
        prepare.prepare(config, SETTINGS, small_disk)
    once = sum(counted)
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    again = prepare.prepare(config, SETTINGS, small_disk)
    assert on_disk(again.directory) == on_disk(ready.directory)
    assert characters(ready) <= sum(counted) < characters(ready) + 2 * PART and once > 0


def test_a_child_that_dies_is_a_fault_and_loses_nothing(whole, tmp_path, monkeypatch):
    ready, config = whole
    monkeypatch.setattr(prepare, "SMALL", 0)
    monkeypatch.setattr(tokenize, "cores", lambda: 1)
    really = scan.Report.add

    def murder(report, count):
        really(report, count)
        if report.what == "tokenizing" and report.done > 2.5 * PART:
            for path in serving(tmp_path):
                os.kill(int(path.split("/")[2]), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(scan.Report, "add", murder)
        with pytest.raises(RunFault, match=r"killed by signal 9 .*SIGKILL.*continues where this one stopped"):
            prepare.prepare(config, SETTINGS, tmp_path)
    assert len(list(tmp_path.glob("*.partial/parts/*[0-9]"))) >= 2
    assert on_disk(prepare.prepare(config, SETTINGS, tmp_path).directory) == on_disk(ready.directory)


def test_text_that_cannot_be_read_any_more_keeps_what_is_made(whole, tmp_path, monkeypatch):
    ready, _ = whole
    config = write(tmp_path / "files", texts(180))
    really = scan.Report.add

    def gone(report, count):
        really(report, count)
        if report.what == "tokenizing" and report.done > 2.5 * PART:
            raise UserError("cannot read it")

    with monkeypatch.context() as patch:
        patch.setattr(scan.Report, "add", gone)
        with pytest.raises(UserError, match="cannot read"):
            prepare.prepare(config, SETTINGS, tmp_path / "data")
    assert len(list(tmp_path.glob("data/*.partial/parts/*[0-9]"))) == 2
    assert on_disk(prepare.prepare(config, SETTINGS, tmp_path / "data").directory) == on_disk(ready.directory)


LIGHT = """
import sys
from lmrep.data.store import tokenize
heavy = {"jax", "tensorflow", "tensorflow_datasets", "grain", "pyarrow", "fsspec", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""


def test_children_import_nothing_heavy():
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_cores_are_those_that_the_process_is_bound_to():
    assert 1 <= tokenize.cores() <= len(os.sched_getaffinity(0))
