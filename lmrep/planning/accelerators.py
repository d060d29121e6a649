"""Published power, speed and memory of accelerators, by JAX's name of them (`device.device_kind`)."""

import re
from typing import NamedTuple

GB = 2**30


class Chip(NamedTuple):
    """Numbers of what JAX counts as one device; None where a number is not known."""

    title: str  # name in messages
    memory: float | None = None  # bytes: of TPUs, what programs may allocate; of GPUs, what CUDA reports
    flops: float | None = None  # dense peak in bfloat16, in floating-point operations per second
    bandwidth: float | None = None  # of the chip's memory, bytes per second
    interconnect: float | None = None  # bytes per second that it sends within its slice or host, over all its links
    network: float | None = None  # bytes per second that it sends to other slices or hosts
    dimensions: int = 0  # of the torus that a slice is part of; 0 where every chip of a host reaches every other
    wrap: int = 1  # number of chips along a dimension whose ends are joined
    watts: float | None = None  # GPUs: the default power limit of the board; TPUs: the measured mean


# Numbers of NVIDIA GPUs are those of its data sheets, with peaks without sparsity: half of what some sheets print. The
# A10G, which AWS alone has, and the GeForce, whose peak is with float32 sums, have theirs in
# https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf and in appendix A of
# https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
# A V100, P100 or T4 has no bfloat16. Watts are the default limits, which nvidia-smi shows too; a GH200 has 700 or 900,
# which depends on the host.
#
# Memory of GPUs is what CUDA reports, less than on the data sheet: from the device descriptions of OpenXLA
# (xla/backends/gpu/target_config/specs), and of the H200, L40S and RTX 4090 from the messages of programs that ran out
# of memory. NVLink is 900 GB/s for H100 and H200 and 600 GB/s for A100, PCIe 4.0 x16 is 64 GB/s: both directions
# together, so half of it is sent. The network of a GPU: 400 Gb/s in NVIDIA's DGX H100 and H200, 200 Gb/s in its DGX
# A100, and an eighth of the 400 Gb/s of AWS g6e.48xlarge with 8 L40S. No host of RTX 4090s is standard: theirs is taken
# to have 100 Gb/s for 8.
#
# Numbers of TPUs are from Cloud TPU's documentation. Watts of v3 and v4 are its "measured min/mean/max power" of a
# chip; later chips have none. Memory is what XLA can allocate; the network of a host is divided by its chips.
ACCELERATORS = {
    "H200": Chip("NVIDIA H200", 139.8 * GB, 989e12, 4.8e12, 450e9, 400e9 / 8, watts=700),
    "H200 NVL": Chip("NVIDIA H200 NVL", flops=835e12, watts=600),
    "GH200": Chip("NVIDIA GH200", flops=989e12),
    "H100 80GB HBM3": Chip("NVIDIA H100 SXM", 84_942_979_072, 989e12, 3.35e12, 450e9, 400e9 / 8, watts=700),
    "H100 NVL": Chip("NVIDIA H100 NVL", flops=835e12, watts=400),
    "H100 PCIe": Chip("NVIDIA H100 PCIe", flops=756e12, watts=350),
    "A100-SXM4-40GB": Chip("NVIDIA A100 SXM 40GB", 42_331_013_120, 312e12, 1.555e12, 300e9, 200e9 / 8, watts=400),
    "A100-SXM4-80GB": Chip("NVIDIA A100 SXM 80GB", 85_100_068_864, 312e12, 2.039e12, 300e9, 200e9 / 8, watts=400),
    "A100-PCIE-40GB": Chip("NVIDIA A100 PCIe 40GB", flops=312e12, watts=250),
    "A100 80GB PCIe": Chip("NVIDIA A100 PCIe 80GB", flops=312e12, watts=300),
    "L40S": Chip("NVIDIA L40S", 44.4 * GB, 362e12, 864e9, 32e9, 400e9 / 8 / 8, watts=350),
    "L40": Chip("NVIDIA L40", flops=181e12, watts=300),
    "L4": Chip("NVIDIA L4", flops=121e12, watts=72),
    "GeForce RTX 4090": Chip("NVIDIA RTX 4090", 23.6 * GB, 165.2e12, 1.008e12, 32e9, 100e9 / 8 / 8, watts=450),
    "GeForce RTX 4090 D": Chip("NVIDIA RTX 4090 D"),
    "GeForce RTX 4090 Laptop GPU": Chip("NVIDIA RTX 4090 Laptop"),
    "A10G": Chip("NVIDIA A10G", flops=70e12, watts=300),
    "A10": Chip("NVIDIA A10", flops=125e12, watts=150),
    "T4": Chip("NVIDIA T4", watts=70),
    "V100-SXM2": Chip("NVIDIA V100 SXM2", watts=300),
    "V100-PCIE": Chip("NVIDIA V100 PCIe", watts=250),
    "V100S-PCIE": Chip("NVIDIA V100S PCIe", watts=250),
    "P100-SXM2": Chip("NVIDIA P100 SXM2", watts=300),
    "P100-PCIE": Chip("NVIDIA P100 PCIe", watts=250),
    "TPU v3": Chip("TPU v3", flops=123e12 / 2, watts=220 / 2),  # JAX's device is one of a chip's two cores
    "TPU v4": Chip("TPU v4", flops=275e12, watts=170),
    "TPU v5p": Chip("TPU v5p", 95.74 * GB, 459e12, 2765e9, 600e9, 200e9 / 8 / 4, 3, 4),
    "TPU v5e": Chip("TPU v5e", 15.75 * GB, 197e12, 819e9, 200e9, 200e9 / 8 / 8, 2, 16),
    "TPU v6e": Chip("TPU v6e", 31.25 * GB, 918e12, 1638e9, 400e9, 800e9 / 8 / 8, 2, 16),
}
# What the chips call themselves.
ACCELERATORS |= {"TPU v5": ACCELERATORS["TPU v5p"], "TPU v5 lite": ACCELERATORS["TPU v5e"],
                 "TPU v6 lite": ACCELERATORS["TPU v6e"]}

# Of `lmrep plan --topology`: {name on the command line: name in ACCELERATORS}.
TPUS = {"v5e": "TPU v5e", "v5p": "TPU v5p", "v6e": "TPU v6e"}
GPUS = {"h100": "H100 80GB HBM3", "h200": "H200", "a100-40gb": "A100-SXM4-40GB", "a100-80gb": "A100-SXM4-80GB",
        "l40s": "L40S", "rtx4090": "GeForce RTX 4090"}
UNKNOWN = Chip("unknown")


def known(kind: str) -> Chip:
    """Returns the numbers of the accelerator with the longest name whose words `kind` contains, or `UNKNOWN`.

    A kind such as "RTX A1000" does not contain the word "A100". A part of a GPU ("MIG 3g.20gb") is unknown.
    """
    if _contains(kind, "MIG"):
        return UNKNOWN
    names = [name for name in ACCELERATORS if _contains(kind, name)]
    return ACCELERATORS[max(names, key=len)] if names else UNKNOWN


def _contains(kind: str, name: str) -> bool:
    """Returns whether a device kind contains the words of a name."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", kind, re.IGNORECASE) is not None
