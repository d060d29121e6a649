"""Bidirectional language models of LSTM layers over words, which are read by their characters: ELMo (Peters et al.,
2018), and the language models of TagLM (Peters et al., 2017).

The two directions share the vectors of words (those of TagLM not even these) and nothing else. At each position the
first half of the output is conditioned on the words up to it, the second half on the words from it on; each predicts
the next word of its direction.
"""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, normal
from lmrep.core.sharding import look_up, shard
from lmrep.layers import dropout, highway_cnn, projected_lstm
from lmrep.layers.attention import AttentionMask
from lmrep.layers.projected_lstm import Clip, Reading
from lmrep.layers.recurrent import segment_starts
from lmrep.layers.stack import Execution
from lmrep.models.base import (
    DIRECTIONS,
    MAX_CHARACTERS,
    Context,
    Encoded,
    HeadStyle,
    Inputs,
    Model,
    ModelDef,
    Output,
    State,
    check_inputs,
    token_table,
)
from lmrep.models.sizes import Sizes

CHARACTERS = 262  # ids of characters, 0 for padding after the word
INPUTS = frozenset({"attention_mask", "carry", "backward"})


@dataclass(frozen=True)
class Config:
    """Sizes, what words are read by, and the directions."""

    vocab: int = setting(0, "size of the vocabulary of words; 0: the tokenizer's size", at_least=0)
    reads: str = setting("characters", "the vector of a word: from its characters, or from a table of words",
                         choices=("characters", "words"))
    directions: str = setting("both", "both, or forward alone, which predicts each next word",
                              choices=("both", "forward"))
    layers: int = setting(2, "l, LSTM layers of each direction", at_least=1, at_most=9)
    cell: int = setting(4096, "c, width of the cell", at_least=1)
    width: int = setting(512, "d, width of a direction's output, which is a projection of the cell", at_least=1)
    residual: bool = setting(True, "whether layers after the first add their input to their output")
    clip_cell: float = setting(3.0, "largest absolute value of the cell; 0: any", at_least=0)
    clip_output: float = setting(3.0, "largest absolute value of the projection; 0: any", at_least=0)
    character_width: int = setting(16, "of a character's vector", at_least=1)
    filters: tuple[int, ...] = setting((32, 32, 64, 128, 256, 512, 1024), "numbers of filters that read 1, 2, ... "
                                       "characters")
    highways: int = setting(2, "highway layers over the filters", at_least=0, at_most=9)
    activation: str = setting("relu", "of the filters", choices=tuple(highway_cnn.ACTIVATIONS))
    shared: bool = setting(True, "whether both directions have the same vectors of words; if not, they are two "
                           "language models, as in TagLM")
    tied: bool = setting(False, "whether the output layer uses the table of words (reads=words)")
    dropout: float = setting(0.1, "on the input of each layer and on the output", at_least=0, below=1)
    max_length: int = setting(0, "words of a sequence at most; 0: any", at_least=0)

    @property
    def names(self) -> tuple[str, ...]:
        """The directions by name."""
        return DIRECTIONS[: 2 if self.directions == "both" else 1]


def check(c: Config) -> None:
    """Raises UserError where fields do not fit each other."""
    if not 0 < len(c.filters) <= MAX_CHARACTERS or min(c.filters) < 1:
        raise UserError(f"model.filters is {c.filters}; expected 1 to {MAX_CHARACTERS} numbers of filters, 1 or more "
                        "each")
    if c.tied and c.reads == "characters":
        raise UserError("model.tied is true, and model.reads characters: there is no table of words to share; set "
                        "--config.model.reads=words or --config.model.tied=false")
    if c.tied and not c.shared and c.directions == "both":
        raise UserError("model.tied is true, and model.shared false: the output layer takes one table of words; set "
                        "--config.model.shared=true or --config.model.tied=false")


