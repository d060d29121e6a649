"""From documents to batches: corpora, sentences, tokenizers, token stores, formats (plans over a store), mixtures of
several corpora, the loader.

Imports stay light, for the sake of the command line: what reads or writes TFDS imports it when it is used.
"""
