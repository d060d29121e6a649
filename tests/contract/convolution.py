"""A network that lmrep does not know: causal convolutions over token embeddings, with residual connections."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.params import Array, ParamSpec, Tree, normal
from lmrep.layers import dropout
from lmrep.models.base import Context, Encoded, HeadStyle, Inputs, Model, ModelDef, NetworkLoss, Output, check_inputs

INPUTS = frozenset({"tokens", "attention_mask"})


@dataclass(frozen=True)
class Config:
    """Sizes."""

    vocab: int = setting(0, "size of the vocabulary; 0: the tokenizer's size", at_least=0)
    channels: int = setting(32, "d, channels of each layer", at_least=1)
    layers: int = setting(2, "number of layers", at_least=1)
    kernel: int = setting(3, "positions that a layer combines: the current one and those before it", at_least=1)
    dropout: float = setting(0.0, "after each layer", at_least=0, below=1)
    max_length: int = setting(0, "tokens of a sequence at most; 0: any", at_least=0)
    penalty: float = setting(0.01, "weight of the mean square of its outputs in the loss", at_least=0)


def build(c: Config, execution=None, name: str = "convolution") -> Model:
    """The network of config `c`."""
    return Model(
        name, specs(c), partial(encode, c=c), c.channels, c.vocab, c.max_length, INPUTS, frozenset({Context.LEFT}),
        Output(c.channels, lambda params, key=None: params["token"]), head_style=HeadStyle(pooling="last"))


def specs(c: Config) -> Tree:
    """`token` [v, d], and in `layers` a `kernel` [k, d, d] each."""
    kernel = ParamSpec((c.kernel, c.channels, c.channels), (None, None, None), normal((c.kernel * c.channels) ** -0.5))
    return {"token": ParamSpec((c.vocab, c.channels), ("vocab", "embed"), normal(0.1)),
            "layers": {str(i): {"kernel": kernel} for i in range(c.layers)}}


def encode(params: Tree, inputs: Inputs, key: Array | None = None, *, at: Array | None = None, layers: bool = False,
           attention: bool = False, c: Config) -> Encoded:
    """Hidden states [b, t, d], each of its own token and those before it in the same segment."""
    check_inputs(inputs, INPUTS)
    segments = jnp.ones_like(inputs.tokens) if inputs.attention_mask is None else inputs.attention_mask.segment_ids
    x = jnp.take(params["token"], inputs.tokens, axis=0)
    outputs = [x]
    for i, layer_key in enumerate(prng.split(key, c.layers)):
        taps = [_shift(x, j) * (_shift(segments, j) == segments)[..., None] for j in range(c.kernel)]
        y = jnp.einsum("kbtd,kde->bte", jnp.stack(taps), params["layers"][str(i)]["kernel"])
        x = x + dropout.apply(layer_key, jax.nn.gelu(y), c.dropout)
        outputs.append(x)
    hidden = x if at is None else jnp.take_along_axis(x, at[..., None], axis=1)
    losses = {"activation": NetworkLoss(jnp.square(x).sum(), x.size, c.penalty)}
    return Encoded(hidden, tuple(outputs) if layers else None, losses=losses)


def _shift(x: Array, positions: int) -> Array:
    """[b, t, ...] -> the same, each entry moved to a later position."""
    return jnp.pad(x, [(0, 0), (positions, 0)] + [(0, 0)] * (x.ndim - 2))[:, : x.shape[1]]


DEFINITION = ModelDef(Config, build, tiny={"channels": 32, "layers": 1, "vocab": 0},
                      architecture_fields=("kernel",))
