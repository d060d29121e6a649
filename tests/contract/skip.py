"""An objective that lmrep does not know: each token is predicted from those up to two positions before it. With it, a
trained model suggests what comes after the next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lmrep.config.record import setting
from lmrep.core.params import Array, Tree
from lmrep.core.vocabulary import Vocabulary
from lmrep.data import prompts
from lmrep.metrics import Metric, loss_metric
from lmrep.models.base import Context, Model, model_inputs
from lmrep.objectives.base import Batch, Capability, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.outputs import normalize_weights, output_specs, output_table, sums
from lmrep.objectives.uses import HeldOut, Uses


@dataclass(frozen=True)
class Config:
    """What is predicted."""

    distance: int = setting(2, "positions from a state to the token that it predicts", at_least=1)


@dataclass(frozen=True)
class Options:
    """Options of `Suggest`."""

    k: int = setting(3, "tokens to suggest", at_least=1)


class Suggest(Capability):
    """Suggests a later token. A prediction is a list of tokens."""

    name, summary, example, options, sample_options = "suggest", "suggests tokens", "the old cat", Options, Options(2)

    def predict(self, run, texts: Sequence[str], options: Options = Options(), names=None) -> list[list[str]]:
        """The `options.k` most probable tokens after each text, the most probable first."""
        found = []
        for text in prompts.tokenize_prompts(texts, run.tokenizer, run.model.max_length, names):
            batch = prompts.pad_batch([text.ids], run.tokenizer.vocabulary.specials["pad"], run.model.max_length)
            ids = run.predict_batch(batch, k=options.k)["tokens"][0, len(text.ids) - 1]
            found.append([run.tokenizer.id_to_token(int(i)) for i in ids])
        return found

    def to_json(self, prediction: list[str]) -> dict[str, Any]:
        """{"suggestions": [...]}"""
        return {"suggestions": prediction}

    def to_text(self, text: str, prediction: list[str], tokenizer) -> str:
        """One line."""
        return f"{text} _ {'/'.join(prediction)}"


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Predict tokens at a distance."""
    head = {"objective": {"skip": head_specs}} if (head_specs := output_specs(model)) else {}
    return Objective(
        "skip", {"encoder": model.specs, **head}, partial(prepare, c=c), partial(loss, model=model),
        predict=partial(predict, model=model), terms={"skip_loss": 1.0},
        uses=Uses(Context.LEFT, describe=describe, held_out=held_out),
        carry=lambda batch_size: Carry((), jnp.float32(0)))  # how many batches it was trained on


def prepare(keys: Keys, batch: Batch, *, c: Config) -> Batch:
    """Adds `targets` i32[b, t] and `weights` [b, t]."""
    targets, later = (jnp.pad(x[:, c.distance :], ((0, 0), (0, c.distance))) for x in (
        batch["tokens"], batch["segment_ids"]))
    target_mask = (later == batch["segment_ids"]) & (later > 0)
    return batch | {"targets": targets, "weights": normalize_weights(target_mask)}


def logits(params: Tree, batch: Batch, model: Model, key: Array | None = None) -> Array:
    """[b, t, v]"""
    inputs = model_inputs(model, batch, conditions_on=Context.LEFT)
    hidden = model.encode(params["encoder"], inputs, key).hidden
    table = output_table(model, params, params.get("objective", {}).get("skip", {}), key)
    return jnp.einsum("btd,vd->btv", hidden, table)


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, model: Model
) -> tuple[Array, tuple[Metrics, Carry]]:
    """The mean cross-entropy."""
    log_probabilities = jax.nn.log_softmax(logits(params, batch, model, key))
    own = jnp.take_along_axis(log_probabilities, batch["targets"][..., None], -1)
    nll, rank = -own[..., 0], (log_probabilities > own).sum(-1)
    metrics = sums(batch["weights"] > 0, skip_loss=nll, top3=rank < 3) | {"batches": (carry.shared, 1)}
    if key is not None:
        carry = carry._replace(shared=carry.shared + 1)
    return (nll * batch["weights"]).sum(), (metrics, carry)


def predict(params: Tree, batch: Batch, *, model: Model, k: int = 3) -> dict[str, Array]:
    """`tokens` i32[b, t, k]"""
    return {"tokens": jax.lax.top_k(logits(params, batch, model), k)[1]}


def held_out(batch: Batch) -> HeldOut:
    """The tokens at a distance."""
    positions = jnp.broadcast_to(jnp.arange(batch["tokens"].shape[1]), batch["tokens"].shape)
    return HeldOut(batch["tokens"], positions, jnp.where(batch["weights"] > 0, batch["targets"], -1))


def describe(batch: Batch, tokenizer) -> list[str]:
    """The tokens of each example."""
    return [" ".join(tokenizer.id_to_token(int(i)) for i in tokens[segments > 0])
            for tokens, segments in zip(batch["tokens"], batch["segment_ids"], strict=True)]


DEFINITION = ObjectiveDef(
    Config, build, conditions_on=lambda c: Context.LEFT,
    metrics={"skip_loss": loss_metric("Skip loss"),
             "top3": Metric("Among the three most probable", "accuracy", True, ".1%", headline=True),
             "batches": Metric("Batches of training", "batches", format=".0f")},
    capabilities=(Suggest(),))
