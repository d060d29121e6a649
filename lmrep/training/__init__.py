"""The trainer, which is independent of models and objectives."""
