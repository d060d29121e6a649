"""Published power and peak speed of accelerators, by JAX's name of them (`device.device_kind`)."""

import re
from typing import NamedTuple


class Accelerator(NamedTuple):
    """Numbers of an accelerator, for what JAX counts as one device; None where a number is not known."""

    watts: float | None = None  # GPUs: the default power limit of the board; TPUs: the measured mean
    flops: float | None = None  # dense peak in bfloat16, in floating-point operations per second


# Watts of NVIDIA GPUs are from data sheets; nvidia-smi shows the same limits. A GH200 has 700 or 900, which depends on
# the host. Watts of TPU v3 and v4 are the "measured min/mean/max power" of a chip in Cloud TPU's documentation, which
# has none for later chips. Peaks are from data sheets, without sparsity, and from Cloud TPU's documentation. A V100,
# P100 or T4 has no bfloat16.
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
