"""The heads of published checkpoints: their parameters, their logits, and how a run tries them."""

from collections.abc import Callable
from typing import NamedTuple

from lmrep.core.params import Array, Tree
from lmrep.layers import linear, lm_head
from lmrep.models.base import Model
from lmrep.objectives import causal, replaced_token, sentence_pair


class Head(NamedTuple):
    """An output of published checkpoints besides hidden states.

    Attributes:
      title: of its logits, for people.
      logits: (parameters of the network and its heads, hidden states [b, t, d], model) -> logits: of tokens
        [b, t, v], of each position [b, t], or of pairs [b, 2].
      specs: (model, width of the token table) -> its parameters, which lie under "objective" and its name; None if it
        has none.
      prefix: begins paths that only a checkpoint with this head has; "" if it has no parameters.
      samples: texts for `lmrep predict`.
    """

    title: str
    logits: Callable[[Tree, Array, Model], Array]
    specs: Callable[[Model, int], Tree] | None
    prefix: str
    samples: tuple[str, ...] = ()


def _mlm_logits(tree: Tree, hidden: Array, model: Model) -> Array:
    head = tree["objective"]["masked"]
    x = lm_head.transform(head, hidden, activation=model.activation, eps=model.norm_eps)
    return lm_head.logits(head, model.output_embedding(tree["encoder"]), x)


def _discriminator_specs(model: Model) -> Tree:
    d = model.width
    return {"transform": linear.specs(d, d, (None, None)), "out": linear.specs(d, 1, (None, None))}


HEADS = {
    "masked": Head(
        "masked-LM logits", _mlm_logits, lambda model, e: lm_head.specs(model.width, e, model.vocab_size),
        "objective/masked/", ("Paris is the [MASK] of France.",)),
    "pair": Head(
        "sentence-pair logits",
        lambda tree, hidden, model: sentence_pair.logits(tree["objective"]["pair"], hidden[:, 0]),
        lambda model, e: sentence_pair.specs(model), "objective/pair/classifier/"),
    "discriminator": Head(
        "replaced-token logits",
        lambda tree, hidden, model: replaced_token.replaced_logits(
            tree["objective"]["discriminator"], hidden, model.activation),
        lambda model, e: _discriminator_specs(model), "objective/discriminator/",
        ("Paris is the capital of France.", "Paris is the Friday of France.")),
    "causal": Head(
        "next-token logits",
        lambda tree, hidden, model: causal.next_token_logits(tree, hidden, model=model, c=causal.Config()), None, ""),
}
