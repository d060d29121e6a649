"""A Transformer encoder in numpy and float64, written from the papers one sum at a time: what tests compare with."""

import jax
import numpy as np
from scipy.special import erf

from lmrep.core.params import is_spec

ACTIVATIONS = {
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


def random_params(specs, seed=0, stddev=0.3):
    """float32 parameters of these specs, all of them random: biases are not 0, and norms' scales not 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(0, stddev, s.shape).astype(np.float32), specs, is_leaf=is_spec)


def float64(params):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def layer_norm(p, x, eps):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * p["scale"] + p["bias"]


def linear(p, x):
    return x @ p["kernel"] + p["bias"]


def attention(p, x, allowed, heads, divisor=None):
    """x [b, t, d], allowed bool[b, t, s] -> (y [b, t, d], probabilities [b, h, t, s]). Logits are divided by `divisor`,
    by default the root of the heads' width."""
    rows, length, d = x.shape
    k = d // heads
    query, key, value = (linear(p[name], x) for name in ("query", "key", "value"))
    mixed, maps = np.zeros_like(x), np.zeros((rows, heads, length, length))
    for b in range(rows):
        for h in range(heads):
            part = slice(h * k, (h + 1) * k)
            for t in range(length):
                seen = np.flatnonzero(allowed[b, t])
                scores = np.array([query[b, t, part] @ key[b, s, part] / (divisor or np.sqrt(k)) for s in seen])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                maps[b, h, t, seen] = weights
                mixed[b, t, part] = sum(w * value[b, s, part] for w, s in zip(weights, seen, strict=True))
    return linear(p["output"], mixed), maps


def sinusoids(length, d):
    table = np.zeros((length, d))
    for p in range(length):
        for i in range(d // 2):
            table[p, 2 * i] = np.sin(p / 10000 ** (2 * i / d))
            table[p, 2 * i + 1] = np.cos(p / 10000 ** (2 * i / d))
    return table


def encode(params, c, tokens, types, positions, allowed):
    """(hidden [b, t, d], the embedding output and every layer, attention probabilities of every layer)."""
    p = float64(params)
    x = p["embedding"]["token"][tokens]
    if c.token_types:
        x = x + p["embedding"]["token_type"][types]
    if c.positions == "learned":
        x = x + p["embedding"]["position"][positions + c.position_offset]
    if c.positions == "sinusoidal":
        x = x + sinusoids(100, x.shape[-1])[positions + c.position_offset]
    if c.embedding_norm:
        x = layer_norm(p["embedding_norm"], x, c.norm_eps)
    if "project" in p:
        x = linear(p["project"], x)
    layers, maps, outputs = [x], [], [x]
    shared = {"none": "", "attention": "attention attention_norm", "mlp": "mlp mlp_norm",
              "all": "attention attention_norm mlp mlp_norm"}[c.share].split()
    for i in range(c.layers):
        own = {name: part if name in shared else jax.tree.map(lambda leaf: leaf[i], part)  # noqa: B023
               for name, part in p["layers"].items()}
        divisor = (np.sqrt(c.head_width) if c.scaled_attention else 1) * (i + 1 if c.attention_by_layer else 1)

        def average(x):
            """A sum of all outputs so far, which x joins, with the weights of the next average."""
            outputs.append(x)
            weights = p["layer_weights"][str(len(outputs) - 2)]
            if c.layer_weights == "convex":
                weights = np.exp(weights) / np.exp(weights).sum()
            return sum(w * output for w, output in zip(weights, outputs, strict=True))

        added, probabilities = attention_block(own, x, allowed, c, divisor)
        if c.layer_weights == "dense_blocks":
            added = average(added)
        y = mlp_block(own, added, c)
        if c.layer_weights == "convex":
            y = y - x
        x = y if c.layer_weights == "none" or (c.layer_weights == "convex" and i == c.layers - 1) else average(y)
        layers.append(x)
        maps.append(probabilities)
    return (layer_norm(p["final_norm"], x, c.norm_eps) if c.norm == "pre" else x), layers, maps


def attention_block(p, x, allowed, c, divisor):
    if c.norm == "post":
        y, maps = attention(p["attention"], x, allowed, c.heads, divisor)
        return layer_norm(p["attention_norm"], x + y, c.norm_eps), maps
    y, maps = attention(p["attention"], layer_norm(p["attention_norm"], x, c.norm_eps), allowed, c.heads, divisor)
    return x + y, maps


def mlp_block(p, x, c):
    def feed_forward(x):
        return linear(p["mlp"]["out"], ACTIVATIONS[c.activation](linear(p["mlp"]["in"], x)))

    if c.norm == "post":
        return layer_norm(p["mlp_norm"], x + feed_forward(x), c.norm_eps)
    return x + feed_forward(layer_norm(p["mlp_norm"], x, c.norm_eps))
