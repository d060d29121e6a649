"""The sum of token, position and token-type embeddings that a Transformer starts from; sinusoidal positions."""

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.core import prng
from lmrep.core.params import Array, Initializer, ParamSpec, Tree, normal, zeros
from lmrep.core.sharding import look_up
from lmrep.layers import dropout


def specs(
    vocab: int, d: int, *, length: int = 0, token_types: int = 0, init: Initializer = normal(),
    position_init: Initializer | None = None, delta: bool = False,
) -> Tree:
    """Tables of width d: `vocab` tokens, `length` learned positions and `token_types`, 0 for none of them. Positions
    are initialized as the others where `position_init` is None. `delta` is a table of zeros that is added to that of
    tokens, which then gets no gradient: another network trains it (He et al., 2023, DeBERTaV3, section 3.3)."""
    tables = {"token": ParamSpec((vocab, d), ("vocab", "embed"), init)}
    if delta:
        tables["delta"] = ParamSpec((vocab, d), ("vocab", "embed"), zeros)
    if length:
        tables["position"] = ParamSpec((length, d), (None, "embed"), position_init or init)
    if token_types:
        tables["token_type"] = ParamSpec((token_types, d), (None, "embed"), init)
    return tables


def apply(
    params: Tree, tokens: Array, positions: Array, token_type_ids: Array | None, *, sinusoidal_length: int = 0,
    key: Array | None = None, rate: float = 0.0,
) -> Array:
    """tokens, positions, token_type_ids i32[b, t] -> float32 [b, t, d].

    `positions` index the position table or, without one, the first `sinusoidal_length` fixed sinusoids, unless that is
    0. Token types default to 0.

    With a `key`, dropout acts on the entries of the tables before the lookup, so that an entry is dropped wherever it
    occurs; `dropped_table` returns the token table with the same dropout.
    """
    token_key, position_key, type_key = prng.split(key, 3)
    x = look_up(params["token"], tokens)
    if "delta" in params:
        x = jax.lax.stop_gradient(x) + look_up(params["delta"], tokens)
    x = dropout.apply_to_rows(token_key, x, tokens, rate)
    if "token_type" in params:
        types = jnp.zeros_like(tokens) if token_type_ids is None else token_type_ids
        # A product with one-hot codes: its gradient is a product too, not a scatter.
        table = dropout.apply(type_key, params["token_type"], rate)
        x += jnp.einsum("btr,rd->btd", jnp.eye(table.shape[0], dtype=x.dtype)[types], table)
    if "position" in params:
        x += dropout.apply_to_rows(position_key, jnp.take(params["position"], positions, axis=0), positions, rate)
    elif sinusoidal_length:
        x += jnp.asarray(sinusoidal(sinusoidal_length, x.shape[-1]))[positions]
    return x


def sinusoidal(length: int, d: int) -> np.ndarray:
    """Returns float32[length, d]: sin(p / 10000^(2i/d)) in even columns and the cosine in odd ones (Vaswani et al.,
    2017, section 3.5)."""
    if d % 2:
        raise ValueError(f"sinusoidal positions have an even width; got {d}")
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, d).astype(np.float32)


def token_table(params: Tree) -> Array:
    """Returns the table [v, d] by which `apply` looks up tokens, of the same parameters."""
    return jax.lax.stop_gradient(params["token"]) + params["delta"] if "delta" in params else params["token"]


def dropped_table(table: Array, key: Array | None, rate: float) -> Array:
    """Returns the token table [v, d] after the dropout that `apply` uses with this key."""
    return dropout.apply(prng.split(key, 3)[0], table, rate)
