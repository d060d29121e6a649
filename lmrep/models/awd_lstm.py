"""AWD-LSTM (Merity et al., 2018), the network of ULMFiT (Howard and Ruder, 2018): an LSTM language model with dropout
on its recurrent weights, whose last layer has the width of the token table.

A forward pass draws each mask once, and all time steps share it: the masks of hidden-to-hidden weights (Wan et al.,
2013), of word types, and of the vectors between layers (Gal and Ghahramani, 2016). The output layer uses the token
table without dropout (Press and Wolf, 2017).
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.core.sharding import gather_params, look_up, shard
from lmrep.layers import dropout, recurrent
from lmrep.layers.stack import REMAT, Execution
from lmrep.models import chunks, lstm
from lmrep.models.base import Context, Encoded, HeadStyle, Inputs, Model, ModelDef, NetworkLoss, Output, State
from lmrep.models.sizes import Sizes


@dataclass(frozen=True)
class Config:
    """Sizes, dropout and penalties; the defaults are those of the Penn Treebank."""

    vocab: int = setting(0, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    width: int = setting(1150, "d, the width of the layers but the last", at_least=1)
    layers: int = setting(3, "l, the number of layers", at_least=1)
    embedding: int = setting(400, "e, the width of the token table and of the last layer", at_least=1)
    biases: int = setting(2, "bias vectors of a layer: 2 as in PyTorch, which adds them, or 1", at_least=1, at_most=2)
    dropout: float = setting(0.4, "on the output", at_least=0, below=1)
    hidden_dropout: float = setting(0.25, "between layers", at_least=0, below=1)
    input_dropout: float = setting(0.4, "on the input of the first layer", at_least=0, below=1)
    embedding_dropout: float = setting(0.1, "on word types: all occurrences of a word in a batch are dropped",
                                       at_least=0, below=1)
    weight_dropout: float = setting(0.5, "on the hidden-to-hidden weights", at_least=0, below=1)
    ar: float = setting(2.0, "weight of the mean square of the outputs in the loss (activation regularization)",
                        at_least=0)
    ar_of: str = setting("dropped", "the outputs in `ar`: after dropout, or raw, before it",
                         choices=("dropped", "raw"))
    tar: float = setting(1.0, "weight of the mean square of the difference of the raw outputs at consecutive positions "
                         "in the loss (temporal activation regularization)", at_least=0)
    max_length: int = setting(0, "tokens of a sequence at most; 0: any", at_least=0)

    @property
    def widths(self) -> list[int]:
        """Width of the table and of each layer."""
        return [self.embedding, *[self.width] * (self.layers - 1), self.embedding]


def build(c: Config, execution: Execution = Execution(), name: str = "awd_lstm") -> Model:
    """Builds the model of config `c`."""
    bound = partial(encode, c=c, execution=execution)
    return Model(
        name=name,
        specs=specs(c),
        encode=bound,
        width=c.embedding,
        vocab_size=c.vocab,
        max_length=c.max_length,
        inputs=lstm.INPUTS,
        conditions_on=frozenset({Context.LEFT}),
        output=Output(c.embedding, lstm.output_embedding),
        state=State(partial(initial_state, c=c),
                    cache=lambda params, batch_size, max_length: initial_state(batch_size, c=c),
                    decode=partial(lstm.decode, encode=bound),
                    read=partial(chunks.read, encode=bound, initial=partial(initial_state, c=c),
                                 losses=partial(chunk_losses, c=c))),
        head_style=HeadStyle("relu", init=recurrent.uniform(c.embedding**-0.5), pooling="last"),
        sizes=Sizes(sum(4 * d * (d_in + d) for d_in, d in zip(c.widths, c.widths[1:], strict=False))),
    )


def specs(c: Config) -> Tree:
    """Returns the parameters: `embedding`, and `layers` by number, with PyTorch's initial values: uniform up to 1 /
    sqrt(d), biases too. A second bias is `recurrent/bias`."""
    layers = {}
    for i, (d_in, d) in enumerate(zip(c.widths, c.widths[1:], strict=False)):
        layer = recurrent.specs(d_in, d, recurrent.uniform(d**-0.5))
        layer["input"]["bias"] = bias = layer["input"]["bias"]._replace(init=recurrent.uniform(d**-0.5))
        layer["recurrent"] |= {"bias": bias} if c.biases == 2 else {}
        layers[str(i)] = layer
    table = ParamSpec((c.vocab, c.embedding), ("vocab", "embed"), recurrent.uniform(0.1))
    return {"embedding": {"token": table}, "layers": layers}


def initial_state(batch_size: int, *, c: Config) -> Tree:
    """Zeros: for each layer `hidden` and `cell`, float32 [b, its width] each."""
    return {str(i): recurrent.initial_state(batch_size, d) for i, d in enumerate(c.widths[1:])}


def encode(
    params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
    attention: bool = False, c: Config, execution: Execution = Execution(),
) -> Encoded:
    """Implements `Model.encode`, with the states, the order and the errors of `lstm.encode`. The losses are `ar` and
    `tar`."""
    mask = lstm.causal_mask(inputs, attention, c.max_length)
    real, starts = mask.segment_ids > 0, recurrent.segment_starts(mask.segment_ids)
    state = initial_state(len(inputs.tokens), c=c) if inputs.carry is None else inputs.carry
    run = partial(recurrent.apply, real=real, starts=starts)
    if execution.remat != "none":
        run = jax.checkpoint(run, policy=REMAT[execution.remat])
    stored, params = params, gather_params(params, specs(c))
    type_key, input_key, *keys = prng.split(key, 2 + 2 * c.layers)
    types = dropout.apply_to_rows(type_key, jnp.ones((*inputs.tokens.shape, 1)), inputs.tokens, c.embedding_dropout)
    x = shard(look_up(stored["embedding"]["token"], inputs.tokens) * types, "batch", None, None)
    outputs, carry = [x.astype(execution.dtype)], {}
    x = dropout.apply(input_key, outputs[0], c.input_dropout, same_along=(1,))
    if inputs.vectors is not None:
        x = inputs.vectors(x)
    for i, (weight_key, output_key) in enumerate(zip(keys[::2], keys[1::2], strict=True)):
        name, layer = str(i), params["layers"][str(i)]
        biases = [layer[part]["bias"] for part in ("input", "recurrent")[: c.biases]]
        kernel = dropout.apply(weight_key, stored["layers"][name]["recurrent"]["kernel"], c.weight_dropout)
        x, carry[name] = run(layer["input"] | {"bias": sum(biases)}, kernel, x, state[name])
        outputs.append(x)
        x = dropout.apply(output_key, x, c.hidden_dropout if i < c.layers - 1 else c.dropout, same_along=(1,))
    hidden = x if at is None else jnp.take_along_axis(x, at[..., None], axis=1)
    follows = real[:, 1:] & real[:, :-1] & ~starts[:, 1:]  # not across segments
    return Encoded(hidden, tuple(outputs) if layers else None, carry=carry,
                   losses=penalties(outputs[-1], x, real, follows, c))


def penalties(raw: Array, dropped: Array, real: Array, follows: Array, c: Config) -> dict[str, NetworkLoss]:
    """Computes the losses `ar` and `tar` (Merity et al., 2017) of the last layer.

    Args:
      raw: [b, t, e], its output before dropout; or [b, t + 1, e], with the output before the first position.
      dropped: [b, t, e], its output after dropout.
      real: bool [b, t], the positions that count in `ar`.
      follows: bool, of `raw` but its first position, whose differences from the one before count in `tar`.
      c: the network's config.
    """
    def mean_square(x: Array, where: Array, weight: float) -> NetworkLoss:
        squares = jnp.square(x.astype(jnp.float32)).sum(-1)
        return NetworkLoss(jnp.where(where, squares, 0).sum(), where.sum() * c.embedding, weight)

    raw = raw.astype(jnp.float32)
    return {"ar": mean_square(raw[:, -real.shape[1]:] if c.ar_of == "raw" else dropped, real, c.ar),
            "tar": mean_square(raw[:, 1:] - raw[:, :-1], follows, c.tar)}


def chunk_losses(
    state: Tree, encoded: Encoded, kept: Array, follows: Array, *, c: Config
) -> dict[str, NetworkLoss]:
    """Computes the losses of a chunk of a text, which continues `state`, over its `kept` positions, bool [b, t]."""
    raw = jnp.concatenate([state[str(c.layers - 1)]["hidden"][:, None], encoded.layers[-1]], 1)
    return penalties(raw, encoded.hidden, kept, follows, c)


DROPOUT = ("dropout", "hidden_dropout", "input_dropout", "embedding_dropout", "weight_dropout")
DEFINITION = ModelDef(
    Config, build,
    tiny={"vocab": 0, "width": 256, "layers": 2, "embedding": 128, **dict.fromkeys(DROPOUT, 0.0)},
    dropout_fields=DROPOUT,
)
