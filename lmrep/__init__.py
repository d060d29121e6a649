"""lmrep: pretraining contextual language representations in JAX."""

__version__ = "0.1.0"
