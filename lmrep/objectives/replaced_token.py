"""Replaced-token detection (Clark et al., 2020): a small masked language model, the generator, fills in masked tokens;
the encoder predicts for every token whether it was replaced.

Both are trained together. No gradient passes through the generator's samples; shared tables get both gradients. With
`model.embedding_delta` the shared token table gets the generator's gradient alone, and the encoder adds a table to it
that it trains: gradient-disentangled embedding sharing, GDES (He et al., 2023, DeBERTaV3, section 3.3).
`variant` selects the paper's ablations. One thing differs from the released code: where a position is drawn twice, it
shows the mean of the two sampled ids, and this code one of the samples.
"""

import math
import re
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core import prng
from lmrep.core.errors import UserError
from lmrep.core.params import Array, Tree, flatten, glorot_uniform, unflatten
from lmrep.core.vocabulary import Vocabulary
from lmrep.layers import linear, lm_head
from lmrep.layers.mlp import ACTIVATIONS
from lmrep.metrics import accuracy_metric, fraction_metric, loss_metric, optional
from lmrep.models.base import Model, model_inputs
from lmrep.objectives import masking, mlm_head, scoring
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.capabilities import DetectReplaced, FillMask
from lmrep.objectives.outputs import normalize_weights, output_table, sums
from lmrep.objectives.scoring import Scoring
from lmrep.objectives.uses import NetworkUse, Uses

VARIANTS = ("electra", "electra_15", "replace_mlm", "all_tokens_mlm")
DETECTING = VARIANTS[:2]  # variants whose encoder detects replaced tokens; the others predict tokens
HEADS = dict(zip(VARIANTS, (("discriminator",), ("discriminator",), ("masked",), ("masked", "copy")), strict=True))
PREDICTS = {"replace_mlm": "masked", "all_tokens_mlm": "tokens"}  # `NetworkUse.predicts` of the encoder
SHARED = {"all": r"embedding(_norm)?/.+", "tokens": "embedding/token", "none": ""}  # patterns of paths


