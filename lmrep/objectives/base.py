"""The contract between an objective, the trainer and inference.

The trainer knows nothing of masks, heads or labels. It hands the global batch to `prepare` once, with a random key for
each example, and then sums `loss` over microbatches, devices and hosts. Without dropout that sum is exact: everything
random about an example is drawn from its own key, and every weight in a prepared batch is already divided by the global
batch's total.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lmrep.core.components import described, row, type_of
from lmrep.core.errors import Broken
from lmrep.core.params import Array, Tree
from lmrep.data import prompts
from lmrep.metrics import Metric
from lmrep.models.base import Context, Model
from lmrep.objectives.uses import Uses

Names = Sequence[str | None] | None
Batch = dict[str, Any]  # arrays [b, ...] by name, and a second text as a batch; arrays in "shared" have no batch axis
Metrics = dict[str, tuple[Array, Array]]  # name -> (sum, count), so that any grouping adds up
BATCH_FIELDS = ("tokens", "segment_ids", "example")  # the fields that every format has


class Keys(NamedTuple):
    """Random keys for one batch's `prepare`, and the step, for what changes during training."""

    per_example: Array  # key[b], a key for each example's draws
    shared: Array  # key[], for draws that the batch shares, such as the negatives of a sampled softmax
    step: Array | int = 0  # i32[], the updates before this one; 0 on validation and for static objectives


class EvaluationKeys(Keys):
    """The keys of validation and evaluation, where the inputs and targets of an example must not depend on the others
    of its batch, nor on the step."""


class Carry(NamedTuple):
    """State that an objective carries from one step to the next."""

    per_example: Tree = ()  # arrays [b, ...]: recurrent states, memories
    shared: Tree = ()  # arrays without a batch axis: running statistics; threaded through microbatches in their order


class ByTurns(NamedTuple):
    """A metric, in place of (sum, count), of a term of the loss that some batches of training have no targets of, since
    they are of another kind: such a batch has targets if one of its metrics of this type has."""

    sum: Array  # float32[]
    count: Array  # []


class Objective(NamedTuple):
    """A training objective as pure functions, with the config bound.

    Attributes:
      name: its name in `OBJECTIVES`.
      specs: {"encoder": ..., "objective": ...}, trees of `ParamSpec`.
      prepare: (Keys, batch) -> the batch with inputs, targets and weights. Its field `weights`, if it has one, is above
        0 where the first term of the loss counts: masked tokens, labelled texts. Draws that all examples share are in
        `batch["shared"]`, whose arrays are never split into microbatches.
      loss: (params, batch, key, carry) -> (a plain sum over examples, (metrics, carry)); `key` is for dropout, None for
        none.
      frozen: specs of parameters that get no gradient and no optimizer state (a teacher, a language model under a
        tagger); `loss`, `predict` and `penalty` find them under params["frozen"].
      carry: batch_size -> the carry before the first step.
      penalty: params -> a term added to the loss once a step.
      predict: (params, batch without targets, ...) -> arrays of predictions, for its capability. If the carry has
        running statistics, the run's `carry.shared` is in params["shared"].
      terms: {"mlm_loss": 1.0, "pair_loss": 1.0}: the metrics, with their weights, whose weighted sum is `loss`.
        Evaluation sums their means, so that its loss does not depend on the batch size. A batch in which one of them
        counts nothing has no targets, and is an error (but for `ByTurns`). {}: `loss` is a mean over examples.
      static: whether `prepare` depends on the example's number alone (BERT's static masks).
      uses: the functions that inference, reports, conversion and planning need.
    """

    name: str
    specs: Tree
    prepare: Callable[[Keys, Batch], Batch]
    loss: Callable[[Tree, Batch, Array | None, Carry], tuple[Array, tuple[Metrics, Carry]]]
    frozen: Tree = {}  # noqa: RUF012
    carry: Callable[[int], Carry] = lambda batch_size: Carry()
    penalty: Callable[[Tree], Array] | None = None
    predict: Callable[..., dict[str, Array]] | None = None
    terms: Mapping[str, float] = {}
    static: bool = False
    uses: Uses = Uses()


class FrozenPart(NamedTuple):
    """Parameters that an objective reads and no optimizer changes: `config.frozen`."""

    name: str  # in `config.frozen`; an objective finds the parameters under params["frozen"][name]
    source: str  # the run or file that they come from, for people
    specs: Tree  # of the parameters, {"encoder": ..., "objective": ...} of a model; {"vectors": [v, d]} of word vectors
    tokens: Sequence[str]  # the tokens of its tokenizer, by id; the words of word vectors
    model: Model | None = None  # None for word vectors
    objective: Objective | None = None  # the objective that the model was trained with; None for word vectors
    config: Any = None  # the config of that objective
    values: Mapping[str, np.ndarray] = {}  # float32 arrays by path; {} where only shapes are needed
    fingerprint: str = ""  # identifies network and values; "" without values


