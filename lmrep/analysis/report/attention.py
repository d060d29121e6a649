"""Attention probabilities for the page: of texts, and of pairs of a source and a target, as many as fit in it."""

import base64
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lmrep.core.errors import UserError
from lmrep.inference import pair_attention
from lmrep.inference.pair_attention import PairAttention
from lmrep.inference.run import Run

MAX_TOKENS, MIN_TOKENS = 48, 6  # of a text whose attention is shown
TEXTS, PAIRS = 3, 4  # of networks without attention to a source; of others, pairs of a source and a target

Pair = tuple[np.ndarray, np.ndarray]  # the tokens of a source and of its target, int32[s] and int32[t]


class Map(NamedTuple):
    """The attention probabilities of all layers and heads."""

    name: str  # which attention it is
    rows: str  # what queries are, for the axis
    columns: str  # what keys are
    queries: Sequence[str]  # the tokens of queries, [t]
    keys: Sequence[str]  # and of keys, [s]
    first: int  # the query to show first
    layers: int  # l
    heads: int  # h
    weights: str  # uint8[l, h, t, s] in base64, 255 for 1


class Attention(NamedTuple):
    """The attention of a text, or of a pair."""

    title: str
    maps: Sequence[Map]


def _map(name: str, rows: str, columns: str, queries: Sequence[str], keys: Sequence[str], first: int,
         probabilities: np.ndarray) -> Map:
    """`probabilities` are f32[l, h, t, s]."""
    weights = np.round(probabilities * 255).astype(np.uint8)
    return Map(name, rows, columns, queries, keys, first, *weights.shape[:2],
               base64.b64encode(weights.tobytes()).decode())


def _bytes(*probabilities: np.ndarray | None) -> int:
    """What they take on the page."""
    return sum(4 * -(-each.size // 3) for each in probabilities if each is not None)


def of_texts(run: Run, texts: Sequence[str], max_bytes: int) -> list[Attention]:
    """The self-attention of as many texts as fit in `max_bytes`; long texts are truncated at a word. The first query is
    a mask, or the token after the text's beginning."""
    if "self" not in run.model.heads.attention or not max_bytes:
        return []
    found, mask = [], run.tokenizer.specials.get("mask")
    for text in dict.fromkeys(texts):
        words, encoded = text.split(), None
        while words:
            try:
                encoded = run.encode([" ".join(words)], attention=True)[0]
            except UserError:  # longer than the model
                encoded = None
            if encoded is not None and len(encoded.tokens) <= MAX_TOKENS and _bytes(encoded.attention) <= max_bytes:
                break
            words = words[: len(words) * 3 // 4]
        if not words:
            break
        tokens = encoded.tokens
        first = tokens.index(mask) if mask in tokens else min(1, len(tokens) - 1)
        found.append(Attention(" ".join(tokens), [
            _map("self-attention", "text", "text", tokens, tokens, first, encoded.attention)]))
        max_bytes -= _bytes(encoded.attention)
    return found


def of_pairs(run: Run, pairs_of: Callable[[int], Sequence[Pair]], max_bytes: int) -> list[Attention]:
    """All attention of as many pairs as fit in `max_bytes`.

    Args:
      run: of a network that reads a source.
      pairs_of: length -> pairs of about as many tokens at most, of which longer texts are left out.
      max_bytes: on the page.
    """
    if "cross" not in run.model.heads.attention:
        return of_texts(run, [run.tokenizer.decode(source.tolist()) for source, _ in pairs_of(MAX_TOKENS)[:TEXTS]],
                        max_bytes)
    length, found = MAX_TOKENS, []
    while not found and length >= MIN_TOKENS:
        pairs = [pair for pair in pairs_of(length) if min(map(len, pair)) > 1 and max(map(len, pair)) <= length][:PAIRS]
        for pair, each in zip(pairs, pair_attention.of_tokens(run, pairs), strict=True):
            if (size := _bytes(each.cross, each.encoder, each.decoder)) <= max_bytes:
                title = " ⟶ ".join(run.tokenizer.decode(ids[:-1].tolist()) for ids in pair)
                found.append(Attention(title, _maps(each)))
                max_bytes -= size
        length = length * 3 // 4
    return found


def _maps(pair: PairAttention) -> list[Map]:
    maps = [_map("encoder-decoder attention", "target", "source", pair.target, pair.source, 0, pair.cross)]
    if pair.encoder is not None:
        maps.append(_map("self-attention of the encoder", "source", "source", pair.source, pair.source, 0,
                         pair.encoder))
    if pair.decoder is not None:
        maps.append(_map("self-attention of the decoder", "target", "target", pair.inputs, pair.inputs,
                         len(pair.inputs) - 1, pair.decoder))
    return maps