@dataclass(frozen=True)
class Config:
    """The generator, the masking, and what the encoder predicts."""

    variant: str = setting("electra", "detect replaced tokens among all, or among the masked ones; predict the masked "
                        "tokens, or all tokens with a copy gate", choices=VARIANTS)
    generator: float = setting(0.25, "the generator's width, as a fraction of the encoder's", above=0, at_most=1)
    generator_layers: int = setting(0, "its layers; 0: as many as the encoder's", at_least=0)
    tie: str = setting("all", "what it shares with the encoder: all tables with their norm, the token table, none; "
                       "with model.embedding_delta, it alone trains the shared token table (GDES)",
                       choices=tuple(SHARED))
    rate: float = setting(0.15, "fraction of an example's tokens that is masked (large: 0.25)", above=0, at_most=1)
    mask: float = setting(0.85, "fraction of the chosen tokens replaced by [MASK]", at_least=0, at_most=1)
    keep: float = setting(0.15, "fraction of the chosen tokens left unchanged", at_least=0, at_most=1)
    random: float = setting(0.0, "fraction of the chosen tokens replaced by a random token", at_least=0, at_most=1)
    with_replacement: bool = setting(True, "whether a position may be drawn twice, as in the released code")
    temperature: float = setting(1.0, "temperature of sampling from the generator", above=0)
    generator_weight: float = setting(1.0, "weight of the generator's loss", at_least=0)
    weight: float = setting(50.0, "weight of the detection loss; other variants have 1", at_least=0)


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which detects tokens that a generator replaced, or predicts tokens. Raises UserError if the
    network cannot make a generator whose shared tables have its shapes."""
    masking.check(c)
    masking.check_mask_token("replaced_token", vocabulary)
    if model.make_generator is None:
        raise UserError(f"objective=replaced_token needs a generator, which the network {model.name!r} cannot make: "
                        "its Model has no make_generator; add one, or choose model=transformer")
    generator = model.make_generator(c.generator, c.generator_layers)
    shapes = {path: spec.shape for path, spec in flatten(model.specs).items()}
    for path, spec in flatten(generator.specs).items():
        if _shares(path, c) and spec.shape != shapes.get(path):
            raise UserError(f"objective.tie is {c.tie!r}, and {path} has the shape {shapes.get(path)} in the network "
                            f"{model.name!r} and {spec.shape} in the generator of its make_generator; give both tables "
                            "of one width there, or set --config.objective.tie=none")
    return Objective(
        name="replaced_token",
        specs={"encoder": model.specs, "objective": specs(c, model, generator)},
        prepare=partial(prepare, c=c, vocabulary=vocabulary),
        loss=partial(loss, c=c, model=model, generator=generator, counts=vocabulary.counts),
        predict=partial(predict, c=c, model=model, generator=generator, vocabulary=vocabulary),
        terms={"generator_loss": c.generator_weight} | (
            {"discriminator_loss": c.weight} if c.variant in DETECTING
            else {"mlm_loss": 1.0} if c.variant == "replace_mlm" else {"lm_loss": 1.0}),
        uses=Uses(
            scorings={"original_log_probability": Scoring(
                "sum of the log probabilities that each token is original; lmrep's own score, not a published one",
                scoring.token_views, partial(log_probabilities, c=c, model=model), HEADS[c.variant],
                by_token=False)},
            held_out=masking.held_out,
            replaced=partial(replace_tokens, c=c, generator=generator),
            describe=masking.describe,
            networks=(NetworkUse(generator.sizes, "masked"),
                      NetworkUse(model.sizes, PREDICTS.get(c.variant, "binary"))),
            published_heads={"discriminator": "discriminator", "masked": "masked"}),
    )


def specs(c: Config, model: Model, generator: Model) -> Tree:
    """Declares the parameters of the generator that are not shared, its head, and the encoder's head."""
    init = model.head_style.init
    separate = {path: spec for path, spec in flatten(generator.specs).items() if not _shares(path, c)}
    tree = {"generator": unflatten(separate), "generator_head": mlm_head.specs(generator)}
    if c.variant in DETECTING:
        tree["discriminator"] = {"transform": linear.specs(model.width, model.width, ("embed", None), init),
                                 "out": linear.specs(model.width, 1, (None, None), glorot_uniform)}
    else:
        tree["masked"] = mlm_head.specs(model)
    if c.variant == "all_tokens_mlm":
        tree["copy"] = linear.specs(model.width, 1, (None, None), init)
    return tree


def _shares(path: str, c: Config) -> bool:
    return re.fullmatch(SHARED[c.tie], path) is not None


def generator_as_masked_lm(params: Tree, c: Config) -> Tree:
    """Returns the generator, with what it shares with the encoder, and its head as the parameters of a masked language
    model."""
    shared, heads = flatten(params["encoder"]), params["objective"]
    shared = {path: value for path, value in shared.items() if _shares(path, c)}
    return {"encoder": unflatten(flatten(heads["generator"]) | shared),
            "objective": {"masked": heads["generator_head"]}}


def prepare(keys: Keys, batch: Batch, *, c: Config, vocabulary: Vocabulary) -> Batch:
    """Adds `inputs` i32[b, t] of the generator; `predicted`, `targets`, `weights` [b, m]; `seeds` uint32[b, m] of its
    samples; `token_weights` float32 [b, t] of the encoder's predictions."""
    inputs, predicted, targets, target_mask, seeds = jax.vmap(partial(mask_example, c=c, vocabulary=vocabulary))(
        keys.per_example, batch["tokens"], batch["segment_ids"])
    classified = batch["segment_ids"] > 0
    if c.variant in ("electra_15", "replace_mlm"):  # the masked tokens only
        classified = jax.vmap(lambda positions, mask: jnp.zeros(inputs.shape[1], bool).at[positions].max(mask))(
            predicted, target_mask)
    return batch | {"inputs": inputs, "predicted": predicted, "targets": targets, "seeds": seeds,
                    "weights": normalize_weights(target_mask), "token_weights": normalize_weights(classified)}


