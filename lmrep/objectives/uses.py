"""What a trained model is asked: by inference, reports, conversion and planning."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lmrep.core.params import Array, Tree
from lmrep.models.base import Context
from lmrep.models.sizes import Sizes
from lmrep.objectives.scoring import Scoring


class NextToken(NamedTuple):
    """How the token after a text is predicted: for generation, and for perplexity with a stride.

    Attributes:
      logits: (params, hidden [b, t, d]) -> float32 [b, t, v], of the token that follows each.
      nll: (params, hidden [b, t, d], targets i32[b, t]) -> float32 [b, t], -log probability of the targets, where that
        costs less than `logits`. None: computed from these.
      decode: further arguments of `State.decode`.
    """

    logits: Callable[[Tree, Array], Array]
    nll: Callable[[Tree, Array, Array], Array] | None = None
    decode: Mapping[str, Any] = {}


class HeldOut(NamedTuple):
    """What a network reads and predicts of a prepared batch.

    Attributes:
      tokens: i32[b, t], its inputs.
      positions: i32[b, m].
      targets: i32[b, m], the tokens that are predicted there; -1 where none is.
    """

    tokens: Array
    positions: Array
    targets: Array


class NetworkUse(NamedTuple):
    """A network that a training step runs, forward and backward, for published formulas of compute.

    Attributes:
      sizes: of the network; None where it states none.
      predicts: "masked" (the tokens at masked positions), "tokens" (those at all positions), "binary" (a label at all
        positions), or "other": something that ELECTRA's script does not count.
    """

    sizes: Sizes | None
    predicts: str = "other"


class TextPairs(NamedTuple):
    """How an objective that is conditioned on a source gives it, and a target, to a network.

    Attributes:
      start: the token that the decoder reads before the target's.
      end: the token that ends sources and targets.
      batch: prepared batch -> the batch that the network reads (`model_inputs`): `tokens` and `segment_ids` of the
        decoder, `source_tokens` and `source_segment_ids`; and `targets` i32[b, t], the token after each.
      lengths: (length of an example, whether several texts are packed in it) -> (t, s), with padding.
    """

    start: int
    end: int
    batch: Callable[[dict[str, Array]], dict[str, Array]]
    lengths: Callable[[int, bool], tuple[int, int]]


class Uses(NamedTuple):
    """What inference, reports, conversion and planning ask an objective. Training reads none of it.

    Attributes:
      conditions_on: what each position of an encoded text is conditioned on.
      next_token: continues texts. None: the objective does not predict a text token by token.
      scorings: how it scores texts, by name, the default first; {} if it cannot. Names are those of the literature
        ("pll").
      held_out: prepared batch -> the tokens that the network reads and those that it predicts, for reports.
      replaced: (params, prepared batch) -> (tokens i32[b, t], some of which a generator replaced; bool[b, t], where it
        is judged whether they were).
      describe: (prepared batch, tokenizer) -> a text for each example.
      networks: those that a training step runs. (): published formulas of compute do not apply.
      text_pairs: of an objective that is conditioned on a source.
      published_heads: the heads of published checkpoints (`lmrep.interop.heads.HEADS`) that mean the same as its own ->
        where their parameters lie under "objective". {}: a run is written as its encoder alone.
    """

    conditions_on: Context = Context.BOTH
    next_token: NextToken | None = None
    scorings: Mapping[str, Scoring] = {}
    held_out: Callable[[dict[str, Array]], HeldOut] | None = None
    replaced: Callable[[Tree, dict[str, Array]], tuple[Array, Array]] | None = None
    describe: Callable[[dict[str, Array], Any], list[str]] | None = None
    networks: tuple[NetworkUse, ...] = ()
    text_pairs: TextPairs | None = None
    published_heads: Mapping[str, str] = {}
