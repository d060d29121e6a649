"""Language modelling in both directions: ELMo (Peters et al., 2018) and the language models of TagLM (Peters et al.,
2017). Each direction of a network predicts the next word of the text that it reads.

The two directions read two streams of sentences (format `sentence_stream`), and the state of each is carried from batch
to batch, with gradients truncated at the start of each example. A stream marks the begin of each sentence: <S> in the
forward direction, </S> in the backward one. At the start of the next sentence the other mark is predicted, so that the
forward direction never reads </S> and never predicts <S>, and the backward direction the other way round.

Training uses a sampled softmax, evaluation the full one. Both directions share one draw of negatives; the released code
draws them for each direction.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lmrep.config.record import setting
from lmrep.core.errors import UserError
from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.core.vocabulary import Vocabulary
from lmrep.data.formats import sentence_stream
from lmrep.data.formats.base import BACKWARD
from lmrep.data.formats.sentence_stream import STREAM_FIELDS
from lmrep.layers import lm_head, sampled_softmax
from lmrep.layers.sampled_softmax import Negatives
from lmrep.metrics import accuracy_metric, loss_metric
from lmrep.models.base import DIRECTIONS, Context, Model, check_context, model_inputs
from lmrep.objectives import scoring
from lmrep.objectives.base import Batch, Carry, Keys, Metrics, Objective, ObjectiveDef
from lmrep.objectives.causal import initial_carry, next_carry, restart
from lmrep.objectives.outputs import normalize_weights, output_specs, output_table, sums
from lmrep.objectives.scoring import Scoring, Views
from lmrep.objectives.uses import NetworkUse, Uses

NEGATIVES = "negatives"  # in batch["shared"]


@dataclass(frozen=True)
class Config:
    """The output layer and the training loss."""

    negatives: int = setting(8192, "words that the softmax of training samples, the same for all positions of a batch; "
                             "0, or as many as the vocabulary has: the full softmax", at_least=0)
    shared: bool = setting(True, "whether both directions have one output table and bias")


class Marks(NamedTuple):
    """The ids of <S> and </S>, or of one token that serves as both."""

    start: int
    end: int


def build(c: Config, model: Model, vocabulary: Vocabulary) -> Objective:
    """Builds the objective, which predicts each word from the words before it and, if the network has a backward
    direction, from the words after it. Raises UserError if a direction reads both sides, or a tied table would not be
    shared."""
    check_context(model, Context.EACH_SIDE, "objective 'bidirectional'")
    names = model.output.names
    if not c.shared and model.output.table is not None and len(names) > 1:
        raise UserError("objective.shared is false, and model.tied is true: both directions use the network's table of "
                        "words; set --config.objective.shared=true or --config.model.tied=false")
    layout = sentence_stream.layout(sentence_stream.SentenceStream(), vocabulary)
    marks = Marks(layout.tail if layout.lead is None else layout.lead, layout.tail)
    summary = "log probability of the sentence, from left to right"
    return Objective(
        name="bidirectional",
        specs={"encoder": model.specs, "objective": {"bidirectional": specs(c, model)}},
        prepare=partial(prepare, c=c, marks=marks, model=model),
        loss=partial(loss, model=model, most_frequent=int(np.argmax(vocabulary.counts))),
        carry=partial(initial_carry, model=model),
        terms={f"{name}_loss": 1 / len(names) for name in names},
        uses=Uses(
            Context.EACH_SIDE,
            scorings={"log_probability": Scoring(
                summary + (" plus from right to left" if len(names) > 1 else ""),
                views if len(names) > 1 else scoring.next_token_views, partial(log_probabilities, model=model),
                ("bidirectional",), by_token=False)},
            describe=partial(describe, marks=marks, model=model),
            networks=(NetworkUse(model.sizes),)),
    )


def specs(c: Config, model: Model) -> Tree:
    """Declares the output bias and, where the network ties none, the table: of both directions, or of each by name."""
    head = output_specs(model) | {"bias": ParamSpec((model.vocab_size,), ("vocab",), zeros)}
    return head if c.shared or model.output.directions == 1 else dict.fromkeys(DIRECTIONS, head)


def prepare(keys: Keys, batch: Batch, *, c: Config, marks: Marks, model: Model) -> Batch:
    """Adds to the text of each direction `targets` i32[b, t] and `weights` float32 [b, t], 0 where nothing is
    predicted; and the negatives of the batch.

    The last position predicts `following` i32[b], the first word after the example, where it is not negative. The
    weights of each direction add to 1 / the number of directions.
    """
    batch = jax.tree.map(lambda x: x, batch)  # a copy
    for text, (start, end) in zip(texts(batch, model).values(), (marks, marks[::-1]), strict=False):
        tokens, segment_ids, following = text["tokens"], text["segment_ids"], text["following"]
        targets = jnp.concatenate([tokens[:, 1:], following.clip(0)[:, None]], 1)
        last = (following >= 0) & (segment_ids[:, -1] > 0)
        mask = jnp.concatenate([(segment_ids[:, 1:] > 0) & (segment_ids[:, 1:] == segment_ids[:, :-1]), last[:, None]],
                               1)
        text["targets"] = jnp.where(targets == start, end, targets)
        text["weights"] = normalize_weights(mask) / model.output.directions
    if 0 < c.negatives < model.vocab_size:
        drawn = sampled_softmax.draw(keys.shared, c.negatives, model.vocab_size)
        batch["shared"] = {**batch.get("shared", {}), NEGATIVES: drawn._asdict()}
    return batch


def texts(batch: Batch, model: Model) -> dict[str, Batch]:
    """Returns the fields of the text that each direction reads, by its name."""
    return dict(zip(model.output.names, (batch, batch.get("backward", {})), strict=False))


def loss(
    params: Tree, batch: Batch, key: Array | None, carry: Carry, *, model: Model, most_frequent: int
) -> tuple[Array, tuple[Metrics, Carry]]:
    """Computes the mean over directions of the mean cross-entropy of all words, and the states after the batch.

    The softmax is over the batch's negatives where it has some and `key` is given.
    """
    state = initial_state(batch, carry, model)
    inputs = model_inputs(model, batch, conditions_on=Context.EACH_SIDE, carry=state)
    encoded = model.encode(params["encoder"], inputs, key)
    names = model.output.names
    hidden = dict(zip(names, jnp.split(encoded.hidden, len(names), -1), strict=True))
    targets, weights = ({name: text[field] for name, text in texts(batch, model).items()}
                        for field in ("targets", "weights"))
    drawn = batch.get("shared", {}).get(NEGATIVES) if key is not None else None
    total, losses = jnp.float32(0), {}
    for group, head in _heads(params, names):
        x, words, w = (jnp.concatenate([arrays[name] for name in group], 1) for arrays in (hidden, targets, weights))
        table, bias = output_table(model, params, head, key), head["bias"]
        if drawn is not None:
            more, *per_word = sampled_softmax.cross_entropy(table, x, words, w, Negatives(**drawn), bias)
        else:
            more, *per_word = lm_head.chunked_cross_entropy(table, x, words, w, bias)
        total += more
        by_direction = zip(*(jnp.split(values, len(group), 1) for values in per_word), strict=True)
        losses |= dict(zip(group, by_direction, strict=True))
    metrics = _metrics(losses, targets, weights, drawn is not None, most_frequent)
    return total, (metrics, next_carry(carry, state, encoded))


def _metrics(
    losses: dict[str, tuple[Array, ...]], targets: dict[str, Array], weights: dict[str, Array], sampled: bool,
    most_frequent: int,
) -> Metrics:
    """Computes metrics of `losses`: each direction's nll [b, t] and, of the full softmax, correctness [b, t]."""
    masks = {name: w > 0 for name, w in weights.items()}
    if sampled:
        return {f"sampled_{name}_loss": sums(masks[name], nll=nll)["nll"] for name, (nll, *_) in losses.items()}
    metrics: Metrics = {}
    for name, (nll, correct) in losses.items():
        summed = sums(masks[name], nll=nll, accuracy=correct, frequent=targets[name] == most_frequent)
        metrics[f"{name}_loss"] = summed["nll"]
        for total, part in (("lm_loss", "nll"), ("lm_accuracy", "accuracy"), ("most_frequent_accuracy", "frequent")):
            metrics[total] = jax.tree.map(jnp.add, metrics[total], summed[part]) if total in metrics else summed[part]
    return metrics


