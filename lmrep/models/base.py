"""What the rest of the project knows of a model."""

from collections.abc import Callable
from typing import Any, NamedTuple

from lmrep.core.params import Array, Initializer, Tree
from lmrep.layers.attention import Visibility


class Inputs(NamedTuple):
    """What a model may be given. A model takes the fields that its `Model.takes` names and refuses others."""

    tokens: Array | None = None  # i32[b, t]
    characters: Array | None = None  # i32[b, t, c]
    token_type_ids: Array | None = None  # i32[b, t], BERT's A and B
    positions: Array | None = None  # i32[b, t]; by default 0, 1, 2, ...
    visibility: Visibility | None = None  # by default every position sees every other
    queries: Any = None  # where a second stream asks (XLNet)
    source: Any = None  # the other sequence of an encoder-decoder
    carry: Tree = None  # recurrent state or memory


class Encoded(NamedTuple):
    """What a model gives."""

    hidden: Array  # [b, t, d], the last layer's output; [b, m, d] where only m positions are asked for
    layers: Array | None = None  # [l + 1, b, t, d]: the embedding output and every layer, where asked for
    attention: Array | None = None  # [l, b, h, t, s], where asked for
    queries: Array | None = None  # the second stream's output
    carry: Tree = None  # the state to go on from


class Model(NamedTuple):
    """A model with its config bound, as pure functions."""

    name: str
    specs: Tree
    encode: Callable[..., Encoded]  # (params, Inputs, key=None, *, at=None, layers=False, attention=False)
    output_table: Callable[..., Array | None]
    # (params, key=None) -> the table [v, e] that a tied softmax uses; with `encode`'s key, as dropout left it there
    takes: frozenset[str]  # names of `Inputs` fields
    width: int  # d
    vocabulary: int  # rows of the token table
    length: int  # longest sequence; 0 for any
    # The house style of the network, which heads on top of it follow.
    activation: str = "gelu"
    norm_eps: float = 1e-12
    init: Initializer | None = None
    narrower: Callable[..., "Model"] | None = None  # (share of the width, layers or 0) -> one over tables like these
    # Reading on from left to right, for generation; None where a network cannot.
    start_cache: Callable[[int, int], Tree] | None = None  # (rows, most tokens) -> the cache before the first
    decode: Callable[..., tuple[Array, Tree]] | None = None
    # (params, the next tokens i32[b, t], cache, how many of the t are real or None for all) -> (hidden [b, t, d], the
    # cache with them)


def refuse(inputs: Inputs, takes: frozenset[str]) -> None:
    """Raises ValueError where `inputs` has a field that a model does not take."""
    if extra := [name for name, value in inputs._asdict().items() if value is not None and name not in takes]:
        raise ValueError(f"this model takes {', '.join(sorted(takes))}; it was given {', '.join(extra)} too")