FrozenParts = Mapping[str, FrozenPart]


@dataclass(frozen=True)
class NoOptions:
    """Options of a capability: none."""


class Capability:
    """The base of a use of a trained model: how texts become a batch, what is computed, and how predictions are printed
    and serialised.

    `lmrep predict`, `Run.predict`, the end of training, reports and `lmrep inspect` go by it. A `run` is a loaded one
    (`lmrep.inference.run.Run`): tokenizer, network, objective and parameters.

    Attributes:
      name: for configs and reports, "fill_mask".
      summary: what it does, for help texts: "fills in masked words".
      example: a suitable text.
      types: the types of prompts.
      options: the frozen record of the options of `predict`.
      sample_options: the options for samples at the end of training.
    """

    name: str
    summary: str
    example = ""
    types: tuple[type, ...] = (str,)
    options: type = NoOptions
    sample_options: Any = NoOptions()

    def accepts(self, text: Any) -> bool:
        """Tells by its form alone whether a text is a prompt for this capability; by default, any is."""
        return True

    def check(self, texts: Sequence[Any], tokenizer: Any, max_length: int, names: Names = None) -> None:
        """Raises UserError for unsuitable texts, by default for those that are longer than the model; `names` are what
        messages call them."""
        prompts.tokenize_prompts(texts, tokenizer, max_length, names)

    def prompt_from(self, sentence: str, mask: str, others: Sequence[str]) -> str | None:
        """Makes a prompt of a sentence of the run's text; None, as by default, if it makes none.

        Args:
          sentence: white space collapsed.
          mask: the text of the mask token; "" where the tokenizer has none.
          others: other sentences of the text.
        """

    def predict(self, run: Any, texts: Sequence[Any], options: Any, names: Names) -> list[Any]:
        """Predicts for each text. Raises UserError as `check`, and where the run lacks a head."""
        raise NotImplementedError

    def to_json(self, prediction: Any) -> dict[str, Any]:
        """Returns the fields that a prediction adds to a record of JSON Lines."""
        raise NotImplementedError

    def to_text(self, text: Any, prediction: Any, tokenizer: Any) -> str:
        """Formats a prediction for people."""
        raise NotImplementedError


@row
class ObjectiveDef(NamedTuple):
    """A row of `OBJECTIVES`: an objective as a choice of an experiment config."""

    config: type  # its frozen record
    # (config, model, vocabulary) -> Objective; with a fourth argument, `frozen={}`, if there are `parts`: each
    # `FrozenPart` by name. A run that is loaded for predictions may have no `teachers`.
    build: Callable[..., Objective]
    # every metric that its `loss` returns on validation data, with the optional ones
    metrics: Mapping[str, Metric]
    # config -> None; raises UserError if its fields do not fit each other
    check: Callable[[Any], None] = lambda config: None
    # config -> the batch fields that it needs of a format
    batch_fields: Callable[[Any], tuple[str, ...]] = lambda config: BATCH_FIELDS
    # config -> what training conditions on, which must be in `Model.conditions_on`
    conditions_on: Callable[[Any], Context] = lambda config: Context.BOTH
    # the predictions that a trained model can make; a text is given to the first that accepts it
    capabilities: tuple[Capability, ...] = ()
    # fields of the config that add losses or weigh them, and do not change examples and targets of other metrics.
    # Reports compare runs that differ in these fields.
    loss_fields: tuple[str, ...] = ()
    # fields of the config that may differ when a run is evaluated, such as how texts are searched
    evaluation_fields: tuple[str, ...] = ()
    # config -> the names of the frozen parts that it reads, which `config.frozen` must have
    parts: Callable[[Any], tuple[str, ...]] = lambda config: ()
    # the parts among these that only the loss reads, from the same tokens as the network: they must have been trained
    # with the tokens of this run's tokenizer, and predictions do not need them
    teachers: tuple[str, ...] = ()
    compares: bool = False  # whether `loss` compares examples with each other, which microbatches would keep apart


def check_capabilities(rows: Mapping[str, ObjectiveDef]) -> None:
    """Raises Broken where the capabilities of a row, which every command reads, are no tuple of `Capability`."""
    for name, definition in rows.items():
        given = definition.capabilities
        if not isinstance(given, tuple) or not all(isinstance(each, Capability) for each in given):
            raise Broken(f"{described('objective', name, definition.config)}: its capabilities are {type_of(given)}; "
                         "expected a tuple of Capability of lmrep.objectives.base; correct this component")
