"""Permutation language modelling (Yang et al., 2019): each chosen token is predicted from the tokens before it in a
random order of the text.

`factorization` draws the targets and the order of an example from its key. The query stream of a network with two
streams (`Inputs.factorization`) gives the output at the positions that are predicted; a softmax over the tied table
with a bias of each token follows. A network with memory continues the examples of the batch before where the format's
examples continue each other (stream_pair).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.core.vocabulary import Vocabulary
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models.base import Context, Encoded, Factorization, Model, check_context, model_inputs
from lmrep.objectives import factorization, scoring, sentence_pair
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import FillMask, GenerateText
from lmrep.objectives.causal import initial_carry, initial_state, next_carry
from lmrep.objectives.masking import check_mask_token, pair_label
from lmrep.objectives.mlm_head import top_k
from lmrep.objectives.outputs import normalize_weights, output_layer, sums
from lmrep.objectives.scoring import Scoring
from lmrep.objectives.uses import NetworkUse, NextToken, Uses

TERMS, SHOWN = 6, 4  # targets that `describe` shows, and names in one condition


@dataclass(frozen=True)
class Config(factorization.Config):
    """The settings of targets and orders, and of the sentence-pair objective."""

    sentence_pair: bool = setting(False, "whether the label of a sentence pair is predicted too (next sentence)")


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which predicts some tokens from the tokens before them in a random order. Raises UserError
    if the network has no query stream, or the tokenizer no mask token, which marks words to fill in."""
    check_context(model, Context.ORDER, "objective 'permutation'")
    check_mask_token("permutation", vocabulary)
    head = {"permutation": output_layer(model).specs | {"bias": ParamSpec((model.vocab_size,), ("vocab",), zeros)}}
    mask = vocabulary.specials["mask"]
    # the masks are predicted from all other tokens, and not from one another
    orders = factorization.left_to_right, lambda tokens: factorization.all_but(tokens == mask)
    inputs = [partial(text_inputs, order=order, model=model, cls=vocabulary.specials.get("cls", -1))
              for order in orders]
    left_to_right, masks = (partial(log_probabilities, make_inputs=make, model=model) for make in inputs)
    return Objective(
        name="permutation",
        specs={"encoder": model.specs,
               "objective": head | ({"pair": sentence_pair.specs(model)} if c.sentence_pair else {})},
        prepare=partial(prepare, c=c, model=model, vocabulary=vocabulary),
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        carry=partial(initial_carry, model=model),
        predict=partial(predict, make_inputs=inputs[1], model=model, size=vocabulary.size),
        terms={"permutation_loss": 1.0} | ({"pair_loss": 1.0} if c.sentence_pair else {}),
        uses=Uses(
            next_token=NextToken(partial(token_logits, model=model), decode={"query": True}),
            scorings=scoring.pseudo_log_likelihoods(vocabulary, masks, "permutation") | {
                "log_probability": Scoring("log probability of the sentence, from left to right",
                                           scoring.token_views, left_to_right, ("permutation",))},
            describe=partial(describe, functional=[vocabulary.specials[role] for role in factorization.FUNCTIONAL
                                                   if role in vocabulary.specials]),
            networks=(NetworkUse(model.sizes),),
            published_heads={"permutation": "permutation"}),
    )


