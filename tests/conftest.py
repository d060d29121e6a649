"""Eight devices for every test, quick compilation (tests check what programs compute, not how fast), and the runs that
many tests share (`tests/runs.py`)."""

import gc
import json
import logging
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

FLAGS = ("--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
         "--xla_llvm_disable_expensive_passes=true")
if metadata.version("jaxlib").startswith("0.10."):  # an XLA that does not know a flag ends the process
    # Compiling by the older of XLA's two code generators for CPUs takes a quarter of the time.
    FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
CACHE = "JAX_COMPILATION_CACHE_DIR"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if FLAGS not in os.environ.get("XLA_FLAGS", ""):  # workers inherit the environment of the first process
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
made = None
if CACHE not in os.environ:
    # Shared by workers and subprocesses: many tests run the same programs.
    os.environ[CACHE] = made = tempfile.mkdtemp(prefix="lmrep-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
# Tracing makes millions of small objects that live on, and every collection looks through XLA's arrays too.
gc.set_threshold(50_000)


def pytest_unconfigure():
    if made:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def package_log():
    """The package's log as it is before a command sets it up, so that no test depends on those before it."""
    log = logging.getLogger("lmrep")
    log.handlers.clear()
    log.setLevel(logging.NOTSET)
    log.propagate = True


@pytest.fixture
def no_compilation_cache():
    """Compiles everything: a program from the cache gives no warnings."""
    import jax  # after the flags above
    from jax.experimental.compilation_cache import compilation_cache

    previous = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", previous)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session", autouse=True)
def shared_runs(tmp_path_factory):
    """Tells `tests/runs.py` where the shared runs lie."""
    from tests import runs  # after the flags above

    runs.base = runs.workers_folder(tmp_path_factory.getbasetemp())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty Hugging Face Hub of this process, and an empty cache."""
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    from tests.hub_stand_in import Hub

    server = Hub(tmp_path / "hf")
    server.patch(monkeypatch)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def small_home(tmp_path_factory) -> Path:
    """A folder of the module's own with the corpus in `texts`, the config file `small.py` and a run of it in `run`
    (checkpoints 4, 8 and 12), its stores in `data`, and what `lmrep train` printed in `printed`."""
    from lmrep.storage import workdir
    from tests import runs, small

    shared = runs.folder("masked")
    home = Path(shutil.copytree(shared, tmp_path_factory.mktemp("small") / "home"))
    small.experiment_file(home, home / "texts")
    for path in (home / "printed", home / "run/config.json"):
        path.write_text(path.read_text().replace(str(shared), str(home)))
    workdir.write_config(home / "run", json.loads((home / "run/config.json").read_text()))
    return home
