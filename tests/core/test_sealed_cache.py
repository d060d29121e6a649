"""A cache of computed files: built once; built again, with a warning, whatever happened to its files."""

import logging
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from lmrep.core import sealed_cache
from lmrep.core.errors import RunFault
from lmrep.core.files import temporary_name

CONTENT = bytes(range(200))


def open_cache(directory, fingerprint="f"):
    def build(temporary):
        (temporary / "data").write_bytes(CONTENT)

    return sealed_cache.cached(directory, build, lambda path: (path / "data").read_bytes(), {"of": fingerprint}, "it")


@pytest.mark.parametrize("name", ["data", "manifest.json"])
def test_every_flipped_or_missing_byte_is_noticed(tmp_path, caplog, name):
    open_cache(tmp_path / "x")
    intact = (tmp_path / "x" / name).read_bytes()
    draw = np.random.default_rng(0)
    for at in range(0, len(intact), 9):
        flipped = bytearray(intact)
        flipped[at] ^= 1 << int(draw.integers(8))
        for damaged in (bytes(flipped), intact[:at], None):
            caplog.clear()
            if damaged is None:
                (tmp_path / "x" / name).unlink()
            else:
                (tmp_path / "x" / name).write_bytes(damaged)
            assert open_cache(tmp_path / "x") == CONTENT
            [message] = caplog.messages
            assert message.startswith(f"{tmp_path}/x is damaged and will be built again: ")
            caplog.clear()
            assert open_cache(tmp_path / "x") == CONTENT and not caplog.records


def test_cache_of_another_fingerprint_is_not_taken(tmp_path, caplog):
    open_cache(tmp_path / "x", "other")
    assert open_cache(tmp_path / "x") == CONTENT and "another fingerprint" in caplog.text


def test_what_cannot_be_written_is_a_fault_and_leaves_nothing(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as on a full disk
    try:
        with pytest.raises(RunFault, match=r"cannot write it .*free some space"):
            open_cache(tmp_path / "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_damaged_record_of_verified_files_is_ignored(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sealed_cache, "ALWAYS_VERIFIED", 0)
    open_cache(tmp_path / "x")
    (record,) = tmp_path.glob(".x.verified-*")
    for content in (b"", b"[]", b"\xff", b"[" * 100_000, b'{"data": 3}'):
        record.write_bytes(content)
        assert open_cache(tmp_path / "x") == CONTENT and not caplog.records


def test_leftovers_of_killed_processes_of_this_host_alone_are_removed(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ours = temporary_name("x")
    killed = f"{ours.rpartition('.')[0]}.{ended.pid}"
    host = ours.split(".")[2]
    kept = [ours, f".x.{ended.pid}", f".x.2024.{ended.pid}", f".x.{host}.abc.{ended.pid}",
            killed.replace(host, "another"), killed.replace(".x.", ".y."), killed + ".bak"]
    for name in (killed, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("")
    open_cache(tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "x"])
