"""An LSTM encoder-decoder with attention (Sutskever et al., 2014; Luong et al., 2015), as CoVe's (McCann et al., 2017).

Bidirectional layers read the source, `Inputs.source`; the decoder's layers start from their last states, forward and
backward side by side. At each step they read a token and, with input feeding, the step's last output, and attend to the
encoder's outputs of their text:

    output = tanh(W [sum_j softmax_j(h W_a e_j) e_j; h])

Without a source, `encode` runs the encoder alone, on `Inputs.tokens`: the vectors of CoVe. With `stacks` "encoder"
there is nothing but the encoder, a network that is conditioned on both sides, at the paths that it has in the other.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Initializer, ParamSpec, Tree
from lmrep.core.sharding import gather_params, look_up, shard
from lmrep.layers import attentive_lstm, dropout, recurrent
from lmrep.layers.attention import AttentionMask
from lmrep.layers.attentive_lstm import Steps
from lmrep.layers.stack import Execution
from lmrep.models.base import Context, Encoded, Heads, HeadStyle, Inputs, Model, ModelDef, Output, State, check_inputs
from lmrep.models.sizes import Sizes, SourceSizes

INPUTS = frozenset({"tokens", "attention_mask", "source"})
SOURCE_INPUTS = INPUTS - {"source"}
DIRECTIONS = {"forward": 1, "backward": -1}


@dataclass(frozen=True)
class Config:
    """Sizes and attention. The defaults are CoVe's."""

    vocab: int = setting(0, "size of the vocabulary of both texts; 0: the tokenizer's size", at_least=0)
    stacks: str = setting("both", "encoder: the encoder alone, under the head of a task or of a masked language model",
                          choices=("both", "encoder"))
    width: int = setting(600, "d, of the decoder; half of it, of each direction of the encoder", at_least=2)
    layers: int = setting(2, "l, the number of layers of each", at_least=1)
    embedding: int = setting(300, "e, the width of the token tables", at_least=1)
    attention: str = setting("general", "how encoder outputs are weighed: by their product with the decoder's state "
                             "and a matrix, without the matrix, or no attention", choices=("general", "dot", "none"))
    input_feeding: bool = setting(True, "whether the decoder reads its last output beside each token")
    tied: str = setting("none", "which of the tables of source, target and output are the same", choices=(
        "none", "embeddings"))
    dropout: float = setting(0.2, "on embeddings, between layers and on the output", at_least=0, below=1)
    max_length: int = setting(0, "tokens of a text at most; 0: any", at_least=0)
    init_range: float = setting(0.1, "initial weights are uniform in [-r, r]", above=0)
    forget_bias: float = setting(0.0, "initial bias of the forget gate")


class Cache(NamedTuple):
    """What the decoder attends to, and its state."""

    outputs: Array  # [b, s, d], of the encoder
    real: Array  # bool[b, s]
    state: Tree  # by layer, as `recurrent.initial_state`
    last: Array  # [b, d], the last output


def check(c: Config) -> None:
    """Raises UserError where fields do not fit each other."""
    if c.width % 2:
        raise UserError(f"model.width is {c.width}; expected an even number, half of it for each direction")
    if c.attention == "none" and c.input_feeding:
        raise UserError("model.attention is none, and model.input_feeding feeds its output to the next step; set "
                        "input_feeding to False")


def build(c: Config, execution: Execution = Execution(), name: str = "seq2seq_lstm") -> Model:
    """Builds the model of config `c`."""
    check(c)
    encoder_alone = c.stacks == "encoder"
    return Model(
        name=name, specs=specs(c), encode=partial(encode, c=c, execution=execution), width=c.width, vocab_size=c.vocab,
        max_length=c.max_length, inputs=SOURCE_INPUTS if encoder_alone else INPUTS,
        conditions_on=frozenset({Context.BOTH if encoder_alone else Context.SOURCE}), output=Output(c.width),
        state=State() if encoder_alone else State(cache=partial(start_cache, c=c, execution=execution),
                                                  decode=partial(decode, c=c, execution=execution)),
        heads=Heads(attention=frozenset(() if encoder_alone or c.attention == "none" else ("cross",))),
        head_style=HeadStyle("tanh", init=recurrent.uniform(c.init_range), pooling="mean"), sizes=sizes(c))


