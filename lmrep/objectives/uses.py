"""Functions of an objective that inference, reports, conversion and planning use."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lmrep.core.params import Array, Tree
from lmrep.models.base import Context
from lmrep.models.sizes import Sizes
from lmrep.objectives.scoring import Scoring


class NextToken(NamedTuple):
    """Functions that predict the token after a text, for generation, and for perplexity with a stride."""

    # (params, hidden [b, t, d]) -> float32 [b, t, v], of the token that follows each
    logits: Callable[[Tree, Array], Array]
    # (params, hidden [b, t, d], targets i32[b, t]) -> float32 [b, t], -log probability of the targets, where that costs
    # less than `logits`. None: computed from these.
    nll: Callable[[Tree, Array, Array], Array] | None = None
    decode: Mapping[str, Any] = {}  # further arguments of `State.decode`


class HeldOut(NamedTuple):
    """The inputs and the targets of a network in a prepared batch."""

    tokens: Array  # i32[b, t], the inputs
    positions: Array  # i32[b, m], the predicted positions
    targets: Array  # i32[b, m], the tokens at these positions; -1 if a position is not used


class NetworkUse(NamedTuple):
    """A network that a training step runs, forward and backward, for published formulas of compute."""

    sizes: Sizes | None  # the network's sizes; None if it states none
    # "masked" (the tokens at masked positions), "tokens" (those at all positions), "binary" (a label at all positions),
    # or "other": something that ELECTRA's script does not count
    predicts: str = "other"


class TextPairs(NamedTuple):
    """The source and the target that a conditioned objective passes to a network."""

    start: int  # the token that the decoder reads before the target
    end: int  # the token that ends sources and targets
    # prepared batch -> the batch that the network reads (`model_inputs`): `tokens` and `segment_ids` of the decoder,
    # `source`; and `targets` i32[b, t], the token after each
    batch: Callable[[dict[str, Array]], dict[str, Array]]
    # (length of an example, whether several texts are packed in it) -> (t, s), with padding
    lengths: Callable[[int, bool], tuple[int, int]]


class Uses(NamedTuple):
    """The parts of an objective that inference, reports, conversion and planning read; training does not."""

    conditions_on: Context = Context.BOTH  # what each position of an encoded text is conditioned on
    next_token: NextToken | None = None  # continues texts. None: the objective does not predict a text token by token.
    # its scores of texts, by name, the default first; {} if it has none. Names are those of the literature ("pll").
    scorings: Mapping[str, Scoring] = {}
    # prepared batch -> the tokens that the network reads and those that it predicts, for reports
    held_out: Callable[[dict[str, Array]], HeldOut] | None = None
    # (params, prepared batch) -> (tokens i32[b, t], some of which a generator replaced; bool[b, t], where it is judged
    # whether they were)
    replaced: Callable[[Tree, dict[str, Array]], tuple[Array, Array]] | None = None
    # (prepared batch, tokenizer) -> a text for each example
    describe: Callable[[dict[str, Array], Any], list[str]] | None = None
    # the networks that a training step runs. (): published formulas of compute do not apply.
    networks: tuple[NetworkUse, ...] = ()
    text_pairs: TextPairs | None = None  # for an objective that is conditioned on a source
    # head of published checkpoints (`lmrep.interop.heads.HEADS`) that equals one of this objective -> the name of its
    # parameters under "objective". {}: a run is written as its encoder alone.
    published_heads: Mapping[str, str] = {}