def mask_example(
    key: Array, tokens: Array, segment_ids: Array, *, c: Config, vocabulary: Vocabulary
) -> tuple[Array, Array, Array, Array, Array]:
    """Masks one example as `masking.mask_example`, and draws seeds uint32[m], equal where positions are."""
    key, seed_key = jax.random.split(key)
    rule = masking.mask_example if not c.with_replacement else _mask_with_replacement
    inputs, predicted, targets, target_mask = rule(key, tokens, segment_ids, vocabulary=vocabulary, c=masking.Config(
        rate=c.rate, mask=c.mask, keep=c.keep, random=c.random))
    return inputs, predicted, targets, target_mask, jax.random.bits(seed_key, tokens.shape)[predicted]


def _mask_with_replacement(
    key: Array, tokens: Array, segment_ids: Array, *, c: masking.Config, vocabulary: Vocabulary
) -> tuple[Array, Array, Array, Array]:
    """Samples positions with replacement from all tokens but special ones, as in the released code."""
    t, special = tokens.shape[0], vocabulary.specials
    m = max(1, int((c.rate + 0.005) * t))
    draws = jax.random.bits(key, (3, m))
    maskable = (segment_ids > 0) & ~masking.one_of(tokens, special, ("cls", "sep", "bos", "eos", "pad", "mask"))
    among = jnp.cumsum(maskable)
    number = jnp.floor(masking.uniform(draws[0]) * among[-1]).astype(jnp.int32)  # of the maskable ones, from 0
    predicted = jnp.searchsorted(among, number + 1).astype(jnp.int32).clip(0, t - 1)
    count = masking.num_predictions(jnp.float32(0), (segment_ids > 0).sum(), t, c, c.rate)
    target_mask = (jnp.arange(m) < jnp.minimum(count, m)) & (among[-1] > 0)
    action, targets = masking.uniform(draws[1]), tokens[predicted]
    words = masking.random_tokens(draws[2], c, vocabulary)
    # A position drawn twice is [MASK] if either draw is.
    positions = jnp.where(target_mask & (action >= c.mask) & (action < c.mask + c.random), predicted, t)
    inputs = jnp.append(tokens, 0).at[positions].set(words)
    positions = jnp.where(target_mask & (action < c.mask), predicted, t)
    return inputs.at[positions].set(special["mask"])[:t], predicted, targets, target_mask


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, c: Config, model: Model, generator: Model,
    counts: np.ndarray,
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the generator's mean cross-entropy, plus the weighted loss of the encoder."""
    generator_key, encoder_key = prng.split(key, 2)
    heads = params["objective"]
    nll, correct, words = generate(params, batch, generator_key, c, generator)
    shown = replace(batch, words)
    replaced, real = shown != batch["tokens"], batch["segment_ids"] > 0
    total = c.generator_weight * (nll * batch["weights"]).sum()
    metrics = sums(batch["weights"] > 0, generator_loss=nll, generator_accuracy=correct,
                   most_frequent_accuracy=batch["targets"] == int(np.argmax(counts)))
    metrics |= sums(batch["token_weights"] > 0, replaced_fraction=replaced)
    at = batch["predicted"] if c.variant == "replace_mlm" else None
    hidden = encode(params, batch, shown, model, encoder_key, at)
    if c.variant in DETECTING:
        more, encoder_metrics = discriminator_loss_and_metrics(
            heads["discriminator"], hidden, replaced, batch["token_weights"], model.head_style.activation)
        more = c.weight * more
    elif c.variant == "replace_mlm":
        more, encoder_metrics = mlm_head.loss_and_metrics(params, hidden, batch, model, encoder_key)
    else:
        table = output_table(model, params, heads["masked"], encoder_key)
        nll, copied = copy_or_predict(heads, table, hidden, batch["tokens"], ~replaced, model)
        more, encoder_metrics = (nll * batch["token_weights"]).sum(), sums(
            real, lm_loss=nll, copied_fraction=copied, copying_loss=copying_loss(batch["tokens"], replaced, c, counts))
    return total + more, (metrics | encoder_metrics, carry)


def encode(
    params: Tree, batch: Batch, tokens: Array, model: Model, key: Array | None = None, at: Array | None = None
) -> Array:
    """Computes the encoder's output [b, m, d], as `mlm_head.encode`, but always that of its last layer."""
    return model.encode(params["encoder"], model_inputs(model, batch, tokens=tokens), key, at=at).hidden


