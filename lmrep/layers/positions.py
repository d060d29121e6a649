"""Sinusoidal positions (Vaswani et al., 2017, section 3.5)."""

import numpy as np


def sinusoidal(length: int, d: int) -> np.ndarray:
    """float32[length, d]: sin(p / 10000^(2i/d)) in even columns and the cosine in odd ones."""
    if d % 2:
        raise ValueError(f"sinusoidal positions have an even width; got {d}")
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d).astype(np.float32)