def _heads(params: Tree, names: tuple[str, ...]) -> list[tuple[tuple[str, ...], Tree]]:
    """Groups the directions that share an output layer, with its parameters."""
    head = params["objective"]["bidirectional"]
    return [(names, head)] if "bias" in head else [((name,), head[name]) for name in names]


def initial_state(batch: Batch, carry: Carry, model: Model) -> Tree | None:
    """Returns the state that each direction of each example continues from, by name, as `causal.initial_state`."""
    if "reset" not in batch or not jax.tree.leaves(carry.per_example):
        return None
    initial = model.state.carry(batch["reset"].shape[0])
    return {name: restart(text["reset"], carry.per_example[name], initial[name])
            for name, text in texts(batch, model).items()}


def views(ids: np.ndarray, words: np.ndarray) -> Views:
    """Makes a single view of each text. Its predictions alternate between the directions: position i predicts token i +
    1, and position i + 1 predicts token i. No direction predicts the token that it starts from."""
    (n, t), first = ids.shape, np.arange(ids.shape[1] - 1, dtype=np.int32)
    predicted = np.stack([first, first + 1], 1).reshape(-1)
    return Views(np.arange(n), ids, np.broadcast_to(predicted, (n, 2 * (t - 1))),
                 np.stack([ids[:, 1:], ids[:, :-1]], 2).reshape(n, -1))