def generate(
    params: Tree, batch: Batch, key: Array | None, c: Config, generator: Model
) -> tuple[Array, Array, Array]:
    """Computes the generator's (nll, whether its most probable token is correct, sampled tokens i32), [b, m] each."""
    tree = generator_as_masked_lm(params, c)
    head = tree["objective"]["masked"]
    hidden = mlm_head.encode(tree, batch, batch["inputs"], generator, key, batch["predicted"])
    return lm_head.cross_entropy_and_sample(
        head, output_table(generator, tree, head, key), mlm_head.transform(head, hidden, generator), batch["targets"],
        batch["seeds"], c.temperature)


def replace(batch: Batch, words: Array) -> Array:
    """Puts `words` i32[b, m] at the predicted positions of the tokens i32[b, t]."""
    t = batch["tokens"].shape[1]
    positions = jnp.where(batch["weights"] > 0, batch["predicted"], t)
    put = jax.vmap(lambda tokens, positions, words: jnp.append(tokens, 0).at[positions].set(words)[:t])
    return put(batch["tokens"], positions, words)


def replace_tokens(params: Tree, batch: Batch, *, c: Config, generator: Model) -> tuple[Array, Array]:
    """Replaces the masked tokens of a prepared batch, i32[b, t], by tokens that the generator samples, and tells which
    tokens the encoder judges, bool[b, t]."""
    return replace(batch, generate(params, batch, None, c, generator)[2]), batch["token_weights"] > 0


def discriminator_loss_and_metrics(
    head: Tree, hidden: Array, replaced: Array, weights: Array, activation: str
) -> tuple[Array, Metrics]:
    """Computes the weighted sum of the binary cross-entropies of `replaced` bool[b, t], and metrics."""
    logits = replaced_logits(head, hidden, activation)
    nll = jax.nn.softplus(logits) - logits * replaced
    target_mask = weights > 0
    correct = (logits > 0) == replaced
    return (nll * weights).sum(), sums(target_mask, discriminator_loss=nll, discriminator_accuracy=correct) | sums(
        target_mask & replaced, replaced_accuracy=correct) | sums(target_mask & ~replaced, original_accuracy=correct)


def replaced_logits(head: Tree, hidden: Array, activation: str) -> Array:
    """Applies the detection head: hidden [b, t, d] -> logits float32 [b, t], above 0 for "replaced"."""
    x = ACTIVATIONS[activation](linear.apply(head["transform"], hidden))
    return linear.apply(head["out"], x.astype(jnp.float32))[..., 0]


def copy_or_predict(
    heads: Tree, table: Array, hidden: Array, targets: Array, same: Array, model: Model
) -> tuple[Array, Array]:
    """Computes -log(D * same + (1 - D) * softmax(logits)[target]), and D; [b, t] each. D is the sigmoid of the copy
    gate, `same` bool[b, t] whether the input token is the original one."""
    gate = linear.apply(heads["copy"], hidden.astype(jnp.float32))[..., 0]
    predicted = jax.nn.log_sigmoid(-gate) - _nll(heads["masked"], table, hidden, targets, model)
    either = jnp.logaddexp(jax.nn.log_sigmoid(gate), predicted)
    return -jnp.where(same, either, predicted), jax.nn.sigmoid(gate)


def copying_loss(tokens: Array, replaced: Array, c: Config, counts: np.ndarray) -> Array:
    """Computes the first result of `copy_or_predict` [b, t] for a predictor whose gate is 1 - `rate` everywhere, and
    whose tokens come from the training text, with their `counts` [v]."""
    unigram = jnp.asarray(np.log(np.maximum(counts, 1) / max(1, counts.sum())), jnp.float32)
    rate = min(c.rate, 0.99)
    return jnp.where(replaced, -math.log(rate) - unigram[tokens], -math.log1p(-rate))


