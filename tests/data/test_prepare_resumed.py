"""Preparing on many cores and through faults: the same bytes on disk, and nothing tokenized twice."""

import contextlib
import errno
import glob
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from lmrep.core import host
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
def complete(tmp_path_factory):
    """A corpus prepared in one go by this process: (what came out, the data config)."""
    top = tmp_path_factory.mktemp("whole")
    config = write(top / "files", texts(180))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "PART", PART)
        return prepare.prepare_corpus(config, SETTINGS, top / "data"), config


def on_disk(directory):
    """Every file of a folder, byte for byte."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def characters(ready):
    return sum(facts["characters"] for facts in ready.statistics.values())


@pytest.fixture
def counted(monkeypatch):
    """The characters that this process tokenizes from now on, batch by batch."""
    batch_sizes, original = [], tokenize.tokenize
    monkeypatch.setattr(tokenize, "tokenize",
                        lambda tokenizer, texts, *options: batch_sizes.append(sum(map(len, texts)))
                        or original(tokenizer, texts, *options))
    return batch_sizes


def test_there_are_several_parts(complete):
    ready, _ = complete
    shards = len(list((ready.directory / "train").glob("*array_record*")))
    assert characters(ready) > 4 * PART and shards == 1 + ready.stores["train"].tokens // token_store.RECORD


@pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_any_number_of_processes_gives_the_same_bytes(complete, tmp_path, monkeypatch, counted, processes):
    ready, config = complete
    monkeypatch.setattr(prepare, "SMALL", 0)
    monkeypatch.setattr(host, "cores", lambda: processes)
    again = prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory) and not counted


# Sets the parts as above, has two processes tokenize, and dies of `kill -9` at one of several moments.
KILLED = """
import os, signal, sys
from lmrep.core import host
from lmrep.data import corpora, tokenizers
from lmrep.data.store import prepare, scan, token_store, tokenize
if __name__ == "__main__":
    files, data_dir, moment, part = sys.argv[1:]
    prepare.PART, prepare.BATCH, prepare.SMALL = int(part), 700, 0
    host.cores = lambda: 2
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
        offsets = token_store.save_offsets
        token_store.save_offsets = lambda path, parts: (
            die() if path.parent.name == "validation" else offsets(path, parts))
    config = corpora.Config(corpus="text_files", files=files, validation=0.1, test=0.1)
    prepare.prepare_corpus(config, tokenizers.Config(vocab_size=200), data_dir)
