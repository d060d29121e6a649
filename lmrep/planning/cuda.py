"""GPUs that are not here: JAX's CUDA plugin compiles for them by a description of the GPU, without a driver."""

import os
from typing import NamedTuple

import jax
from jax.experimental import topologies

from lmrep.planning.accelerators import ACCELERATORS, GPUS


class Target(NamedTuple):
    """What XLA's compiler reads of a GPU: CUDA's device properties."""

    capability: tuple[int, int]  # "compute capability", major and minor
    multiprocessors: int
    lanes: int  # float32 units of a multiprocessor
    threads: int  # of a multiprocessor
    shared: int  # bytes of shared memory of a multiprocessor; a block can have 1,024 less
    cache: int  # bytes of the L2 cache
    clock: float  # GHz


# From the tables of compute capabilities in CUDA's programming guide, and from data sheets.
TARGETS = {
    "h100": Target((9, 0), 132, 128, 2048, 228 * 2**10, 50 * 2**20, 1.98),
    "h200": Target((9, 0), 132, 128, 2048, 228 * 2**10, 50 * 2**20, 1.98),
    "a100-40gb": Target((8, 0), 108, 64, 2048, 164 * 2**10, 40 * 2**20, 1.41),
    "a100-80gb": Target((8, 0), 108, 64, 2048, 164 * 2**10, 40 * 2**20, 1.41),
    "l40s": Target((8, 9), 142, 128, 1536, 100 * 2**10, 96 * 2**20, 2.52),
    "rtx4090": Target((8, 9), 128, 128, 1536, 100 * 2**10, 72 * 2**20, 2.52),
}
# XLA needs the versions of libraries that it would load on the machine with the GPU.
TEXT = """
platform_name: "CUDA"
device_description_str: "NVIDIA {kind}"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
gpu_device_info {{
  name: "NVIDIA {kind}"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {target.multiprocessors}
  fpus_per_core: {target.lanes}
  clock_rate_ghz: {target.clock}
  device_memory_size: {memory:.0f}
  memory_bandwidth: {bandwidth:.0f}
  l2_cache_size: {target.cache}
  shared_memory_per_core: {target.shared}
  shared_memory_per_block_optin: {optin}
  shared_memory_per_block: 49152
  threads_per_core_limit: {target.threads}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  runtime_version: "12.8.0"
  dnn_version: "9.10.0"
}}
"""


def devices(version: str, hosts: int, count: int) -> list[jax.Device]:
    """Returns GPUs to compile for, host by host.

    Args:
      version: name of the GPU, a key of TARGETS.
      hosts: number of hosts.
      count: GPUs of each host.

    Raises:
      NotImplementedError: JAX's CUDA plugin is not installed.
    """
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # CUDA's libraries are not needed to compile
    target, kind = TARGETS[version], GPUS[version]
    chip = ACCELERATORS[kind]
    text = TEXT.format(kind=kind, target=target, major=target.capability[0], minor=target.capability[1],
                       memory=chip.memory, bandwidth=chip.bandwidth, optin=target.shared - 1024)
    return list(topologies.get_topology_desc(
        platform="cuda", target_config=text, topology=f"1x{hosts}x{count}").devices)