def build(c: Config, execution: Execution = Execution(), name: str = "bilstm") -> Model:
    """Builds the network of config `c`."""
    both = c.directions == "both"
    reads = "characters" if c.reads == "characters" else "tokens"
    return Model(
        name=name,
        specs=specs(c),
        encode=partial(encode, c=c, execution=execution),
        width=c.width * len(c.names),
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=(INPUTS if both else INPUTS - {"backward"}) | {"tokens", reads},
        conditions_on=frozenset({Context.BOTH, Context.EACH_SIDE} if both else {Context.LEFT, Context.EACH_SIDE}),
        output=Output(c.width, token_table if c.tied else None, directions=len(c.names)),
        state=State(partial(initial_state, c=c)),
        head_style=HeadStyle("tanh", init=normal(c.width**-0.5), pooling="first" if both else "last"),
        sizes=Sizes(len(c.names) * c.layers * c.cell * (8 * c.width + c.width)),
    )


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding`, by direction unless they share it, and `layers`, by number and direction."""
    if c.reads == "words":
        embedding = {"token": ParamSpec((c.vocab, c.width), ("vocab", "embed"), normal(c.width**-0.5))}
    else:
        embedding = highway_cnn.specs(CHARACTERS, c.character_width, c.filters, c.highways, c.width, c.activation)
    if not c.shared and len(c.names) > 1:
        embedding = dict.fromkeys(c.names, embedding)
    layer = projected_lstm.specs(c.width, c.cell, c.width)
    return {"embedding": embedding, "layers": {str(i): dict.fromkeys(c.names, layer) for i in range(c.layers)}}


def initial_state(batch_size: int, *, c: Config) -> Tree:
    """Zeros: for each direction and layer `hidden` float32 [b, d] and `cell` float32 [b, c]."""
    return {name: {str(i): projected_lstm.initial_state(batch_size, c.cell, c.width) for i in range(c.layers)}
            for name in c.names}


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: Execution = Execution(),
) -> Encoded:
    """Implements `Model.encode`: returns [forward; backward] at each position.

    The backward direction reads the same text from its end, or `inputs.backward`, another text in the order in which it
    is read, at whose positions the second half then is. States are reset where the segment id changes and kept at
    padding (id 0); each direction continues from its part of `inputs.carry`. Outputs are 0 at padding.

    `layers` are the vectors of words, once for each direction, and the layers' outputs. `hidden` is after dropout.

    Raises ValueError for a field of `inputs` that the network does not take, or `attention`.
    """
    check_inputs(inputs, INPUTS | {"tokens", "characters"}, c.max_length)
    if attention:
        raise ValueError("a recurrent network has no attention probabilities; leave out attention=True")
    state = initial_state(len(inputs.tokens), c=c) if inputs.carry is None else inputs.carry
    apart = inputs.backward is not None
    sources = [inputs, inputs.backward if apart else inputs][: len(c.names)]
    steps = [1, 1 if apart else -1][: len(c.names)]  # the order in which a source is read
    masks = [source.attention_mask or AttentionMask(jnp.ones_like(source.tokens)) for source in sources]
    if any(mask.mask is not None for mask in masks):
        raise ValueError("a recurrent network reads all words; expected an AttentionMask without a further mask")
    ids = [mask.segment_ids[:, ::step] for mask, step in zip(masks, steps, strict=True)]
    real, starts = [segment_ids > 0 for segment_ids in ids], list(map(segment_starts, ids))
    once = c.shared and not apart  # whether one text is read with the same vectors in both directions
    words = _embed(params, sources[:1] if once else sources, c, execution)
    xs = [x[:, ::step] for x, step in zip(words * len(steps) if once else words, steps, strict=True)]

    def in_order(xs: list[Array]) -> Array:
        """Joins [b, t, d] of each direction as it was read -> [b, t, 2 d], 0 at padding."""
        return jnp.concatenate([jnp.where(seen[..., None], x, 0)[:, ::step]
                                for x, seen, step in zip(xs, real, steps, strict=True)], -1)

    outputs, carry = [in_order(xs)], {name: {} for name in c.names}
    *layer_keys, output_key = prng.split(key, c.layers + 1)
    for number, layer_key in zip(map(str, range(c.layers)), layer_keys, strict=True):
        keys = prng.split(layer_key, len(xs))
        xs = [dropout.apply(direction_key, x, c.dropout) for direction_key, x in zip(keys, xs, strict=True)]
        layer = params["layers"][number]
        results = projected_lstm.apply([
            Reading(layer[name]["input"], layer[name]["recurrent"]["kernel"], layer[name]["projection"]["kernel"], x,
                    state[name][number], seen, first)
            for name, x, seen, first in zip(c.names, xs, real, starts, strict=True)], Clip(c.clip_cell, c.clip_output))
        add = c.residual and number != "0"
        xs = [x + y if add else y for x, (y, _) in zip(xs, results, strict=True)]
        for name, (_, last) in zip(c.names, results, strict=True):
            carry[name][number] = last
        outputs.append(in_order(xs))
    hidden = dropout.apply(output_key, outputs[-1], c.dropout)
    if at is not None:
        hidden = jnp.take_along_axis(hidden, at[..., None], axis=1)
    return Encoded(hidden, tuple(outputs) if layers else None, carry=carry)


def _embed(params: Tree, sources: list[Inputs], c: Config, execution: Execution) -> list[Array]:
    """Returns the vectors of the words of each text, [b, t, d]."""
    tables, layout = params["embedding"], specs(c)["embedding"]
    if c.names[0] in tables:
        return [_vectors(tables[name], layout[name], [source], c, execution)[0]
                for name, source in zip(c.names, sources, strict=True)]
    return _vectors(tables, layout, sources, c, execution)


def _vectors(params: Tree, layout: Tree, sources: list[Inputs], c: Config, execution: Execution) -> list[Array]:
    if c.reads == "words":
        return [shard(look_up(params["token"], source.tokens), "batch", None, None).astype(execution.dtype)
                for source in sources]
    if any(source.characters is None for source in sources):
        raise ValueError("this network reads the characters of words; expected Inputs.characters")
    # In one call, so that words that are in several texts are computed once.
    characters = jnp.concatenate([source.characters for source in sources], 1)
    words = highway_cnn.apply(params, layout, characters, execution.dtype, c.activation)
    return jnp.split(words, len(sources), 1)


DEFINITION = ModelDef(
    Config, build, check=check,
    tiny={"vocab": 0, "cell": 256, "width": 64, "filters": (16, 16, 32, 64), "highways": 1, "dropout": 0.0},
    architecture_fields=("reads", "directions", "shared", "residual", "clip_cell", "clip_output", "activation"),
)