def prepare(keys: Keys, batch: Batch, *, c: Config, model: Model, vocabulary: Vocabulary) -> Batch:
    """Adds `revealed` and `sees` i32[b, t] (`Factorization`), and `predicted`, `targets` and `weights` [b, m] (and
    `pair_weights` [b]). Of the positions `predicted`, those that are not used have weight 0. Raises UserError if
    examples continue each other, and the states that the network remembers depend on tokens that the next example
    predicts."""
    length = batch["tokens"].shape[1]
    if model.state.carry and "reset" in batch and (remembered := model.state.carried(length)) < length:
        if c.reuse not in (-1, remembered):
            raise UserError(f"objective.reuse is {c.reuse}, and the network remembers the first {remembered} tokens of "
                            f"an example, which must not see the rest: set it to -1 or {remembered}")
        c = replace(c, reuse=remembered)
    reversed = batch.get("reversed", jnp.zeros(len(batch["tokens"]), jnp.int32))
    drawn = jax.vmap(partial(factorization.sample, c=c, vocabulary=vocabulary))(
        keys.per_example, batch["tokens"], batch["segment_ids"], reversed)
    batch = batch | {"weights": normalize_weights(drawn.pop("target_mask"))} | drawn
    return batch | sentence_pair.weights(batch) if c.sentence_pair else batch


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the batch's targets, plus the mean cross-entropy of the pairs' labels with
    `sentence_pair`, and the memory after the batch."""
    state, order = initial_state(batch, carry, model), Factorization(batch["revealed"], batch["sees"])
    encoded = encode(params, batch, order, model, key, state, layers=c.sentence_pair)
    total, nll, correct = output_layer(model).cross_entropy(
        params["encoder"], params["objective"]["permutation"], encoded.hidden, batch["targets"], batch["weights"], key)
    metrics = sums(batch["weights"] > 0, permutation_loss=nll, permutation_accuracy=correct,
                   most_frequent_accuracy=batch["targets"] == most_frequent)
    if c.sentence_pair:  # from the content stream, which fine-tuning uses
        at = sentence_pair.position(model, batch["segment_ids"])
        summary = jnp.take_along_axis(encoded.layers[-1], at[:, None, None], axis=1)[:, 0]
        pair_total, pair_metrics = sentence_pair.loss(params["objective"]["pair"], summary, batch)
        total, metrics = total + pair_total, metrics | pair_metrics
    return total, (metrics, next_carry(carry, state, encoded))


def encode(
    params: Tree, batch: Batch, order: Factorization, model: Model, key: Array | None = None, state: Tree = None,
    layers: bool = False,
) -> Encoded:
    """Computes the query stream at `batch["predicted"]` i32[b, m], given the tokens before each in `order`; with
    `layers`, the layers of the content stream too."""
    inputs = model_inputs(model, batch, conditions_on=Context.ORDER, carry=state)._replace(factorization=order)
    return model.encode(params["encoder"], inputs, key, at=batch["predicted"], layers=layers)


def text_inputs(batch: Batch, *, order: Callable, model: Model, cls: int) -> tuple[Batch, Factorization]:
    """Adds the token types of training to a batch of single texts; returns it with the order of its tokens."""
    if "token_type_ids" in model.inputs and "token_type_ids" not in batch:
        batch = batch | {"token_type_ids": jnp.where(batch["tokens"] == cls, 2, 0)}
    return batch, order(batch["tokens"])


def predict(
    params: Tree, batch: Batch, *, make_inputs: Callable, model: Model, size: int, k: int = 5
) -> dict[str, Array]:
    """Finds the k most probable tokens at `predicted` i32[b, m]: `words` i32[b, m, k], `probabilities` [b, m, k]."""
    logits = token_logits(params, encode(params, *make_inputs(batch), model).hidden, model=model)
    return top_k(jax.nn.softmax(logits), size, k)


def token_logits(params: Tree, hidden: Array, *, model: Model) -> Array:
    """Computes logits float32 [b, m, v] of the token at each position of the query stream [b, m, d]."""
    return output_layer(model).logits(params["encoder"], params["objective"]["permutation"], hidden)


def log_probabilities(params: Tree, batch: Batch, *, make_inputs: Callable, model: Model) -> Array:
    """Computes the log probability float32 [b, m] of `targets` i32[b, m] at the positions `predicted`."""
    hidden = encode(params, *make_inputs(batch), model).hidden
    return output_layer(model).log_probabilities(
        params["encoder"], params["objective"]["permutation"], hidden, batch["targets"])


def describe(batch: Batch, tokenizer, *, functional: Sequence[int]) -> list[str]:
    """Shows each example as text, with targets in braces and their numbers in the order. Further lines show the tokens
    that XLNet predicts the first targets from, with the given tokens (their number, if a target does not see all), and
    the tokens that BERT would predict them from, whose targets are independent."""
    return [_describe({name: np.asarray(batch[name][i]) for name in
                       ("tokens", "segment_ids", "revealed", "sees", "predicted", "weights")},
                      tokenizer, functional, pair_label(batch, i) + "[reversed] " * bool(
                          "reversed" in batch and batch["reversed"][i])) for i in range(len(batch["tokens"]))]


def _describe(example: dict[str, np.ndarray], tokenizer, functional: Sequence[int], before: str) -> str:
    tokens, revealed, sees = (example[name] for name in ("tokens", "revealed", "sees"))
    names = [tokenizer.id_to_token(int(token)) for token in tokens]
    real = np.flatnonzero(example["segment_ids"])
    targets = example["predicted"][example["weights"] > 0]
    targets = targets[np.argsort(revealed[targets], kind="stable")].tolist()
    number = {position: i for i, position in enumerate(targets, 1)}
    ordered = [*targets, *(i for i in real.tolist() if tokens[i] in functional)]
    given = [i for i in real.tolist() if i not in ordered]

    def condition(target: int, others: Sequence[int]) -> str:
        seen = [i for i in others if revealed[i] < sees[target]]
        some = [f"{names[i]}" for i in seen[-SHOWN:]]
        more = [f"{len(seen) - SHOWN} more"] if len(seen) > SHOWN else []
        known = sum(revealed[i] < sees[target] for i in given)
        return ", ".join([f"{known} given" if known < len(given) else "given", *more, *some])

    def terms(others: Sequence[int]) -> str:
        shown = [f"log p({names[i]} | {condition(i, others)})" for i in targets[:TERMS]]
        return " + ".join([*shown, *["..."] * (len(targets) > TERMS)])

    lines = [before + " ".join(f"{{{number[i]} {names[i]}}}" if i in number else names[i] for i in real)]
    return "\n".join([*lines, f"XLNet: {terms(ordered)}", f"BERT:  {terms(())}"] if targets else lines)


DEFINITION = ObjectiveDef(
    Config, build, conditions_on=lambda c: Context.ORDER, batch_fields=sentence_pair.batch_fields,
    metrics={
        "permutation_loss": loss_metric("Permutation language-model loss", perplexity=True),
        "permutation_accuracy": accuracy_metric("Permutation language-model accuracy",
                                                baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent token", headline=False),
    } | sentence_pair.METRICS,
    capabilities=(FillMask("permutation", "language-model head"), GenerateText()), loss_fields=("sentence_pair",),
)
