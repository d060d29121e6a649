"""Experiment configs: loading a file with overrides, and the checked records that they become."""