def sizes(c: Config) -> Sizes:
    """Returns the numbers of published formulas."""
    encoder = sum(4 * (c.width // 2) * (d + c.width // 2) * 2 for d in _widths(c))
    if c.stacks == "encoder":
        return Sizes(encoder)
    decoder = sum(4 * c.width * (d + c.width) for d in _decoder_widths(c))
    if c.attention == "none":
        return Sizes(decoder, source=SourceSizes(encoder))
    keys = c.width**2 if c.attention == "general" else 0
    return Sizes(decoder + 2 * c.width**2, source=SourceSizes(encoder + keys, cross=c.width))


def _widths(c: Config) -> list[int]:
    """Returns the input width of each layer of the encoder."""
    return [c.embedding, *[c.width] * (c.layers - 1)]


def _decoder_widths(c: Config) -> list[int]:
    """Returns the input width of each layer of the decoder; [] without one."""
    return [c.embedding + c.input_feeding * c.width, *[c.width] * (c.layers - 1)] if c.stacks == "both" else []


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding`, `source_embedding` where the source has another table, `encoder` and
    `decoder` by layer, and `attention`."""
    init: Initializer = recurrent.uniform(c.init_range)
    table = {"token": ParamSpec((c.vocab, c.embedding), ("vocab", "embed"), init)}
    layer = partial(recurrent.specs, init=init, forget_bias=c.forget_bias)
    encoder = {"source_embedding" if c.tied == "none" else "embedding": table, "encoder": {
        str(i): {name: layer(d, c.width // 2) for name in DIRECTIONS} for i, d in enumerate(_widths(c))}}
    if c.stacks == "encoder":
        return encoder
    attention = {}
    if c.attention != "none":
        attention["output"] = {"kernel": ParamSpec((2 * c.width, c.width), ("embed", None), init)}
    if c.attention == "general":
        attention["weigh"] = {"kernel": ParamSpec((c.width, c.width), ("embed", None), init)}
    return {**encoder, "embedding": table,
            "decoder": {str(i): layer(d, c.width) for i, d in enumerate(_decoder_widths(c))},
            **({"attention": attention} if attention else {})}


# The encoder


class _Source(NamedTuple):
    """A text that the encoder has read."""

    outputs: Array  # [b, s, d], 0 at padding
    layers: tuple[Array, ...]  # the embeddings, and the outputs of each layer
    states: tuple[Tree, ...]  # of each layer, after each position: {direction: {"hidden", "cell"} [b, s, d / 2]}
    segment_ids: Array  # i32[b, s]


def _read(params: Tree, inputs: Inputs, key: Array | None, c: Config, execution: Execution) -> _Source:
    """Runs the encoder on `inputs.tokens`. Raises ValueError like `encode`."""
    check_inputs(inputs, SOURCE_INPUTS, c.max_length)
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens))
    if mask.causal or mask.mask is not None:
        raise ValueError("the encoder reads from both sides; expected an AttentionMask with causal=False and no "
                         "further mask")
    segment_ids = mask.segment_ids
    real = segment_ids > 0
    table = params["source_embedding" if "source_embedding" in params else "embedding"]["token"]
    keys = prng.split(key, c.layers)
    x = shard(look_up(table, inputs.tokens), "batch", None, None).astype(execution.dtype)
    layers, states = [x], []
    for name, layer_key in zip(sorted(params["encoder"]), keys, strict=True):
        x, outputs, after = dropout.apply(layer_key, x, c.dropout), [], {}
        for direction, step in DIRECTIONS.items():
            cell = params["encoder"][name][direction]
            input_specs = recurrent.specs(x.shape[-1], c.width // 2, recurrent.uniform(1.0))
            y, all_states = recurrent.apply(
                gather_params(cell["input"], input_specs["input"]), cell["recurrent"]["kernel"], x[:, ::step],
                recurrent.initial_state(len(x), c.width // 2), real=real[:, ::step],
                starts=recurrent.segment_starts(segment_ids[:, ::step]), all_states=True)
            outputs.append(y[:, ::step])
            after[direction] = {name: value[:, ::step] for name, value in all_states.items()}
        x = jnp.where(real[..., None], jnp.concatenate(outputs, -1), 0)
        layers.append(x)
        states.append(after)
    return _Source(x, tuple(layers), tuple(states), segment_ids)


def _last_states(source: _Source, segments: Array) -> dict[str, Tree]:
    """Returns by layer the encoder's states [b, n, d], of both directions, at the ends of the segments i32[b, n]."""
    same = source.segment_ids[:, None, :] == segments[:, :, None]  # [b, n, s]
    places = jnp.arange(same.shape[-1])
    at = {"forward": jnp.where(same, places, 0).max(-1), "backward": jnp.where(same, places, places[-1]).min(-1)}
    return {str(i): {name: jnp.concatenate([
        jnp.take_along_axis(layer[direction][name], at[direction][..., None], 1) for direction in DIRECTIONS], -1)
        for name in ("cell", "hidden")} for i, layer in enumerate(source.states)}


# The decoder


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: Execution = Execution(),
) -> Encoded:
    """Implements `Model.encode`: returns the outputs of the decoder or, without `inputs.source`, of the encoder, for
    `inputs.tokens`. There is one layer of encoder-decoder attention, of one head. Raises ValueError for a field of
    `inputs` that the network does not take, a mask that does not fit, or too many tokens; `attention` of the encoder
    alone, or of a network that has none; or `layers` of the decoder."""
    check_inputs(inputs, SOURCE_INPUTS if c.stacks == "encoder" else INPUTS, c.max_length)
    if attention and (inputs.source is None or c.attention == "none"):
        raise ValueError("the encoder has no attention" if inputs.source is None else "model.attention is none")
    source_key, embedding_key, *keys = prng.split(key, 3 + c.layers)
    if inputs.source is None:
        source = _read(params, inputs, source_key, c, execution)
        x, outputs, weights = dropout.apply(keys[-1], source.outputs, c.dropout), source.layers, None
    else:
        if layers:
            raise ValueError("the decoder's layers are not returned; leave out layers=True")
        x, weights = _decode_all(params, inputs, source_key, embedding_key, keys, c, execution)
        outputs = ()
    if at is not None:
        x = jnp.take_along_axis(x, at[..., None], axis=1)
    return Encoded(x, outputs if layers else None, cross_attention=weights[None, :, None] if attention else None)


def _decode_all(
    params: Tree, inputs: Inputs, source_key: Array | None, embedding_key: Array | None, keys: list[Array | None],
    c: Config, execution: Execution,
) -> tuple[Array, Array]:
    """Returns the decoder's outputs [b, t, d] for texts whose segments start from the states of the source's, and its
    attention probabilities, as `attentive_lstm.apply`."""
    mask = inputs.attention_mask or AttentionMask(jnp.ones_like(inputs.tokens), causal=True)
    if not mask.causal or mask.mask is not None:
        raise ValueError("the decoder reads from left to right; expected an AttentionMask with causal=True and no "
                         "further mask")
    source, segments = _read(params, inputs.source, source_key, c, execution), mask.segment_ids
    starts = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], 1)
    # Drawn before the loop, which then has no random numbers.
    masks = [dropout.apply(layer_key, jnp.ones((*inputs.tokens.shape, c.width), execution.dtype), c.dropout)
             for layer_key in (keys if keys[0] is not None else [])]
    x = dropout.apply(embedding_key, _embed(params, inputs.tokens, execution), c.dropout)
    visible = (source.segment_ids[:, None, :] == segments[:, :, None]) & (segments > 0)[..., None]
    steps = Steps(x, starts, segments > 0, visible, _last_states(source, segments), masks)
    b = len(x)
    state = {name: recurrent.initial_state(b, c.width) for name in params["decoder"]}
    outputs, weights, _, _ = attentive_lstm.apply(
        params["decoder"], params.get("attention", {}), steps, source.outputs, jnp.zeros((b, c.width), x.dtype), state)
    return outputs, weights


def _embed(params: Tree, tokens: Array, execution: Execution) -> Array:
    return shard(look_up(params["embedding"]["token"], tokens), "batch", None, None).astype(execution.dtype)


# Generation


def start_cache(
    params: Tree, batch_size: int, length: int, source: Inputs | None = None, *, c: Config,
    execution: Execution = Execution(),
) -> Cache:
    """Returns the state before the first token of `batch_size` texts that are generated from `source`, b texts of one
    segment each, a multiple of b: each source is that of consecutive texts. Raises ValueError without one."""
    if source is None:
        raise ValueError("an encoder-decoder generates given a source text; give start_cache its `source`")
    encoded = _read(params, source, None, c, execution)
    b = len(source.tokens)
    state = _last_states(encoded, jnp.ones((b, 1), jnp.int32))
    state = jax.tree.map(lambda x: x[:, 0].astype(jnp.float32), state)
    first = Cache(encoded.outputs, encoded.segment_ids > 0, state, jnp.zeros((b, c.width), execution.dtype))
    return jax.tree.map(lambda x: jnp.repeat(x, batch_size // b, 0), first)


def decode(
    params: Tree, tokens: Array, cache: Cache, length: Array | None = None, *, c: Config,
    execution: Execution = Execution(),
) -> tuple[Array, Cache]:
    """Returns the decoder's output [b, t, d] at the tokens i32[b, t], and the cache after `length` of them or all."""
    b, t = tokens.shape
    real = jnp.broadcast_to(jnp.arange(t) < (t if length is None else length), (b, t))
    unused = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (b, t, c.width)), cache.state)
    visible = jnp.broadcast_to(cache.real[:, None], (b, t, cache.real.shape[1]))
    steps = Steps(_embed(params, tokens, execution), jnp.zeros((b, t), bool), real, visible, unused, [])
    outputs, _, last, state = attentive_lstm.apply(
        params["decoder"], params.get("attention", {}), steps, cache.outputs, cache.last, cache.state)
    return outputs, cache._replace(state=state, last=last)


DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "layers": 1, "width": 128, "embedding": 128, "dropout": 0.0},
    check=check,
    architecture_fields=("attention", "input_feeding", "tied"),
    encoder={"stacks": "encoder"},
)
