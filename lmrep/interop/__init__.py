"""Exchange with the world outside: published checkpoints, Flax modules."""
