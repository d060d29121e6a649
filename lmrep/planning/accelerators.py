"""What is published of accelerators: their power and their peak, by what JAX calls them (`device.device_kind`)."""

import re
from typing import NamedTuple


class Accelerator(NamedTuple):
    """A JAX device; None where a number is not known."""

    watts: float | None = None  # of GPUs, the default power limit of the board; of TPUs, the mean that was measured
    flops: float | None = None  # dense peak in bfloat16, in floating-point operations per second


# Watts of NVIDIA: data sheets; nvidia-smi shows the same limits. They are not the same on all hosts of a GH200 (700 or
# 900). Watts of TPU v3 and v4: "measured min/mean/max power" of a chip in Cloud TPU's documentation, which has none of
# later chips. Peaks: data sheets without sparsity, and Cloud TPU's documentation. A V100, P100 or T4 has no bfloat16.
ACCELERATORS = {
    "H200": Accelerator(700, 989e12),
    "H200 NVL": Accelerator(600, 835e12),
    "GH200": Accelerator(None, 989e12),
    "H100 80GB HBM3": Accelerator(700, 989e12),
    "H100 NVL": Accelerator(400, 835e12),
    "H100 PCIe": Accelerator(350, 756e12),
    "A100-SXM4": Accelerator(400, 312e12),
    "A100-PCIE-40GB": Accelerator(250, 312e12),
    "A100 80GB PCIe": Accelerator(300, 312e12),
    "L40S": Accelerator(350),
    "L40": Accelerator(300),
    "L4": Accelerator(72),
    "A10G": Accelerator(300),
    "A10": Accelerator(150),
    "T4": Accelerator(70),
    "V100-SXM2": Accelerator(300),
    "V100-PCIE": Accelerator(250),
    "V100S-PCIE": Accelerator(250),
    "P100-SXM2": Accelerator(300),
    "P100-PCIE": Accelerator(250),
    "TPU v3": Accelerator(220 / 2, 123e12 / 2),  # JAX's device is one of a chip's two cores
    "TPU v4": Accelerator(170, 275e12),
    "TPU v5": Accelerator(None, 459e12),  # what a v5p reports
    "TPU v5p": Accelerator(None, 459e12),
    "TPU v5 lite": Accelerator(None, 197e12),
    "TPU v5e": Accelerator(None, 197e12),
    "TPU v6 lite": Accelerator(None, 918e12),
    "TPU v6e": Accelerator(None, 918e12),
}
UNKNOWN = Accelerator()


def known(kind: str) -> Accelerator:
    """What is known of a device kind: the longest name whose words it contains.

    A kind such as "RTX A1000" does not contain the word "A100". Nothing is known of a part of a GPU ("MIG 3g.20gb").
    """
    if _contains(kind, "MIG"):
        return UNKNOWN
    names = [name for name in ACCELERATORS if _contains(kind, name)]
    return ACCELERATORS[max(names, key=len)] if names else UNKNOWN


def _contains(kind: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", kind, re.IGNORECASE) is not None
