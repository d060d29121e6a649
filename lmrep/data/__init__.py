"""From documents to batches: corpora, sentence splitting, tokenizers, token stores, formats (plans of examples over a
store), mixtures of several corpora, and the loader.

Imports stay light, since every command imports this package: modules that read or write TFDS import it when needed.
"""
