"""SpanBERT's objectives (Joshi et al., 2019): spans of whole words are predicted from their states and, token by token,
from the two states around them.

The masking rule is `mask_example`; `boundary=False` leaves it with masked language modelling alone, as in the paper's
ablation of masks. A *text* is a run of tokens of one packed segment without a special one among them.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.params import Array, ParamSpec, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import linear, lm_head, norm
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.metrics import accuracy_metric, loss_metric, optional
from lmrep.models.base import Model
from lmrep.objectives import masking, mlm_head, sentence_pair
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import FillMask
from lmrep.objectives.outputs import normalize_weights, output_table, sums
from lmrep.objectives.uses import NetworkUse


@dataclass(frozen=True)
class Config:
    """The settings of spans, their replacements and their predictions."""

    rate: float = setting(0.15, "fraction of an example's tokens that is predicted", above=0, at_most=1)
    count: str = setting("ceil", "SpanBERT: ceil(rate * n) of an example's n tokens that are not special; BERT: "
                         "max(1, round(rate * n)), special ones counted", choices=("ceil", "round"))
    p: float = setting(0.2, "a span has l words with a probability proportional to p (1 - p)^(l - 1)", above=0,
                       at_most=1)
    max_span_length: int = setting(10, "most words of a span; adjacent spans are merged", at_least=1)
    mask: float = setting(0.8, "fraction of the spans replaced by [MASK]", at_least=0, at_most=1)
    keep: float = setting(0.1, "fraction of the spans left unchanged", at_least=0, at_most=1)
    random: float = setting(0.1, "fraction of the spans replaced by tokens drawn by their frequency in the corpus",
                            at_least=0, at_most=1)
    replace: str = setting("span", "whether the replacement is chosen for each span or for each token",
                           choices=("span", "token"))
    boundary: bool = setting(True, "whether tokens are also predicted from the states around their span")
    weight: float = setting(1.0, "weight of the boundary loss", at_least=0)
    max_targets: int = setting(20, "first tokens of a span that are predicted so; rows of the position table "
                               "(released: 15)", at_least=1)
    position_width: int = setting(200, "width of that table", at_least=1)
    sentence_pair: bool = setting(False, "whether the label of a sentence pair is predicted too (NSP or SOP, by the "
                                  "format)")


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which predicts spans from both sides, and from their boundaries."""
    masking.check(c)
    masking.check_mask_token("span_boundary", vocabulary)
    heads, terms = {"masked": mlm_head.specs(model)}, {"mlm_loss": 1.0}
    if c.boundary:
        heads["boundary"], terms["boundary_loss"] = specs(c, model), c.weight
    if c.sentence_pair:
        heads["pair"], terms["pair_loss"] = sentence_pair.specs(model), 1.0
    return Objective(
        name="span_boundary",
        specs={"encoder": model.specs, "objective": heads},
        prepare=partial(prepare, c=c, vocabulary=vocabulary),
        loss=partial(loss, c=c, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        predict=partial(mlm_head.predict, model=model, size=vocabulary.size),
        terms=terms,
        uses=mlm_head.uses(model, vocabulary, describe=partial(masking.describe, spans=True),
                           networks=(NetworkUse(model.sizes, "other" if c.boundary else "masked"),)),
    )


def specs(c: Config, model: Model) -> Tree:
    """Declares the boundary head: a table of positions in a span, two dense layers with norms, and an output bias."""
    return {
        "place": ParamSpec((c.max_targets, c.position_width), (None, None), model.head_style.init),
        "join": linear.specs(2 * model.width + c.position_width, model.width, (None, "embed"), model.head_style.init),
        "join_norm": norm.specs(model.width),
        **mlm_head.transform_specs(model),
    }


def prepare(keys: Keys, batch: Batch, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Adds the fields of `mask_example`, with `weights` and `boundary_weights` float32 [b, m] in place of its masks
    (and `pair_weights` [b])."""
    fields = jax.vmap(partial(mask_example, c=c, vocabulary=vocabulary))(
        keys.per_example, batch["tokens"], batch["segment_ids"])
    fields["weights"] = normalize_weights(fields.pop("target_mask"))
    if c.boundary:
        bounded = fields.pop("bounded").astype(jnp.float32)
        fields["boundary_weights"] = bounded / (bounded.sum() + 1)  # plus 1, as in the released code
    batch = batch | fields
    return batch | sentence_pair.weights(batch) if c.sentence_pair else batch


def mask_example(key: Array, tokens: Array, segment_ids: Array, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Masks one example i32[t] by the rule of Joshi et al. (2019, section 3.1). Returns `inputs` i32[t]; `predicted`
    i32[m], positions from left to right; `targets` i32[m], their tokens; `target_mask` bool[m], which of the m are
    used; `needed` i32[n], the positions whose states are needed; and `slot` i32[m], the index in `needed` of each
    predicted position. With c.boundary also `left` and `right` i32[m], the indices in `needed` of the positions around
    the span; `span_position` i32[m], the position in the span, from 0; and `bounded` bool[m], which of the m are
    predicted from the boundary."""
    t = tokens.shape[0]
    m = min(t, math.ceil(c.rate * t) if c.count == "ceil" else max(1, round(c.rate * t)))
    draws = jax.random.bits(key, (4, t))
    maskable = (segment_ids > 0) & ~masking.one_of(tokens, vocabulary.specials, ("cls", "sep", "bos", "eos", "pad"))
    # continues the previous token's text
    goes_on = maskable & _before(maskable) & (segment_ids == _before(segment_ids))
    starts_word = maskable & (~goes_on | masking.word_starts(tokens, vocabulary))
    lengths = 1 + masking.sample_index(draws[1], (1 - c.p) ** np.arange(1 if c.p == 1 else c.max_span_length))
    count = jnp.minimum(_budget(segment_ids > 0, maskable, c), m)
    chosen = _choose(masking.uniform(draws[0]), lengths, maskable, goes_on, starts_word, count, m)

    positions, inner = jnp.arange(t), chosen & goes_on & _before(chosen)
    starts, ends = chosen & ~inner, chosen & ~_after(inner)
    start = jax.lax.cummax(jnp.where(starts, positions, 0))  # of the span of each position
    end = jax.lax.cummin(jnp.where(ends, positions, t - 1), reverse=True)
    between = chosen & goes_on[start] & _after(goes_on)[end]  # both neighbours are of its text
    predicted = _first(chosen, m)
    target_mask, targets = chosen[predicted], tokens[predicted]

    action = masking.uniform(draws[2])[start[predicted] if c.replace == "span" else predicted]
    words = _corpus_words(draws[3, :m], vocabulary)
    shown = jnp.where(action < c.mask, vocabulary.specials["mask"],
                      jnp.where(action < c.mask + c.random, words, targets))
    inputs = tokens.at[predicted].set(jnp.where(target_mask, shown, targets))

    needed = chosen
    if c.boundary:
        needed |= _after(starts & between) | _before(ends & between)
    if c.sentence_pair:
        needed |= positions == 0
    number = min(t, m * (3 if c.boundary else 1) + c.sentence_pair)  # spans are not adjacent, but may have one token
    slot = (jnp.cumsum(needed) - 1).clip(0, number - 1)
    fields = {"inputs": inputs, "predicted": predicted, "targets": targets, "target_mask": target_mask,
             "needed": _first(needed, number), "slot": slot[predicted]}
    if not c.boundary:
        return fields
    first, last = start[predicted], end[predicted]
    offset = predicted - first
    return fields | {"left": slot[(first - 1).clip(0)], "right": slot[(last + 1).clip(0, t - 1)],
                    "span_position": offset.clip(0, c.max_targets - 1),
                    "bounded": target_mask & between[predicted] & (offset < c.max_targets)}


def _choose(
    choice: Array, lengths: Array, maskable: Array, goes_on: Array, starts_word: Array, count: Array, m: int
) -> Array:
    """Samples spans until `count` tokens are chosen, at most m: bool[t].

    A span starts with the word of a token sampled from those not chosen yet, has `lengths` i32[t] of that token words,
    and ends with its text, or when `count` is reached.
    """
    text, word = jnp.cumsum(maskable & ~goes_on), jnp.cumsum(starts_word)
    choice = jnp.where(maskable, choice, -1.0)
    count = jnp.minimum(count, maskable.sum())

    def add(i: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        by, number = carry  # the first span that chose each position (m: none), and the number of chosen positions
        anchor = jnp.where(by == m, choice, -1.0).argmax()
        span = maskable & (text == text[anchor]) & (word >= word[anchor]) & (word < word[anchor] + lengths[anchor])
        new = span & (by == m) & (number < count)
        return jnp.where(new, i, by), number + new.sum()

    # Every span adds at least one token. The last one is truncated.
    by, _ = jax.lax.fori_loop(0, m, add, (jnp.full(maskable.shape, m), jnp.int32(0)))
    last = by == jnp.where(by < m, by, -1).max()
    earlier = (by < m) & ~last
    return earlier | (last & (by < m) & (jnp.cumsum(last) <= count - earlier.sum()))


def _budget(real: Array, maskable: Array, c: Config) -> Array:
    """Computes the number of predicted tokens of an example."""
    if c.count == "round":
        return masking.num_predictions(jnp.float32(0), real.sum(), real.shape[0], c, c.rate)
    # computed on the host in float64, as in the published code
    table = [math.ceil(c.rate * i) for i in range(real.shape[0] + 1)]
    return jnp.asarray(table, jnp.int32)[maskable.sum()]


def _corpus_words(bits: Array, vocabulary: Vocabulary) -> Array:
    """Draws a token for each of the random `bits`, by its count in the corpus; uniformly without counts."""
    counts = np.array(vocabulary.counts, np.float64) if np.any(vocabulary.counts) else np.ones(vocabulary.size)
    counts[[i for role, i in vocabulary.specials.items() if role != "unk"]] = 0
    words = np.flatnonzero(counts)
    return jnp.asarray(words, jnp.int32)[masking.sample_index(bits, counts[words])]


def _first(chosen: Array, number: int) -> Array:
    """Finds the positions i32[number] where `chosen` bool[t] holds, from left to right, and then any others."""
    t = chosen.shape[0]
    return jax.lax.top_k(jnp.where(chosen, t - jnp.arange(t), 0), number)[1]


def _before(x: Array) -> Array:
    """Shifts x [t] so that each position has the value of the one before it."""
    return jnp.pad(x, (1, 0))[:-1]


def _after(x: Array) -> Array:
    """Shifts x [t] so that each position has the value of the one after it."""
    return jnp.pad(x, (0, 1))[1:]


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean cross-entropy of the masked tokens given their states, plus `weight` times the one given the
    states around their spans, plus the loss of the pairs' labels with `sentence_pair`."""
    hidden = mlm_head.encode(params, batch, batch["inputs"], model, key, batch["needed"])
    total, metrics = mlm_head.loss_and_metrics(params, _states(hidden, batch["slot"]), batch, model, key)
    metrics |= sums(batch["weights"] > 0, most_frequent_accuracy=batch["targets"] == most_frequent)
    if c.boundary:
        x = by_boundary(params["objective"]["boundary"], hidden, batch, model)
        table = output_table(model, params, params["objective"]["masked"], key)
        nll, correct = lm_head.cross_entropy(params["objective"]["boundary"], table, x, batch["targets"])
        total += c.weight * (nll * batch["boundary_weights"]).sum()
        metrics |= sums(batch["boundary_weights"] > 0, boundary_loss=nll, boundary_accuracy=correct)
    if c.sentence_pair:  # position 0 is the first that is needed
        pair_total, pair_metrics = sentence_pair.loss(params["objective"]["pair"], hidden[:, 0], batch)
        total, metrics = total + pair_total, metrics | pair_metrics
    return total, (metrics, carry)


def by_boundary(head: Tree, hidden: Array, batch: Batch, model: Model) -> Array:
    """Applies the boundary head up to the output table: `hidden` [b, n, d] at needed positions -> [b, m, e]."""
    position = jnp.take(head["place"], batch["span_position"], axis=0).astype(hidden.dtype)
    x = jnp.concatenate([_states(hidden, batch["left"]), _states(hidden, batch["right"]), position], axis=-1)
    x = ACTIVATIONS[model.head_style.activation](linear.apply(head["join"], x))
    x = norm.apply(head["join_norm"], x, model.head_style.eps)
    return mlm_head.transform(head, x, model)


def _states(hidden: Array, which: Array) -> Array:
    """Takes hidden [b, n, d] at `which` i32[b, m]: [b, m, d]."""
    return jnp.take_along_axis(hidden, which[..., None], axis=1)


DEFINITION = ObjectiveDef(
    Config, build, check=masking.check, batch_fields=sentence_pair.batch_fields,
    metrics=mlm_head.METRICS | sentence_pair.METRICS | optional({
        "boundary_loss": loss_metric("Span-boundary loss", baseline="unigram_loss"),
        "boundary_accuracy": accuracy_metric("Span-boundary accuracy", baseline="most_frequent_accuracy"),
    }),
    capabilities=(FillMask(),), loss_fields=("boundary", "weight", "position_width", "sentence_pair"),
)
