"""Tokenized corpora on disk."""
