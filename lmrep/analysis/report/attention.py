"""Attention probabilities for the page: of texts, and of pairs of a source and a target."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lmrep.core.errors import UserError
from lmrep.inference import pair_attention
from lmrep.inference.pair_attention import PairAttention
from lmrep.inference.run import Run

MAX_TOKENS, MIN_TOKENS = 48, 6  # of a text whose attention is shown
TEXTS, PAIRS = 3, 4  # of networks without attention to a source; of others, pairs of a source and a target

Pair = tuple[np.ndarray, np.ndarray]  # the tokens of a source and of its target, int32[s] and int32[t]


# The attention of a text or a pair, as the page's script reads it: {"title": ..., "maps": [`_map`, ...]}.
Attention = dict[str, Any]


def _map(name: str, rows: str, columns: str, queries: Sequence[str], keys: Sequence[str], first: int,
         probabilities: np.ndarray) -> dict[str, Any]:
    """Returns the attention probabilities, float32[l, h, t, s], of all layers and heads for one sequence of queries and
    one of keys.

    Args:
      name: "self-attention", "encoder-decoder attention".
      rows, columns: titles of the axes of queries and keys.
      queries, keys: the tokens that attend, [t], and that are attended to, [s].
      first: the query to show first.
    """
    layers, heads = probabilities.shape[:2]
    weights = np.round(probabilities * 255).astype(np.uint8)  # 255 for 1
    return {"name": name, "rows": rows, "columns": columns, "queries": queries, "keys": keys, "first": first,
            "layers": layers, "heads": heads, "weights": base64.b64encode(weights.tobytes()).decode()}


def _bytes(*probabilities: np.ndarray | None) -> int:
    """Returns the number of characters that probabilities take on the page, in base64."""
    return sum(4 * -(-array.size // 3) for array in probabilities if array is not None)


def of_texts(run: Run, texts: Sequence[str], max_bytes: int) -> list[Attention]:
    """Computes the self-attention of texts until `max_bytes` are used. Long texts are truncated at a word. The page
    first shows the query of a mask, or else of the second token."""
    if "self" not in run.model.heads.attention or not max_bytes:
        return []
    attentions, mask = [], run.tokenizer.specials.get("mask")
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
        attentions.append({"title": " ".join(tokens), "maps": [
            _map("self-attention", "text", "text", tokens, tokens, first, encoded.attention)]})
        max_bytes -= _bytes(encoded.attention)
    return attentions


def of_pairs(run: Run, pairs_of: Callable[[int], Sequence[Pair]], max_bytes: int) -> list[Attention]:
    """Computes all attention of pairs until `max_bytes` are used. A network without attention to a source has the
    self-attention of the sources.

    Args:
      run: a run whose network reads a source.
      pairs_of: length -> pairs of at most about `length` tokens; longer ones are left out.
      max_bytes: size on the page.
    """
    if "cross" not in run.model.heads.attention:
        return of_texts(run, [run.tokenizer.decode(source.tolist()) for source, _ in pairs_of(MAX_TOKENS)[:TEXTS]],
                        max_bytes)
    length, attentions = MAX_TOKENS, []
    while not attentions and length >= MIN_TOKENS:
        pairs = [pair for pair in pairs_of(length) if min(map(len, pair)) > 1 and max(map(len, pair)) <= length][:PAIRS]
        for pair, computed in zip(pairs, pair_attention.of_tokens(run, pairs), strict=True):
            if (size := _bytes(computed.cross, computed.encoder, computed.decoder)) <= max_bytes:
                title = " ⟶ ".join(run.tokenizer.decode(ids[:-1].tolist()) for ids in pair)
                attentions.append({"title": title, "maps": _maps(computed)})
                max_bytes -= size
        length = length * 3 // 4
    return attentions


def _maps(pair: PairAttention) -> list[dict[str, Any]]:
    maps = [_map("encoder-decoder attention", "target", "source", pair.target, pair.source, 0, pair.cross)]
    if pair.encoder is not None:
        maps.append(_map("self-attention of the encoder", "source", "source", pair.source, pair.source, 0,
                         pair.encoder))
    if pair.decoder is not None:
        maps.append(_map("self-attention of the decoder", "target", "target", pair.inputs, pair.inputs,
                         len(pair.inputs) - 1, pair.decoder))
    return maps