def log_probabilities(params: Tree, batch: Batch, *, model: Model) -> Array:
    """Computes the log probability float32 [b, m] of `targets` i32[b, m] at the positions `predicted`; where the
    network has two directions, the first is forward, the second backward, and so on."""
    names = model.output.names
    hidden = model.encode(params["encoder"], model_inputs(model, batch, conditions_on=Context.EACH_SIDE)).hidden
    heads = {name: head for group, head in _heads(params, names) for name in group}
    scores = []
    for i, (name, x) in enumerate(zip(names, jnp.split(hidden, len(names), -1), strict=True)):
        predicted, targets = (batch[field][:, i :: len(names)] for field in ("predicted", "targets"))
        x = jnp.take_along_axis(x, predicted[..., None], axis=1)
        scores.append(lm_head.log_probabilities(
            heads[name], output_table(model, params, heads[name]), x, targets))
    return jnp.stack(scores, 2).reshape(batch["targets"].shape)


def describe(batch: Batch, tokenizer, *, marks: Marks, model: Model) -> list[str]:
    """Shows each example as text: what each direction reads, "|" where the mark of the end is predicted, and the last
    word that it predicts."""
    examples = []
    for i in range(len(batch["tokens"])):
        lines = []
        for (name, text), end in zip(texts(batch, model).items(), marks[::-1], strict=False):
            tokens, targets, weights = (text[field][i] for field in ("tokens", "targets", "weights"))
            real = np.flatnonzero(text["segment_ids"][i])
            words = [tokenizer.id_to_token(int(tokens[j])) + " |" * bool(weights[j] > 0 and targets[j] == end)
                     for j in real]
            last = real[-1] if len(real) else 0
            words += [f"-> {tokenizer.id_to_token(int(targets[last]))}"] * bool(weights[last] > 0)
            lines.append(" ".join([f"{name}:", *words]))
        examples.append(" / ".join(lines))
    return examples


DEFINITION = ObjectiveDef(
    Config, build, conditions_on=lambda c: Context.EACH_SIDE,
    batch_fields=lambda c: ("example", *STREAM_FIELDS, *(BACKWARD + name for name in STREAM_FIELDS)),
    metrics={
        "lm_loss": loss_metric("Mean loss", perplexity=True),
        "forward_loss": loss_metric("Forward loss", perplexity=True),
        "backward_loss": loss_metric("Backward loss", perplexity=True, optional=True),
        "lm_accuracy": accuracy_metric("Next-word accuracy", baseline="most_frequent_accuracy"),
        "most_frequent_accuracy": accuracy_metric("Accuracy of the most frequent word", headline=False),
        "sampled_forward_loss": loss_metric("Forward loss over sampled words", optional=True),
        "sampled_backward_loss": loss_metric("Backward loss over sampled words", optional=True),
    },
)
