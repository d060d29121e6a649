"""Causal language modelling: each token is predicted from those before it (Radford et al., 2018, 2019).

Any network that takes a attention_mask will do: under GPT-2 it is the paper's model, under BERT the "no NSP & LTR" of
Devlin et al. (2019, section 5.1), with which the worth of the right context is measured.
"""

from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import linear, lm_head
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models.base import Model, check_context, model_inputs
from lmrep.objectives.base import (
    Batch,
    Carry,
    Keys,
    Metrics,
    Objective,
    ObjectiveDef,
    normalize_weights,
    output_specs,
    output_table,
)
from lmrep.objectives.capabilities import GenerateText


@dataclass(frozen=True)
class Config:
    """What a position sees and what scores it."""

    across: bool = setting(False, "whether a document sees those before it in its row, and its first token is asked "
                           "for after them")
    head: str = setting("table", "what scores the words: the tied table alone (GPT, GPT-2), or BERT's head before it",
                        choices=("table", "transform"))


def check(c: Config) -> None:
    """All fields fit each other."""


def batch_fields(c: Config) -> tuple[str, ...]:
    """What it needs of a batch."""
    return ("tokens", "segment_ids", "example")


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Predict each token from the left."""
    check_context(model, "left", "objective 'causal'")
    own = specs(c, model)
    return Objective(
        name="causal",
        # No empty tree: a checkpoint would not give it back.
        specs={"encoder": model.specs, **({"objective": {"causal": own}} if own else {})},
        prepare=partial(prepare, c=c),
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        next_token_logits=partial(scores, model=model, c=c),
        describe=describe,
        context="left",
    )


def specs(c: Config, model: Model) -> Tree:
    """The head's parameters: none of the tied table's own; a projection where the table is of another width."""
    e = model.output_dim
    if c.head == "transform":
        return lm_head.specs(model.width, e, model.vocab_size, model.init) | output_specs(model)
    project = {} if e == model.width else {"project": linear.specs(model.width, e, ("embed", None), model.init)}
    return project | output_specs(model)


def prepare(keys: Keys, batch: Batch, *, c: Config) -> Batch:
    """Adds `targets` i32[b, t], the token that follows each, and `weights` [b, t], 0 where none does."""
    tokens, segments = batch["tokens"], batch["segment_ids"]
    targets, after = (jnp.pad(x[:, 1:], ((0, 0), (0, 1))) for x in (tokens, segments))
    asked = (after > 0) & ((after == segments) | c.across)
    return batch | {"targets": targets, "weights": normalize_weights(asked)}


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Mean cross-entropy of all tokens that have one before them."""
    hidden = read(params, batch, model, c, key)
    table, bias = output_table(model, params, _own(params), key), _own(params).get("bias")
    total, nats, hits = lm_head.chunked_cross_entropy(table, hidden, batch["targets"], batch["weights"], bias)
    asked = batch["weights"] > 0
    number = asked.sum()
    return total, ({
        "lm_loss": ((nats * asked).sum(), number),
        "lm_accuracy": ((hits & asked).sum(), number),
        "most_frequent_accuracy": (((batch["targets"] == most_frequent) & asked).sum(), number),
    }, carry)


def read(params: Tree, batch: Batch, model: Model, c: Config, key: Array | None = None) -> Array:
    """What the table is multiplied with at every position, [b, t, e]."""
    segments = batch["segment_ids"]
    seen = jnp.minimum(segments, 1) if c.across else segments
    inputs = model_inputs(model, batch, context="left", segment_ids=seen, positions=not c.across)
    hidden = model.encode(params["encoder"], inputs, key).hidden
    return before_table(params, hidden, model, c)


def before_table(params: Tree, hidden: Array, model: Model, c: Config) -> Array:
    """The last layer's output [..., d] -> what the tied table is multiplied with [..., e]."""
    own = _own(params)
    if c.head == "transform":
        return lm_head.transform(own, hidden, activation=model.activation, eps=model.norm_eps)
    return linear.apply(own["project"], hidden) if "project" in own else hidden


def scores(params: Tree, hidden: Array, *, model: Model, c: Config) -> Array:
    """The last layer's output [b, t, d] -> float32 [b, t, v]."""
    y = jnp.einsum("btd,vd->btv", before_table(params, hidden, model, c),
                   output_table(model, params, _own(params)).astype(hidden.dtype), preferred_element_type=jnp.float32)
    bias = _own(params).get("bias")
    return y if bias is None else y + bias


def _own(params: Tree) -> Tree:
    """The head's parameters. Where it has none, there is no trace of the objective."""
    return params.get("objective", {}).get("causal", {})


def describe(batch: Batch, tokenizer) -> list[str]:
    """Each row as text, "|" where what follows does not see what stands before."""
    texts = []
    for row in range(len(batch["tokens"])):
        tokens, weights = np.asarray(batch["tokens"][row]), np.asarray(batch["weights"][row])
        real = np.flatnonzero(batch["segment_ids"][row])
        pieces = [tokenizer.id_to_token(int(tokens[i])) + (" |" if weights[i] == 0 and i != real[-1] else "") for i in real]
        texts.append(" ".join(pieces))
    return texts


DEFINITION = ObjectiveDef(
    Config, check, build, batch_fields, context=lambda c: "left",
    metrics={
        "lm_loss": loss_metric("Language-model loss"),
        "lm_accuracy": accuracy_metric("Next-token accuracy", baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": accuracy_metric("Accuracy of always the most frequent token", headline=False),
    },
    capabilities=(GenerateText(),),
)
