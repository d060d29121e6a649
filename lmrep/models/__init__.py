"""Networks: one file per shape, and the table of published sizes."""

from lmrep.models.presets import PRESETS
from lmrep.models.transformer import Config

__all__ = ["PRESETS", "Config"]
