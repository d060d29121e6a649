"""Eight devices for every test, and quick compilation: tests check what programs compute, not how fast."""

import gc
import os
import shutil
import tempfile
from importlib import metadata

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