"""


def serving(directory):
    """Processes that tokenize for a preparation in `directory`."""
    processes = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = pathlib.Path(path).read_bytes()
            processes += [path] * (b"serve()" in line and str(directory).encode() in line)
    return processes


@pytest.mark.parametrize(("moment", "parts"), [
    pytest.param("training", 0, marks=pytest.mark.slow), ("tokenizing", 3),
    pytest.param("joining", None, marks=pytest.mark.slow)])
def test_a_killed_build_continues_where_it_stopped(complete, tmp_path, monkeypatch, counted, moment, parts):
    ready, config = complete
    killed = subprocess.run([sys.executable, "-c", KILLED, config.files, str(tmp_path), moment, str(PART)], check=False)
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while serving(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not serving(tmp_path)  # no child outlives its parent
    (partial,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert partial.name == f"{ready.directory.name}.partial"
    saved = [json.loads((part / "tallies.json").read_text()) for part in partial.glob("parts/[0-9]*")]
    if moment != "training":
        monkeypatch.setattr(tokenizers, "train", None)  # it is trained, and needed no more
    again = prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [ready.directory.name]
    done = sum(tally.get("characters", 0) for tallies in saved for tally in tallies.values())
    assert sum(counted) == characters(ready) - done
    assert len(saved) == parts if parts is not None else sum(counted) == 0


def test_parts_with_another_key_are_built_again(complete, tmp_path, counted):
    ready, config = complete
    partial = tmp_path / f"{ready.directory.name}.partial"
    (partial / "parts" / "00000").mkdir(parents=True)
    (partial / "key.json").write_text("other rules")
    again = prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory) and sum(counted) == characters(ready)


def test_a_full_disk_is_reported_and_the_build_continues(complete, tmp_path, monkeypatch, counted):
    ready, config = complete
    original, total = token_store.Writer.add, characters(ready)
    for error in (OSError("4096 requested and 0 written"), OSError(errno.ENOSPC, "No space left on device"),
                  RuntimeError("write() failed: No space left on device; writing x")):
        def full(self, *arrays, error=error):
            if sum(counted) > 1.5 * PART:
                raise error
            original(self, *arrays)

        counted.clear()
        monkeypatch.setattr(token_store.Writer, "add", full)
        with pytest.raises(RunFault, match=r"disk .* is full: about [\d.]+ [kM]B more are needed, [\d.]+ \wB are free"):
            prepare.prepare_corpus(config, SETTINGS, tmp_path)
    counted.clear()
    monkeypatch.setattr(token_store.Writer, "add", original)
    again = prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert on_disk(again.directory) == on_disk(ready.directory)
    assert total - 3.5 * PART < sum(counted) < total - 2.5 * PART  # each attempt completed a part


@pytest.mark.parametrize("size", [5_000, 66_000])  # exceeded by the tokenizer, and by records
def test_a_limit_on_the_size_of_files_is_reported_and_the_build_continues(complete, tmp_path, size):
    ready, config = complete
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with pytest.raises(RunFault, match=r"would be larger than \d+ kB, the limit .*\(ulimit -f\); raise it and"):
            prepare.prepare_corpus(config, SETTINGS, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert on_disk(prepare.prepare_corpus(config, SETTINGS, tmp_path).directory) == on_disk(ready.directory)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MB, where the process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], check=False).returncode:
        pytest.skip("making a disk takes the right to mount one")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)  # what was read may still be mapped until it is collected


@pytest.mark.slow
def test_a_build_continues_after_a_real_disk_was_full(complete, small_disk, tmp_path, counted):
    ready, config = complete
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_400_000))
    with pytest.raises(RunFault, match=r"disk .* is full"):
        prepare.prepare_corpus(config, SETTINGS, small_disk)
    once = sum(counted)
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    again = prepare.prepare_corpus(config, SETTINGS, small_disk)
    assert on_disk(again.directory) == on_disk(ready.directory)
    assert characters(ready) <= sum(counted) < characters(ready) + 2 * PART and once > 0


@pytest.mark.slow
def test_a_killed_child_is_a_fault_and_the_build_continues(complete, tmp_path, monkeypatch):
    ready, config = complete
    monkeypatch.setattr(prepare, "SMALL", 0)
    monkeypatch.setattr(host, "cores", lambda: 1)
    original = scan.Report.add

    def kill_children(report, count):
        original(report, count)
        if report.what == "tokenizing" and report.done > 2.5 * PART:
            for path in serving(tmp_path):
                os.kill(int(path.split("/")[2]), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(scan.Report, "add", kill_children)
        with pytest.raises(RunFault, match=r"killed by signal 9 .*SIGKILL.*continues where this one stopped"):
            prepare.prepare_corpus(config, SETTINGS, tmp_path)
    assert len(list(tmp_path.glob("*.partial/parts/*[0-9]"))) >= 2
    assert on_disk(prepare.prepare_corpus(config, SETTINGS, tmp_path).directory) == on_disk(ready.directory)


def test_unreadable_text_keeps_the_complete_parts(complete, tmp_path, monkeypatch):
    ready, _ = complete
    config = write(tmp_path / "files", texts(180))
    original = scan.Report.add

    def fail(report, count):
        original(report, count)
        if report.what == "tokenizing" and report.done > 2.5 * PART:
            raise UserError("cannot read it")

    with monkeypatch.context() as patch:
        patch.setattr(scan.Report, "add", fail)
        with pytest.raises(UserError, match="cannot read"):
            prepare.prepare_corpus(config, SETTINGS, tmp_path / "data")
    assert len(list(tmp_path.glob("data/*.partial/parts/*[0-9]"))) == 2
    assert on_disk(prepare.prepare_corpus(config, SETTINGS, tmp_path / "data").directory) == on_disk(ready.directory)


LIGHT = """
import sys
from lmrep.data.store import tokenize
heavy = {"jax", "tensorflow", "tensorflow_datasets", "grain", "pyarrow", "fsspec", "transformers"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.slow
def test_children_import_nothing_heavy():
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_cores_are_those_of_the_cpu_affinity():
    assert 1 <= host.cores() <= len(os.sched_getaffinity(0))
