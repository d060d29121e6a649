"""The sequence autoencoder of Dai and Le (2015): a network reads a text to its end, and then writes it.

One network with one set of parameters is encoder and decoder: it reads the n tokens of a text and then, each after the
one before it, the first n - 1 again. From the text's last token on, it predicts the tokens of the text. Nothing else
connects the two halves, so a recurrent network has to keep the text in its state.

A row of a format is one text, whatever documents it has, special tokens included; `documents` is the format of the
paper. The output layer is that of `causal`.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models import chunks
from lmrep.models.base import Context, Model, check_context, model_inputs
from lmrep.objectives import causal
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import Reconstruct
from lmrep.objectives.outputs import head_params, normalize_weights, output_layer, sums
from lmrep.objectives.uses import Uses


@dataclass(frozen=True)
class Config:
    """How far gradients go back, and the output layer."""

    chunk: int = setting(0, "positions of a chunk, between which no gradient is passed (truncated backpropagation "
                         "through time; Dai and Le: 400). A text of n tokens takes 2 n - 1. 0: never", at_least=0)
    unigram_bias: bool = setting(False, "whether the output table has a bias of each token, which starts at the "
                                 "logarithm of its frequency")

    @property
    def output(self) -> causal.Config:
        """The output layer."""
        return causal.Config(unigram_bias=self.unigram_bias)


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which writes the text that was read."""
    check_context(model, Context.LEFT, "objective 'sequence_autoencoder'")
    if c.chunk:
        chunks.check_state(model, "config.objective.chunk")
    head = causal.specs(c.output, model, vocabulary)
    return Objective(
        name="sequence_autoencoder",
        specs={"encoder": model.specs, **({"objective": {"causal": head}} if head else {})},
        prepare=prepare,
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        predict=partial(predict, c=c, model=model, size=vocabulary.size),
        terms={"reconstruction_loss": 1.0},
        uses=Uses(Context.LEFT, describe=describe),
    )


def prepare(keys: Keys, batch: Batch) -> Batch:
    """Adds `weights` float32 [b, t]."""
    return batch | {"weights": normalize_weights(batch["segment_ids"] > 0)}


def twice(batch: Batch, model: Model) -> tuple[Batch, Array]:
    """Returns what the network reads of a batch [b, t], with `tokens` and `segment_ids` i32[b, 2 t - 1], and the
    positions i32[b, t] in it that predict the tokens of the text. Raises UserError if it has too few positions."""
    t, segment_ids = batch["tokens"].shape[1], batch["segment_ids"]
    if 0 < model.max_length < 2 * t - 1:
        raise UserError(f"a sequence autoencoder reads 2 * {t} - 1 positions of {t} tokens, and the model has "
                        f"{model.max_length}; set length to {(model.max_length + 1) // 2} at most, or "
                        f"model.max_length to {2 * t - 1}")
    n = (segment_ids > 0).sum(1, keepdims=True)
    at = jnp.arange(2 * t - 1)
    source = jnp.where(at < n, at, at - n).clip(0, t - 1)
    read = {name: _gather(batch[name], source) for name in ("tokens", "characters") if name in batch}
    return (read | {"segment_ids": (at < 2 * n - 1).astype(jnp.int32)},
            (n - 1 + jnp.arange(t)).clip(0, 2 * t - 2))


def _gather(x: Array, at: Array) -> Array:
    return jnp.take_along_axis(x, at.reshape(*at.shape, *[1] * (x.ndim - 2)), 1)


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of all tokens."""
    total, nll, correct = reconstruct(params, batch, batch["weights"], key, c=c, model=model)
    return total, (sums(batch["weights"] > 0, reconstruction_loss=nll, reconstruction_accuracy=correct,
                        most_frequent_accuracy=batch["tokens"] == most_frequent), carry)


def reconstruct(
    params: Tree, batch: Batch, weights: Array, key: Array | None, *, c: Config, model: Model
) -> tuple[Array, Array, Array]:
    """Computes the cross-entropy of the tokens of a batch [b, t], summed with `weights` float32 [b, t]: (the sum, nll
    [b, t], correct bool[b, t])."""
    read, writing = twice(batch, model)
    hidden = chunks.encode_all(params["encoder"], read, model, key, c.chunk).hidden
    hidden = causal.before_table(params, _gather(hidden, writing), model, c.output)
    return output_layer(model).cross_entropy(
        params["encoder"], head_params(params, "causal"), hidden, batch["tokens"], weights, key)


def predict(
    params: Tree, batch: Batch, *, c: Config, model: Model, size: int, k: int = 50
) -> dict[str, Array]:
    """Writes each text again: `generated` i32[b, k], always the most probable of the `size` tokens after those before
    it. Every token takes a pass over the text, so that any network will do. Raises UserError if the network has too
    few positions."""
    b, t = batch["tokens"].shape
    if 0 < model.max_length < t + k:
        raise UserError(f"{t} positions of texts and {k} tokens to write are more than the model's {model.max_length}; "
                        "write fewer tokens, or give shorter texts")
    n = (batch["segment_ids"] > 0).sum(1, keepdims=True)
    row = jnp.arange(b)[:, None]

    def write(i: Array, tokens: Array) -> Array:
        read = {"tokens": tokens, "segment_ids": (jnp.arange(t + k) < n + i).astype(jnp.int32)}
        inputs = model_inputs(model, read, conditions_on=Context.LEFT)
        hidden = model.encode(params["encoder"], inputs, at=n - 1 + i).hidden
        logits = causal.next_token_logits(params, hidden, model=model, c=c.output)
        return tokens.at[row, n + i].set(logits[..., :size].argmax(-1).astype(tokens.dtype))

    tokens = jax.lax.fori_loop(0, k, write, jnp.pad(batch["tokens"], ((0, 0), (0, k))))
    return {"generated": jnp.take_along_axis(tokens, n + jnp.arange(k), 1)}


def describe(batch: Batch, tokenizer) -> list[str]:
    """Shows each example as "text => the text that it predicts"."""
    texts = (" ".join(tokenizer.id_to_token(int(i)) for i in np.asarray(tokens)[np.asarray(segments) > 0])
             for tokens, segments in zip(batch["tokens"], batch["segment_ids"], strict=True))
    return [f"{text} => {text}" for text in texts]


DEFINITION = ObjectiveDef(
    Config, build, conditions_on=lambda c: Context.LEFT,
    metrics={
        "reconstruction_loss": loss_metric("Reconstruction loss", perplexity=True),
        "reconstruction_accuracy": accuracy_metric("Accuracy of the tokens that are written",
                                                   baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent token", headline=False),
    },
    capabilities=(Reconstruct(),),
    loss_fields=("chunk",),
)
