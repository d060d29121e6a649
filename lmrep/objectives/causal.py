"""Causal language modelling: each token is predicted from the tokens before it (Radford et al., 2018, 2019).

Any network that can be conditioned on the left context will do: with GPT-2 it is the paper's model, with BERT the "no
NSP & LTR" ablation of Devlin et al. (2019, section 5.1), with an LSTM the model of Zaremba et al. (2014).

A recurrent network carries its state from batch to batch where the format's examples continue each other (stream with
order=contiguous), with gradients truncated at the start of each example.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import linear
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models.base import Context, Encoded, Model, check_context, model_inputs
from lmrep.objectives import mlm_head, scoring
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import GenerateText
from lmrep.objectives.outputs import head_params, normalize_weights, output_layer, smoothed_cross_entropy, sums
from lmrep.objectives.scoring import Scoring
from lmrep.objectives.uses import HeldOut, NetworkUse, NextToken, Uses


@dataclass(frozen=True)
class Config:
    """The context of a prediction, and the output layer."""

    across: bool = setting(False, "whether a document is conditioned on those before it in its example, and its first "
                           "token is predicted from them")
    head: str = setting("table", "output layer: the table alone (GPT, GPT-2), or BERT's transform before it",
                        choices=("table", "transform"))
    bias: bool = setting(False, "whether the table has a bias of each token (Transformer-XL); that of head=transform "
                         "always has one")
    unigram_bias: bool = setting(False, "whether there is such a bias, which starts at the logarithm of each token's "
                                 "frequency: the network need not learn frequencies first")
    z_loss: float = setting(0.0, "factor of log(Z)^2 in the loss of training, Z being the sum of exp(logits) (PaLM, "
                            "GPT-BERT: 1e-4)", at_least=0)


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which predicts each token from the tokens before it."""
    check_context(model, Context.LEFT, "objective 'causal'")
    head = specs(c, model, vocabulary)
    return Objective(
        name="causal",
        # No empty tree: a checkpoint would not restore it.
        specs={"encoder": model.specs, **({"objective": {"causal": head}} if head else {})},
        prepare=partial(prepare, c=c),
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        carry=partial(initial_carry, model=model),
        terms={"lm_loss": 1.0},
        uses=Uses(
            Context.LEFT,
            NextToken(partial(next_token_logits, model=model, c=c), partial(next_token_nll, model=model, c=c)),
            scorings={"log_probability": Scoring(
                "log probability of the sentence, from left to right", scoring.next_token_views,
                partial(log_probabilities, model=model, c=c), ("causal",) if head else ())},
            held_out=held_out,
            describe=describe,
            networks=(NetworkUse(model.sizes, "tokens"),),
            published_heads={"causal": "causal"}),
    )


def specs(c: Config, model: Model, vocabulary: Vocabulary | None = None) -> Tree:
    """Declares the head: a projection if the table's width is not the network's, a bias if `c` has one, and a table if
    none is tied. `vocabulary` is that of `c.unigram_bias`."""
    e, init = model.output.width, model.head_style.init
    if c.head == "transform":
        head = mlm_head.transform_specs(model)
    else:
        head = {} if e == model.width else {"project": linear.specs(model.width, e, ("embed", None), init)}
    if c.bias or c.unigram_bias:
        start = partial(unigram_logits, counts=vocabulary.counts) if c.unigram_bias else zeros
        head |= {"bias": ParamSpec((model.vocab_size,), ("vocab",), start)}
    return head | output_layer(model).specs


def unigram_logits(key: Array, shape: tuple[int, ...], *, counts: np.ndarray) -> Array:
    """Returns the logarithm of the frequency of each token, float32 `shape`, given their `counts` in the training text,
    of which those of 0 count as 1: all the same if they are unknown."""
    counts = np.maximum(counts, 1)
    logits = np.log(counts / counts.sum())
    return jnp.asarray(np.pad(logits, (0, shape[0] - len(counts)), constant_values=logits.min()), jnp.float32)