def predict(
    params: Tree, batch: Batch, *, c: Config, model: Model, generator: Model, vocabulary: Vocabulary, k: int = 5
) -> dict[str, Array]:
    """Finds, with `predicted` i32[b, m] in the batch, the k most probable tokens there, as `mlm_head.predict`. Without
    it, computes `replaced` float32 [b, t], the encoder's probability that each token was replaced; in variants whose
    encoder predicts tokens, 1 minus the probability of the token.

    The tokens are the generator's or, in variants whose encoder predicts tokens, the encoder's, whose inputs have the
    generator's most probable token at each [MASK], as in training.
    """
    if "predicted" not in batch:
        return {"replaced": -jnp.expm1(original_log_probability(params, batch, c, model))}
    predictions = mlm_head.predict(generator_as_masked_lm(params, c), batch, model=generator, size=vocabulary.size, k=k)
    if c.variant in DETECTING:
        return predictions
    heads, positions = params["objective"], batch["predicted"]
    empty = jnp.take_along_axis(batch["tokens"], positions, 1) == vocabulary.specials["mask"]
    shown = replace(batch | {"weights": empty}, predictions["words"][..., 0])
    hidden = encode(params, batch, shown, model, at=positions)
    probabilities = mlm_head.probabilities(params, hidden, model)
    if c.variant == "all_tokens_mlm":
        copied = jax.nn.sigmoid(linear.apply(heads["copy"], hidden.astype(jnp.float32)))
        same = jax.nn.one_hot(jnp.take_along_axis(shown, positions, 1), probabilities.shape[-1])
        probabilities = copied * same + (1 - copied) * probabilities
    return mlm_head.top_k(probabilities, vocabulary.size, k)


def original_log_probability(params: Tree, batch: Batch, c: Config, model: Model) -> Array:
    """Computes the encoder's log probability float32 [b, t] that each token was not replaced; in variants whose encoder
    predicts tokens, the log probability of the token."""
    heads, tokens = params["objective"], batch["tokens"]
    hidden = encode(params, batch, tokens, model)
    if c.variant in DETECTING:
        return jax.nn.log_sigmoid(-replaced_logits(heads["discriminator"], hidden, model.head_style.activation))
    table = output_table(model, params, heads["masked"])
    if c.variant == "replace_mlm":
        return -_nll(heads["masked"], table, hidden, tokens, model)
    return -copy_or_predict(heads, table, hidden, tokens, jnp.ones(tokens.shape, bool), model)[0]


def log_probabilities(params: Tree, batch: Batch, *, c: Config, model: Model) -> Array:
    """Computes `original_log_probability` at the positions `predicted` i32[b, m] of a batch, float32 [b, m]."""
    return jnp.take_along_axis(original_log_probability(params, batch, c, model), batch["predicted"], axis=1)


def _nll(head: Tree, table: Array, hidden: Array, targets: Array, model: Model) -> Array:
    """Computes -log probability of `targets` i32[b, t] given the states [b, t, d], in chunks of t."""
    def nll(x: Array, targets: Array) -> Array:
        return lm_head.cross_entropy(head, table, mlm_head.transform(head, x, model), targets)[0]

    return lm_head.map_chunks(nll, table.shape[0], hidden, targets)


DEFINITION = ObjectiveDef(
    Config, build, check=masking.check,
    metrics=optional(mlm_head.METRICS) | {
        "generator_loss": loss_metric("Generator loss", baseline="unigram_loss"),
        "generator_accuracy": accuracy_metric("Generator accuracy", baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": mlm_head.METRICS["most_frequent_accuracy"],
        "replaced_fraction": fraction_metric("Fraction of the encoder's tokens that were replaced"),
    } | optional({
        "discriminator_loss": loss_metric("Discriminator loss", baseline="entropy of replaced_fraction"),
        "discriminator_accuracy": accuracy_metric("Discriminator accuracy", baseline="majority of replaced_fraction"),
        "replaced_accuracy": accuracy_metric("Replaced tokens found", baseline="1 - original_accuracy"),
        "original_accuracy": accuracy_metric("Original tokens recognised", baseline="1 - replaced_accuracy"),
        "lm_loss": loss_metric("Loss of all tokens", baseline="copying_loss"),
        "copying_loss": loss_metric("Copying all tokens but a constant share"),
        "copied_fraction": fraction_metric("Mean of the copy gate"),
    }),
    capabilities=(FillMask("generator_head", "generator"), DetectReplaced()),
    loss_fields=("generator_weight", "weight"),
)
