"""The batches of `accelerator.py`: random tokens in texts of realistic lengths. Each function returns (lmrep's batches,
those of transformers)."""

import numpy as np
from generation_steps import sources
from training_steps import SENTINELS, SPECIALS, lmrep_batch, mask_tokens

from lmrep.data.formats.packed import best_fit

DOCUMENT = 588  # mean length of a document
# Quantiles of the lengths of sentences, [CLS] and [SEP] included: 27,758 of English Wikipedia in BERT's uncased tokens,
# but for the longest thousandth.
FRACTIONS = 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999
QUANTILES = 3, 6, 12, 17, 20, 23, 27, 31, 37, 45, 54, 76, 115
MULTIPLE = 8  # of padded lengths


def concatenated(system, rng, number=2):
    """Full sequences. lmrep's have documents that do not attend to each other."""
    shape = system.batch_size, system.length
    ours, theirs = [], []
    for _ in range(number):
        tokens = rng.integers(SPECIALS["mask"] + 1, system.config.vocab, shape)
        starts = rng.random(shape) < 1 / DOCUMENT
        starts[:, 0] = True
        index = np.arange(system.length)
        positions = index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
        ours.append(lmrep_batch(tokens, starts.cumsum(1), positions))
        inputs, labels = (tokens, tokens) if system.objective == "causal" else mask_tokens(
            tokens, np.ones_like(tokens), rng)
        theirs.append((inputs, None, labels))
    return ours, theirs


def texts(system, rng, number=2):
    """Full sequences of one text each, for span corruption. Both have the same ones."""
    shape = system.batch_size, system.length
    batches = [lmrep_batch(rng.integers(SPECIALS["mask"] + 1, system.config.vocab - SENTINELS, shape))
               for _ in range(number)]
    return batches, batches


def prompts(system, rng):
    """A batch of padded texts to generate from, the same one for both."""
    batches = [sources(system.config.vocab, system.batch_size, system.length, rng)]
    return batches, batches


def sentence_lengths(rng, number, longest):
    """Lengths of sentences, int[number], those above `longest` cut."""
    return np.interp(rng.uniform(0, FRACTIONS[-1], number), FRACTIONS, QUANTILES).astype(int).clip(3, longest)


def sentences(system, rng, number=3):
    """Sentences of a masked language model: packed into sequences by best fit, and padded to the longest of a batch.
    Batches of both have about as many tokens."""
    b, t = system.batch_size, system.length
    mean = sentence_lengths(rng, 100_000, t).mean()
    lengths = sentence_lengths(rng, int(1.2 * number * b * t / mean) + t, t)
    lengths = -np.sort(-lengths)  # best fit, decreasing
    sequence = best_fit(lengths, t)
    chosen = rng.permutation(sequence.max() + 1)[: number * b].reshape(number, b)
    ours = [lmrep_batch(*_packed(system, rng, [lengths[sequence == i] for i in rows])) for rows in chosen]
    theirs = []
    for _ in range(number):
        lengths = sentence_lengths(rng, max(MULTIPLE, round(b * t / mean / MULTIPLE) * MULTIPLE), t)
        width = min(t, -(-lengths.max() // MULTIPLE) * MULTIPLE)
        real = (np.arange(width) < lengths[:, None]).astype(int)
        tokens = np.where(real, rng.integers(SPECIALS["mask"] + 1, system.config.vocab, real.shape), SPECIALS["pad"])
        tokens[:, 0] = SPECIALS["cls"]
        tokens[np.arange(len(tokens)), lengths - 1] = SPECIALS["sep"]
        inputs, labels = mask_tokens(tokens, real, rng)
        theirs.append((inputs, real, labels))
    return ours, theirs


def _packed(system, rng, rows):
    """(tokens, segment ids, positions) of sequences of sentences of these lengths."""
    tokens, segments, positions = (np.zeros((len(rows), system.length), int) for _ in range(3))
    for i, lengths in enumerate(rows):
        end = lengths.sum()
        starts = np.repeat(lengths.cumsum() - lengths, lengths)
        tokens[i, :end] = rng.integers(SPECIALS["mask"] + 1, system.config.vocab, end)
        tokens[i, lengths.cumsum() - lengths] = SPECIALS["cls"]
        tokens[i, lengths.cumsum() - 1] = SPECIALS["sep"]
        segments[i, :end] = np.repeat(np.arange(len(lengths)) + 1, lengths)
        positions[i, :end] = np.arange(end) - starts
    return tokens, segments, positions


def real_tokens(batches):
    """Mean number of tokens of a batch of either, without padding."""
    masks = [batch["segment_ids"] > 0 if isinstance(batch, dict) else
             np.ones_like(batch[0]) if batch[1] is None else batch[1] for batch in batches]
    return float(np.mean([mask.sum() for mask in masks]))
