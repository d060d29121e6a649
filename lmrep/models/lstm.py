"""Recurrent language models: layers of LSTM cells (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et
al., 2000) or of plain tanh cells (Elman, 1990; Mikolov et al., 2010) that read from left to right.

Dropout acts on the connections between layers and never on those between time steps (Zaremba et al., 2014).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.params import Array, Initializer, ParamSpec, Tree
from lmrep.core.sharding import gather_params, look_up, shard
from lmrep.layers import dropout, recurrent
from lmrep.layers.attention import AttentionMask
from lmrep.layers.stack import REMAT, Execution
from lmrep.models import chunks
from lmrep.models.base import Context, Encoded, HeadStyle, Inputs, Model, ModelDef, Output, State, check_inputs
from lmrep.models.sizes import Sizes

INPUTS = frozenset({"tokens", "attention_mask", "carry", "vectors"})


@dataclass(frozen=True)
class Config:
    """Sizes, the cell, and how the output layer gets its table."""

    vocab: int = setting(0, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    width: int = setting(650, "d, the width of the hidden state", at_least=1)
    layers: int = setting(2, "l, the number of layers", at_least=1, at_most=3)
    embedding: int = setting(0, "e, the width of the token table; 0: d", at_least=0)
    cell: str = setting("lstm", "LSTM cells, or plain tanh cells", choices=tuple(recurrent.GATES))
    tied: bool = setting(True, "whether the output layer uses the token table (Press and Wolf, 2017)")
    dropout: float = setting(0.5, "on embeddings, between layers and on the output", at_least=0, below=1)
    max_length: int = setting(0, "tokens of a sequence at most; 0: any", at_least=0)
    init_range: float = setting(0.0, "initial weights are uniform in [-r, r]; 0: r = 1 / sqrt(d)", at_least=0)
    forget_bias: float = setting(1.0, "initial bias of the forget gate (Jozefowicz et al., 2015: 1)")
    clip_cell: float = setting(0.0, "largest absolute value of the cell of an LSTM; 0: any", at_least=0)

    @property
    def table_width(self) -> int:
        """Width of the token table."""
        return self.embedding or self.width


def build(c: Config, execution: Execution = Execution(), name: str = "lstm") -> Model:
    """Builds the model of config `c`."""
    bound = partial(encode, c=c, execution=execution)
    return Model(
        name=name,
        specs=specs(c),
        encode=bound,
        width=c.width,
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=INPUTS,
        conditions_on=frozenset({Context.LEFT}),
        output=Output(c.table_width, output_embedding) if c.tied else Output(c.width),
        state=State(partial(initial_state, c=c),
                    cache=lambda params, batch_size, max_length: initial_state(batch_size, c=c),
                    decode=partial(decode, encode=bound),
                    read=partial(chunks.read, encode=bound, initial=partial(initial_state, c=c))),
        head_style=HeadStyle("tanh", init=uniform(c), pooling="last"),
        sizes=Sizes(sum(recurrent.GATES[c.cell] * c.width * (d_in + c.width)
                        for d_in in (c.table_width, *[c.width] * (c.layers - 1)))),
    )


def uniform(c: Config) -> Initializer:
    """Returns the distribution of initial weights."""
    return recurrent.uniform(c.init_range or c.width**-0.5)


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding`, and `layers` by number, whose input widths may differ."""
    return {
        "embedding": {"token": ParamSpec((c.vocab, c.table_width), ("vocab", "embed"), uniform(c))},
        "layers": {str(i): recurrent.specs(c.width if i else c.table_width, c.width, uniform(c), c.cell, c.forget_bias)
                   for i in range(c.layers)},
    }


def initial_state(batch_size: int, *, c: Config) -> Tree:
    """Zeros: for each layer `hidden` and, of LSTM cells, `cell`, float32 [b, d] each."""
    return {str(i): recurrent.initial_state(batch_size, c.width, c.cell) for i in range(c.layers)}


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: Execution = Execution(),
) -> Encoded:
    """Implements `Model.encode`: returns representations of the tokens up to each position.

    The state is reset where the segment id changes, so that packed segments are independent, and kept at padding (id
    0). The first position continues from `inputs.carry`. `hidden` is after dropout. The layers are never scanned.

    Raises ValueError for a field of `inputs` that the network does not take, a mask that is not causal, or `attention`.
    """
    mask = causal_mask(inputs, attention, c.max_length)
    state = initial_state(inputs.tokens.shape[0], c=c) if inputs.carry is None else inputs.carry
    real = mask.segment_ids > 0
    run = partial(recurrent.apply, cell=c.cell, clip_cell=c.clip_cell, real=real,
                  starts=recurrent.segment_starts(mask.segment_ids))
    if execution.remat != "none":
        run = jax.checkpoint(run, policy=REMAT[execution.remat])
    stored, params = params, gather_params(params, specs(c))
    embedding_key, *layer_keys = prng.split(key, 1 + c.layers)
    x = shard(look_up(stored["embedding"]["token"], inputs.tokens), "batch", None, None)
    outputs, carry = [x.astype(execution.dtype)], {}
    x = dropout.apply(embedding_key, outputs[0], c.dropout)
    if inputs.vectors is not None:
        x = inputs.vectors(x)
    for (name, layer), layer_key in zip(sorted(params["layers"].items()), layer_keys, strict=True):
        x, carry[name] = run(layer["input"], stored["layers"][name]["recurrent"]["kernel"], x, state[name])
        outputs.append(x)
        x = dropout.apply(layer_key, x, c.dropout)
    if at is not None:
        x = jnp.take_along_axis(x, at[..., None], axis=1)
    return Encoded(x, tuple(outputs) if layers else None, carry=carry)


def causal_mask(inputs: Inputs, attention: bool, max_length: int) -> AttentionMask:
    """Returns the segments of `inputs`. Raises ValueError as `encode`."""
    check_inputs(inputs, INPUTS)
    if attention:
        raise ValueError("a recurrent network has no attention probabilities; leave out attention=True")
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens), causal=True)
    if not mask.causal or mask.mask is not None:
        raise ValueError("a recurrent network reads from left to right; expected an AttentionMask with causal=True and "
                         "no further mask")
    if 0 < max_length < inputs.tokens.shape[1]:
        raise ValueError(f"got {inputs.tokens.shape[1]} tokens; the model takes {max_length} at most")
    return mask


def output_embedding(params: Tree, key: Array | None = None) -> Array:
    """Returns the token table [v, e]."""
    return params["embedding"]["token"]


def decode(
    params: Tree, tokens: Array, cache: Tree, length: Array | None = None, *, encode: Callable[..., Encoded],
) -> tuple[Array, Tree]:
    """Continues a sequence: the output [b, t, d] at the next tokens i32[b, t], and the state after the first `length`
    tokens (by default, after all). `cache` is a state as `initial_state` makes it; `encode` is the network's."""
    real = jnp.arange(tokens.shape[1]) < (tokens.shape[1] if length is None else length)
    mask = AttentionMask(jnp.broadcast_to(real.astype(jnp.int32), tokens.shape), causal=True)
    encoded = encode(params, Inputs(tokens=tokens, attention_mask=mask, carry=cache))
    return encoded.hidden, encoded.carry


DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "width": 256, "layers": 1, "embedding": 128, "dropout": 0.0},
    architecture_fields=("cell", "clip_cell"),
)
