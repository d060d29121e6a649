"""Sweeps: every setting of a grid, trained with every seed, each run in a process of its own."""
