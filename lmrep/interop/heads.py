"""The heads of published checkpoints: their parameters, their logits, and sample texts for them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lmrep.core.params import Array, ParamSpec, Tree, zeros
from lmrep.layers import linear, lm_head
from lmrep.models.base import Model
from lmrep.objectives import causal, mlm_head, replaced_token, sentence_pair, span_corruption
from lmrep.objectives.outputs import output_specs, output_table
from lmrep.tasks import conditioned_ends
from lmrep.tasks import heads as tasks


class Head(NamedTuple):
    """An output of published checkpoints besides hidden states: of pretraining, or of a task."""

    title: str  # of its logits, for people
    prefix: str  # begins the paths that only a checkpoint with this head has. (GPT's head has no parameters.)
    # (model) -> specs of its parameters, which are at "objective/NAME"; None for a task: `PublishedTask.specs`
    specs: Callable[[Model], Tree] | None = None
    # (parameters of the network and its heads, hidden states [b, t, d], model) -> logits: of tokens [b, t, v], of each
    # position [b, t], or of pairs [b, 2]; None for a task: `PublishedTask.logits`
    logits: Callable[[Tree, Array, Model], Array] | None = None
    pooled: bool = False  # whether its logits are of each sequence, [b, ...], or of all tokens, [b, t, ...]
    samples: tuple[str, ...] = ()  # texts for `lmrep predict`
    objective: str = ""  # the objective that trains it, if it is the head of a language model
    task: str = ""  # the task in `TASKS` that it is the head of. The fields below are of such heads alone.
    outputs: int = 0  # the number of outputs; 0 for one per label
    problem_type: str = ""  # in config.json; "" for none
    grouped: bool = False  # whether the sequences of an example are its choices
    windows: bool = False  # whether published code also reads long texts in windows
    # fields of the task's config without a key in config.json, which has them in `task_specific_params` if they differ
    # from those of the class
    specific_params: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}  # the fields of the task's config that choose this head


def _mlm_logits(tree: Tree, hidden: Array, model: Model) -> Array:
    head = tree["objective"]["masked"]
    return lm_head.logits(head, output_table(model, tree, head), mlm_head.transform(head, hidden, model))


def _next_token_logits(tree: Tree, hidden: Array, model: Model) -> Array:
    transformed = "transform" in tree.get("objective", {}).get("causal", {})
    return causal.next_token_logits(
        tree, hidden, model=model, c=causal.Config(head="transform" if transformed else "table"))


HEADS = {
    "masked": Head(
        "masked-LM logits", "objective/masked/", mlm_head.specs, _mlm_logits,
        samples=("Paris is the [MASK] of France.",), objective="masked"),
    "pair": Head(
        "sentence-pair logits", "objective/pair/classifier/", sentence_pair.specs,
        lambda tree, hidden, model: sentence_pair.logits(tree["objective"]["pair"], hidden[:, 0]), pooled=True),
    "discriminator": Head(
        "replaced-token logits", "objective/discriminator/",
        lambda model: {"transform": linear.specs(model.width, model.width, (None, None)),
                       "out": linear.specs(model.width, 1, (None, None))},
        lambda tree, hidden, model: replaced_token.replaced_logits(
            tree["objective"]["discriminator"], hidden, model.head_style.activation),
        samples=("Paris is the capital of France.", "Paris is the Friday of France.")),
    "causal": Head("next-token logits", "objective/causal/", mlm_head.specs, _next_token_logits, objective="causal"),
    "permutation": Head(
        "token logits", "objective/permutation/",
        lambda model: output_specs(model) | {"bias": ParamSpec((model.vocab_size,), ("vocab",), zeros)},
        lambda tree, hidden, model: lm_head.logits(
            tree["objective"]["permutation"], output_table(model, tree, tree["objective"]["permutation"]), hidden),
        objective="permutation"),
    "span_corruption": Head(
        "target logits", "objective/span_corruption/", output_specs,
        lambda tree, hidden, model: span_corruption.next_token_logits(tree, hidden, model=model),
        objective="span_corruption"),
    "classification": Head(
        "class logits", "objective/classification/", pooled=True, task="classification",
        problem_type="single_label_classification", specific_params=("end_of_text",)),
    "regression": Head("predicted values", "objective/regression/", pooled=True, task="regression", outputs=1,
                       problem_type="regression", specific_params=("end_of_text",)),
    "multilabel": Head(
        "label logits", "objective/multilabel/", pooled=True, task="multilabel",
        problem_type="multi_label_classification", specific_params=("end_of_text", "threshold")),
    "tagging": Head("tag logits", "objective/tagging/", task="tagging", windows=True),
    "span_extraction": Head(
        "start and end logits", "objective/span_extraction/out/", task="span_extraction", outputs=2, windows=True,
        specific_params=("unanswerable", "threshold"), fields={"end": "independent"}),
    "conditioned_ends": Head(
        "start, end and no-answer logits", "objective/span_extraction/end/", task="span_extraction", outputs=3,
        windows=True, specific_params=("unanswerable", "threshold"), fields={"end": "conditioned"}),
    "multiple_choice": Head("choice logits", "objective/multiple_choice/", pooled=True, task="multiple_choice",
                            outputs=1, grouped=True),
}

# the fields of a task's head that decide what it computes
FORM = ("context", "dense", "hidden", "activation", "bias", "norm")


def head_of(task: str, config: Any) -> str | None:
    """Returns the head in `HEADS` of a task with a config; None if no published class has it."""
    return next((name for name, head in HEADS.items() if head.task == task and all(
        getattr(config, field) == value for field, value in head.fields.items())), None)


class PublishedTask(NamedTuple):
    """The task and the head that a checkpoint was fine-tuned for."""

    name: str  # in `HEADS`
    # fields of the task's config: those of `lmrep.tasks.heads.Head`, and the labels in the order of the outputs
    fields: Mapping[str, Any]

    @property
    def head(self) -> tasks.Head:
        """The config of the head."""
        known = tasks.Head.__dataclass_fields__
        return tasks.Head(**{name: value for name, value in self.fields.items() if name in known})

    @property
    def pooling(self) -> str:
        """The field `pooling` of the task's config, if it has that."""
        return self.fields.get("pooling", "position")

    @property
    def task(self) -> str:
        """The name of the task in `TASKS`."""
        return HEADS[self.name].task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the outputs; () if they have none."""
        return tuple(self.fields.get("labels", ()))

    def specs(self, model: Model) -> Tree:
        """Returns the specs of the head's parameters."""
        if self.name == "conditioned_ends":
            return conditioned_ends.specs(model.width, model.head_style.init)
        return tasks.specs(model, HEADS[self.name].outputs or len(self.labels), self.head)

    def logits(self, params: Tree, hidden: Array, mask: Array, model: Model) -> Array:
        """Computes float32 logits [b, outputs], or [b, t, outputs] of a head for tokens. Conditioned ends have the
        logits of start, of the end of an answer that begins at the last token, and of no answer, equal at all tokens.

        Args:
          hidden: [b, t, d].
          mask: i32[b, t], 1 where there is no padding.
        """
        last = mask.shape[1] - 1 - mask[:, ::-1].argmax(-1)
        if self.name == "conditioned_ends":
            return self._conditioned(params["objective"][self.task], hidden, mask, last, model.head_style.eps)
        if HEADS[self.name].pooled and self.pooling == "mean":
            hidden = tasks.mean(hidden, mask[:, None] > 0)[:, 0]
        elif HEADS[self.name].pooled:
            first = self.head.context == "both" and model.head_style.pooling == "first"
            hidden = hidden[jnp.arange(len(hidden)), mask.argmax(-1) if first else last]
        return tasks.apply(params["objective"][self.task], hidden, self.head, model)

    @staticmethod
    def _conditioned(head: Tree, hidden: Array, mask: Array, last: Array, eps: float) -> Array:
        start = conditioned_ends.start_logits(head, hidden)
        at_last = jnp.take_along_axis(hidden, last[:, None, None], axis=1)
        end = conditioned_ends.end_logits(head, hidden, at_last, jnp.zeros_like(mask), eps)
        weights = jax.nn.softmax(jnp.where(mask > 0, start, conditioned_ends.EXCLUDED), -1)
        none = conditioned_ends.no_answer_logits(head, jnp.einsum("bt,btd->bd", weights, hidden), at_last[:, 0])
        return jnp.stack([start, end, jnp.broadcast_to(none[:, None], start.shape)], -1)