def prepare(keys: Keys, batch: Batch, *, c: Config) -> Batch:
    """Adds `targets` i32[b, t], the token after each, and `weights` float32 [b, t], 0 where there is none to predict.

    The last position that is not padding predicts `following` i32[b], the token after the example, where the batch has
    this field and it is not negative.
    """
    tokens, segment_ids = batch["tokens"], batch["segment_ids"]
    targets, next_segment = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (tokens, segment_ids))
    target_mask = (next_segment > 0) & ((next_segment == segment_ids) | c.across)
    if "following" in batch:
        following, at = batch["following"][:, None], jnp.arange(tokens.shape[1])
        last = (segment_ids > 0) & (at == (segment_ids > 0).sum(1, keepdims=True) - 1)
        targets = jnp.where(last, following.clip(0), targets)
        target_mask |= last & (following >= 0)
    return batch | {"targets": targets, "weights": normalize_weights(target_mask)}


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of all tokens that have one before them, and the state after the batch."""
    state = initial_state(batch, carry, model)
    encoded = encode(params, batch, model, c, key, state)
    hidden = before_table(params, encoded.hidden, model, c)
    total, nll, correct = smoothed_cross_entropy(
        model, params["encoder"], head_params(params, "causal"), hidden, batch["targets"], batch["weights"], key,
        z_loss=0.0 if key is None else c.z_loss)
    return total, (sums(batch["weights"] > 0, lm_loss=nll, lm_accuracy=correct,
                        most_frequent_accuracy=batch["targets"] == most_frequent), next_carry(carry, state, encoded))


def initial_carry(batch_size: int, *, model: Model) -> Carry:
    """Returns the carry before the first batch: the initial states of the network, if it has any."""
    return Carry(model.state.carry(batch_size)) if model.state.carry else Carry()


def next_carry(carry: Carry, state: Tree | None, encoded: Encoded) -> Carry:
    """Replaces the states in the carry by those after the batch, without a gradient, if it continued a `state`."""
    return carry if state is None else carry._replace(per_example=jax.lax.stop_gradient(encoded.carry))


def initial_state(batch: Batch, carry: Carry, model: Model) -> Tree | None:
    """Returns the state that each example continues from, without a gradient: the previous batch's, or the initial one
    where `reset` i32[b] is 1. None if the examples of the format do not continue each other, or the carry is empty."""
    if "reset" not in batch or not jax.tree.leaves(carry.per_example):
        return None
    return restart(batch["reset"], carry.per_example, model.state.carry(len(batch["reset"])))


def restart(reset: Array, state: Tree, initial: Tree) -> Tree:
    """Takes `initial`, leaves [b, ...], where `reset` i32[b] is 1, and elsewhere `state`, without a gradient."""
    def select(state: Array, initial: Array) -> Array:
        return jnp.where(reset.reshape(-1, *[1] * (state.ndim - 1)) > 0, initial, jax.lax.stop_gradient(state))

    return jax.tree.map(select, state, initial)


def encode(
    params: Tree, batch: Batch, model: Model, c: Config, key: Array | None = None, state: Tree = None
) -> Encoded:
    """Computes the network's output for a batch, continuing from `state` if it is not None."""
    segment_ids = batch["segment_ids"]
    visible = jnp.minimum(segment_ids, 1) if c.across else segment_ids
    inputs = model_inputs(model, batch, conditions_on=Context.LEFT, segment_ids=visible, positions=not c.across,
                          carry=state)
    return model.encode(params["encoder"], inputs, key)


def before_table(params: Tree, hidden: Array, model: Model, c: Config) -> Array:
    """Computes the vectors [..., e] that the output table multiplies, given the last layer's output [..., d]."""
    head = head_params(params, "causal")
    if c.head == "transform":
        return mlm_head.transform(head, hidden, model)
    return linear.apply(head["project"], hidden) if "project" in head else hidden


def next_token_logits(params: Tree, hidden: Array, *, model: Model, c: Config) -> Array:
    """Computes logits float32 [b, t, v] of the last layer's output [b, t, d]."""
    x = before_table(params, hidden, model, c)
    return output_layer(model).logits(params["encoder"], head_params(params, "causal"), x)


def next_token_nll(params: Tree, hidden: Array, targets: Array, *, model: Model, c: Config) -> Array:
    """Computes -log probability of the `targets` i32[b, t] given the last layer's output [b, t, d], float32 [b, t]."""
    x = before_table(params, hidden, model, c)
    return output_layer(model).cross_entropy(
        params["encoder"], head_params(params, "causal"), x, targets, jnp.ones(targets.shape))[1]


def log_probabilities(params: Tree, batch: Batch, *, model: Model, c: Config) -> Array:
    """Computes the log probability float32 [b, m] of `targets` i32[b, m], each after a `predicted` position."""
    hidden = jnp.take_along_axis(encode(params, batch, model, c).hidden, batch["predicted"][..., None], axis=1)
    return output_layer(model).log_probabilities(
        params["encoder"], head_params(params, "causal"), before_table(params, hidden, model, c), batch["targets"])


def held_out(batch: Batch) -> HeldOut:
    """Returns the token after each position, as `Uses.held_out`."""
    positions = jnp.broadcast_to(jnp.arange(batch["tokens"].shape[1]), batch["tokens"].shape)
    return HeldOut(batch["tokens"], positions, jnp.where(batch["weights"] > 0, batch["targets"], -1))


def describe(batch: Batch, tokenizer) -> list[str]:
    """Shows each example as text, "|" where a token does not predict the next one."""
    texts = []
    for tokens, weights, segments in zip(batch["tokens"], batch["weights"], batch["segment_ids"], strict=True):
        real = np.flatnonzero(segments)
        texts.append(" ".join(
            tokenizer.id_to_token(int(tokens[i])) + (" |" if weights[i] == 0 and i != real[-1] else "") for i in real))
    return texts


DEFINITION = ObjectiveDef(
    Config, build, conditions_on=lambda c: Context.LEFT,
    metrics={
        "lm_loss": loss_metric("Language-model loss", perplexity=True),
        "lm_accuracy": accuracy_metric("Next-token accuracy", baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent token", headline=False),
    },
    capabilities=(GenerateText(),), loss_fields=("z_loss",),
)
