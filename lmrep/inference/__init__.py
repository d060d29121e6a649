"""Trained models in use: encoding, generation, perplexity, evaluation, export."""
