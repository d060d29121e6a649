"""The folder of compiled programs: whose it is, what it drops, and that programs from it compute the same."""

import os

import jax
import numpy as np
import pytest

import lmrep
from lmrep.core import compilation_cache
from tests import forked, small

UNSET = {"JAX_COMPILATION_CACHE_DIR": ""}


@pytest.fixture
def updates(monkeypatch):
    """What would change JAX's config."""
    changed = {}
    monkeypatch.setattr(jax.config, "update", changed.__setitem__)
    return changed


@pytest.fixture
def home(tmp_path, monkeypatch, updates):
    """A folder for data, no folder that the user has set, and a JAX that is not changed."""
    monkeypatch.setenv("LMREP_DATA_DIR", str(tmp_path))
    for name in (compilation_cache.DIRECTORY, compilation_cache.MAX_BYTES, compilation_cache.MIN_SECONDS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_folder_is_that_of_the_user_and_the_machine(home):
    directory = compilation_cache.enable()
    assert directory.parent == home / "compiled" and os.environ["JAX_COMPILATION_CACHE_DIR"] == str(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert int(os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"]) == compilation_cache.LIMIT
    assert compilation_cache.enable() == directory  # again, as the child of a command does
    other = compilation_cache.enable(several_processes=True)
    assert other.parent == home / "compiled" and other != directory
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ


def test_jax_that_is_imported_already_is_configured(home, updates, monkeypatch):
    directory = compilation_cache.enable()
    assert updates == {"jax_compilation_cache_dir": str(directory), "jax_persistent_cache_min_compile_time_secs": 0.0,
                       "jax_compilation_cache_max_size": compilation_cache.LIMIT}
    directory = compilation_cache.enable(several_processes=True)
    assert updates["jax_compilation_cache_dir"] == str(directory) and updates["jax_compilation_cache_max_size"] == -1
    monkeypatch.setenv(compilation_cache.ENABLED, "true")
    compilation_cache.disable()
    assert updates["jax_enable_compilation_cache"] is False and os.environ[compilation_cache.ENABLED] == "false"
    assert updates.keys() <= jax.config.values.keys()


def test_choice_of_the_user_is_kept(home, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/programs")
    assert compilation_cache.enable() is None and os.environ["JAX_COMPILATION_CACHE_DIR"] == "gs://bucket/programs"
    assert not (home / "compiled").exists()


def test_folder_of_another_user_or_that_cannot_be_written_is_not_used(home, monkeypatch):
    monkeypatch.setattr(compilation_cache.os, "getuid", lambda: os.stat(home).st_uid + 1)
    assert compilation_cache.enable() is None
    monkeypatch.setenv("LMREP_DATA_DIR", "/proc/none")
    assert compilation_cache.enable() is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_programs_that_were_not_written_to_their_end_are_dropped(home):
    directory = compilation_cache.enable()
    for name in ("jit_whole-1-cache", "jit_whole-1-atime", "jit_half-2-cache"):
        (directory / name).write_bytes(b"12345678")
    compilation_cache.enable()
    assert {path.name for path in directory.glob("jit_*")} == {"jit_whole-1-cache", "jit_whole-1-atime"}


def test_oldest_programs_of_several_processes_are_dropped_beyond_the_limit(home, monkeypatch):
    monkeypatch.setattr(compilation_cache, "LIMIT", 20)
    directory = compilation_cache.enable(several_processes=True)
    for age in range(4):
        (directory / f"jit_{age}-cache").write_bytes(b"12345678")
        os.utime(directory / f"jit_{age}-cache", (10**9 - age, 10**9 - age))
    compilation_cache.enable(several_processes=True)
    assert {path.name for path in directory.glob("jit_*")} == {"jit_0-cache", "jit_1-cache"}


@pytest.mark.slow
def test_programs_from_the_cache_compute_the_same_bits(tmp_path):
    """A run that compiles, one that loads what the first has compiled, and one without the cache."""
    small.experiment_file(tmp_path, small.corpus(tmp_path / "texts"))

    def train(name, *flags):
        answer = small.finish(forked.Child(
            forked.lmrep, "train", f"--config={tmp_path}/small.py", f"--workdir={tmp_path}/{name}",
            "--config.model.dropout=0.1", "--config.model.layers=1", "--config.steps=6", *flags,
            environment=UNSET | {"LMREP_DATA_DIR": str(tmp_path / "data")}))
        assert answer.code == 0, answer
        assert "compiling" in answer.err.splitlines()
        folder = tmp_path / "data" / "compiled"
        programs = {path.name.removesuffix("-cache"): int.from_bytes(
            path.with_name(path.name.removesuffix("-cache") + "-atime").read_bytes(), "little")
            for path in folder.glob("*/*-cache")}  # when JAX last loaded or wrote each
        params = jax.tree.map(np.asarray, lmrep.load(tmp_path / name).params)
        return programs, (tmp_path / name / "metrics.jsonl").read_text(), params

    (none, *uncached), (cold, *compiled), (warm, *loaded) = (
        train("uncached", "--nocompilation_cache"), train("cold"), train("warm"))
    assert not none and {name.partition("-")[0] for name in cold} >= {"jit_train_step", "jit_evaluation_step"}
    assert warm.keys() == cold.keys() and all(warm[name] > time for name, time in cold.items())  # all were loaded
    for metrics, params in (compiled, loaded):
        assert metrics == uncached[0]
        jax.tree.map(np.testing.assert_array_equal, params, uncached[1])
